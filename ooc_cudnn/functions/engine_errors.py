"""How exact an engine is: a small problem of the same kind, against float64.

No engine that is chosen by its seconds is used before it was checked so, once for each kind: with
padding as it is, and with that of pieces at a border, which some engines take for symmetric. One
that computes no small problem cannot be checked, and is not used. The heuristics' choice alone is
the last resort then, with no error: it is taken where there is no engine that was checked.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.devices.base import Device, Event, running
from ooc_cudnn.devices.engines import Engine, Engines
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.alignment import aligned
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.operations.convolution_backward import (
    INPUTS,
    AnyConvolution,
    ConvolutionBackwardData,
    alone,
    forward_of,
    input_shapes,
    result_dtype,
    with_forward,
)
from ooc_cudnn.operations.launches import Launch
from ooc_cudnn.operations.rows import ROW_AXIS, with_padding
from ooc_cudnn.operations.window import Pair
from ooc_cudnn.pipeline.verify import rounding_share
from ooc_cudnn.tensor import SMALLEST_STEP, numpy_dtype, packed_strides

#: Images of the small problem, and its output sites along each axis. Some engines take none so
#: small, so one of more sites is asked for next, and then one of more images.
SMALL = (2, 14), (2, 40), (32, 14)
#: Channels of its result that are compared: the reference computes those alone.
CHANNELS = 8
#: The largest error that is admitted, as a share of the one that `verify` lets pass: that looks at
#: larger problems. By the errors that were measured of cuDNN 9.19 in strict float32 (3x3 windows,
#: 128 channels), FFT has about a thirtieth of that, direct sums a fifth, and Winograd's transforms
#: nine tenths and more. With 512 channels these have a third, as `verify` lets more pass there; but
#: of the largest result they err by three times what rounding explains, direct sums by two thirds.
MOST_OF_ROUNDING = 0.5

#: Numbers that are drawn, a prime: a linear layer has a hundred million weights.
DRAWN = 262_139

Array = np.ndarray[Any, Any]


class Error(NamedTuple):
    """The largest error: as a share of the largest result, and of what rounding explains.

    `of_rounding` goes by the sizes of each result's products, `of_largest` by the largest result.
    """

    relative: float
    of_rounding: float
    of_largest: float

    @property
    def is_admitted(self) -> bool:
        """Whether such an engine may be used; not with an error of NaN."""
        return self.of_rounding <= MOST_OF_ROUNDING and self.of_largest <= 1.0


#: Where there is no room to find it.
UNKNOWN = Error(math.inf, math.inf, math.inf)


class Checked(NamedTuple):
    """The errors of an engine: with padding as it is, and with that of the pieces at a border.

    No error where it could not be checked.
    """

    error: Error | None
    is_right_uneven: bool


class Checks:
    """Checks engines on a device, in so much of its memory."""

    def __init__(self, device: Device, engines: Engines, limit_bytes: int) -> None:
        self.device, self.engines, self.limit_bytes = device, engines, limit_bytes
        #: The expected results are the same for all engines of a kind.
        self._expected = lru_cache(maxsize=64)(Expected.of)

    def of(
        self,
        operation: AnyConvolution,
        engine: Engine,
        *,
        borders: bool,
        chosen: bool = False,
    ) -> Checked | None:
        """Return the errors of an engine; None where it cannot, or must not, compute an operation.

        What the arena held is overwritten.

        Parameters
        ----------
        borders : bool
            With padding of pieces there, too; without, there is no time for that, and it is not
            used for them.
        chosen : bool
            The heuristics chose it, so it runs where nothing was measured: it may be one that
            cannot be checked, and its error may be all that `verify` lets pass.
        """
        found = self._error(operation, engine)
        if found is None or found == UNKNOWN:
            return Checked(None, is_right_uneven=False) if chosen else None
        pieces = border_pieces(operation) if borders else []
        even = [piece for piece in pieces if forward_of(piece).is_even]
        errors = itertools.chain([found], (self._error(piece, engine) for piece in even))
        if not all(_admits(each, chosen=chosen) for each in errors):
            return None
        uneven = [piece for piece in pieces if piece not in even]
        is_right = all(_admits(self._error(piece, engine), chosen=False) for piece in uneven)
        return Checked(found, bool(uneven) and is_right)

    def _error(self, operation: AnyConvolution, engine: Engine) -> Error | None:
        """The error with one kind of padding; None where an engine does not compute that."""
        for images, sites in SMALL:
            small = small_like(operation, images, sites)
            with self.engines.forced(small, engine) as built:
                if built is not None:
                    expected = self._expected(small)
                    found = _computed(
                        self.device, small, expected.inputs, built[0], self.limit_bytes
                    )
                    return UNKNOWN if found is None else expected.compared(found)
        return None


def _admits(error: Error | None, *, chosen: bool) -> bool:
    """Whether an engine may be used with such an error; None: it computes nothing wrong there."""
    return error is None or error.is_admitted or (chosen and error.of_rounding <= 1.0)


def border_pieces(operation: AnyConvolution) -> list[AnyConvolution]:
    """Return an operation with the padding that its pieces have, cut along any axis.

    A piece may have padding where its call has none: of a data gradient, or where the piece that is
    measured lies inside. So may other calls of the same kind; hardly where a window is one site.

    Examples
    --------
    >>> pieces = border_pieces(Convolution.of((1, 4, 9, 9), (4, 4, 3, 1), padding=(1, 0)))
    >>> [piece.padding for piece in pieces]
    [((1, 0), (0, 0)), ((0, 1), (0, 0)), ((0, 0), (0, 0))]
    >>> pieces = border_pieces(Convolution.of((1, 4, 9, 9), (4, 4, 3, 1)))
    >>> [piece.padding for piece in pieces]
    [((1, 0), (0, 0)), ((0, 1), (0, 0))]
    """
    forward = forward_of(operation)
    paddings: dict[tuple[Pair, ...], None] = {}
    for at, pair in enumerate(forward.padding):
        has_none = pair == (0, 0) and forward.window[at] > 1
        before, after = (1, 1) if has_none else pair
        for other in ((before, 0), (0, after), (0, 0)):
            paddings[with_padding(forward.padding, other, ROW_AXIS + at)] = None
    return [
        with_forward(operation, replace(forward, padding=padding))
        for padding in paddings
        if padding != forward.padding
    ]


def small_like(operation: AnyConvolution, images: int, sites: int) -> AnyConvolution:
    """Return an operation of so many images and sites at most, with all else as it is.

    Examples
    --------
    >>> made = small_like(Convolution.of((64, 8, 224, 9), (16, 8, 3, 3), stride=2), 2, 14)
    >>> made.x_shape, made.output_shape
    ((2, 8, 29, 9), (2, 16, 14, 4))
    """
    forward = forward_of(operation)
    extents = [
        min(extent, max((k - 1) * d + 1 + (sites - 1) * s - before - after, 1))
        for extent, k, d, s, (before, after) in zip(
            forward.x_shape[2:], forward.window, forward.dilation, forward.stride, forward.padding,
            strict=True,
        )
    ]  # fmt: skip
    shape = (min(forward.x_shape[0], images), forward.x_shape[1], *extents)
    return with_forward(operation, replace(forward, x_shape=shape))


class Expected(NamedTuple):
    """What an operation is to make of its inputs, in some channels of the result; and how exactly.

    `tolerance` is the error that rounding explains, `share` the same of a sum of size one.
    """

    inputs: tuple[Array, ...]
    channels: Any
    values: Array
    tolerance: Array
    share: float

    @classmethod
    def of(cls, operation: AnyConvolution) -> Expected:
        """Draw inputs, and compute what they make in float64."""
        dtype, made = forward_of(operation).dtype, result_dtype(operation)
        inputs = tuple(
            _drawn(shape, dtype, seed) for seed, shape in enumerate(input_shapes(operation))
        )
        part, some, channels = _in_some_channels(operation, inputs)
        # sums of half types in float32 are rounded later, and once: some engines round them first
        arithmetic = forward_of(part).precision if made == dtype else made
        share = rounding_share(_terms(part), made, arithmetic)
        sizes = part.reference(*map(np.abs, some))
        tolerance = share * sizes + SMALLEST_STEP.get(made, 1e-30)
        return cls(inputs, channels, part.reference(*some), tolerance, share)

    def compared(self, found: Array) -> Error:
        """Return the error of a result."""
        error = np.abs(found[self.channels].astype(np.float64) - self.values)
        largest = max(float(np.abs(self.values).max()), 1e-30)
        relative = float(error.max()) / largest
        return Error(relative, float((error / self.tolerance).max()), relative / self.share)


def _in_some_channels(
    operation: AnyConvolution, inputs: tuple[Array, ...]
) -> tuple[AnyConvolution, tuple[Array, ...], Any]:
    """The operation that makes the first channels of a result, of what, and where they are."""
    forward, (first, second, *bias) = forward_of(operation), inputs
    if forward.groups > 1:  # few channels each
        return operation, inputs, ...
    if isinstance(operation, ConvolutionBackwardData):
        w = first[:, :CHANNELS]
        x_shape = (forward.x_shape[0], w.shape[1], *forward.x_shape[2:])
        made = replace(forward, x_shape=x_shape, w_shape=w.shape)
        return with_forward(operation, made), (w, second), np.s_[:, :CHANNELS]
    made = replace(forward, w_shape=(min(forward.w_shape[0], CHANNELS), *forward.w_shape[1:]))
    if isinstance(alone(operation), Convolution):
        some = (first, second[:CHANNELS], *(b[:CHANNELS] for b in bias))
        return with_forward(operation, made), some, np.s_[:, :CHANNELS]
    return with_forward(operation, made), (first, second[:, :CHANNELS]), np.s_[:CHANNELS]


def _terms(operation: AnyConvolution) -> int:
    """Products in a sum."""
    forward = forward_of(operation)
    if isinstance(alone(operation), Convolution):
        return math.prod(forward.w_shape[1:])
    if isinstance(operation, ConvolutionBackwardData):
        return forward.w_shape[0] // forward.groups * math.prod(forward.window)
    return forward.x_shape[0] * math.prod(forward.output_shape[2:])


def _drawn(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Normal numbers; of many the same over and over, but no row begins like another."""
    number = min(math.prod(shape), DRAWN)
    drawn = np.random.default_rng(seed).standard_normal(number).astype(numpy_dtype(dtype))
    return np.resize(drawn, shape)


