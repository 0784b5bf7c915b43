"""Launchers of the CUDA kernels under `kernels/`: compiled on first use, thin ever after.

A launch has two halves. What depends only on types, shapes, strides and alignment (which template
to instantiate, the grid, the geometry the kernel reads) is worked out once, by plain functions that
need no GPU, and remembered; what changes from call to call (pointers, alpha, beta) is passed along.
The second call of a shape costs microseconds.

Streams are CuPy streams (anything with `.ptr`); None is CuPy's current stream. Nothing here
allocates device memory or synchronises. CuPy compiles every kernel with `-ftz=true`, so float32
arithmetic takes subnormal numbers (below 1.2e-38) as zero.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.devices.launch_geometry import (
    BLOCK_THREADS,
    WIDEST_ACCESS_BYTES,
    block_shape,
    common_rows,
    pack_size,
    transpose_tile,
)
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

LARGEST_GRID = 2**31 - 1  # along x
LARGEST_GRID_YZ = 65535  # along y and z
MOST_LAUNCHES = 4096  # remembered; a process that meets more shapes starts over

_CUDA_TYPES = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
}
_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
_WORDS_OF_FILL = {**_WORDS, 16: "uint4"}


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


# ---------------------------------------------------------------------------------------------
# Compilation
# ---------------------------------------------------------------------------------------------


def sources_folder() -> Path:
    """Where the .cu files are: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "kernels"
    return installed if installed.is_dir() else package.parent / "kernels"


_compiled: dict[tuple[int, str, str], Any] = {}
_compiling = threading.Lock()


def _compile_options(folder: Path) -> tuple[str, ...]:
    # CuPy's cache on disk knows the source and the options but not the headers, so their hash
    # is an option: a changed header must not meet a stale binary.
    headers = b"".join(path.read_bytes() for path in sorted(folder.glob("*.cuh")))
    digest = hashlib.sha256(headers).hexdigest()[:16]
    return ("-std=c++17", f"-I{folder}", f"-DOOC_CUDNN_HEADERS=0x{digest}")


def _function(device: int, source: str, expression: str) -> Any:
    """The kernel `expression` (a template instance) of `kernels/<source>`, on `device`."""
    key = (device, source, expression)
    function = _compiled.get(key)
    if function is None:
        import cupy

        with _compiling:
            function = _compiled.get(key)
            if function is None:
                folder = sources_folder()
                module = cupy.RawModule(
                    code=(folder / source).read_text(encoding="utf-8"),
                    options=_compile_options(folder),
                    name_expressions=(expression,),
                )
                function = _compiled[key] = module.get_function(expression).kernel
    return function


class _Prepared(NamedTuple):
    function: Any
    grid: tuple[int, ...]
    block: tuple[int, int]
    geometry: np.ndarray


_UNKNOWN = _Prepared(None, (), (0, 0), np.empty(0))
_prepared: dict[Any, _Prepared | None] = {}
_current_device: Callable[[], int] | None = None


def _device() -> int:
    global _current_device
    if _current_device is None:
        import cupy

        _current_device = cupy.cuda.runtime.getDevice
    return _current_device()


def _prepare(device: int, key: Any, launch: Launch | None) -> _Prepared | None:
    """Compile a launch and remember it under `key`; None stands for nothing to do."""
    prepared = None
    if launch is not None:
        function = _function(device, launch.source, launch.expression)
        prepared = _Prepared(function, launch.grid, launch.block, launch.geometry)
    if len(_prepared) >= MOST_LAUNCHES:
        _prepared.clear()
    _prepared[key] = prepared
    return prepared


