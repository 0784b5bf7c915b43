"""The runners of masks.cu: masks as bits."""

from __future__ import annotations

from collections.abc import Sequence

from ooc_cudnn.devices.kernels.arguments import (
    CUDA_TYPES,
    index_type,
    instance,
    is_small,
    real_type,
)
from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.elementwise import walk_fields, walk_struct
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of, is_aligned
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.axes import merged_axes
from ooc_cudnn.operations.elementwise.activation_bitmask import (
    BITS,
    MaskedGradient,
    SlopeMask,
    mask_shape,
)


def _steps_of_bytes(view: DeviceView) -> tuple[int, ...]:
    """Strides of a tensor, from the first element of a byte to that of the next."""
    return (*view.strides[:-1], BITS * view.strides[-1])


def _pack(views: Sequence[DeviceView]) -> int:
    """Elements of a pack: whole accesses of up to 16 bytes in every view.

    >>> _pack([DeviceView(0, "float32", (2, 3, 4, 14), (168, 56, 14, 1))])
    2
    """

    def is_packed(view: DeviceView) -> bool:
        steps = zip(view.shape[:-1], view.strides[:-1], strict=True)
        return view.strides[-1] == 1 and is_aligned(
            view, (step for extent, step in steps if extent > 1), count
        )

    count = BITS
    while count > 1 and not all(map(is_packed, views)):
        count //= 2
    return count


def _plan(
    kernel: str, template: Sequence[str], mask: DeviceView, *views: DeviceView
) -> Launch | None:
    """A thread for each byte of the mask; `views` in the kernel's order."""
    if mask.size == 0:
        return None
    place = (*[0] * (len(mask.shape) - 1), 1)
    strides = [view.strides if view is mask else _steps_of_bytes(view) for view in views]
    axes = merged_axes(mask.shape, [*strides, place])
    small = is_small(views, BITS * mask.size)
    walk = walk_fields(axes, 1)
    count = _pack([view for view in views if view is not mask])
    return Launch(
        "masks.cu",
        instance(kernel, index_type(small=small), *template, count),
        grid_of(walk["packs"], BLOCK_THREADS),
        walk_struct(walk, small=small),
    )


def slope_mask(operation: SlopeMask, call: Call) -> None:
    """Run `SlopeMask` on (x,)."""
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    mask = check("the mask", call.output, mask_shape(operation.shape), "uint8")
    template = CUDA_TYPES[operation.dtype], operation.mode.upper()
    launch(
        operation,
        (mask, x),
        lambda: _plan("slope_mask", template, mask, mask, x),
        (x.shape[-1], x.strides[-1], real_type(operation.dtype)(operation.coef)),
        call.stream,
    )


def masked_gradient(operation: MaskedGradient, call: Call) -> None:
    """Run `MaskedGradient` on (mask, dy)."""
    mask = check("the mask", call.inputs[0], mask_shape(operation.shape), "uint8")
    dy = check("dy", call.inputs[1], operation.shape, operation.dtype)
    dx = check("dx", call.output, operation.shape, operation.dtype)
    launch(
        operation,
        (dx, mask, dy),
        lambda: _plan("masked_gradient", (CUDA_TYPES[operation.dtype],), mask, dx, mask, dy),
        (
            dx.shape[-1], dx.strides[-1], dy.strides[-1], int(operation.slope is None),
            real_type(operation.dtype)(operation.slope or 0.0),
        ),
        call.stream,
    )  # fmt: skip


RUNNERS: dict[type, Runner] = {SlopeMask: slope_mask, MaskedGradient: masked_gradient}