def _computed(
    device: Device,
    operation: AnyConvolution,
    inputs: tuple[Array, ...],
    scratch_bytes: int,
    limit_bytes: int,
) -> Array | None:
    """What the device makes of the inputs, in memory full of NaN; None without room."""
    layout = forward_of(operation).layout
    result = np.full(operation.output_shape, np.nan, numpy_dtype(result_dtype(operation)))
    arrays = [_lying(array, layout) for array in (*inputs, result)]
    sizes = [aligned(array.nbytes) for array in arrays]
    if sum(sizes) + aligned(scratch_bytes) + device.arena.array_bytes > limit_bytes:
        return None
    at = device.arena.reserve(sum(sizes) + scratch_bytes, limit_bytes, purpose="tuning")
    names, views = INPUTS[: len(inputs)], {}
    for name, array, size in zip((*names, "result"), arrays, sizes, strict=True):
        dtype = result_dtype(operation) if name == "result" else forward_of(operation).dtype
        views[name] = DeviceView(at, dtype, array.shape, packed_strides(array.shape, layout))
        at += size
    launch = Launch(operation, names, "result")
    with running(device, overlap=False, staged=True, timed=False) as run:
        waits: list[Event | None] = [
            run.submit("copy_in", (), partial(device.copy_in, view, array), signals=True)
            for view, array in zip(views.values(), arrays, strict=True)
        ]
        launched = run.submit(
            "compute",
            waits,
            lambda stream: device.run(launch, views, (at, scratch_bytes), stream),
            signals=True,
        )
        run.submit(
            "copy_out",
            (launched,),
            lambda stream: device.copy_out(arrays[-1], views["result"], stream),
            signals=True,
        )
        run.finish(wait=True)
    return arrays[-1]


def _lying(array: Array, layout: str) -> Array:
    """The same array in a memory order, as its place on the device is."""
    if layout == "channels_first" or array.ndim < 3:
        return np.ascontiguousarray(array)
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)
