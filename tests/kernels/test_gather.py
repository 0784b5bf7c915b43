"""The kernels of elements taken as they are, beside NumPy's own indexing.

tests/kernels/test_resampling.py has their pieces, beside references.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import arguments, gather
from ooc_cudnn.devices.kernels import resampling as resampling_module
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.resampling.arguments import describe_crop, describe_padding, interpolation
from ooc_cudnn.operations.resampling.axis_windows import Windows
from ooc_cudnn.operations.resampling.forward import Resampling, ResamplingBackward
from tests.support.device_operand import DTYPES, NUMPY, Operand
from tests.support.kernel_runs import run


def every(step, shape, start=0):
    """One element in `step` on each axis, from `start` on; outputs that see nothing are `value`."""
    windows = tuple(
        Windows(extent, -(-extent // step) + 1, step=step, before=-start) for extent in shape[2:]
    )
    return Resampling(shape[:2], windows, value=7.0)


#: Of few elements a thread has some, and of many a row has several tiles.
CASES = {
    "crop": describe_crop((2, 8, 9, 12), (2, 4), (5, 8)),
    "crop, odd channels": describe_crop((2, 7, 6, 9), (1, 3), (4, 5)),
    "crop, 1d": describe_crop((3, 3, 40), 7, 22),
    "crop, 3d": describe_crop((1, 16, 4, 5, 6), (1, 0, 2), (2, 5, 3)),
    "crop, long rows": describe_crop((1, 72, 2, 80), (0, 5), (2, 71)),
    "crop, one channel, long rows": describe_crop((1, 1, 2, 9000), (1, 5), (1, 8900)),
    "pad": describe_padding((2, 8, 5, 6), 1, value=-1.5),
    "pad, three channels": describe_padding((2, 3, 7, 5), ((1, 2), (3, 0)), value=2.0),
    "pad and crop": describe_padding((2, 6, 7, 5), ((-2, 3), (1, -2)), value=0.5),
    "upsampling": interpolation((2, 8, 4, 5), scale_factor=2),
    "upsampling, odd": interpolation((2, 5, 3, 4), size=(9, 20)),
    "upsampling by a fraction": interpolation((1, 4, 6, 4), size=(9, 7)),
    "upsampling, 3d": interpolation((1, 3, 2, 3, 4), scale_factor=2),
    "downsampling": interpolation((2, 8, 9, 8), size=(3, 4)),
    "one in three": every(3, (2, 5, 7, 8)),
    "one in two, from the second on": every(2, (1, 8, 5, 12), start=1),
    "one site": describe_crop((3, 8, 3, 3), 1, 1),
}
LAYOUTS = ["first first", "last last", "first last", "last first", "images images",
           "first_rows first_rows", "last_rows last_rows"]  # fmt: skip


def operand(shape, dtype, layout, *, data=None, offset=0, beside=(0, 0)):
    """An operand with so many channels before and behind it, which are NaN and stay so."""
    n, channels, *spatial = shape
    before, after = beside
    whole = np.full((n, before + channels + after, *spatial), np.nan, NUMPY[dtype])
    if data is not None:
        whole[:, before : before + channels] = data
    made = Operand(whole.shape, dtype, layout, data=whole, offset=offset)
    view = made.view
    pointer = view.pointer + before * view.strides[1] * view.item_bytes
    made.array = made.array[:, before : before + channels]
    made.view = DeviceView(pointer, dtype, tuple(shape), view.strides)
    return made


def places(operation):
    """Where each output looks, along every axis, and which outputs look at anything."""
    bounds = [windows.bounds(np.arange(windows.count)) for windows in operation.windows]
    found = np.ix_(*(np.where(stop > start, start, 0) for start, stop in bounds))
    there = np.ix_(*((stop > start).astype(int) for start, stop in bounds))
    return (..., *found), math.prod(there) > 0


def drawn(shape, dtype, seed=0):
    return (np.random.default_rng(seed).integers(-4, 5, shape) / 2).astype(NUMPY[dtype])


def in_type(case, dtype):
    of = CASES[case]
    return Resampling(of.lead, of.windows, dtype, value=of.value, title=of.title)


def same_bits(a, b):
    return np.array_equal(np.ascontiguousarray(a).view(np.uint8), b.view(np.uint8))


def check(operation, layouts, x=None, dy=None, offsets=(0, 0), beside=((0, 0), (0, 0))):
    """Forward and backward; of the source and the result layouts, offsets, channels beside them."""
    dtype, inputs, outputs = operation.dtype, operation.input_shape, operation.output_shape
    x = drawn(inputs, dtype) if x is None else x
    dy = drawn(outputs, dtype, 1) if dy is None else dy
    at, there = places(operation)
    y = np.where(there, x[at], np.array(operation.value, NUMPY[dtype]))
    dx = np.zeros(inputs, np.float64)
    with np.errstate(invalid="ignore"):
        np.add.at(dx, at, np.where(there, dy, 0).astype(np.float64))
    backward = ResamplingBackward(operation, operation.reads)
    for made, data, shape, expected in (
        (operation, x, outputs, y),
        (backward, dy, inputs, dx.astype(NUMPY[dtype])),
    ):
        source, result = (
            operand(sizes, dtype, layout, data=values, offset=offset, beside=channels)
            for sizes, values, layout, offset, channels in zip(
                (data.shape, shape), (data, None), layouts.split(), offsets, beside, strict=True
            )
        )
        found = run(resampling_module, made, (source,), result)
        assert np.array_equal(
            found.astype(np.float64), expected.astype(np.float64), equal_nan=True
        ), made.name


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_every_case(case, dtype, layouts):
    check(in_type(case, dtype), layouts)


@pytest.mark.parametrize("beside", [((8, 8), (0, 0)), ((0, 8), (16, 0)), ((1, 2), (3, 1)),
                                    ((4, 1), (1, 0))])  # fmt: skip
@pytest.mark.parametrize("layout", ["first", "last", "last_rows"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["crop", "pad, three channels", "upsampling", "one in three"])
def test_parts_of_a_concatenation(case, dtype, layout, beside):
    """What lies beside them is not read, and stays as it was."""
    check(in_type(case, dtype), f"{layout} {layout}", beside=beside)


@pytest.mark.parametrize("offsets", [(1, 0), (0, 1), (3, 3), (2, 4)])
@pytest.mark.parametrize("layouts", ["first first", "last last"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["crop", "crop, odd channels", "pad", "upsampling, odd"])
def test_tensors_that_begin_on_no_wide_boundary(case, dtype, layouts, offsets):
    check(in_type(case, dtype), layouts, offsets=offsets)


@pytest.mark.parametrize("layouts", ["first first", "last last"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_offsets_of_64_bits(case, dtype, layouts, monkeypatch):
    monkeypatch.setattr(arguments, "SMALL_OFFSETS", 0)
    check(in_type(case, dtype), layouts)


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["crop", "pad", "pad and crop", "upsampling", "one in three"])
def test_infinities_and_none(case, dtype, layouts):
    """Outside of a crop its gradient is 0, and an element has the NaN of its own outputs alone."""
    operation = in_type(case, dtype)
    x, dy = drawn(operation.input_shape, dtype), drawn(operation.output_shape, dtype, 1)
    for values in (x, dy):
        values.reshape(-1)[::5] = np.nan
        values.reshape(-1)[1::7] = np.inf
    check(operation, layouts, x, dy)
    check(operation, layouts, x, np.full_like(dy, np.nan))


@pytest.mark.parametrize("layouts", ["first first", "last last", "first last"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["crop", "crop, odd channels", "pad"])
def test_elements_are_copied_bit_for_bit(case, dtype, layouts):
    """Subnormal numbers, -0 and what a NaN holds: a card that computes flushes some of them."""
    operation = in_type(case, dtype)
    item = NUMPY[dtype].itemsize
    bits = np.random.default_rng(5)
    at, there = places(operation)
    layout, result_layout = layouts.split()
    of = np.frombuffer(bits.bytes(operation.input_shape[0] * 4096 * item), NUMPY[dtype])
    x = np.resize(of, operation.input_shape)
    result = operand(operation.output_shape, dtype, result_layout)
    y = run(resampling_module, operation, (operand(x.shape, dtype, layout, data=x),), result)
    assert same_bits(y[..., there], np.ascontiguousarray(x[at][..., there]))
    dy = np.resize(of, operation.output_shape)
    result = operand(operation.input_shape, dtype, result_layout)
    backward = ResamplingBackward(operation, operation.reads)
    dx = run(resampling_module, backward, (operand(dy.shape, dtype, layout, data=dy),), result)
    assert same_bits(dx[at][..., there], np.ascontiguousarray(dy[..., there]))


def view(shape, layout, dtype="float32", *, pointer=4096, channels=None):
    """A view of the first channels of so many."""
    n, c, h, w = shape
    c = channels or c
    strides = (c * h * w, 1, c * w, c) if layout == "last" else (c * h * w, h * w, w, 1)
    return DeviceView(pointer, dtype, (n, *shape[1:]), strides)


def planned(operation, layout, *, backward=False, channels=None, pointer=4096):
    x = view(operation.input_shape, layout, operation.dtype, pointer=pointer)
    y = view(operation.output_shape, layout, operation.dtype, channels=channels)
    ways = ((x, y), (operation.reads, operation.makes))
    (result, source), (makes, begins) = ways if backward else (each[::-1] for each in ways)
    found = gather.plan(operation, makes, result, source, begins, backward=backward)
    assert found is not None
    return found.expression


def test_kernels_that_are_chosen():
    crop = describe_crop((4, 64, 568, 568), 88, 392)
    assert (
        planned(crop, "last", backward=True, channels=128) == "gather_nhwc<int, float, true, 4, 4>"
    )
    assert planned(crop, "last") == "gather_nhwc<int, float, true, 4, 4>"
    assert planned(crop, "first") == planned(crop, "first", backward=True)
    assert planned(crop, "first") == "gather_nchw<int, float, true, 4, 4>"
    large = describe_crop((40, 64, 1136, 1136), 88, 392, dtype="float16")
    assert planned(large, "last") == "gather_nhwc<long long, __half, true, 8, 4>"
    odd = describe_padding((8, 3, 224, 224), 1, dtype="bfloat16")
    assert planned(odd, "last") == "gather_nchw<int, __nv_bfloat16, true, 8, 4>"
    double = interpolation((4, 64, 128, 128), scale_factor=2, dtype="float64")
    assert planned(double, "last") == "gather_nhwc<int, double, true, 2, 4>"
    assert planned(double, "last", backward=True) == "gather_nhwc<int, double, false, 2, 1>"
    # source on a narrow boundary, or channels that leave gaps
    assert planned(crop, "last", pointer=4104) == "gather_nhwc<int, float, true, 2, 4>"
    assert planned(crop, "last", pointer=4100) == "gather_nchw<int, float, true, 4, 4>"
    three = describe_crop((2, 3, 30, 30), 2, 20)
    assert planned(three, "last", channels=7) == "gather_nhwc<int, float, true, 1, 4>"


def test_what_is_not_taken():
    taken = [describe_crop((1, 1, 9), 2, 3), interpolation((1, 1, 9), scale_factor=2)]
    others = [
        interpolation((1, 1, 9), scale_factor=2, mode="linear"),
        interpolation((1, 1, 2), size=82),  # places that only float32 rounds
        Resampling((1, 1), (Windows(9, 3, step=3, reach=2),)),
        Resampling((1, 1), (Windows(9, 3, step=3),), is_max=True),
    ]
    assert all(map(gather.is_gather, taken))
    assert not any(map(gather.is_gather, others))
