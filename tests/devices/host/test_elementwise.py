"""Elementwise operations on the host: values, NaN, layouts, in place, chunks of any size."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.host import chunks as host_chunks
from ooc_cudnn.devices.host import elementwise as host_elementwise
from ooc_cudnn.operations.core.activation_modes import MODES
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationBackward
from ooc_cudnn.operations.elementwise.binary import OPS, OpTensor
from ooc_cudnn.operations.normalization.batch_launches import Normalise, NormaliseBackward
from ooc_cudnn.operations.softmax.channels import ImageSoftmax, ImageSoftmaxBackward
from ooc_cudnn.tensor import ACCUMULATOR
from tests.support.host_operations import DTYPES, LAYOUTS, assert_near, assert_same, laid_out, run

SHAPES = [(3, 4), (2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 4), (2, 3, 0, 5)]
COEFS = {"clipped_relu": 1.5, "elu": 0.75, "swish": 1.25, "leaky_relu": 0.125}


@pytest.fixture(autouse=True, params=[7, 2**18])
def chunk_elements(request, monkeypatch):
    monkeypatch.setattr(host_chunks, "CHUNK_ELEMENTS", request.param)


def numbers(random, shape, dtype, layout="channels_first"):
    return laid_out(np.round(random.standard_normal(shape) * 16) / 16, layout, dtype)


def wide(*arrays):
    return tuple(array.astype("f8") for array in arrays)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_op_tensor(random, op, dtype, layout):
    for shape in SHAPES:
        for b_shape in (shape, (1, *shape[1:]), (1, shape[1], *[1] * (len(shape) - 2))):
            a, b = numbers(random, shape, dtype, layout), numbers(random, b_shape, dtype)
            if a.size:
                a[0, 0], b[(0,) * b.ndim] = np.inf, np.nan
            for alphas in ((1, 1), (0.5, -3)):
                operation = OpTensor(shape, b_shape, dtype, op, *alphas)
                with np.errstate(invalid="ignore"):  # infinity times zero
                    expected = operation.reference(*wide(a, b))
                size = 8 * (abs(a.astype("f8")) + abs(b.astype("f8")))
                found = run(host_elementwise, operation, (a, b), dtype, layout)
                assert_near(found, expected, dtype, size)
            target = a.copy(order="K")
            operation = OpTensor(shape, b_shape, dtype, op)
            run(host_elementwise, operation, (target, b), dtype, output=target)
            assert_same(target, run(host_elementwise, operation, (a, b), dtype, layout))


def test_op_tensor_without_a(random):
    b = numbers(random, (1, 3, 1), "float32")
    operation = OpTensor((2, 3, 4), b.shape, "float32", "add", 0.0, 2.0)
    found = run(host_elementwise, operation, (None, b), "float32")
    np.testing.assert_array_equal(found, np.broadcast_to(2 * b, (2, 3, 4)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_activation_backward(random, mode, dtype, layout):
    signs = (1, -1) if mode in ("elu", "leaky_relu") else (1,)
    for shape in SHAPES:
        for sign in signs:
            coef = sign * COEFS.get(mode, 0.0)
            x, dy = numbers(random, shape, dtype, layout), numbers(random, shape, dtype, layout)
            y = laid_out(MODES[mode].value(x.astype("f8"), coef), layout, dtype)
            if x.size:
                x[0, 0], y[0, 0] = np.nan, np.nan
            operation = ActivationBackward(shape, mode, coef, dtype)
            expected = operation.reference(*wide(y, dy, x))
            found = run(host_elementwise, operation, (y, dy, x), dtype, layout)
            assert_near(found, expected, dtype, 8 * (1 + abs(dy.astype("f8"))), 8)
            if sign == 1 and not MODES[mode].needs_x:
                for inputs in ((y, dy), (y, dy, None)):
                    again = run(host_elementwise, operation, inputs, dtype, layout)
                    assert_same(found, again)


def test_a_slope_of_zero_stops_infinite_gradients():
    """At NaN the gradient goes through, as in PyTorch's hardtanh."""
    y = np.array([[0.0, 2.0, 3.0, np.nan]], "f4")
    dy = np.array([[np.inf, np.inf, np.nan, 1.0]], "f4")
    found = run(host_elementwise, ActivationBackward((1, 4), "clipped_relu", 3.0, "float32"),
                (y, dy), "float32")  # fmt: skip
    np.testing.assert_array_equal(found, [[0, np.inf, 0, 1]])


