"""The softmax kernels, over channels and over images, against NumPy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import softmax as kernels_softmax
from ooc_cudnn.operations.softmax.channels import (
    ImageMaximum,
    ImageProductSum,
    ImageSoftmax,
    ImageSoftmaxBackward,
    Softmax,
    SoftmaxBackward,
)
from ooc_cudnn.tensor import ACCUMULATOR
from tests.support.device_operand import DTYPES, EPSILON, Operand, assert_close, random
from tests.support.kernel_runs import run

LAYOUTS = ["first", "last", "first_rows", "last_rows"]
SHAPES = [
    (2, 2, 5, 7), (1, 1, 1, 1), (3, 64, 7, 7), (2, 1, 9, 9), (1, 5, 1000), (2, 3, 4, 5, 6),
    (700, 2, 3, 1), (4, 33), (300, 7), (2, 3, 20_001), (2, 130, 3, 5), (2, 1001, 3), (40, 1000),
    (5, 4096), (3, 5001), (2, 8200, 2), (3, 21, 40, 30), (2, 32, 8, 8), (1, 300, 6, 6),
    (2, 150_000), (1, 600, 40), (1000, 10), (3, 4, 4, 4), (5, 16_400), (3, 10_000), (2, 16_384),
]  # fmt: skip


def softmax(x, algorithm, axes=1):
    shifted = x - x.max(axis=axes, keepdims=True)
    total = np.exp(shifted).sum(axis=axes, keepdims=True, dtype=np.longdouble).astype(float)
    return np.exp(shifted) / total if algorithm == "accurate" else shifted - np.log(total)


def backward(y, dy, algorithm, axes=1):
    if algorithm == "accurate":
        return y * (dy - (y * dy).sum(axis=axes, keepdims=True))
    return dy - np.exp(y) * dy.sum(axis=axes, keepdims=True)


def rounding(x, y, dtype, algorithm, axes=1):
    """How far y may be from the softmax of x: x - max(x) is rounded, and the sum's logarithm."""
    unit = EPSILON[ACCUMULATOR[dtype]]
    with np.errstate(all="ignore"):
        depth = x.max(axis=axes, keepdims=True) - x
        terms = np.log(math.prod(np.array(x.shape)[np.atleast_1d(axes)]))
        size = np.abs(y) * (16 + depth) if algorithm == "accurate" else 16 * (np.abs(y) + terms + 1)
        size = np.where(np.isfinite(size), size, 0)
    return unit * size + (2.0**-24 if dtype == "float16" else 0)  # a subnormal's last place


def check_forward(shape, dtype, layout, algorithm, *, offset=0, data=None):
    data = 4 * random(shape, 1) if data is None else data
    x = Operand(shape, dtype, layout, data=data, offset=offset)
    with np.errstate(all="ignore"):
        expected = softmax(x.wide, algorithm)
    slack = rounding(x.wide, expected, dtype, algorithm)
    y = Operand(shape, dtype, layout)
    operation = Softmax(shape, algorithm, dtype)
    assert_close(run(kernels_softmax, operation, (x,), y), expected, dtype, slack)
    assert_close(run(kernels_softmax, operation, (x,), x), expected, dtype, slack)


