"""Gradients before an activation, and their sums in the same pass, against NumPy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import gradient_sums as kernels_sums
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationBackward
from ooc_cudnn.operations.elementwise.gradient_reductions import GradientSums
from ooc_cudnn.operations.normalization.batch_launches import NormaliseSums
from ooc_cudnn.tensor import ACCUMULATOR
from tests.kernels.test_normalise import data_off_the_kinks, per_channel, vectors
from tests.support import reference
from tests.support.device_operand import DTYPES, EPSILON, OF_A_RUN, Operand, assert_close, random
from tests.support.kernel_runs import run

LAYOUTS = ["first", "last", "first_rows", "last_rows"]
SHAPES = [
    (2, 3, 5, 7), (1, 1, 1, 1), (3, 64, 7, 7), (1, 5, 1000), (2, 3, 4, 5, 6), (700, 2, 3, 1),
    (4, 33), (2, 3, 20_001), (2, 130, 3, 5), (2, 1001, 3), (3, 21, 40, 30),
]  # fmt: skip
COEF = {"clipped_relu": 1.5, "elu": 0.7, "leaky_relu": 0.125}
MODES = ["identity", "relu", "clipped_relu", "elu", "sigmoid", "tanh", "leaky_relu", "hardsigmoid"]


def check(shape, dtype, layout, mode="relu", *, offset=0, products=False, special=False):
    coef = COEF.get(mode, 0.0)
    y, dy, more, x = (
        Operand(shape, dtype, layout, data=random(shape, seed), offset=offset)
        for seed in (1, 2, 3, 4)
    )
    if special:
        for value, operand in ((np.nan, y), (np.inf, dy)):
            operand.array[0, 0].ravel()[:1] = value
            operand.__init__(shape, dtype, layout, data=operand.wide, offset=offset)
    mean = Operand(shape[1:2], ACCUMULATOR[dtype], data=random(shape[1], 5), offset=offset)
    inputs = [y, dy, *((more, x, mean) if products else (None, None, None))]
    result_dtype = "float64" if products else dtype
    operation = GradientSums(shape, mode, coef, dtype, result_dtype, products)
    wide = [operand and operand.wide for operand in inputs]
    dz, _ = operation.reference(*wide)
    slack = 8 * EPSILON[ACCUMULATOR[dtype]] * (1 + np.abs(np.nan_to_num(dz)))

    for place in (Operand(shape, dtype, layout), dy):  # apart, and in the place of dy
        sums = Operand(operation.output_shape, result_dtype)
        given = (*inputs[:3], place, *inputs[3:])
        found = run(kernels_sums, operation, given, sums, beside=(place,))
        made = place.result()
        assert_close(made, dz, dtype, slack)
        # the sums are of what is written
        stored = made.astype(np.float64)
        terms = [stored]
        if products:
            terms.append(stored * (x.wide - per_channel(mean.wide, len(shape))))
        axes, count = (0, *range(2, len(shape))), math.prod(shape) // shape[1]
        for at, term in enumerate(terms):
            loss = 4 * (2 + math.log2(count)) * 2.0**-52 * np.abs(term).sum(axis=axes)
            if products and OF_A_RUN[dtype]:
                far = np.abs(x.wide) + np.abs(per_channel(mean.wide, len(shape)))
                loss += OF_A_RUN[dtype] * np.abs(stored * far if at else stored).sum(axis=axes)
            of = found[at] if products else found
            assert_close(of, term.sum(axis=axes), result_dtype, loss)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_shapes(dtype, shape, layout):
    for offset, products in ((0, False), (1, True), (0, True)):
        check(shape, dtype, layout, offset=offset, products=products)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_modes_and_dtypes(dtype, mode):
    for layout, products in (("first", False), ("last", True)):
        check((2, 16, 6, 8), dtype, layout, mode, products=products)


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_nan_and_infinity_stay_in_their_channel(dtype, layout):
    for products in (False, True):
        check((2, 8, 6, 10), dtype, layout, products=products, special=True)


@pytest.mark.parametrize("mode", ["relu", "clipped_relu", "leaky_relu"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_through_an_activation_that_is_made_again(dtype, layout, mode):
    coef = COEF.get(mode, 0.0)
    for shape, offset in (((2, 3, 5, 7), 1), ((3, 64, 4, 8), 0), ((2, 5, 300), 0)):
        scale, bias, mean, inverse = vectors(shape[1], dtype, offset)
        data = data_off_the_kinks(shape, dtype, (scale, bias, mean, inverse), coef)
        x = Operand(shape, dtype, layout, data=data, offset=offset)
        dy = Operand(shape, dtype, layout, data=random(shape, 2), offset=offset)
        a, m, i, b = (per_channel(v.wide, len(shape)) for v in (scale, mean, inverse, bias))
        y = reference.ACTIVATIONS[mode](a * i * (x.wide - m) + b, coef)
        dz = ActivationBackward(shape, mode, coef, dtype).reference(y, dy.wide)
        operation = NormaliseSums(shape, dtype, mode, coef)
        sums = Operand((2, shape[1]), "float64")
        found = run(kernels_sums, operation, (x, dy, mean, inverse, scale, bias), sums)
        axes = (0, *range(2, len(shape)))
        for at, term in enumerate((dz, dz * (x.wide - m))):
            slack = 2 * EPSILON[ACCUMULATOR[dtype]] + OF_A_RUN[dtype]
            slack = slack * np.abs(term).sum(axis=axes)
            assert_close(found[at], term.sum(axis=axes), "float64", slack)


def test_nothing_sums_to_zero():
    for shape in ((0, 3, 4), (2, 3, 0)):
        empty, sums = Operand(shape, "float32"), Operand((3,), "float32")
        operation = GradientSums(shape, "relu", 0.0, "float32", "float32")
        given = (empty, empty, None, empty, None, None)
        assert run(kernels_sums, operation, given, sums).tolist() == [0, 0, 0]


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="does not tell the slope of gelu"):
        GradientSums((1, 2, 3), "gelu", 0.0, "float32")
    y, sums = Operand((1, 2, 3), "float32"), Operand((2,), "float32")
    operation = GradientSums((1, 2, 3), "relu", 0.0, "float32", "float32")
    with pytest.raises(ValueError, match="workspace"):
        kernels_sums.gradient_sums(
            operation, Call((y.view, y.view, None, y.view, None, None), sums.view)
        )
