"""Local response normalization against PyTorch, however it is cut; its limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ooc_cudnn.operations.normalization.local_response import (
    LocalResponse,
    LocalResponseBackward,
    LocalResponseCall,
    LocalResponseGradientCall,
)
from tests.support.cut_calls import check_cut, rounded

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
F = torch.nn.functional

#: shape, size, alpha, beta, k
CASES = {
    "AlexNet's": ((2, 7, 4, 3), 5, 1e-4, 0.75, 2.0),
    "strong": ((2, 6, 5), 3, 2.0, 0.75, 1.0),
    "even": ((1, 5, 3, 2, 2), 4, 1.5, 0.5, 1.0),
    "more than the channels": ((3, 3, 4, 2), 9, 1.0, 1.0, 0.5),
    "one": ((2, 3, 2, 3), 1, 1.0, -0.5, 1.0),
}


def operands(name, dtype="float64"):
    shape, size, alpha, beta, k = CASES[name]
    random = np.random.default_rng(3)
    x, dy = (rounded(random.standard_normal(shape), dtype) for _ in range(2))
    t = torch.from_numpy(x).requires_grad_()
    y = F.local_response_norm(t, size, alpha, beta, k)
    y.backward(torch.from_numpy(dy))
    return {"x": x, "dy": dy}, y.detach().numpy(), t.grad.numpy()


def described(name, dtype="float64"):
    shape, size, alpha, beta, k = CASES[name]
    return LocalResponse.of(shape, size, alpha, beta, k, dtype)


@pytest.mark.parametrize("name", CASES)
def test_reference(name):
    arrays, y, dx = operands(name)
    forward = described(name)
    assert np.allclose(forward.reference(arrays["x"]), y, rtol=1e-13, atol=1e-14)
    made = LocalResponseBackward(forward).reference(arrays["x"], arrays["dy"])
    assert np.allclose(made, dx, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", CASES)
def test_every_split(name):
    def forward(dtype, alpha, beta):
        return LocalResponseCall(described(name, dtype), alpha=alpha, beta=beta)

    def backward(dtype, alpha, beta):
        return LocalResponseGradientCall(described(name, dtype), alpha=alpha, beta=beta)

    check_cut(forward, lambda dtype: operands(name, dtype)[:2])
    check_cut(backward, lambda dtype: operands(name, dtype)[::2])


def test_its_channels_stay_together():
    call = LocalResponseCall(described("strong"))
    assert not call.is_legal(replace(call.extents, c_y=2))
    assert call.is_legal(replace(call.extents, n=1, h_y=1))


@pytest.mark.parametrize(
    ("size", "alpha", "error", "why"),
    [
        (0, 1.0, ValueError, "size must be at least 1"),
        (2.5, 1.0, TypeError, "size must be an int"),
        (3, float("nan"), ValueError, "alpha must be finite"),
        (3, "1", TypeError, "alpha must be a number"),
    ],
)
def test_arguments_that_do_not_fit(size, alpha, error, why):
    with pytest.raises(error, match=why):
        LocalResponse.of((1, 2, 3), size, alpha, 0.75, 1.0, "float32")