def check_backward(shape, dtype, layout, algorithm, *, offset=0):
    y_data = softmax(4 * random(shape, 1), algorithm)
    y = Operand(shape, dtype, layout, data=y_data, offset=offset)
    dy = Operand(shape, dtype, layout, data=random(shape, 2), offset=offset)
    expected = backward(y.wide, dy.wide, algorithm)
    summed = np.abs(dy.wide) * (1 if algorithm == "log" else np.abs(y.wide))
    factor = np.exp(y.wide) if algorithm == "log" else np.abs(y.wide)
    size = np.abs(dy.wide) * (1 if algorithm == "log" else factor)
    size = size + factor * summed.sum(axis=1, keepdims=True)
    slack = 32 * EPSILON[ACCUMULATOR[dtype]] * size + (2.0**-24 if dtype == "float16" else 0)
    dx = Operand(shape, dtype, layout)
    operation = SoftmaxBackward(shape, algorithm, dtype)
    assert_close(run(kernels_softmax, operation, (y, dy), dx), expected, dtype, slack)
    assert_close(run(kernels_softmax, operation, (y, dy), dy), expected, dtype, slack)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_channels(dtype, shape, layout):
    check_forward(shape, dtype, layout, "accurate")
    check_forward(shape, dtype, layout, "log", offset=1)
    check_backward(shape, dtype, layout, "accurate", offset=1)
    check_backward(shape, dtype, layout, "log")


