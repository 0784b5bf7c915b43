"""The runner of pointwise.cu: one pass of bias, activation, alpha and beta."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ooc_cudnn.devices.kernels.arguments import (
    CUDA_TYPES,
    instance,
    real_type,
)
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.launch import Launch, launch
from ooc_cudnn.devices.kernels.launch_geometry import (
    block_shape,
    common_rows,
    grid_of,
    pack_size,
    packs_a_thread,
)
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.operations.core.activation_modes import MODES
from ooc_cudnn.tensor import ACCUMULATOR, DTYPES, ITEM_BYTES


def pointwise(
    destination: DeviceView,
    value: DeviceView,
    *,
    addend: DeviceView | None = None,
    scale: DeviceView | None = None,
    shift: DeviceView | None = None,
    old: DeviceView | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    mode: str = "identity",
    coef: float | None = None,
    dtype: str | None = None,
    stream: Any = None,
) -> None:
    """destination = alpha * activation(scale * (value + addend) + shift) + beta * old.

    Parameters
    ----------
    destination, value : DeviceView
        Of one shape (n, c, spatial...), each with strides of its own, each of the data's type or
        its arithmetic type (float32 for the 16-bit types); without scale and shift of any types,
        which casts. They may be the same memory.
    addend : DeviceView, optional
        Of the arithmetic type, the same shape: a partial sum, say. May be the destination.
    scale, shift : DeviceView, optional
        One contiguous value per channel, of the data's type.
    old : DeviceView, optional
        What beta multiplies, of the destination's type and shape; usually the destination itself.
        Not read if beta is 0.
    mode : str
        One of `activation_modes.MODES`. NaN in gives NaN out in every mode.
    coef : float, optional
        clipped_relu: the ceiling; elu: the negative saturation; swish: beta; leaky_relu: the
        negative slope. Required for these, refused for the others.
    dtype : str, optional
        The data's type, where no operand tells: float32 value and destination in the middle of
        16-bit work with scale or shift. By default the narrowest type among value, destination,
        scale and shift.

    Raises
    ------
    ValueError
        If operands do not fit each other, or an argument would be ignored.
    """
    if beta == 0:
        old = None
    elif old is None:
        raise ValueError(f"beta is {beta} and there is no old; give old, or beta=0")
    if mode in MODES and (coef is None) == (MODES[mode].coef is not None):
        rule = "needs" if coef is None else "takes no"
        raise ValueError(f"coef is {coef}; mode {mode!r} {rule} coef")

    def plan() -> Launch | None:
        given = [view.dtype for view in (destination, value, scale, shift) if view]
        data = dtype or _data_dtype(given)
        return plan_pointwise(destination, value, addend, scale, shift, old, mode, data)

    real = real_type(max(destination, value, key=lambda view: view.item_bytes).dtype)
    launch(
        ("pointwise", mode, dtype),
        (destination, value, addend, scale, shift, old),
        plan,
        (real(alpha), real(beta), real(coef or 0.0)),
        stream,
    )


def _data_dtype(dtypes: Sequence[str]) -> str:
    """Return the narrowest type; of a cast that passes by its arithmetic, a type that holds all."""
    narrowest = min(dtypes, key=lambda each: ITEM_BYTES[each])
    if {narrowest, ACCUMULATOR[narrowest]}.issuperset(dtypes):
        return narrowest
    return "float64" if "float64" in dtypes else "float32"


def _channel_pointer(name: str, view: DeviceView, channels: int, dtype: str) -> int:
    long_axes = [
        (size, stride) for size, stride in zip(view.shape, view.strides, strict=True) if size != 1
    ]
    expected = [] if channels == 1 else [(channels, 1)]
    if long_axes != expected:
        raise ValueError(
            f"{name} has shape {view.shape} and strides {view.strides}; "
            f"it must hold {channels} contiguous values, one per channel"
        )
    if view.dtype != dtype:
        raise ValueError(f"{name} is {view.dtype}; with this data it must be {dtype}")
    return view.pointer


def plan_pointwise(
    destination: DeviceView,
    value: DeviceView,
    addend: DeviceView | None,
    scale: DeviceView | None,
    shift: DeviceView | None,
    old: DeviceView | None,
    mode: str,
    dtype: str,
) -> Launch | None:
    """Validate the operands of `pointwise` and choose its kernel; None if there is nothing to do.

    `dtype` is the type of the data (T); value and destination have it or its arithmetic type. Where
    it is that type itself, they may also have a narrower one: a cast.
    """
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}")
    real = ACCUMULATOR[dtype]
    narrower = [each for each in DTYPES if dtype == real and DTYPES[each] < DTYPES[real]]
    kinds = tuple(dict.fromkeys((dtype, real, *narrower)))
    for name, view, allowed in (
        ("destination", destination, kinds),
        ("value", value, kinds),
        ("addend", addend, (real,)),
        ("old", old, (destination.dtype,)),
    ):
        if view is None:
            continue
        if view.shape != destination.shape:
            raise ValueError(
                f"{name} has shape {view.shape}; the destination's is {destination.shape}"
            )
        if view.dtype not in allowed:
            raise ValueError(
                f"{name} is {view.dtype}; with {dtype} data it must be {' or '.join(allowed)}"
            )
    channels = destination.shape[1]
    parameters = [
        _channel_pointer(name, view, channels, dtype)
        for name, view in (("scale", scale), ("shift", shift))
        if view is not None
    ]
    if destination.size == 0:
        return None

    # The absent ones take the destination's geometry and are never read.
    operands = [destination, value, addend or destination, old or destination]
    sizes, _ = destination.flat()
    rows = common_rows(sizes, [view.flat()[1] for view in operands], keep_channel=bool(parameters))
    channel_inner = bool(parameters) and rows.inner_is_channel
    widest = max(destination.item_bytes, value.item_bytes)
    count = pack_size(rows, operands, WIDEST_ACCESS_BYTES // widest)
    if channel_inner:  # scale and shift are read in packs too
        boundary = count * ITEM_BYTES[dtype]
        while any(pointer % min(WIDEST_ACCESS_BYTES, boundary) for pointer in parameters):
            boundary //= 2
        count = boundary // ITEM_BYTES[dtype]
    light = widest == 2 and addend is None and old is None
    unroll = packs_a_thread(count * widest, light=light)
    outer, middle, inner = rows.sizes
    blocks = block_shape(outer * middle, -(-inner // count), unroll, one_column=channel_inner)
    types = [CUDA_TYPES[each] for each in (dtype, value.dtype, destination.dtype)]
    template = (mode.upper(), addend is not None, old is not None, count, unroll)
    flags = (blocks.unroll_rows, channel_inner, rows.contiguous)
    return Launch(
        "pointwise.cu",
        instance("pointwise", *types, *template, *flags),
        grid_of(blocks.tiles),
        fill_struct(
            *("pointwise.cu", "PointwiseGeometry"),
            size=rows.sizes,
            **dict(zip(("destination", "value", "addend", "old"), rows.strides, strict=True)),
            tiles=blocks.tiles,
            column_tiles=blocks.column_tiles,
        ),
        blocks.block,
    )
