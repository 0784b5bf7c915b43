"""Error of an operation on a device, with drawn numbers and memory full of NaN, against float64."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.devices.base import Device, Event, open_run
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.alignment import align
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    INPUTS,
    AnyConvolution,
    ConvolutionBackwardData,
    forward_of,
    input_shapes,
    replace_forward,
    result_dtype,
    without_epilogue,
)
from ooc_cudnn.operations.core.launch import Launch
from ooc_cudnn.pipeline.verify import rounding_share
from ooc_cudnn.tensor import SMALLEST_STEP, numpy_dtype, packed_strides

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
        """True if such an engine may be chosen by its seconds; not with an error of NaN."""
        return self.of_rounding <= MOST_OF_ROUNDING and self.of_largest <= 1.0

    @property
    def is_explained(self) -> bool:
        """True if rounding explains it, as `verify` judges; not an error of NaN."""
        return self.of_rounding <= 1.0


#: Where there is no room to find it.
UNKNOWN = Error(math.inf, math.inf, math.inf)


class ExpectedResult(NamedTuple):
    """Expected result of an operation, in some channels; and how exactly.

    `tolerance` is the error that rounding explains, `share` the same of a sum of size one.
    """

    inputs: tuple[Array, ...]
    channels: Any
    values: Array
    tolerance: Array
    share: float

    @classmethod
    def of(cls, operation: AnyConvolution) -> ExpectedResult:
        """Draw inputs, and compute what they make in float64."""
        dtype, result_type = forward_of(operation).dtype, result_dtype(operation)
        inputs = tuple(
            _drawn(shape, dtype, seed) for seed, shape in enumerate(input_shapes(operation))
        )
        part, some, channels = _in_some_channels(operation, inputs)
        # sums of half types in float32 are rounded later, and once: some engines round them first
        arithmetic = forward_of(part).precision if result_type == dtype else result_type
        share = rounding_share(_terms(part), result_type, arithmetic)
        sizes = part.reference(*map(np.abs, some))
        tolerance = share * sizes + SMALLEST_STEP.get(result_type, 1e-30)
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
    forward, (first, second, *more) = forward_of(operation), inputs
    if forward.groups > 1:  # few channels each
        return operation, inputs, ...
    if isinstance(operation, ConvolutionBackwardData):
        w = first[:, :CHANNELS]
        x_shape = (forward.x_shape[0], w.shape[1], *forward.x_shape[2:])
        part = replace(forward, x_shape=x_shape, w_shape=w.shape)
        some = (w, second, *(each[:, :CHANNELS] for each in more))
        return replace_forward(operation, part), some, np.s_[:, :CHANNELS]
    part = replace(forward, w_shape=(min(forward.w_shape[0], CHANNELS), *forward.w_shape[1:]))
    if isinstance(without_epilogue(operation), Convolution):
        some = (first, second[:CHANNELS], *(b[:CHANNELS] for b in more))
        return replace_forward(operation, part), some, np.s_[:, :CHANNELS]
    return replace_forward(operation, part), (first, second[:, :CHANNELS]), np.s_[:CHANNELS]


def _terms(operation: AnyConvolution) -> int:
    """Products in a sum."""
    forward = forward_of(operation)
    if isinstance(without_epilogue(operation), Convolution):
        return math.prod(forward.w_shape[1:])
    if isinstance(operation, ConvolutionBackwardData):
        return forward.w_shape[0] // forward.groups * math.prod(forward.window)
    return forward.x_shape[0] * math.prod(forward.output_shape[2:])


def _drawn(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Normal numbers; of many the same over and over, but no row begins like another."""
    number = min(math.prod(shape), DRAWN)
    drawn = np.random.default_rng(seed).standard_normal(number).astype(numpy_dtype(dtype))
    return np.resize(drawn, shape)


def compute(
    device: Device,
    operation: AnyConvolution,
    inputs: tuple[Array, ...],
    scratch_bytes: int,
    limit_bytes: int,
) -> Array | None:
    """Compute on the device, in memory full of NaN; None without room."""
    layout = forward_of(operation).layout
    result = np.full(operation.output_shape, np.nan, numpy_dtype(result_dtype(operation)))
    arrays = [_lying(array, layout) for array in (*inputs, result)]
    sizes = [align(array.nbytes) for array in arrays]
    if sum(sizes) + align(scratch_bytes) + device.arena.array_bytes > limit_bytes:
        return None
    address = device.arena.reserve(sum(sizes) + scratch_bytes, limit_bytes, purpose="tuning")
    names, views = INPUTS[: len(inputs)], {}
    for name, array, size in zip((*names, "result"), arrays, sizes, strict=True):
        dtype = result_dtype(operation) if name == "result" else forward_of(operation).dtype
        views[name] = DeviceView(address, dtype, array.shape, packed_strides(array.shape, layout))
        address += size
    launch = Launch(operation, names, "result")
    with open_run(device, overlap=False, staged=True, timed=False) as run:
        waits: list[Event | None] = [
            run.submit("copy_in", (), partial(device.copy_in, view, array), signals=True)
            for view, array in zip(views.values(), arrays, strict=True)
        ]
        launched = run.submit(
            "compute",
            waits,
            lambda stream: device.run(launch, views, (address, scratch_bytes), stream),
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
