"""Sums and moments on the host: float64 whatever the dtype, the same however they are chunked."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.host import channel_reduction as host_reduction
from ooc_cudnn.devices.host import chunks as host_chunks
from ooc_cudnn.operations.elementwise.broadcast_reduction import BroadcastSum
from ooc_cudnn.operations.normalization.batch_launches import (
    AddStates,
    MergeMoments,
    Moments,
    MomentsResult,
    NormaliseSums,
    ScaleRow,
    StateRow,
)
from ooc_cudnn.operations.softmax.channels import ImageMaximum, ImageProductSum, MergeImageMaximum
from ooc_cudnn.tensor import ACCUMULATOR
from tests.support.host_operations import DTYPES, LAYOUTS, UNIT, laid_out, run

SHAPES = [(5, 4), (2, 3, 9), (2, 3, 5, 4), (2, 3, 2, 3, 4)]
pytestmark = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(autouse=True, params=[7, 2**18])
def chunk_elements(request, monkeypatch):
    monkeypatch.setattr(host_chunks, "CHUNK_ELEMENTS", request.param)


def numbers(random, shape, dtype, layout, offset=0.0):
    return laid_out(random.standard_normal(shape) + offset, layout, dtype)


def others(array):
    return (0, *range(2, array.ndim))


def moments_of(x):
    x = x.astype("f8")
    count = x.size / x.shape[1] if x.shape[1] else 0
    variance = x.var(axis=others(x))
    return np.stack([np.full(x.shape[1], count), x.mean(axis=others(x)), variance * count])


@pytest.mark.parametrize("dtype", DTYPES)
def test_channel_sum(random, layout, dtype):
    for shape in SHAPES:
        dy = numbers(random, shape, dtype, layout)
        for result in (dtype, ACCUMULATOR[dtype]):
            operation = BroadcastSum(shape, shape[1:2], dtype, result)
            found = run(host_reduction, operation, (dy,), result)
            expected = operation.reference(dy)
            error = UNIT[result] * abs(expected) + 1e-13
            assert (abs(found.astype("f8") - expected) <= error).all()


def test_channel_sum_of_nothing(layout):
    empty = np.empty((0, 3, 4), "f4")
    found = run(
        host_reduction,
        BroadcastSum(empty.shape, empty.shape[1:2], "float32", "float32"),
        (empty,),
        "float32",
    )
    np.testing.assert_array_equal(found, [0, 0, 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments(random, layout, dtype):
    for shape in SHAPES:
        x = numbers(random, shape, dtype, layout, offset=100.0)
        found = run(host_reduction, Moments(shape, dtype), (x,), "float64")
        np.testing.assert_allclose(found, moments_of(x), rtol=1e-11, atol=1e-12)


def test_moments_do_not_cancel_where_the_mean_is_large(random, layout):
    x = numbers(random, (3, 2, 50, 40), "float64", layout, offset=1e9)
    found = run(host_reduction, Moments(x.shape, "float64"), (x,), "float64")
    expected = moments_of(x - 1e9)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-6)


def test_moments_of_parts_merge_to_those_of_the_whole(random, layout):
    x = numbers(random, (4, 3, 6, 5), "float32", layout, offset=10.0)
    state = run(host_reduction, Moments((1, 3, 6, 5), "float32"), (x[:1],), "float64")
    part = run(host_reduction, Moments((3, 3, 6, 5), "float32"), (x[1:],), "float64")
    nothing = run(host_reduction, Moments((0, 3, 6, 5), "float32"), (x[:0],), "float64")
    np.testing.assert_array_equal(nothing, 0)
    for other in (part, nothing):
        run(host_reduction, MergeMoments(3), (state, other), "float64", output=state)
    np.testing.assert_allclose(state, moments_of(x), rtol=1e-12)
    merged = run(host_reduction, MergeMoments(3), (nothing, state), "float64")
    np.testing.assert_allclose(merged, state, rtol=1e-15)


def test_moments_results(random, layout):
    x = random.standard_normal((4, 3, 5))
    state, old = moments_of(x), random.standard_normal(3).astype("f4")
    expected = {
        "mean": x.mean(axis=(0, 2)),
        "inverse_deviation": 1 / np.sqrt(x.var(axis=(0, 2)) + 0.25),
        "running_mean": 0.75 * old + 0.25 * x.mean(axis=(0, 2)),
        "running_variance": 0.75 * old + 0.25 * x.var(axis=(0, 2), ddof=1),
    }
    for what, value in expected.items():
        operation = MomentsResult((3,), what, "float32", 0.25, 0.25)
        inputs = (state, old.copy() if what.startswith("running") else None)
        found = run(host_reduction, operation, inputs, "float32")
        np.testing.assert_allclose(found, value, rtol=1e-6)
        if what.startswith("running"):
            run(host_reduction, operation, inputs, "float32", output=inputs[1])
            np.testing.assert_array_equal(inputs[1], found)
    one = moments_of(x[:1, :, :1])
    found = run(
        host_reduction,
        MomentsResult((3,), "running_variance", "float32", 0, 0.5),
        (one, old),
        "float32",
    )
    np.testing.assert_allclose(found, old / 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_normalise_sums(random, layout, dtype):
    for shape in SHAPES:
        x, dy = numbers(random, shape, dtype, layout, 3.0), numbers(random, shape, dtype, layout)
        mean = random.standard_normal(shape[1]).astype(ACCUMULATOR[dtype])
        difference = x.astype("f8") - mean.reshape(1, -1, *[1] * (len(shape) - 2))
        gradient = dy.astype("f8")
        expected = [gradient.sum(axis=others(x)), (gradient * difference).sum(axis=others(x))]
        found = run(host_reduction, NormaliseSums(shape, dtype), (x, dy, mean), "float64")
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


def test_states(random, layout):
    state, part = random.standard_normal((2, 2, 5))
    expected = state + part
    np.testing.assert_array_equal(
        run(host_reduction, AddStates((2, 5)), (state, part), "float64", output=state), expected
    )
    for row in range(2):
        found = run(host_reduction, StateRow((5,), row, "float32"), (state,), "float32")
        np.testing.assert_array_equal(found, state[row].astype("f4"))
    factor = random.standard_normal(5)
    expected = state * np.stack([np.ones(5), factor])
    scale = ScaleRow(2, 5, 1, "float64")
    np.testing.assert_array_equal(
        run(host_reduction, scale, (state, factor), "float64", output=state), expected
    )


def test_merged_means_that_are_infinite(layout):
    infinity = np.inf
    state = np.array([[2, 2, 2, 0, 2], [-infinity, infinity, 1, 0, infinity], [np.nan] * 5])
    part = np.array([[3, 3, 3, 3, 0], [-infinity, -infinity, infinity, infinity, 0], [np.nan] * 5])
    found = run(host_reduction, MergeMoments(5), (state, part), "float64", output=state)
    expected = [-infinity, np.nan, infinity, infinity, infinity]
    np.testing.assert_array_equal(found[1], expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_image_maximum_and_its_merge(random, layout, dtype):
    for shape in SHAPES:
        x = numbers(random, shape, dtype, layout)
        half = shape[1] // 2
        states = [
            run(host_reduction, ImageMaximum(part.shape, dtype), (part,), "float64")
            for part in (x, x[:, :half], x[:, half:])
        ]
        values = x.astype("f8").reshape(shape[0], -1)
        largest = values.max(axis=1, keepdims=True)
        expected = np.hstack([largest, np.exp(values - largest).sum(axis=1, keepdims=True)])
        np.testing.assert_allclose(states[0], expected, rtol=1e-13)
        merge = MergeImageMaximum(shape[0])
        run(host_reduction, merge, tuple(states[1:]), "float64", output=states[1])
        np.testing.assert_allclose(states[1], expected, rtol=1e-13)


def test_image_maximum_of_infinities_and_nan(layout):
    x = laid_out(np.zeros((4, 3, 6), "f4"), layout)
    x[0], x[1, 2, 3], x[2, 0, 0], x[3, :2] = -np.inf, np.nan, np.inf, -np.inf
    found = run(host_reduction, ImageMaximum(x.shape, "float32"), (x,), "float64")
    expected = [[-np.inf, 0], [np.nan, np.nan], [np.inf, np.nan], [0, 6]]
    np.testing.assert_array_equal(found, expected)
    nothing = np.array([[-np.inf, 0.0]] * 4)
    for pair in ((found, nothing), (nothing, found)):
        merged = run(host_reduction, MergeImageMaximum(4), pair, "float64")
        np.testing.assert_array_equal(merged, expected)
    empty = run(host_reduction, ImageMaximum((4, 3, 0), "float32"), (x[:, :, :0],), "float64")
    np.testing.assert_array_equal(empty, nothing)


@pytest.mark.parametrize("dtype", DTYPES)
def test_image_product_sum(random, layout, dtype):
    for shape in SHAPES:
        y, dy = numbers(random, shape, dtype, layout), numbers(random, shape, dtype, layout)
        axes = tuple(range(1, len(shape)))
        expected = (y.astype("f8") * dy.astype("f8")).sum(axis=axes)[:, None]
        operation = ImageProductSum(shape, "accurate", dtype)
        found = run(host_reduction, operation, (y, dy), "float64")
        np.testing.assert_allclose(found, expected, atol=1e-12)
        operation = ImageProductSum(shape, "log", dtype)
        found = run(host_reduction, operation, (None, dy), "float64")
        np.testing.assert_allclose(found[:, 0], dy.astype("f8").sum(axis=axes), atol=1e-12)