def _signature(view: DeviceView | None) -> tuple[Any, ...] | None:
    """Everything about a view on which the choice of a kernel depends."""
    if view is None:
        return None
    return view.dtype, view.shape, view.strides, view.pointer % WIDEST_ACCESS_BYTES


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
        its arithmetic type (float32 for the 16-bit types). They may be the same memory.
    addend : DeviceView, optional
        Of the arithmetic type, the same shape: a partial sum, say. May be the destination.
    scale, shift : DeviceView, optional
        One contiguous value per channel, of the data's type.
    old : DeviceView, optional
        What beta multiplies, of the destination's type and shape; usually the destination itself.
        Not read if beta is 0.
    mode : str
        One of `MODES`. NaN in gives NaN out in every mode.
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
    if (coef is None) == (mode in MODES_WITH_COEFFICIENT):
        rule = "needs" if coef is None else "takes no"
        raise ValueError(f"coef is {coef}; mode {mode!r} {rule} coef")
    device = _device()
    key = (
        "pointwise",
        device,
        mode,
        dtype,
        _signature(destination),
        _signature(value),
        _signature(addend),
        _signature(scale),
        _signature(shift),
        _signature(old),
    )
    prepared = _prepared.get(key, _UNKNOWN)
    if prepared is _UNKNOWN:
        if dtype is None:
            given = (destination, value, scale, shift)
            dtype = min((view for view in given if view), key=lambda view: view.item_bytes).dtype
        launch = plan_pointwise(destination, value, addend, scale, shift, old, mode, dtype)
        prepared = _prepare(device, key, launch)
    if prepared is None:
        return
    real = np.float64 if destination.dtype == "float64" else np.float32
    prepared.function(
        prepared.grid,
        prepared.block,
        (
            prepared.geometry,
            destination.pointer,
            value.pointer,
            addend.pointer if addend else 0,
            scale.pointer if scale else 0,
            shift.pointer if shift else 0,
            old.pointer if old else 0,
            real(alpha),
            real(beta),
            real(0.0 if coef is None else coef),
        ),
        stream=stream,
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
    sizes, to = destination.flat()
    _, source = value.flat()
    transposes = sizes[1] > 1 and sizes[2] > 1
    if transposes and source[2] == 1 and to[1] == 1 and source[1] != 1:
        return _plan_transpose(destination, value, from_channels_first=True)
    if transposes and source[1] == 1 and to[2] == 1 and source[2] != 1:
        return _plan_transpose(destination, value, from_channels_first=False)

    item = destination.item_bytes
    rows = common_rows(sizes, [to, source], keep_channel=False)
    pointers = [destination.pointer, value.pointer]
    count = pack_size(rows, [item, item], pointers, WIDEST_ACCESS_BYTES // item)
    unroll = _unroll(count * item)
    outer, middle, inner = rows.sizes
    blocks = block_shape(outer * middle, -(-inner // count), unroll)
    return Launch(
        "relayout.cu",
        f"copy_strided<{_WORDS[item]}, {count}, {unroll}, {_bool(blocks.unroll_rows)}, "
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
        f"transpose<{_WORDS[item]}, {tile_p}, {tile_q}, {load}, {store}, "
        f"{_bool(from_channels_first)}>",
        (
            min(-(-s // tile_s), LARGEST_GRID),
            min(-(-c // tile_c), LARGEST_GRID_YZ),
            min(n, LARGEST_GRID_YZ),
        ),
        (BLOCK_THREADS, 1),
        _geometry(n, size_p, size_q, source_n, value_q, to_n, destination_p),
    )


def relayout(destination: DeviceView, value: DeviceView, stream: Any = None) -> None:
    """Copy `value` to `destination`, of the same type and shape, between any two layouts.

    Bit for bit. The two must not overlap. Fast between channels-first and channels-last, and where
    the innermost axes agree; correct for any other strides.
    """
    device = _device()
    key = ("relayout", device, _signature(destination), _signature(value))
    prepared = _prepared.get(key, _UNKNOWN)
    if prepared is _UNKNOWN:
        prepared = _prepare(device, key, plan_relayout(destination, value))
    if prepared is not None:
        prepared.function(
            prepared.grid,
            prepared.block,
            (prepared.geometry, destination.pointer, value.pointer),
            stream=stream,
        )


def fill_zero(
    pointer: int, width_bytes: int, count: int, pitch_bytes: int, stream: Any = None
) -> None:
    """Zero `count` rows of `width_bytes` bytes that begin `pitch_bytes` bytes apart.

    Fastest where address, width and pitch are multiples of 16 bytes.
    """
    if width_bytes < 0 or count < 0:
        raise ValueError(f"width_bytes is {width_bytes} and count {count}; neither may be negative")
    if count > 1 and pitch_bytes < width_bytes:
        raise ValueError(f"pitch_bytes is {pitch_bytes}, less than width_bytes {width_bytes}")
    if width_bytes == 0 or count == 0:
        return
    if count == 1 or pitch_bytes == width_bytes:
        width_bytes, count = width_bytes * count, 1
        pitch_bytes = width_bytes
    joint = pointer | width_bytes | pitch_bytes | WIDEST_ACCESS_BYTES
    word = joint & -joint  # the largest power of two that divides all
    width = width_bytes // word
    blocks = min(-(-width * count // BLOCK_THREADS), LARGEST_GRID)
    _function(_device(), "relayout.cu", f"fill_zero<{_WORDS_OF_FILL[word]}>")(
        (blocks,),
        (BLOCK_THREADS,),
        (pointer, width, count, pitch_bytes // word),
        stream=stream,
    )


# ---------------------------------------------------------------------------------------------
# convolution_direct
# ---------------------------------------------------------------------------------------------


def _per_axis(name: str, given: int | Sequence[int], axes: int, least: int) -> tuple[int, ...]:
    numbers = (given,) * axes if isinstance(given, int) else tuple(given)
    if len(numbers) != axes:
        raise ValueError(f"{name} is {given}; it must be one number or {axes}, one per axis")
    if min(numbers, default=least) < least:
        raise ValueError(f"{name} is {given}; it must be at least {least}")
    return numbers


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
    device = _device()
    padding = _per_axis("padding", padding, axes, 0)
    stride = _per_axis("stride", stride, axes, 1)
    dilation = _per_axis("dilation", dilation, axes, 1)
    options = (padding, stride, dilation, groups)
    key = ("convolution", device, options, _signature(x), _signature(w), _signature(y))
    prepared = _prepared.get(key, _UNKNOWN)
    if prepared is _UNKNOWN:
        launch = plan_convolution_direct(x, w, y, padding, stride, dilation, groups)
        prepared = _prepare(device, key, launch)
    if prepared is not None:
        prepared.function(
            prepared.grid,
            prepared.block,
            (prepared.geometry, x.pointer, w.pointer, y.pointer),
            stream=stream,
        )