@pytest.mark.parametrize("mode", ["relu", "gelu", "tanh"])
def test_activation_backward_against_pytorch(random, mode):
    torch = pytest.importorskip("torch")
    x, dy = (numbers(random, (2, 3, 4), "float64") for _ in range(2))
    given = torch.from_numpy(x).requires_grad_()
    function = getattr(torch.nn.functional, mode, None) or getattr(torch, mode)
    y = function(given)
    y.backward(torch.from_numpy(dy))
    operation = ActivationBackward(x.shape, mode, 0.0, "float64")
    found = run(host_elementwise, operation, (y.detach().numpy(), dy, x), "float64")
    np.testing.assert_allclose(found, given.grad.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_normalise(random, dtype, layout):
    for shape in SHAPES:
        x = numbers(random, shape, dtype, layout)
        scale, bias, mean = (random.standard_normal(shape[1]) for _ in range(3))
        spread = random.uniform(0.5, 2, shape[1])
        vectors = [v.astype(ACCUMULATOR[dtype]) for v in (scale, bias, mean, spread)]
        if x.size:
            x[0, 0] = np.nan
        for epsilon, mode in ((None, "identity"), (1e-3, "relu"), (0.0, "elu")):
            operation = Normalise(shape, dtype, epsilon, mode, 1.0)
            expected = operation.reference(x.astype("f8"), *vectors)
            found = run(host_elementwise, operation, (x, *vectors), dtype, layout)
            assert_near(found, expected, dtype, 64.0, 4)
        target = x.copy(order="K")
        found = run(host_elementwise, operation, (target, *vectors), dtype, output=target)
        assert_near(found, expected, dtype, 64.0, 4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_normalise_backward(random, dtype, layout):
    for shape in SHAPES:
        x, dy = numbers(random, shape, dtype, layout), numbers(random, shape, dtype, layout)
        vectors = [random.standard_normal(shape[1]) for _ in range(3)]
        scale, mean, inverse = (v.astype(ACCUMULATOR[dtype]).astype("f8") for v in vectors)
        sums = random.standard_normal((2, shape[1])) * 30
        each = (1, -1, *[1] * (len(shape) - 2))
        xhat = (x.astype("f8") - mean.reshape(each)) * inverse.reshape(each)
        rest = sums[0].reshape(each) / 40 + xhat * sums[1].reshape(each) / 40
        expected = (scale * inverse).reshape(each) * (dy.astype("f8") - rest)
        given = [v.astype(ACCUMULATOR[dtype]) for v in vectors]
        operation = NormaliseBackward(shape, dtype, 40)
        found = run(host_elementwise, operation, (x, dy, *given, sums), dtype, layout)
        assert_near(found, expected, dtype, 256.0, 4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ["accurate", "log"])
def test_image_softmax(random, algorithm, dtype, layout):
    for shape in SHAPES[:-1]:
        x, dy = numbers(random, shape, dtype, layout), numbers(random, shape, dtype, layout)
        values = x.astype("f8").reshape(shape[0], -1)
        largest = values.max(axis=1)
        state = np.stack([largest, np.exp(values - largest[:, None]).sum(axis=1)], axis=1)
        expected = values - largest[:, None] - np.log(state[:, 1:])
        y = np.exp(expected) if algorithm == "accurate" else expected
        operation = ImageSoftmax(shape, algorithm, dtype)
        found = run(host_elementwise, operation, (x, state), dtype, layout)
        assert_near(found, y.reshape(shape), dtype, 2 * (1 + abs(y.reshape(shape))), 8)
        given, sums = found.astype("f8"), random.standard_normal((shape[0], 1))
        total = sums.reshape(-1, *[1] * (len(shape) - 1))
        gradient = dy.astype("f8")
        expected = (
            given * (gradient - total)
            if algorithm == "accurate"
            else gradient - np.exp(given) * total
        )
        backward = ImageSoftmaxBackward(shape, algorithm, dtype)
        result = run(host_elementwise, backward, (found, dy, sums), dtype, layout)
        assert_near(result, expected, dtype, 8 * (1 + abs(gradient)), 4)
