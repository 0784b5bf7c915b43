"""The runner of cast_scale.cu: stored images as maps."""

from __future__ import annotations

from ooc_cudnn.devices.kernels.arguments import (
    CUDA_INTEGERS,
    CUDA_TYPES,
    index_type,
    is_small,
)
from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.elementwise import broadcast, pack_count, walk_fields, walk_struct
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.axes import merged_axes
from ooc_cudnn.operations.elementwise.cast_scale import CastScale
from ooc_cudnn.tensor import ACCUMULATOR

#: Packs of a thread, all loaded before the first is used.
UNROLL = 4


def plan_cast_scale(
    operation: CastScale, x: DeviceView, mean: DeviceView, scale: DeviceView, y: DeviceView
) -> Launch | None:
    """Choose the kernel; None if there is nothing to do."""
    if y.size == 0:
        return None
    vectors = [broadcast(vector, len(y.shape)) for vector in (mean, scale)]
    axes = merged_axes(y.shape, [view.strides for view in (y, x, *vectors)])
    count = pack_count(axes, [y, x])
    small = is_small([y, x, *vectors], y.size)
    walk = walk_fields(axes, count)
    types = f"{index_type(small=small)}, {CUDA_INTEGERS[x.dtype]}, {CUDA_TYPES[y.dtype]}"
    return Launch(
        "cast_scale.cu",
        f"cast_scale<{types}, {count}, {UNROLL}>",
        grid_of(walk["packs"], BLOCK_THREADS * UNROLL),
        walk_struct(walk, small=small),
    )


def cast_scale(operation: CastScale, call: Call) -> None:
    """Run `CastScale` on (x, mean, scale)."""
    real = ACCUMULATOR[operation.dtype]
    x = check("x", call.inputs[0], operation.shape, operation.stored)
    mean = check("mean", call.inputs[1], operation.mean_shape, real)
    scale = check("scale", call.inputs[2], operation.scale_shape, real)
    y = check("y", call.output, operation.shape, operation.dtype)
    launch(
        operation,
        (y, x, mean, scale),
        lambda: plan_cast_scale(operation, x, mean, scale, y),
        (),
        call.stream,
    )


RUNNERS: dict[type, Runner] = {CastScale: cast_scale}
