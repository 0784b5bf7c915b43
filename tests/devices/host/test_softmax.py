"""Softmax over channels on the host: both algorithms, every layout, any number of channels."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.host import chunks as host_chunks
from ooc_cudnn.devices.host import softmax as host_softmax
from ooc_cudnn.operations.softmax.channels import ALGORITHMS, Softmax, SoftmaxBackward
from tests.support.host_operations import DTYPES, LAYOUTS, assert_near, laid_out, run

SHAPES = [(3, 4), (2, 11, 5), (2, 3, 4, 5), (2, 1, 3), (2, 3, 2, 3, 4), (2, 3, 0, 5)]


@pytest.mark.parametrize("elements", [3, 40, 2**18])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_forward_and_backward(monkeypatch, random, algorithm, dtype, layout, elements):
    monkeypatch.setattr(host_chunks, "CHUNK_ELEMENTS", elements)
    for shape in SHAPES:
        x = laid_out(random.standard_normal(shape) * 5, layout, dtype)
        operation = Softmax(shape, algorithm, dtype)
        y = run(host_softmax, operation, (x,), dtype, layout)
        if x.size == 0:
            continue
        size = 16 * (1 + abs(x.astype("f8")))
        assert_near(y, operation.reference(x), dtype, size, shape[1] + 8)
        dy = laid_out(random.standard_normal(shape), layout, dtype)
        backward = SoftmaxBackward(shape, algorithm, dtype)
        found = run(host_softmax, backward, (y, dy), dtype, layout)
        size = abs(dy.astype("f8")).sum(axis=1, keepdims=True) + 1
        assert_near(found, backward.reference(y, dy), dtype, size, shape[1] + 8)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_against_pytorch(random, algorithm):
    torch = pytest.importorskip("torch")
    x, dy = random.standard_normal((2, 2, 7, 5))
    given = torch.from_numpy(x).requires_grad_()
    function = torch.softmax if algorithm == "accurate" else torch.log_softmax
    y = function(given, 1)
    y.backward(torch.from_numpy(dy))
    found = run(host_softmax, Softmax(x.shape, algorithm, "float64"), (x,), "float64")
    np.testing.assert_allclose(found, y.detach().numpy(), rtol=1e-13)
    found = run(
        host_softmax, SoftmaxBackward(x.shape, algorithm, "float64"), (found, dy), "float64"
    )
    np.testing.assert_allclose(found, given.grad.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("elements", [2, 2**18])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_large_values_infinity_and_nan(monkeypatch, algorithm, elements):
    monkeypatch.setattr(host_chunks, "CHUNK_ELEMENTS", elements)
    x = np.array(
        [[1e4, 1e4, -1e4], [-np.inf, 0, 1], [np.nan, 0, 1], [0, np.inf, 1], [-np.inf] * 3], "f4"
    )
    operation = Softmax(x.shape, algorithm, "float32")
    found = run(host_softmax, operation, (x,), "float32")
    with np.errstate(all="ignore"):
        expected = operation.reference(x)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.isnan(found[2:]).all()
