"""What a launch of each kernel needs, worked out once per shape. Plain functions, no GPU needed.

The `plan_*` functions validate the operands and choose the template to instantiate, the grid and
the geometry that the kernel reads; `launchers` compiles, remembers and launches
what they return, and documents the operands.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooc_cudnn.devices.kernels.launch_geometry import (
    BLOCK_THREADS,
    LARGEST_GRID,
    LARGEST_GRID_YZ,
    WIDEST_ACCESS_BYTES,
    Rows,
    block_shape,
    common_rows,
    pack_size,
    transpose_tile,
)
from ooc_cudnn.devices.kernels.merged_axes import merged_axes
from ooc_cudnn.devices.view import ITEM_BYTES, DeviceView

# The numbers are the enumeration `Mode` in pointwise.cu.
MODES = {
    "identity": 0,
    "relu": 1,
    "clipped_relu": 2,
    "elu": 3,
    "sigmoid": 4,
    "tanh": 5,
    "swish": 6,
    "gelu": 7,
    "leaky_relu": 8,
}
MODES_WITH_COEFFICIENT = ("clipped_relu", "elu", "swish", "leaky_relu")

_CUDA_TYPES = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
}
#: Copies move elements as words of so many bytes.
WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


class Launch(NamedTuple):
    """All of a launch that does not change between calls of one shape."""

    source: str
    expression: str
    grid: tuple[int, ...]
    block: tuple[int, int]
    geometry: np.ndarray


def arithmetic_dtype(dtype: str) -> str:
    """The type in which elements of `dtype` are computed.

    >>> arithmetic_dtype("bfloat16"), arithmetic_dtype("float64")
    ('float32', 'float64')
    """
    return "float64" if dtype == "float64" else "float32"


def _geometry(*numbers: int) -> np.ndarray:
    """A C struct of 64-bit integers, which CuPy passes by value."""
    return np.array(numbers, dtype=np.int64).view(f"V{8 * len(numbers)}")


def _unroll(access_bytes: int, *, light: bool = False) -> int:
    """How many packs a thread takes: enough bytes in flight, in registers that are there.

    `light` promises few registers a pack, and much work a thread that its packs can share.
    """
    return 8 if light or access_bytes <= 4 else 4


def _bool(value: bool) -> str:
    return "true" if value else "false"


# ---------------------------------------------------------------------------------------------
# pointwise
# ---------------------------------------------------------------------------------------------


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

    `dtype` is the type of the data (T); value and destination have it or its arithmetic type.
    """
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}")
    real = arithmetic_dtype(dtype)
    for name, view, allowed in (
        ("destination", destination, (dtype, real)),
        ("value", value, (dtype, real)),
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
    present = [view for view in (destination, value, addend, old) if view is not None]
    sizes, _ = destination.flat()
    rows = common_rows(sizes, [view.flat()[1] for view in operands], keep_channel=bool(parameters))
    channel_inner = bool(parameters) and rows.inner_is_channel
    widest = max(destination.item_bytes, value.item_bytes)
    count = WIDEST_ACCESS_BYTES // widest
    count = pack_size(
        rows,
        [view.item_bytes for view in operands],
        [view.pointer if view in present else 0 for view in operands],
        count,
    )
    if channel_inner:  # scale and shift are read in packs too
        boundary = count * ITEM_BYTES[dtype]
        while any(pointer % min(WIDEST_ACCESS_BYTES, boundary) for pointer in parameters):
            boundary //= 2
        count = boundary // ITEM_BYTES[dtype]
    light = widest == 2 and addend is None and old is None
    unroll = _unroll(count * widest, light=light)
    outer, middle, inner = rows.sizes
    blocks = block_shape(outer * middle, -(-inner // count), unroll, one_column=channel_inner)
    arguments = (
        _CUDA_TYPES[dtype],
        _CUDA_TYPES[value.dtype],
        _CUDA_TYPES[destination.dtype],
        str(MODES[mode]),
        _bool(addend is not None),
        _bool(old is not None),
        str(count),
        str(unroll),
        _bool(blocks.unroll_rows),
        _bool(channel_inner),
        _bool(rows.contiguous),
    )
    return Launch(
        "pointwise.cu",
        f"pointwise<{', '.join(arguments)}>",
        (min(blocks.tiles, LARGEST_GRID),),
        blocks.block,
        _geometry(
            *rows.sizes,
            *(number for stride in rows.strides for number in stride),
            blocks.tiles,
            blocks.column_tiles,
        ),
    )


# ---------------------------------------------------------------------------------------------
# relayout
# ---------------------------------------------------------------------------------------------


def plan_relayout(destination: DeviceView, value: DeviceView) -> Launch | None:
    """Validate the operands of `relayout` and choose its kernel; None if there is nothing to do."""
    if value.shape != destination.shape or value.dtype != destination.dtype:
        raise ValueError(
            f"value is {value.dtype} {value.shape} and destination is {destination.dtype} "
            f"{destination.shape}; a relayout keeps type and shape"
        )
    if destination.size == 0:
        return None
    if not (destination.flattens and value.flattens):
        return _plan_copy(destination, value, merged_rows(destination, value))
    sizes, to = destination.flat()
    _, source = value.flat()
    transposes = sizes[1] > 1 and sizes[2] > 1
    if transposes and source[2] == 1 and to[1] == 1 and source[1] != 1:
        return _plan_transpose(destination, value, from_channels_first=True)
    if transposes and source[1] == 1 and to[2] == 1 and source[2] != 1:
        return _plan_transpose(destination, value, from_channels_first=False)

    return _plan_copy(destination, value, common_rows(sizes, [to, source], keep_channel=False))


def merged_rows(destination: DeviceView, value: DeviceView) -> Rows:
    """Rows of a copy between views whose spatial axes do not flatten into one.

    Rows of a taller tensor, say, that lie along another axis than the first: the axes outside of
    them are as in the taller one, and merge.

    >>> taller = DeviceView(4096, "float32", (2, 3, 4, 2, 5), (420, 140, 35, 5, 1))  # 2 of 7 rows
    >>> packed = DeviceView(8192, "float32", (2, 3, 4, 2, 5), (120, 40, 10, 5, 1))
    >>> merged_rows(taller, packed).sizes
    (1, 24, 10)

    Raises
    ------
    ValueError
        If more than three axes are left.
    """
    axes = merged_axes(destination.shape, [destination.strides, value.strides])
    missing = 2 - len(axes.sizes)
    if missing < 0:
        raise ValueError(
            f"strides {destination.strides} and {value.strides} of shape {destination.shape} lie "
            "too scattered for one copy"
        )
    outer, middle = (1,) * missing + axes.sizes
    strides = tuple(
        (*(0,) * missing, *steps, inner)
        for steps, inner in zip(axes.strides, axes.inner_strides, strict=True)
    )
    contiguous = all(step == 1 for step in axes.inner_strides)
    return Rows((outer, middle, axes.inner), strides, False, contiguous)  # type: ignore[arg-type]


def _plan_copy(destination: DeviceView, value: DeviceView, rows: Rows) -> Launch:
    """Plan a copy of rows of packs."""
    item = destination.item_bytes
    pointers = [destination.pointer, value.pointer]
    count = pack_size(rows, [item, item], pointers, WIDEST_ACCESS_BYTES // item)
    unroll = _unroll(count * item)
    outer, middle, inner = rows.sizes
    blocks = block_shape(outer * middle, -(-inner // count), unroll)
    return Launch(
        "relayout.cu",
        f"copy_strided<{WORDS[item]}, {count}, {unroll}, {_bool(blocks.unroll_rows)}, "
        f"{_bool(rows.contiguous)}>",
        (min(blocks.tiles, LARGEST_GRID),),
        blocks.block,
        _geometry(
            *rows.sizes,
            *(number for stride in rows.strides for number in stride),
            blocks.tiles,
            blocks.column_tiles,
        ),
    )


def _plan_transpose(
    destination: DeviceView, value: DeviceView, *, from_channels_first: bool
) -> Launch:
    (n, c, s), (to_n, to_c, to_s) = destination.flat()
    _, (source_n, source_c, source_s) = value.flat()
    item = destination.item_bytes
    tile_c, tile_s = transpose_tile(c, s, item)
    # p is contiguous in value, q in destination, as in relayout.cu.
    if from_channels_first:
        size_p, size_q, tile_p, tile_q = s, c, tile_s, tile_c
        value_q, destination_p = source_c, to_s
    else:
        size_p, size_q, tile_p, tile_q = c, s, tile_c, tile_s
        value_q, destination_p = source_s, to_c

    def pack(tile: int, pointer: int, *steps: int) -> int:
        count = WIDEST_ACCESS_BYTES // item
        while tile % count or pointer % (count * item) or any(step % count for step in steps):
            count //= 2
        return count

    load = pack(tile_p, value.pointer, value_q, source_n if n > 1 else 0)
    store = pack(tile_q, destination.pointer, destination_p, to_n if n > 1 else 0)
    return Launch(
        "relayout.cu",
        f"transpose<{WORDS[item]}, {tile_p}, {tile_q}, {load}, {store}, "
        f"{_bool(from_channels_first)}>",
        (
            min(-(-s // tile_s), LARGEST_GRID),
            min(-(-c // tile_c), LARGEST_GRID_YZ),
            min(n, LARGEST_GRID_YZ),
        ),
        (BLOCK_THREADS, 1),
        _geometry(n, size_p, size_q, source_n, value_q, to_n, destination_p),
    )


# ---------------------------------------------------------------------------------------------
# convolution_direct
# ---------------------------------------------------------------------------------------------


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

    def three(numbers: tuple[int, ...], filler: int) -> tuple[int, ...]:
        return (filler,) * (3 - axes) + numbers

    def strides(view: DeviceView) -> tuple[int, ...]:
        return view.strides[:2] + three(view.strides[2:], 0)

    each = channels_out // groups
    tile = 4 if each >= 4 else 1
    channel_tiles = -(-each // tile)
    threads = y.size // channels_out * groups * channel_tiles
    return Launch(
        "convolution_direct.cu",
        f"convolution_direct<{_CUDA_TYPES[x.dtype]}, {_CUDA_TYPES[y.dtype]}, {tile}>",
        (min(-(-threads // BLOCK_THREADS), LARGEST_GRID),),
        (BLOCK_THREADS, 1),
        _geometry(
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
