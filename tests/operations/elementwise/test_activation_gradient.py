"""Gradients of activations against PyTorch's autograd, at kinks and at NaN too."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.operations.core.activation_modes import MODES as FORWARD
from ooc_cudnn.operations.core.activation_modes import needs_x
from ooc_cudnn.operations.elementwise.activation import check_mode, coef_in
from ooc_cudnn.operations.elementwise.activation_gradient import (
    ActivationBackward,
    ActivationGradientCall,
)
from tests.support.activation_modes import MODES as KNOWN

torch = pytest.importorskip("torch")
F = torch.nn.functional

X = np.concatenate([np.linspace(-12, 12, 2401), [0.0, -0.0, 3.0, -3.0, 6.0, 1e-300, -1e-300]])

COEFFICIENTS = {
    "clipped_relu": (6.0, 1.5),
    "elu": (1.0, 0.3, -0.5),
    "swish": (1.0, 0.3, 2.0, -1.0),
    "leaky_relu": (0.01, 0.0, -0.5, 2.0),
}


def found(mode, coef, y, dy, x):
    operation = ActivationBackward(y.shape, mode, coef, "float64")
    inputs = (y, dy, x if needs_x(mode, coef) else None)
    return operation.reference(*inputs)


@pytest.mark.parametrize(
    ("mode", "coef"), [(mode, c) for mode in KNOWN for c in COEFFICIENTS.get(mode, (0.0,))]
)
def test_against_autograd(mode, coef, random):
    dy = random.standard_normal(X.shape)
    t = torch.from_numpy(X).requires_grad_()
    y = KNOWN[mode].pytorch(t, coef)
    y.backward(torch.from_numpy(dy))
    dx = found(mode, coef, y.detach().numpy(), dy, X)
    assert np.allclose(dx, t.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_every_mode_is_here():
    assert KNOWN.keys() == FORWARD.keys()


@pytest.mark.parametrize("mode", KNOWN)
def test_slopes_are_those_of_our_activations(mode):
    """Against differences of the function itself, away from the kinks."""
    mode, coef = check_mode(mode, None)
    function = FORWARD[mode].value
    x = np.linspace(-5.03, 7.91, 200)
    step = 1e-6
    expected = (function(x + step, coef) - function(x - step, coef)) / (2 * step)
    dx = found(mode, coef, function(x, coef), np.ones_like(x), x)
    assert np.allclose(dx, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("mode", ["relu", "clipped_relu"])
@pytest.mark.parametrize("gradient", [np.nan, np.inf, -np.inf])
def test_flat_parts_select(mode, gradient):
    x = np.array([-1.0, 0.0, 1.0, 9.0])
    t = torch.from_numpy(x).requires_grad_()
    y = KNOWN[mode].pytorch(t, 6.0)
    dy = np.full(4, gradient)
    y.backward(torch.from_numpy(dy))
    dx = found(mode, 6.0, y.detach().numpy(), dy, x)
    assert np.array_equal(dx, t.grad.numpy(), equal_nan=True)
    assert (dx[:2] == 0).all()


def test_elsewhere_a_slope_of_zero_is_multiplied():
    y = np.array([0.0, 1.0])
    for mode in ("sigmoid", "tanh"):
        dx = found(mode, 0.0, y, np.full(2, np.nan), y)
        assert np.isnan(dx).all()


@pytest.mark.parametrize("gradient", [2.0, -0.5, 0.0, np.nan, np.inf])
@pytest.mark.parametrize(
    ("mode", "coef"), [(mode, c) for mode in KNOWN for c in COEFFICIENTS.get(mode, (0.0,))]
)
def test_at_nan_infinity_and_zero_as_in_pytorch(mode, coef, gradient):
    """Element by element: PyTorch's loops over vectors of a CPU have other answers at NaN."""
    function = KNOWN[mode].own or KNOWN[mode].pytorch
    if mode == "swish":  # x * sigmoid(coef * x) takes 0 * inf where a gradient is infinite
        function = lambda x, coef: F.silu(coef * x) / coef  # noqa: E731
    for value in (np.nan, -np.inf, np.inf, -0.0, 0.0, -3.0, 3.0, 6.0, 1e200, -1e200):
        if KNOWN[mode].most < abs(value) < np.inf:
            continue
        t = torch.tensor([value], dtype=torch.float64, requires_grad=True)
        y = function(t, coef)
        y.backward(torch.tensor([gradient], dtype=torch.float64))
        with np.errstate(all="ignore"):
            dx = found(mode, coef, y.detach().numpy(), np.array([gradient]), t.detach().numpy())
        np.testing.assert_allclose(dx, t.grad.numpy(), rtol=1e-7, err_msg=f"at {value}")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("ceiling", [0.1, 0.3, 1 / 3, 6.0, 70000.0])
def test_a_ceiling_that_no_element_has_is_flat_where_it_is_reached(dtype, ceiling):
    """0.1 is more than what float16 makes of it: y, which is that, is at the ceiling."""
    x = torch.tensor([ceiling / 2, ceiling * 1.5], dtype=torch.float64)
    x = x.to(getattr(torch, dtype)).requires_grad_()
    if ceiling > torch.finfo(x.dtype).max:
        with pytest.raises(RuntimeError, match="without overflow"):
            F.hardtanh(x, 0.0, ceiling)
        return
    y = F.hardtanh(x, 0.0, ceiling)
    y.sum().backward()
    coef = coef_in(dtype, "clipped_relu", ceiling)
    values = y.detach().double().numpy()
    dx = ActivationBackward((2,), "clipped_relu", coef, dtype).reference(values, np.ones(2))
    assert dx.tolist() == x.grad.tolist() == [1, 0]


def test_what_verify_allows_at_nan_is_of_the_gradient():
    """It allowed NaN, so that right numbers rounded otherwise were an error on a card."""
    call = ActivationGradientCall((4,), "leaky_relu", 0.2, "bfloat16")
    y, dy = np.array([np.nan, -1.0, 2.0, np.inf]), np.array([0.5, 0.5, np.nan, 0.5])
    operation = ActivationBackward((4,), "leaky_relu", 0.2, "float64")
    value, sizes = call.compare(operation, [y, dy])
    np.testing.assert_array_equal(value, [0.1, 0.1, np.nan, 0.5])
    np.testing.assert_allclose(sizes, [0.1 + 0.5 * 4.7, 0.1 + 0.5 * 5.7, np.nan, np.inf])