@pytest.mark.parametrize("algorithm", ["accurate", "log"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_channels_in_other_types(dtype, layout, algorithm):
    for shape in ((3, 24, 9, 16), (3, 5, 9, 7), (2, 600, 12), (7, 5000), (2, 9000, 3)):
        check_forward(shape, dtype, layout, algorithm)
        check_backward(shape, dtype, layout, algorithm)


@pytest.mark.parametrize("algorithm", ["accurate", "log"])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_in_chunks(dtype, offset, algorithm):
    """Of rows that are about as long as a block's registers, and longer."""
    for shape in ((2, 17_000), (2, 33_000), (3, 35_003)):
        check_forward(shape, dtype, "first", algorithm, offset=offset)
        check_backward(shape, dtype, "first", algorithm, offset=offset)
    data = random((4, 33_000))
    data[0, 20_000], data[1, 5], data[2], data[3, 32_900] = np.nan, np.inf, -np.inf, -np.inf
    check_forward(data.shape, dtype, "first", algorithm, data=data)


@pytest.mark.parametrize("algorithm", ["accurate", "log"])
@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("channels", [2, 8, 100, 1024, 3000, 9001])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_and_infinity_stay_at_their_site(dtype, channels, layout, algorithm):
    shape = (2, channels, 1, 9)
    data = random(shape)
    data[0, 1, 0, 1] = np.nan
    data[0, 0, 0, 2] = np.inf
    data[0, :, 0, 3] = -np.inf
    data[0, -1, 0, 4] = -np.inf
    data[0, :-1, 0, 5] = -np.inf
    data[1, :, 0, 0] = 1e4
    check_forward(shape, dtype, layout, algorithm, data=data)


def test_operands_in_different_orders():
    shape = (2, 6, 5, 7)
    y = Operand(shape, "float32", "last", data=softmax(random(shape, 1), "accurate"))
    dy = Operand(shape, "float32", "first", data=random(shape, 2))
    for layout in LAYOUTS:
        dx = Operand(shape, "float32", layout)
        result = run(kernels_softmax, SoftmaxBackward(shape, "accurate", "float32"), (y, dy), dx)
        assert_close(result, backward(y.wide, dy.wide, "accurate"), "float32", 1e-6)


def test_nothing():
    for shape in ((0, 3, 4), (2, 3, 0)):
        x = Operand(shape, "float32")
        run(kernels_softmax, Softmax(shape, "accurate", "float32"), (x,), x)


# Images ---------------------------------------------------------------------------------------

IMAGE_SHAPES = [
    (2, 3, 5, 7), (1, 1, 1, 1), (3, 64, 7, 7), (1, 5, 1000), (2, 3, 4, 5, 6), (3000, 2, 3, 1),
    (4, 33), (2, 3, 20_001), (1, 3, 300, 500), (40, 1000), (2, 100_000),
]  # fmt: skip


def image_axes(x):
    return tuple(range(1, x.ndim))


def check_images(shape, dtype, layout, *, offset=0, data=None):
    data = 4 * random(shape, 1) if data is None else data
    x = Operand(shape, dtype, layout, data=data, offset=offset)
    dy = Operand(shape, dtype, layout, data=random(shape, 2), offset=offset)
    n, axes, rank = shape[0], image_axes(x.wide), len(shape)
    real = ACCUMULATOR[dtype]
    unit = EPSILON[real]

    with np.errstate(all="ignore"):
        m = x.wide.max(axis=axes)
        total = np.exp(x.wide - m.reshape(n, *[1] * (rank - 1))).sum(axis=axes)
    m = np.where(np.isnan(total), np.nan, m)  # +infinity, too
    state = Operand((n, 2), "float64")
    result = run(kernels_softmax, ImageMaximum(shape, dtype), (x,), state)
    nothing = (x.wide == -np.inf).all(axis=axes)
    expected = np.stack([np.where(nothing, -np.inf, m), np.where(nothing, 0, total)], axis=1)
    assert_close(result, expected, "float64", 16 * unit * np.abs(np.nan_to_num(total))[:, None])

    state = Operand((n, 2), "float64", data=expected)
    for algorithm in ("accurate", "log"):
        with np.errstate(all="ignore"):
            y_wide = softmax(x.wide, algorithm, axes)
        y = Operand(shape, dtype, layout)
        operation = ImageSoftmax(shape, algorithm, dtype)
        slack = rounding(x.wide, y_wide, dtype, algorithm, axes)
        result = run(kernels_softmax, operation, (x, state), y)
        assert_close(result, y_wide, dtype, slack)
        if not np.isfinite(y_wide).all():
            continue

        y = Operand(shape, dtype, layout, data=y_wide, offset=offset)
        terms = dy.wide * (1 if algorithm == "log" else y.wide)
        sums = Operand((n, 1), "float64")
        operation = ImageProductSum(shape, algorithm, dtype)
        inputs = (None if algorithm == "log" else y, dy)
        result = run(kernels_softmax, operation, inputs, sums)
        assert_close(result[:, 0], terms.sum(axis=axes), "float64",
                     1e-14 * np.abs(terms).sum(axis=axes))  # fmt: skip

        sums = Operand((n, 1), "float64", data=terms.sum(axis=axes))
        operation = ImageSoftmaxBackward(shape, algorithm, dtype)
        factor = np.exp(y.wide) if algorithm == "log" else y.wide
        shaped = sums.wide.reshape(n, *[1] * (rank - 1))
        size = np.abs(dy.wide) * (1 if algorithm == "log" else factor) + factor * np.abs(shaped)
        result = run(kernels_softmax, operation, (y, dy, sums), Operand(shape, dtype, layout))
        slack = 16 * unit * size + (2.0**-24 if dtype == "float16" else 0)
        assert_close(result, backward(y.wide, dy.wide, algorithm, axes), dtype, slack)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", IMAGE_SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_images(dtype, shape, layout):
    check_images(shape, dtype, layout)
    check_images(shape, dtype, layout, offset=1)


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_parts_of_an_image_are_joined(dtype, layout):
    check_images((2, 3, 60, 70), dtype, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_images_in_other_types(dtype, layout):
    for shape in ((3, 24, 9, 16), (3, 5, 9, 7)):
        check_images(shape, dtype, layout)


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_and_infinity_stay_in_their_image(dtype, layout):
    shape = (6, 3, 40, 50)
    data = random(shape)
    data[1, 2, 39, 49] = np.nan
    data[2, 1, 0, 3] = np.inf
    data[3] = -np.inf
    data[4, :, 1:] = -np.inf
    check_images(shape, dtype, layout, data=data)


def test_a_piece_of_nothing_has_the_empty_state():
    x = Operand((2, 3, 0), "float32")
    result = run(kernels_softmax, ImageMaximum((2, 3, 0), "float32"), (x,),
                 Operand((2, 2), "float64"))  # fmt: skip
    assert result.tolist() == [[-np.inf, 0], [-np.inf, 0]]
