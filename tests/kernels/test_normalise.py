"""Batch normalisation's elementwise passes and states, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import normalise as kernels_normalise
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationBackward
from ooc_cudnn.operations.normalization.batch_launches import (
    AddStates,
    MergeMoments,
    MomentsResult,
    Normalise,
    NormaliseBackward,
    ScaleRow,
    StateRow,
)
from ooc_cudnn.operations.softmax.channels import MergeImageMaximum
from ooc_cudnn.tensor import ACCUMULATOR
from tests.support import reference
from tests.support.device_operand import DTYPES, EPSILON, Operand, assert_close, random
from tests.support.kernel_runs import run

LAYOUTS = ["first", "last", "first_rows", "last_rows"]
SHAPES = [
    (2, 3, 5, 7), (1, 1, 1, 1), (3, 64, 7, 7), (2, 1, 9, 9), (1, 5, 1000), (2, 3, 4, 5, 6),
    (700, 2, 3, 1), (4, 33), (1, 1), (300, 7), (2, 3, 20_001), (2, 130, 3, 5), (2, 1001, 3),
    (5, 2048, 2), (3, 21, 40, 30),
]  # fmt: skip


def per_channel(vector, rank):
    return vector.reshape(1, -1, *[1] * (rank - 2))


def vectors(channels, dtype, offset=0):
    """Scale, bias, mean, and a variance or inverse deviation."""
    real = ACCUMULATOR[dtype]
    values = [random(channels, seed) for seed in (3, 4, 5)]
    values.append(np.abs(random(channels, 6)) + 0.25)
    return [Operand((channels,), real, data=value, offset=offset) for value in values]


def check_normalise(shape, dtype, layout, *, offset=0, epsilon=None, mode="identity", coef=0.0,
                    data=None):  # fmt: skip
    data = 2 * random(shape, 1) if data is None else data
    x = Operand(shape, dtype, layout, data=data, offset=offset)
    operands = vectors(shape[1], dtype, offset)
    operation = Normalise(shape, dtype, epsilon, mode, coef)
    scale, bias, mean, spread = (per_channel(v.wide, len(shape)) for v in operands)
    inverse = spread if epsilon is None else 1 / np.sqrt(spread + epsilon)
    with np.errstate(all="ignore"):
        inner = scale * inverse * (x.wide - mean)
        expected = reference.ACTIVATIONS[mode](inner + bias, coef)
        expected = np.where(np.isnan(x.wide), np.nan, expected)
        size = np.abs(inner) + np.abs(scale * inverse * mean) + np.abs(bias) + 1
    slack = 12 * EPSILON[ACCUMULATOR[dtype]] * np.where(np.isfinite(size), size, 0)
    y = Operand(shape, dtype, layout)
    assert_close(run(kernels_normalise, operation, (x, *operands), y), expected, dtype, slack)
    # in place
    assert_close(run(kernels_normalise, operation, (x, *operands), x), expected, dtype, slack)


def data_off_the_kinks(shape, dtype, operands, coef):
    """Data of which no rounding moves the normalised value across 0 or `coef`."""
    data = 2 * random(shape, 1)
    scale, bias, mean, spread = (per_channel(v.wide, len(shape)) for v in operands)
    for step in 2.0 ** np.arange(-1, 12):  # a channel of a small scale needs a large one
        data = Operand(shape, dtype, data=data).wide
        value = scale * spread * (data - mean) + bias
        near = np.minimum(np.abs(value), np.abs(value - coef)) < 8 * EPSILON[dtype]
        if not near.any():
            return data
        data = np.where(near, data + step, data)
    raise AssertionError("some values stay near a kink")


def check_backward(shape, dtype, layout, *, offset=0):
    x = Operand(shape, dtype, layout, data=random(shape, 1), offset=offset)
    dy = Operand(shape, dtype, layout, data=random(shape, 2), offset=offset)
    scale, _, mean, inverse = vectors(shape[1], dtype, offset)
    sums = Operand((2, shape[1]), "float64", data=1000 * random((2, shape[1]), 7))
    operation = NormaliseBackward(shape, dtype, 777)
    a, m, i = (per_channel(v.wide, len(shape)) for v in (scale, mean, inverse))
    of_dy, of_product = (per_channel(row, len(shape)) / 777 for row in sums.wide)
    terms = [dy.wide, -of_dy, -(x.wide - m) * i * of_product]
    expected = a * i * sum(terms)
    size = np.abs(a * i) * (sum(map(np.abs, terms)) + np.abs(m * i * of_product))
    slack = 12 * EPSILON[ACCUMULATOR[dtype]] * size
    inputs = (x, dy, scale, mean, inverse, sums)
    dx = Operand(shape, dtype, layout)
    assert_close(run(kernels_normalise, operation, inputs, dx), expected, dtype, slack)
    assert_close(run(kernels_normalise, operation, inputs, dy), expected, dtype, slack)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_shapes(dtype, shape, layout):
    for offset in (0, 1):
        check_normalise(shape, dtype, layout, offset=offset)
        check_backward(shape, dtype, layout, offset=offset)


@pytest.mark.parametrize("layout", ["first", "last_rows"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_dtypes(dtype, layout):
    for shape in ((3, 24, 9, 16), (3, 5, 9, 7)):
        check_normalise(shape, dtype, layout, epsilon=1e-3)
        check_backward(shape, dtype, layout)


@pytest.mark.parametrize("mode", list(reference.ACTIVATIONS))
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_fused_activation_and_nan(dtype, mode):
    shape = (2, 16, 6, 8)
    coef = {"clipped_relu": 1.5, "elu": 0.7, "swish": 1.3, "leaky_relu": 0.1}.get(mode, 0.0)
    data = 3 * random(shape)
    data[0, 0, 0, :2] = np.nan, 100.0
    for layout in ("first", "last"):
        check_normalise(shape, dtype, layout, epsilon=1e-5, mode=mode, coef=coef, data=data)


@pytest.mark.parametrize("mode", ["identity", "relu", "tanh"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_is_added_before_the_activation(dtype, layout, mode):
    for shape, offset in (((2, 3, 5, 7), 1), ((3, 64, 4, 8), 0), ((2, 5, 300), 0)):
        x, z = (Operand(shape, dtype, layout, data=2 * random(shape, seed), offset=offset)
                for seed in (1, 2))  # fmt: skip
        operands = vectors(shape[1], dtype, offset)
        operation = Normalise(shape, dtype, None, mode, 0.0, has_addend=True)
        inputs = [operand.wide for operand in (x, *operands, z)]
        scale, bias, mean, spread = (per_channel(np.abs(v.wide), len(shape)) for v in operands)
        size = scale * spread * (np.abs(x.wide) + mean) + bias + np.abs(z.wide) + 1
        expected = operation.reference(*inputs)
        slack = 12 * EPSILON[ACCUMULATOR[dtype]] * size
        for y in (Operand(shape, dtype, layout), z):  # apart, and in the place of what is added
            found = run(kernels_normalise, operation, (x, *operands, z), y)
            assert_close(found, expected, dtype, slack)


@pytest.mark.parametrize("mode", ["relu", "clipped_relu", "leaky_relu"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_through_an_activation_that_is_made_again(dtype, layout, mode):
    coef = {"clipped_relu": 1.0, "leaky_relu": 0.125}.get(mode, 0.0)
    for shape, offset in (((2, 3, 5, 7), 1), ((3, 64, 4, 8), 0), ((2, 5, 300), 0)):
        scale, bias, mean, inverse = vectors(shape[1], dtype, offset)
        data = data_off_the_kinks(shape, dtype, (scale, bias, mean, inverse), coef)
        data.ravel()[3] = np.nan
        x = Operand(shape, dtype, layout, data=data, offset=offset)
        dy = Operand(shape, dtype, layout, data=random(shape, 2), offset=offset)
        sums = Operand((2, shape[1]), "float64", data=100 * random((2, shape[1]), 7))
        a, m, i, b = (per_channel(v.wide, len(shape)) for v in (scale, mean, inverse, bias))
        y = reference.ACTIVATIONS[mode](a * i * (x.wide - m) + b, coef)
        through = ActivationBackward(shape, mode, coef, dtype).reference(y, dy.wide)
        of_dy, of_product = (per_channel(row, len(shape)) / 777 for row in sums.wide)
        expected = a * i * (through - of_dy - (x.wide - m) * i * of_product)
        size = np.abs(a * i) * (np.abs(dy.wide) + np.abs(of_dy))
        size += np.abs(a * i * i * of_product) * (np.abs(np.nan_to_num(x.wide)) + np.abs(m))
        slack = 12 * EPSILON[ACCUMULATOR[dtype]] * size
        operation = NormaliseBackward(shape, dtype, 777, mode, coef)
        inputs = (x, dy, scale, mean, inverse, sums, bias)
        for dx in (Operand(shape, dtype, layout), dy):
            assert_close(run(kernels_normalise, operation, inputs, dx), expected, dtype, slack)


@pytest.mark.parametrize("layout", ["first first last", "last last first", "first_rows last last"])
def test_operands_in_different_orders(layout):
    shape = (2, 5, 6, 7)
    of_dx, of_x, of_dy = layout.split()
    x = Operand(shape, "float32", of_x, data=random(shape, 1))
    dy = Operand(shape, "float32", of_dy, data=random(shape, 2))
    scale, _, mean, inverse = vectors(5, "float32")
    sums = Operand((2, 5), "float64", data=np.zeros((2, 5)))
    dx = Operand(shape, "float32", of_dx)
    result = run(kernels_normalise, NormaliseBackward(shape, "float32", 84),
                 (x, dy, scale, mean, inverse, sums), dx)  # fmt: skip
    expected = per_channel(scale.wide * inverse.wide, 4) * dy.wide
    assert_close(result, expected, "float32", 1e-6)


def test_empty():
    x = Operand((0, 3, 4), "float32")
    run(kernels_normalise, Normalise((0, 3, 4), "float32"), (x, *vectors(3, "float32")), x)


# States ---------------------------------------------------------------------------------------


def merged(a, b):
    (n_a, m_a, s_a), (n_b, m_b, s_b) = a, b
    n = n_a + n_b
    return np.stack([n, m_a + (m_b - m_a) * n_b / n,
                     s_a + s_b + (m_b - m_a) ** 2 * n_a * n_b / n])  # fmt: skip


@pytest.mark.parametrize("channels", [1, 7, 5000])
def test_merge_moments(channels):
    def state(seed):
        rows = np.abs(random((3, channels), seed))
        rows[0] = np.ceil(100 * rows[0])
        return Operand((3, channels), "float64", data=rows)

    a, b = state(1), state(2)
    result = run(kernels_normalise, MergeMoments(channels), (a, b), a)
    expected = merged(a.wide, b.wide)
    # a card fuses products with sums, and the CPU does not
    slack = 1e-14 + 4 * EPSILON["float64"] * expected
    assert_close(result, expected, "float64", slack)
    empty = Operand((3, channels), "float64", data=np.zeros((3, channels)))
    fresh = Operand((3, channels), "float64")
    for inputs in ((empty, b), (b, empty)):
        assert np.array_equal(run(kernels_normalise, MergeMoments(channels), inputs, fresh), b.wide)
    assert not run(kernels_normalise, MergeMoments(channels), (empty, empty), fresh).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_moments_result(dtype):
    state = Operand((3, 4), "float64", data=[[1, 2, 10, 9], [0.5, -3, 1e6, 2], [0, 8, 5, np.nan]])
    old = random(4)
    count, mean, squares = state.wide
    expected = {
        "mean": mean,
        "inverse_deviation": 1 / np.sqrt(squares / count + 1e-3),
        "running_mean": 0.9 * old.astype(dtype) + 0.1 * mean,
        "running_variance": 0.9 * old.astype(dtype)
        + 0.1 * squares / np.where(count == 1, 1, count - 1),
    }
    for what, values in expected.items():
        operation = MomentsResult((4,), what, dtype, 1e-3, 0.1)
        kept = Operand((4,), dtype, data=old)
        given = kept if what.startswith("running") else None
        assert_close(run(kernels_normalise, operation, (state, given), Operand((4,), dtype)),
                     values, dtype)  # fmt: skip
        if given is not None:
            assert_close(run(kernels_normalise, operation, (state, kept), kept), values, dtype)


def test_rows_and_sums_of_states():
    a, b = (Operand((2, 300), "float64", data=random((2, 300), seed)) for seed in (1, 2))
    for row in (0, 1):
        operation = StateRow((300,), row, "float32")
        result = run(kernels_normalise, operation, (a,), Operand((300,), "float32"))
        assert np.array_equal(result, a.wide[row].astype(np.float32))
    result = run(kernels_normalise, AddStates((2, 300)), (a, b), a)
    assert np.array_equal(result, a.wide + b.wide)
    for dtype in ("float32", "float64"):
        factor = Operand((300,), dtype, data=random(300, 3))
        state = Operand((2, 300), "float64", data=b.wide)
        result = run(kernels_normalise, ScaleRow(2, 300, 1, dtype), (state, factor), state)
        assert np.array_equal(result, b.wide * np.stack([np.ones(300), factor.wide]))


def test_merged_means_that_are_infinite():
    infinity = np.inf
    a = np.array([[2, 2, 2, 0, 2], [-infinity, infinity, 1, 0, infinity], [np.nan] * 5])
    b = np.array([[3, 3, 3, 3, 0], [-infinity, -infinity, infinity, infinity, 0], [np.nan] * 5])
    state, part = (Operand((3, 5), "float64", data=rows) for rows in (a, b))
    mean = run(kernels_normalise, MergeMoments(5), (state, part), state)[1]
    expected = [-infinity, np.nan, infinity, infinity, infinity]
    assert np.array_equal(mean, expected, equal_nan=True)


def test_merge_image_maximum():
    infinity = np.inf
    a = np.array([[1, 2], [-infinity, 0], [-infinity, 0], [np.nan, np.nan], [800, 3], [-5, 1]])
    b = np.array([[3, 4], [7, 5], [-infinity, 0], [2, 1], [-800, 9], [-5, 2]])
    expected = [[3, 4 + 2 * np.exp(-2)], [7, 5], [-infinity, 0], [np.nan, np.nan], [800, 3],
                [-5, 3]]  # fmt: skip
    for first, second in ((a, b), (b, a)):
        state, part = (Operand((6, 2), "float64", data=rows) for rows in (first, second))
        result = run(kernels_normalise, MergeImageMaximum(6), (state, part), state)
        assert_close(result, np.array(expected), "float64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_that_do_not_fit_are_refused(dtype):
    x = Operand((1, 2, 3), dtype, data=random((1, 2, 3)))
    operands = [operand.view for operand in vectors(2, dtype)]
    with pytest.raises(ValueError, match="scale is"):
        kernels_normalise.normalise(
            Normalise((1, 2, 3), dtype), Call((x.view, x.view, *operands[1:]), x.view)
        )
