"""Activations, against formulas of another form and against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.operations.core.activation_modes import MODES
from ooc_cudnn.operations.elementwise.activation import Activation, check_mode
from tests.support import reference
from tests.support.activation_modes import own

X = np.concatenate([np.linspace(-20, 20, 4001), [0.0, -0.0, 1e-300, -1e-300]])


@pytest.mark.parametrize(
    ("mode", "coef"),
    [(m, c) for m in MODES for c in (None, 0.5, 3.0) if c is None or MODES[m].coef is not None],
)
def test_values(mode, coef):
    mode, coef = check_mode(mode, coef)
    y = Activation(X.shape, mode, coef).reference(X)
    expected = reference.ACTIVATIONS[mode](X, coef)
    assert np.allclose(y, expected, rtol=1e-12, atol=1e-15)


def test_values_of_pytorch():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X)
    expected = {mode: own(mode)(x) for mode in MODES}
    assert expected.keys() == MODES.keys()
    for mode, y in expected.items():
        mode, coef = check_mode(mode, None)
        assert np.allclose(MODES[mode].value(X, coef), y.numpy(), rtol=1e-12, atol=1e-15), mode


@pytest.mark.parametrize("mode", MODES)
def test_nan_and_infinity(mode):
    mode, coef = check_mode(mode, None)
    with np.errstate(invalid="ignore"):
        y = MODES[mode].value(np.array([np.nan, np.inf], "f4"), coef)
    assert np.isnan(y[0])
    assert y[1] == {"clipped_relu": 6, "sigmoid": 1, "hardsigmoid": 1, "tanh": 1}.get(mode, np.inf)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_dtype_stays(mode, dtype):
    mode, coef = check_mode(mode, None)
    assert MODES[mode].value(np.ones(3, dtype), coef).dtype == dtype


def test_large_negative_values_do_not_overflow():
    for mode in MODES:
        mode, coef = check_mode(mode, None)
        y = MODES[mode].value(np.array([-1e4, 1e4], "f4"), coef)
        assert np.isfinite(y).all(), mode


def test_defaults():
    assert check_mode("clipped_relu", None) == ("clipped_relu", 6.0)
    assert check_mode("relu", None) == ("relu", 0.0)
    assert check_mode("elu", 0) == ("elu", 0.0)
    assert check_mode("swish", np.float32(2)) == ("swish", 2.0)


@pytest.mark.parametrize(
    ("mode", "coef"),
    [("RELU", None), (None, None), (["relu"], None), ("relu", 1), ("elu", "1"), ("elu", True),
     ("elu", np.nan), ("clipped_relu", -1), ("elu", 1j), ("elu", np.complex64(1))],
)  # fmt: skip
def test_bad_modes(mode, coef):
    with pytest.raises((TypeError, ValueError), match=r"coef|mode must be one of relu"):
        check_mode(mode, coef)
