"""The kernels of losses.cu against the launches' references in float64."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import losses as kernels_losses
from ooc_cudnn.devices.kernels import runners
from ooc_cudnn.operations.elementwise.reshape import Reshape
from ooc_cudnn.operations.losses.launches import (
    SIGMOID,
    SQUARED,
    ClassSums,
    ClassSumsBackward,
    CrossEntropy,
    CrossEntropyBackward,
    ElementLoss,
    ElementLossBackward,
    LabelWeights,
    RowTotals,
    Total,
)
from ooc_cudnn.tensor import ACCUMULATOR
from tests.support.device_operand import DTYPES, EPSILON, Operand, assert_close, random
from tests.support.kernel_runs import run

SHAPES = [
    (4, 5),
    (3, 1000),
    (2, 3, 7),
    (2, 3, 5, 4),
    (1, 21, 3, 40),
    (2, 3, 2, 3, 12),
    (1, 1, 1, 1),
]
LAYOUTS = ["first", "last", "first_rows", "last_rows"]


def near(actual, expected, dtype, size):
    """Within what exponentials and sums in the arithmetic type err by."""
    assert_close(actual, expected, dtype, 64 * EPSILON[ACCUMULATOR[dtype]] * size)


def labelled(shape, dtype, layout, labels_dtype="int64", ignored=-100):
    """Logits, labels of which some are ignored, and class weights."""
    x = Operand(shape, dtype, layout, data=4 * random(shape, 1))
    draw = np.random.default_rng(2)
    numbers = draw.integers(0, shape[1], (shape[0], *shape[2:]))
    numbers[draw.random(numbers.shape) < 0.2] = ignored
    labels = Operand(numbers.shape, labels_dtype, "first", data=numbers)
    weights = draw.uniform(0.5, 2, shape[1])
    return x, labels, Operand((shape[1],), ACCUMULATOR[dtype], "first", data=weights)


def wide(*operands):
    return [operand and operand.array.astype(np.float64) for operand in operands]


def scalar(value):
    return Operand((1,), "float64", "first", data=[value])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cross_entropy(shape, dtype, layout):
    case = SHAPES.index(shape) + LAYOUTS.index(layout)
    labels_dtype, ignored = [("int64", -100), ("int32", -1), ("uint8", 255), ("uint16", 0)][
        case % 4
    ]
    x, labels, weights = labelled(shape, dtype, layout, labels_dtype, ignored)
    given = weights if case % 2 else None
    smoothing = 0.1 * (case % 3)
    common = (shape, dtype, labels_dtype, smoothing, ignored)
    forward = CrossEntropy(*common)
    losses = Operand(forward.output_shape, "float64")
    made = run(kernels_losses, forward, (x, labels, given), losses)
    expected = forward.reference(*wide(x, labels, given))
    sites = np.prod(shape[3:], dtype=int)
    assert np.abs(made - expected).max() <= 1e3 * EPSILON[ACCUMULATOR[dtype]] * sites
    divisor, dy = scalar(7.0) if case % 2 else None, scalar(2.0)
    backward = CrossEntropyBackward(*common, 1.5)
    dx = Operand(shape, dtype, layout)
    made = run(kernels_losses, backward, (x, labels, given, divisor, dy), dx)
    near(made, backward.reference(*wide(x, labels, given, divisor, dy)), dtype, 6.0)
    counted = LabelWeights(labels.array.shape, labels_dtype, shape[1], ignored, dtype)
    counts = run(kernels_losses, counted, (labels, given), losses)
    near(counts, counted.reference(*wide(labels, given)), "float64", 2.0 * sites)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (1, 3, 1, 41, 37)], ids=str)
def test_class_sums(shape, dtype, layout):
    case = len(shape) + LAYOUTS.index(layout)
    labels_dtype = ("int64", "int32", "uint8", "uint16")[case % 4]
    x, labels, _ = labelled(shape, dtype, layout, labels_dtype, 0)
    numbers = labels.array[:, np.newaxis]
    labels = Operand(numbers.shape, labels_dtype, layout, data=numbers)
    common = (shape, dtype, labels_dtype)
    forward = ClassSums(*common)
    made = run(kernels_losses, forward, (x, labels), Operand(forward.output_shape, "float64"))
    sites = np.prod(shape[3:], dtype=int)
    near(made, forward.reference(*wide(x), labels.array), dtype, 4.0 * sites)
    totals = RowTotals(forward.output_shape, ACCUMULATOR[dtype])
    sums = Operand(forward.output_shape, "float64", data=made)
    made = run(kernels_losses, totals, (sums,), Operand(totals.output_shape, totals.dtype))
    expected = totals.reference(sums.array)
    assert_close(made, expected, totals.dtype, 4 * EPSILON[totals.dtype] * np.abs(expected))
    backward = ClassSumsBackward(*common)
    dy = Operand(backward.dy_shape, ACCUMULATOR[dtype], data=random(backward.dy_shape, 3))
    dx = Operand(shape, dtype, layout)
    made = run(kernels_losses, backward, (x, labels, dy), dx)
    near(made, backward.reference(*wide(x), labels.array, *wide(dy)), dtype, 8.0)


def test_class_sums_of_labels_that_are_no_class():
    x = Operand((2, 3, 4), "float32", data=random((2, 3, 4), 1))
    labels = Operand((2, 1, 4), "int64", data=np.array([[[3, 0, 1, 2]], [[0, 1, 2, 0]]]))
    forward = ClassSums((2, 3, 4), "float32", "int64")
    made = run(kernels_losses, forward, (x, labels), Operand(forward.output_shape, "float64"))
    assert np.isnan(made[0, 0, 3:6]).all()
    assert np.isfinite(made[0, 1:]).all()
    assert np.isfinite(made[1]).all()
    assert made[1, :, 6:].sum(axis=0).tolist() == [2, 1, 1]
    backward = ClassSumsBackward((2, 3, 4), "float32", "int64")
    dy, dx = Operand((2, 9), "float32", data=random((2, 9), 2)), Operand((2, 3, 4), "float32")
    made = run(kernels_losses, backward, (x, labels, dy), dx)
    assert np.isnan(made[0, :, 0]).all()
    assert np.isfinite(made[0, :, 1:]).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_losses_of_elements(shape, dtype, layout):
    case = SHAPES.index(shape) + LAYOUTS.index(layout)
    mode = (SQUARED, SIGMOID)[case % 2]
    x, target = (Operand(shape, dtype, layout, data=random(shape, seed)) for seed in (1, 2))
    weight = positive = None
    if mode == SIGMOID:
        shapes = (shape[0], *[1] * (len(shape) - 1)), (1, shape[1], *[1] * (len(shape) - 2))
        weight, positive = (
            Operand(each, dtype, data=np.abs(random(each, at)) + 0.5)
            for at, each in enumerate(shapes if case % 3 else (shape, shape))
        )
    inputs = (x, target, weight, positive)
    common = (shape, dtype, mode, *(each and each.array.shape for each in (weight, positive)))
    forward, backward = ElementLoss(*common), ElementLossBackward(*common, 0.25)
    losses, dx, dy = (
        Operand(forward.output_shape, "float64"),
        Operand(shape, dtype, layout),
        scalar(2),
    )
    made = run(kernels_losses, forward, inputs, losses)
    elements = shape[1] * np.prod(shape[3:], dtype=int)
    error = 64 * EPSILON[ACCUMULATOR[dtype]] * 20 * elements
    assert np.abs(made - forward.reference(*wide(*inputs))).max() <= error
    made = run(kernels_losses, backward, (*inputs, dy), dx)
    near(made, backward.reference(*wide(*inputs, dy)), dtype, 4.0)


@pytest.mark.parametrize("count", [1, 7, 255, 70_000])
def test_total(count):
    values, divisor = Operand((count, 1), "float64", data=random((count, 1))), scalar(3.0)
    operation = Total((count, 1), 0.5)
    made = run(kernels_losses, operation, (values, divisor), Operand((1,), "float64"))
    expected = operation.reference(values.array, divisor.array)
    assert np.abs(made - expected) <= 1e-13 * np.abs(values.array).sum()


def test_labels_that_are_no_class_and_what_is_not_finite():
    data = np.zeros((4, 3))
    data[1, 0], data[2] = np.inf, -np.inf
    x = Operand((4, 3), "float32", data=data)
    labels = Operand((4,), "int64", data=[3, 1, 0, 2])
    common = ((4, 3), "float32", "int64", 0.0, -100)
    losses = Operand((4, 1), "float64")
    made = run(kernels_losses, CrossEntropy(*common), (x, labels, None), losses)
    assert np.isnan(made[:3]).all()
    assert made[3, 0] == pytest.approx(np.log(3), rel=1e-6)
    backward, dx = CrossEntropyBackward(*common, 1.0), Operand((4, 3), "float32")
    made = run(kernels_losses, backward, (x, labels, None, None, scalar(1.0)), dx)
    assert np.isnan(made[:3]).any(axis=1).all()
    assert np.isfinite(made[3]).all()
    counted = LabelWeights((4,), "int64", 3, -100, "float32")
    assert np.isnan(run(kernels_losses, counted, (labels, None), losses)[0, 0])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 3, 4, 5), (2, 3, 2, 3, 4)], ids=str)
def test_reshape(shape, dtype, layout):
    x, flat = Operand(shape, dtype, layout, data=random(shape)), (shape[0], int(np.prod(shape[1:])))
    made = run(runners, Reshape(shape, flat, dtype), (x,), Operand(flat, dtype))
    assert (made == x.array.reshape(flat)).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_logit_of_an_ignored_site_reaches_the_loss(dtype, smoothing):
    data = random((1, 3, 6), 1)
    data[0, 0, 0], data[0, 1, 1], data[0, 2, 2] = np.nan, np.inf, -np.inf
    data[0, :, 3], data[0, :, 4] = -np.inf, np.inf
    labels = Operand((1, 6), "int64", "first", data=np.array([[7, 7, 7, 7, 7, 1]]))
    x, losses = Operand(data.shape, dtype, "first", data=data), Operand((1, 6), "float64")
    forward = CrossEntropy(data.shape, dtype, "int64", smoothing, 7)
    found = run(kernels_losses, forward, (x, labels, None), losses)
    assert (found[0, :5] == 0).all()
    assert np.isfinite(found[0, 5])
    backward = CrossEntropyBackward(data.shape, dtype, "int64", smoothing, 7, 1.0)
    dx = Operand(data.shape, dtype, "first")
    made = run(kernels_losses, backward, (x, labels, None, None, scalar(1)), dx)
    assert (made[0, :, :5] == 0).all()
    assert np.isfinite(made[0, :, 5].astype(float)).all()
    assert made[0, 1, 5] < 0
