"""The reductions over everything but the channels, against NumPy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import channel_reduction as kernels_reduction
from ooc_cudnn.devices.kernels import gradient_sums as kernels_sums
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.operations.elementwise.broadcast_reduction import BroadcastSum
from ooc_cudnn.operations.normalization.batch_launches import Moments, NormaliseSums
from ooc_cudnn.tensor import ACCUMULATOR
from tests.support.device_operand import DTYPES, OF_A_RUN, Operand, assert_close, random
from tests.support.kernel_runs import run

LAYOUTS = ["first", "last", "first_rows", "last_rows"]
SHAPES = [
    (2, 3, 5, 7), (1, 1, 1, 1), (3, 64, 7, 7), (2, 1, 9, 9), (1, 5, 1000), (2, 3, 4, 5, 6),
    (700, 2, 3, 1), (4, 33), (1, 1), (300, 7), (2, 3, 20_001), (1, 3, 100, 100), (2, 130, 3, 5),
    (2, 1001, 3), (5, 2048, 2), (1, 3000, 4, 4), (3, 21, 40, 30), (9, 16, 33),
]  # fmt: skip


def axes_of(x):
    return (0, *range(2, x.ndim))


def per_channel(vector, x):
    return vector.reshape(1, -1, *[1] * (x.ndim - 2))


def reference_moments(x):
    count = x.size // x.shape[1]
    mean = x.mean(axis=axes_of(x))
    squares = ((x - per_channel(mean, x)) ** 2).sum(axis=axes_of(x))
    return np.stack([np.full(x.shape[1], float(count)), mean, squares])


def check_all(shape, dtype, layout, *, offset=0, data=None):
    data = random(shape, 1) + 3 if data is None else data
    x = Operand(shape, dtype, layout, data=data, offset=offset)
    dy = Operand(shape, dtype, layout, data=random(shape, 2), offset=offset)
    channels, terms = shape[1], math.prod(shape) // shape[1]
    loss = 4 * (2 + math.log2(terms)) * 2.0**-52

    real = ACCUMULATOR[dtype]
    for result_dtype in {dtype, real}:
        db = Operand((channels,), result_dtype)
        operation = BroadcastSum(shape, shape[1:2], dtype, result_dtype)
        result = run(kernels_reduction, operation, (x,), db)
        size = np.abs(x.wide).sum(axis=axes_of(x.wide))
        assert_close(result, x.wide.sum(axis=axes_of(x.wide)), result_dtype, loss * size)

    state = run(kernels_reduction, Moments(shape, dtype), (x,), Operand((3, channels), "float64"))
    expected = reference_moments(x.wide)
    spread = np.abs(x.wide).max(axis=axes_of(x.wide))
    from_first = np.abs(x.wide - x.wide[(slice(1), slice(None), *[slice(1)] * (len(shape) - 2))])
    of_runs = OF_A_RUN[dtype] * from_first.mean(axis=axes_of(x.wide))
    of_squares = OF_A_RUN[dtype] * (from_first**2).sum(axis=axes_of(x.wide))
    assert np.array_equal(state[0], expected[0])
    assert_close(state[1], expected[1], "float64", loss * spread + of_runs)
    # the square of the mean is taken from the squares
    slack = 8 * loss * (expected[2] + spread**2) + of_squares + 2 * terms * of_runs * spread
    assert_close(state[2], expected[2], "float64", slack)

    mean = Operand((channels,), real, data=random(channels, 3), offset=offset)
    operation = NormaliseSums(shape, dtype)
    sums = run(kernels_sums, operation, (x, dy, mean), Operand((2, channels), "float64"))
    difference = x.wide - per_channel(mean.wide, x.wide)
    # what is summed is a difference of x and the mean, rounded as these are
    wide = np.abs(dy.wide) * (np.abs(x.wide) + per_channel(np.abs(mean.wide), x.wide))
    for row, terms_of, of_run in ((0, dy.wide, dy.wide), (1, dy.wide * difference, wide)):
        size = np.abs(terms_of).sum(axis=axes_of(x.wide))
        slack = loss * size + OF_A_RUN[dtype] * np.abs(of_run).sum(axis=axes_of(x.wide))
        assert_close(sums[row], terms_of.sum(axis=axes_of(x.wide)), "float64", slack)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_shapes(dtype, shape, layout):
    check_all(shape, dtype, layout)
    check_all(shape, dtype, layout, offset=1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_dtypes(dtype, layout):
    check_all((3, 24, 9, 16), dtype, layout)
    check_all((3, 5, 9, 7), dtype, layout, offset=1)


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mean_far_above_the_deviation_costs_no_digits(dtype, layout):
    shape = (4, 6, 50, 50)
    far = {"float16": 64.0, "bfloat16": 16.0, "float32": 2.0**14, "float64": 2.0**40}[dtype]
    base = far * np.arange(1.0, 7.0).reshape(1, 6, 1, 1)
    x = Operand(shape, dtype, layout, data=base + random(shape))
    state = run(kernels_reduction, Moments(shape, dtype), (x,), Operand((3, 6), "float64"))
    _, mean, squares = reference_moments(x.wide - base)  # the difference is exact
    assert np.allclose(state[1] - base.ravel(), mean, rtol=0, atol=2 * np.spacing(6 * far))
    assert np.allclose(state[2], squares, rtol=1e-12, atol=0)


def test_a_first_element_far_away_costs_few_digits():
    shape = (1, 1, 100_000)
    data = random(shape)
    data[0, 0, 0] = 1e9
    x = Operand(shape, "float64", data=data)
    state = run(kernels_reduction, Moments(shape, "float64"), (x,), Operand((3, 1), "float64"))
    assert_close(state, reference_moments(x.wide), "float64", 1e-11 * reference_moments(x.wide))


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_nan_and_infinity_stay_in_their_channel(dtype, layout):
    shape = (2, 8, 6, 10)
    for at in (0, 57):
        data = random(shape)
        data[1 if at else 0, 2].ravel()[at] = np.nan
        data[1 if at else 0, 5].ravel()[at] = np.inf
        x = Operand(shape, dtype, layout, data=data)
        db = run(kernels_reduction, BroadcastSum(shape, shape[1:2], dtype, "float32"), (x,),
                 Operand((8,), "float32"))  # fmt: skip
        state = run(kernels_reduction, Moments(shape, dtype), (x,), Operand((3, 8), "float64"))
        good = [0, 1, 3, 4, 6, 7]
        assert np.isfinite(db[good]).all()
        assert np.isfinite(state[:, good]).all()
        assert np.isnan(db[2])
        assert db[5] == np.inf
        assert np.isnan(state[1:, 2]).all()
        assert state[1, 5] == np.inf
        assert np.isnan(state[2, 5])


def test_half_precision_is_rounded_once_from_the_exact_sum():
    # By way of float32 this is 2049 (to even: 2048); rounded once it is 2050.
    data = np.array([2048.0, 1.0, 2.0**-24]).reshape(1, 1, 3)
    x = Operand((1, 1, 3), "float16", data=data)
    db = run(kernels_reduction, BroadcastSum((1, 1, 3), (1,), "float16", "float16"), (x,),
             Operand((1,), "float16"))  # fmt: skip
    assert db[0] == 2050


def test_nothing_sums_to_zero():
    for shape in ((0, 3, 4), (2, 3, 0)):
        x = Operand(shape, "float32")
        db = run(kernels_reduction, BroadcastSum(shape, shape[1:2], "float32", "float32"), (x,),
                 Operand((3,), "float32"))  # fmt: skip
        assert db.tolist() == [0, 0, 0]
        state = run(kernels_reduction, Moments(shape, "float32"), (x,), Operand((3, 3), "float64"))
        assert not state.any()


def test_workspace_too_small_is_refused():
    x = Operand((2, 3, 4), "float32", data=random((2, 3, 4)))
    db = Operand((3,), "float32")
    with pytest.raises(ValueError, match="workspace"):
        kernels_reduction.broadcast_sum(
            BroadcastSum((2, 3, 4), (3,), "float32", "float32"), Call((x.view,), db.view)
        )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 24, 3, 16), (3, 7, 50), (2, 3, 2, 3, 4), (40, 2, 1), (3, 9),
                                   (1, 5, 4, 6), (4, 1, 7)], ids=str)  # fmt: skip
def test_sums_per_image_per_channel_or_site_of_an_image_and_of_all(shape, dtype, layout):
    ones = (1,) * (len(shape) - 2)
    dy = Operand(shape, dtype, layout, data=random(shape, 1) + 1)
    x = Operand(shape, dtype, layout, data=random(shape, 2))
    for b_shape in ((*shape[:2], *ones), (shape[0], 1, *ones), (1, shape[1], *ones), (1, 1, *ones),
                    (shape[0], 1, *shape[2:]), (shape[1],), (1,)):  # fmt: skip
        for factor in ("", "x", "negative_x"):
            operation = BroadcastSum(shape, b_shape, dtype, ACCUMULATOR[dtype], factor)
            db = Operand(b_shape, ACCUMULATOR[dtype])
            inputs = (dy, x) if factor else (dy,)
            found = run(kernels_reduction, operation, inputs, db)
            wide = [operand.wide for operand in inputs]
            size = BroadcastSum(shape, b_shape, dtype, dtype, factor and "x").reference(
                *map(np.abs, wide)
            )
            assert_close(found, operation.reference(*wide), ACCUMULATOR[dtype], 2.0**-46 * size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_of_slopes_selects_where_x_is_above_0(dtype):
    """There nothing is summed, whatever dy is; elsewhere dy * x, as PyTorch has it."""
    shape = (2, 3, 4)
    data = random(shape, 2)
    data[:, 0] = np.abs(data[:, 0])
    data[0, 1, :2] = np.nan, 0.0
    gradients = random(shape, 1)
    gradients[:, 0] = np.inf, np.nan, -np.inf, 1.0
    dy, x = Operand(shape, dtype, data=gradients), Operand(shape, dtype, data=data)
    operation = BroadcastSum(shape, (3,), dtype, ACCUMULATOR[dtype], "negative_x")
    found = run(kernels_reduction, operation, (dy, x), Operand((3,), ACCUMULATOR[dtype]))
    expected = operation.reference(dy.wide, x.wide)
    assert expected[0] == 0
    assert np.isnan(expected[1])
    assert_close(found, expected, ACCUMULATOR[dtype], 1e-12)
