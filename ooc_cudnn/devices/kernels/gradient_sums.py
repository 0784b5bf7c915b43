"""Runners of gradient_sums.cu: gradients before an activation and their sums, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, real_type
from ooc_cudnn.devices.kernels.channel_reduction import (
    SUMS,
    image_steps,
    kept_columns,
    normalise_sums,
    plan_totals,
    workspace_bytes,
)
from ooc_cudnn.devices.kernels.checks import check, check_packed, workspace_pointer
from ooc_cudnn.devices.kernels.group_walk import REDUCTION_BLOCKS, Most, walk_channels
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.elementwise.gradient_reductions import GradientSums
from ooc_cudnn.operations.normalization.batch_launches import NormaliseSums
from ooc_cudnn.tensor import ACCUMULATOR

#: What a thread has where what is before the activation is normalised again, and elsewhere. Two
#: packs of four elements are 54 to 80 registers, and three or four blocks on a multiprocessor. Four
#: packs of 16 bytes were 78 to 188, and one or two blocks: 35 to 87 % of a copy's bandwidth on an
#: H200, the less the fewer the blocks. What is normalised reads two tensors and writes none: four
#: packs of four elements take 0.76 of the time of two.
MOST_NORMALISED, MOST = Most(packs=4, elements=4), Most(packs=2, elements=4)


def _sum(
    operation: GradientSums | NormaliseSums,
    kind: str,
    call: Call,
    tensors: Sequence[DeviceView | None],
    vectors: Sequence[DeviceView | None],
) -> None:
    """Launch the pass, which leaves partial sums, and add these up.

    The tensors are (dz, y, dy, x, more), the vectors (mean, inverse deviation, scale, bias).
    """
    dy = tensors[2]
    assert dy is not None
    channels, walk, partial = operation.shape[1], None, 0
    if dy.size:
        most = MOST_NORMALISED if tensors[0] is None else MOST
        walk = walk_channels([view or dy for view in tensors], REDUCTION_BLOCKS, most)
        numbers = SUMS[kind] * walk.parts * kept_columns(walk, channels)
        partial = workspace_pointer(call.workspace, 8 * numbers)

    def partials() -> Launch:
        assert walk is not None
        flags = [tensors[0] is None, kind == "PRODUCTS"]
        arguments: list[str | int] = [CUDA_TYPES[dy.dtype], operation.mode.upper(), *flags]
        return walk.launch("gradient_sums.cu", "gradient_partials", *arguments)

    if walk is not None:
        real = real_type(operation.dtype)
        scalars = (partial, channels, real(operation.coef))
        key: Hashable = (operation, walk)
        launch(key, (*tensors, *vectors), partials, scalars, call.stream)
    launch(
        (operation, walk, "totals"),
        (call.output, dy),
        lambda: plan_totals(walk, dy, call.output, kind, 1),
        (partial, image_steps(0, 0, 0, 0)),
        call.stream,
    )


def gradient_sums(operation: GradientSums, call: Call) -> None:
    """Run `GradientSums` on (y, dy, more, dz, x, mean)."""
    y, dy, more, dz, x, mean = call.inputs
    shape, dtype = operation.shape, operation.dtype
    y, dy, dz = (
        check(name, view, shape, dtype) for name, view in (("y", y), ("dy", dy), ("dz", dz))
    )
    if operation.products:
        more = check("more", more, shape, dtype)
        x = check("x", x, shape, dtype)
        mean = check_packed("mean", mean, shape[1:2], ACCUMULATOR[dtype])
    else:
        more = x = mean = None
    result_dtype = "float64" if operation.products else operation.result_dtype
    check_packed("the sums", call.output, operation.output_shape, result_dtype)
    kind = "PRODUCTS" if operation.products else "TOTAL"
    _sum(operation, kind, call, (dz, y, dy, x, more), (mean, None, None, None))


def any_normalise_sums(operation: NormaliseSums, call: Call) -> None:
    """Run `NormaliseSums` on (x, dy, mean), or (x, dy, mean, inverse deviation, scale, bias)."""
    if operation.mode == "identity":
        normalise_sums(operation, call)
        return
    x, dy, *vectors = call.inputs
    x, dy = (
        check(name, view, operation.shape, operation.dtype) for name, view in (("x", x), ("dy", dy))
    )
    vector = (operation.shape[1],), ACCUMULATOR[operation.dtype]
    names = ("mean", "the inverse deviation", "scale", "bias")
    vectors = [check_packed(name, view, *vector) for name, view in zip(names, vectors, strict=True)]
    check_packed("the sums", call.output, operation.output_shape, "float64")
    _sum(operation, "PRODUCTS", call, (None, None, dy, x, None), vectors)


RUNNERS: dict[type, Runner] = {GradientSums: gradient_sums, NormaliseSums: any_normalise_sums}
WORKSPACE: dict[type, Callable[[Any], int]] = {
    GradientSums: lambda operation: workspace_bytes(operation.shape, 1 + operation.products),
}
