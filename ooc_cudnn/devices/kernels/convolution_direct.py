"""The runner of convolution_direct.cu: what cuDNN refuses. Correct, and slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, arithmetic_dtype, geometry, three
from ooc_cudnn.devices.kernels.launch import Launch, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, LARGEST_GRID
from ooc_cudnn.devices.view import DeviceView


def _per_axis(name: str, given: int | Sequence[int], axes: int, least: int) -> tuple[int, ...]:
    numbers = (given,) * axes if isinstance(given, int) else tuple(given)
    if len(numbers) != axes:
        raise ValueError(f"{name} is {given}; it must be one number or {axes}, one per axis")
    if min(numbers, default=least) < least:
        raise ValueError(f"{name} is {given}; it must be at least {least}")
    return numbers


def convolution_direct(
    x: DeviceView,
    w: DeviceView,
    y: DeviceView,
    *,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    stream: Any = None,
) -> None:
    """y = the cross-correlation of x with w: cudnnConvolutionForward, plainly. Correct, and slow.

    For what cuDNN refuses: any sizes, any strides of every axis, up to three spatial axes.

    Parameters
    ----------
    x, w : DeviceView
        (n, cX, spatial...) and (cY, cX / groups, spatial...), of one type.
    y : DeviceView
        (n, cY, spatial...), of x's type or its arithmetic type. Its spatial sizes say how many
        outputs to compute. It must not overlap x or w.
    padding, stride, dilation : int or sequence of int
        One number for all spatial axes or one per axis. `padding` is what lies before the first
        row; after the last row there are as many zero rows as y asks for.
    groups : int
        Divides cX and cY.
    """
    axes = len(x.shape) - 2
    padding = _per_axis("padding", padding, axes, 0)
    stride = _per_axis("stride", stride, axes, 1)
    dilation = _per_axis("dilation", dilation, axes, 1)
    options = (padding, stride, dilation, groups)
    launch(
        ("convolution", options),
        (x, w, y),
        lambda: plan_convolution_direct(x, w, y, *options),
        (),
        stream,
    )


def plan_convolution_direct(
    x: DeviceView,
    w: DeviceView,
    y: DeviceView,
    padding: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Launch | None:
    """Validate the operands of `convolution_direct` and choose its kernel."""
    axes = len(x.shape) - 2
    if not 1 <= axes <= 3 or len(w.shape) != axes + 2 or len(y.shape) != axes + 2:
        raise ValueError(
            f"x, w and y have {len(x.shape)}, {len(w.shape)} and {len(y.shape)} axes; "
            "they must have the same number, from 3 to 5"
        )
    batch, channels_in = x.shape[:2]
    channels_out = w.shape[0]
    if groups < 1 or channels_in % groups or channels_out % groups:
        raise ValueError(
            f"groups is {groups}; it must divide the {channels_in} channels of x "
            f"and the {channels_out} of y"
        )
    if w.shape[1] * groups != channels_in or y.shape[:2] != (batch, channels_out):
        raise ValueError(
            f"x {x.shape}, w {w.shape}, y {y.shape} and {groups} groups do not fit each other"
        )
    if w.dtype != x.dtype or y.dtype not in (x.dtype, arithmetic_dtype(x.dtype)):
        raise ValueError(
            f"x is {x.dtype}, w {w.dtype} and y {y.dtype}; w must have x's type, "
            f"y that or {arithmetic_dtype(x.dtype)}"
        )
    if y.size == 0:
        return None

    def strides(view: DeviceView) -> tuple[int, ...]:
        return view.strides[:2] + three(view.strides[2:], 0)

    each = channels_out // groups
    tile = 4 if each >= 4 else 1
    channel_tiles = -(-each // tile)
    threads = y.size // channels_out * groups * channel_tiles
    return Launch(
        "convolution_direct.cu",
        f"convolution_direct<{CUDA_TYPES[x.dtype]}, {CUDA_TYPES[y.dtype]}, {tile}>",
        (min(-(-threads // BLOCK_THREADS), LARGEST_GRID),),
        (BLOCK_THREADS, 1),
        geometry(
            *(groups, channels_in // groups, each),
            *three(x.shape[2:], 1),
            *three(w.shape[2:], 1),
            *three(y.shape[2:], 1),
            *strides(x),
            *strides(w),
            *strides(y),
            *three(padding, 0),
            *three(stride, 1),
            *three(dilation, 1),
            *(channel_tiles, threads, int(y.strides[1] == 1 and channels_out > 1)),
        ),
    )
