"""Launchers of the CUDA kernels under `kernels/`: compiled on first use, thin ever after.

A launch has two halves. What depends only on types, shapes, strides and alignment (which template
to instantiate, the grid, the geometry the kernel reads) is worked out once, by `plans`, and
remembered; what changes from call to call (pointers, alpha, beta) is passed along. The second call
of a shape costs microseconds.

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

from ooc_cudnn.devices.kernels.launch_geometry import (
    BLOCK_THREADS,
    LARGEST_GRID,
    WIDEST_ACCESS_BYTES,
)
from ooc_cudnn.devices.kernels.plans import (
    MODES_WITH_COEFFICIENT,
    WORDS,
    Launch,
    plan_convolution_direct,
    plan_pointwise,
    plan_relayout,
)
from ooc_cudnn.devices.view import DeviceView

MOST_LAUNCHES = 4096  # remembered; a process that meets more shapes starts over

_WORDS_OF_FILL = {**WORDS, 16: "uint4"}


# ---------------------------------------------------------------------------------------------
# Compilation
# ---------------------------------------------------------------------------------------------


def sources_folder() -> Path:
    """Where the .cu files are: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "kernels"
    return installed if installed.is_dir() else package.parent / "kernels"


_compiled: dict[tuple[int, str, str], Any] = {}
_compiling: dict[tuple[int, str, str], threading.Lock] = {}  # one of each kernel at a time


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

        with _compiling.setdefault(key, threading.Lock()):
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


# ---------------------------------------------------------------------------------------------
# hold
# ---------------------------------------------------------------------------------------------


def hold(seconds: float, stream: Any = None) -> None:
    """Keep a stream busy for so long."""
    function = _function(_device(), "hold.cu", "hold")
    function((1,), (1,), (np.uint64(seconds * 1e9),), stream=stream)


# ---------------------------------------------------------------------------------------------
# pointwise
# ---------------------------------------------------------------------------------------------


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
        One of `plans.MODES`. NaN in gives NaN out in every mode.
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
