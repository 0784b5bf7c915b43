"""Softmax in float64, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.operations.softmax.channels import ALGORITHMS, Softmax, SoftmaxBackward

torch = pytest.importorskip("torch")
F = torch.nn.functional

SHAPES = [(2, 5), (1, 1), (3, 7, 4), (2, 1, 3, 3), (2, 6, 3, 5), (1, 4, 2, 3, 2)]


def by_pytorch(x, algorithm):
    tensor = torch.from_numpy(np.ascontiguousarray(x))
    return F.softmax(tensor, 1) if algorithm == "accurate" else F.log_softmax(tensor, 1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(shape, algorithm, random):
    x = 30 * random.standard_normal(shape)
    operation = Softmax(shape, algorithm, "float64")
    y = operation.reference(x)
    assert operation.output_shape == y.shape
    assert np.allclose(y, by_pytorch(x, algorithm).numpy(), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_backward(shape, algorithm, random):
    x = torch.from_numpy(3 * random.standard_normal(shape)).requires_grad_()
    dy = random.standard_normal(shape)
    y = F.softmax(x, 1) if algorithm == "accurate" else F.log_softmax(x, 1)
    y.backward(torch.from_numpy(dy))
    dx = SoftmaxBackward(shape, algorithm, "float64").reference(y.detach().numpy(), dy)
    assert np.allclose(dx, x.grad.numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nan_and_infinity_stay_at_their_site(algorithm):
    nan, infinity = np.nan, np.inf
    sites = [[1, nan, 2], [1, infinity, 2], [-infinity] * 3, [-infinity, 0, 1], [1e4, -1e4, 0]]
    x = np.array(sites, float).T[None]
    with np.errstate(invalid="ignore", divide="ignore"):
        y = Softmax(x.shape, algorithm, "float64").reference(x)
    expected = by_pytorch(x, algorithm).numpy()
    assert np.isnan(y[0, :, :3]).all()
    assert np.allclose(y, expected, rtol=1e-12, atol=0, equal_nan=True)


def test_narrow_data_is_evaluated_in_float64(random):
    x = random.standard_normal((2, 3, 4)).astype("f2")
    y = Softmax(x.shape, "log", "float16").reference(x)
    assert y.dtype == np.float64
    assert np.allclose(y, by_pytorch(x.astype("f8"), "log").numpy(), rtol=1e-13)
