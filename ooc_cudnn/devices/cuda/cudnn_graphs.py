"""A convolution or one of its gradients, stated as a cuDNN graph of packed tensors."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import FusedConvolution
from ooc_cudnn.operations.convolution.gradients import (
    AddedBackwardData,
    AnyConvolution,
    ConvolutionBackwardData,
    forward_of,
    input_shapes,
    result_dtype,
    without_epilogue,
)
from ooc_cudnn.tensor import packed_strides

#: Tensor identifiers in a graph: the operation's inputs in their order, and its result.
INPUTS, RESULT = (1, 2, 4), 3


def describe(cudnn: Any, handle: Any, operation: AnyConvolution) -> Any:
    """State an operation as a graph; its tensors are packed, in the operation's layout.

    Nothing is checked or built yet.
    """
    types = {
        "float16": cudnn.data_type.HALF,
        "bfloat16": cudnn.data_type.BFLOAT16,
        "float32": cudnn.data_type.FLOAT,
        "float64": cudnn.data_type.DOUBLE,
    }
    forward = forward_of(operation)
    data = types[forward.dtype]
    compute = types["float64" if forward.dtype == "float64" else "float32"]
    # A single spatial axis becomes the second of two: as the first it has slower engines.
    flat = len(forward.x_shape) == 3

    def dimensions(shape: tuple[int, ...]) -> list[int]:
        return [*shape[:2], 1, shape[2]] if flat else list(shape)

    def strides(shape: tuple[int, ...]) -> list[int]:
        return list(packed_strides(tuple(dimensions(shape)), forward.layout))

    graph = cudnn.pygraph(
        io_data_type=data,
        intermediate_data_type=compute,
        compute_data_type=compute,
        handle=handle,
    )

    def tensor(shape: tuple[int, ...], name: str, uid: int) -> Any:
        return graph.tensor(
            dim=dimensions(shape), stride=strides(shape), data_type=data, name=name, uid=uid
        )

    padding = ((0, 0), *forward.padding) if flat else forward.padding
    windows = {
        "pre_padding": [before for before, _ in padding],
        "post_padding": [after for _, after in padding],
        "stride": [1, *forward.stride] if flat else list(forward.stride),
        "dilation": [1, *forward.dilation] if flat else list(forward.dilation),
        "compute_data_type": compute,
    }
    first, second = (
        tensor(shape, name, uid)
        for shape, name, uid in zip(
            input_shapes(without_epilogue(operation)), ("a", "b"), INPUTS[:2], strict=True
        )
    )
    if isinstance(without_epilogue(operation), Convolution):
        result = graph.conv_fprop(image=first, weight=second, **windows)
    elif isinstance(operation, ConvolutionBackwardData):
        result = graph.conv_dgrad(filter=first, loss=second, **windows)
    else:
        result = graph.conv_wgrad(image=first, loss=second, **windows)
    shape = operation.output_shape
    if isinstance(operation, AddedBackwardData):
        result.set_dim(dimensions(shape)).set_stride(strides(shape))
        result = graph.add(a=result, b=tensor(shape, "addend", INPUTS[2]))
    if isinstance(operation, FusedConvolution):
        bias = tensor((1, shape[1], *(1 for _ in shape[2:])), "bias", INPUTS[2])
        result = graph.bias(input=result, bias=bias)
        if operation.mode == "relu":
            result = graph.relu(input=result)
    result.set_output(True).set_uid(RESULT).set_data_type(types[result_dtype(operation)])
    result.set_dim(dimensions(shape)).set_stride(strides(shape))
    return graph


def forget_frames(graph: Any) -> None:
    """Take the tracebacks off the errors that a graph keeps.

    cudnn-frontend 1.28 keeps why its backend declined a graph. The traceback of that error knows
    the frames of all callers, the graph among them: so users' arrays would stay until the garbage
    is collected, and those of a graph that is kept for good, for good.
    """
    errors = [
        kept for kept in getattr(graph, "__dict__", {}).values() if isinstance(kept, BaseException)
    ]
    seen: set[int] = set()
    while errors:
        error = errors.pop()
        if id(error) not in seen:
            seen.add(id(error))
            error.__traceback__ = None
            errors += [e for e in (error.__cause__, error.__context__) if e is not None]


@contextmanager
def collect_errors() -> Iterator[None]:
    """Collect the errors that the frontend keeps in cycles with its frames.

    These keep ours, and the arrays of the call with them, until the cycles are collected.
    """
    try:
        yield
    finally:
        gc.collect(1)
