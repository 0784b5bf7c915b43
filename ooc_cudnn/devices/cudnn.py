"""Convolutions through NVIDIA's cudnn-frontend: a graph for each piece shape, built once.

Measured on cuDNN 9.19: every dtype, layout, stride, dilation, group count and asymmetric padding is
supported on packed tensors, but half types with a float32 result and few channels; on strided
tensors of 2**31 elements and more cuDNN writes nonsense, so pieces are always packed here. What it
does not support, `kernels/convolution_direct.cu` computes.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from ooc_cudnn.devices import kernels
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.errors import CudnnError
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.tensor import packed_strides

_X, _W, _Y = 1, 2, 3  # tensor identifiers in a graph


def _is_faulty(engine: str, operation: Convolution) -> bool:
    """Whether an engine of cuDNN is known to compute an operation wrongly.

    Engine 5 (one channel a group), seen with cuDNN 9.19 on an H200: wrong for every image but the
    first where the last axis has more padding before than after.

    >>> _is_faulty("eng5_k1=2", Convolution.of((2, 1, 5), (1, 1, 3), padding=((1, 0),)))
    True
    >>> _is_faulty("eng50", Convolution.of((2, 1, 5), (1, 1, 3), padding=((1, 0),)))
    False
    """
    before, after = operation.padding[-1]
    return engine.split("_")[0] == "eng5" and before != after


class Executable(NamedTuple):
    """A built plan: the graph, which of its plans, its scratch bytes and its engine's name."""

    graph: Any
    plan_index: int
    workspace_bytes: int
    engine: str


class Convolutions:
    """cuDNN's handle and the plans of one GPU."""

    def __init__(self) -> None:
        import cudnn

        self._cudnn = cudnn
        self._handle: Any = None
        self._lock = threading.RLock()
        # Most capable first: without a budget, then those that fit smaller and smaller ones.
        self._built: dict[tuple[Convolution, int | None], Executable | None] = {}
        self._chosen: dict[tuple[Convolution, int], Executable | None] = {}

    @property
    def handle(self) -> Any:
        """The cuDNN handle, made at first use."""
        if self._handle is None:
            self._handle = self._cudnn.create_handle()
        return self._handle

    def forget(self) -> None:
        """Drop every plan."""
        with self._lock:
            self._built.clear()
            self._chosen.clear()

    def executable(self, operation: Convolution, budget_bytes: int | None) -> Executable | None:
        """Return an operation's plan, its workspace within a budget; None if there is none."""
        key = (operation, budget_bytes)
        with self._lock:
            if key not in self._built:
                self._built[key] = self._build(operation, budget_bytes)
            return self._built[key]

    def run(
        self,
        operation: Convolution,
        inputs: tuple[DeviceView, ...],
        output: DeviceView,
        workspace: tuple[int, int],
        stream: Any,
    ) -> None:
        """Launch on a stream; a workspace that is large enough for the preferred plan gets it."""
        (x, w), y = inputs, output
        if 0 in y.shape:
            return
        if 0 in x.shape:  # the piece sees padding alone
            nbytes = y.size * y.item_bytes
            kernels.fill_zero(y.pointer, nbytes, 1, nbytes, stream)
            return
        pointer, available = workspace
        try:
            found = self._chosen[operation, available]
        except KeyError:
            found = self._choose(operation, available)
        if found is None:
            kernels.convolution_direct(
                x,
                w,
                y,
                padding=[before for before, _ in operation.padding],
                stride=operation.stride,
                dilation=operation.dilation,
                groups=operation.groups,
                stream=stream,
            )
            return
        handle = self.handle
        self._cudnn.set_stream(handle, stream.ptr)
        found.graph.execute_plan_at_index(
            {_X: x.pointer, _W: w.pointer, _Y: y.pointer}, pointer, found.plan_index, handle
        )

    def _choose(self, operation: Convolution, available_bytes: int) -> Executable | None:
        found = self.executable(operation, None)
        if found is not None and found.workspace_bytes > available_bytes:
            found = self.executable(operation, available_bytes)
        self._chosen[operation, available_bytes] = found
        return found

    def _build(self, operation: Convolution, budget_bytes: int | None) -> Executable | None:
        cudnn = self._cudnn
        graph = self._describe(operation)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            graph.deselect_numeric_notes(self._forbidden(operation))
            if budget_bytes is not None:
                graph.deselect_workspace_greater_than(budget_bytes)
            graph.check_support()
        except cudnn.cudnnGraphNotSupportedError:
            return None
        except RuntimeError as error:
            raise CudnnError(f"cuDNN cannot build {operation}: {error}") from error
        for index in range(graph.get_execution_plan_count()):
            if _is_faulty(graph.get_plan_name_at_index(index), operation):
                continue
            try:  # the best ranked that is neither deselected nor unsupported
                graph.build_plan_at_index(index)
            except (cudnn.cudnnGraphNotSupportedError, RuntimeError):
                continue
            nbytes = int(graph.get_workspace_size_plan_at_index(index))
            return Executable(graph, index, nbytes, graph.get_plan_name_at_index(index))
        return None

    def _describe(self, operation: Convolution) -> Any:
        """State the operation as a graph of packed tensors in the operation's layout."""
        cudnn = self._cudnn
        types = {
            "float16": cudnn.data_type.HALF,
            "bfloat16": cudnn.data_type.BFLOAT16,
            "float32": cudnn.data_type.FLOAT,
            "float64": cudnn.data_type.DOUBLE,
        }
        compute = types["float64" if operation.dtype == "float64" else "float32"]
        data = types[operation.dtype]
        # A single spatial axis becomes the second of two: as the first it has slower engines.
        flat = len(operation.x_shape) == 3
        x_shape, w_shape, y_shape = (
            (*shape[:2], 1, shape[2]) if flat else shape
            for shape in (operation.x_shape, operation.w_shape, operation.output_shape)
        )
        padding = ((0, 0), *operation.padding) if flat else operation.padding
        graph = cudnn.pygraph(
            io_data_type=data,
            intermediate_data_type=compute,
            compute_data_type=compute,
            handle=self.handle,
        )

        def tensor(shape: tuple[int, ...], name: str, uid: int) -> Any:
            return graph.tensor(
                dim=list(shape),
                stride=list(packed_strides(shape, operation.layout)),
                data_type=data,
                name=name,
                uid=uid,
            )

        y = graph.conv_fprop(
            image=tensor(x_shape, "x", _X),
            weight=tensor(w_shape, "w", _W),
            pre_padding=[before for before, _ in padding],
            post_padding=[after for _, after in padding],
            stride=[1, *operation.stride] if flat else list(operation.stride),
            dilation=[1, *operation.dilation] if flat else list(operation.dilation),
            compute_data_type=compute,
        )
        y.set_output(True).set_uid(_Y).set_data_type(types[operation.y_dtype])
        y.set_dim(list(y_shape)).set_stride(list(packed_strides(y_shape, operation.layout)))
        return graph

    def _forbidden(self, operation: Convolution) -> list[Any]:
        """Numerical notes whose engines must not be used."""
        notes = self._cudnn.numerical_note
        forbidden = []
        if operation.dtype == "float32" and not operation.allow_tf32:
            forbidden += [
                notes.TENSOR_CORE,
                notes.DOWN_CONVERT_INPUTS,
                notes.REDUCED_PRECISION_REDUCTION,
                notes.FFT,
            ]
        if operation.deterministic:
            forbidden.append(notes.NONDETERMINISTIC)
        return forbidden
