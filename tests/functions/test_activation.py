"""Activations and their gradients: every mode, against the definitions in float64."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from tests.support import activation_modes
from tests.support.calls import activation_backward_call as backward_call
from tests.support.calls import activation_forward_call as forward_call
from tests.support.function_cases import (
    LAID,
    check_laid,
    check_under_falling_limits,
    some_limits,
)

pytest.importorskip("ml_dtypes")
#: Every mode, and coefs that are not the default.
MODES = (
    *((mode, None) for mode in activation_modes.MODES),
    ("clipped_relu", 0.5),
    ("elu", 0.3),
    ("elu", 2.5),
    ("elu", 0.0),
    ("elu", -0.7),
    ("swish", 2.0),
    ("swish", -1.0),
    ("leaky_relu", 0.4),
    ("leaky_relu", -0.5),
    ("leaky_relu", 0.0),
    ("leaky_relu", 3.0),
)
#: dtype, alpha, beta
SCALES = (
    ("float32", 1.0, 0.0),
    ("float32", -1.5, 0.0),
    ("float32", 2.0, -0.25),
    ("float64", 0.5, 2.0),
    ("float16", 0.5, 2.0),
    ("bfloat16", 1.0, 0.0),
)
SHAPES = {"1d": (3, 4, 37), "2d": (3, 4, 9, 7), "3d": (2, 3, 5, 4, 4)}


MAKE = {"forward": forward_call, "backward": backward_call}


@pytest.mark.parametrize("direction", MAKE)
@pytest.mark.parametrize(("mode", "coef"), MODES, ids=lambda v: str(v))
def test_every_mode_under_falling_limits(mode, coef, direction):
    check_under_falling_limits(MAKE[direction](SHAPES["2d"], mode, coef))


@pytest.mark.parametrize("direction", MAKE)
@pytest.mark.parametrize("mode", ["relu", "gelu", "elu", "tanh"])
@pytest.mark.parametrize(("dtype", "alpha", "beta"), SCALES)
def test_dtypes_and_scales_under_falling_limits(dtype, alpha, beta, mode, direction):
    for shape in SHAPES.values():
        call = MAKE[direction](shape, mode, None, dtype, alpha, beta)
        check_under_falling_limits(call, cuts=False)


@pytest.mark.parametrize("direction", MAKE)
@pytest.mark.parametrize("laid", LAID)
def test_any_strides(laid, direction):
    for mode, alpha, beta in (("leaky_relu", 1.0, 0.0), ("gelu", 2.0, -0.25)):
        call = MAKE[direction](SHAPES["2d"], mode, None, "float32", alpha, beta)
        check_laid(call, laid)


@pytest.mark.parametrize(("mode", "coef"), MODES, ids=lambda v: str(v))
def test_x_is_taken_wherever_it_is_given(mode, coef):
    call = backward_call(SHAPES["2d"], mode, coef, give_x=True)
    for limit in some_limits(call):
        with ooc_cudnn.settings(memory_limit=limit, verify=2):
            call.check(call.run(out=call.fresh()), f"limit {limit}", call.arrays)


@pytest.mark.parametrize(
    ("mode", "coef"), [m for m in MODES if activation_modes.needs_x(*m)], ids=lambda v: str(v)
)
def test_modes_whose_y_does_not_tell_the_slope_need_x(mode, coef):
    y = np.ones((1, 2, 3, 3), "f4")
    with pytest.raises(ValueError, match=r"\bx\b"):
        ooc_cudnn.activation_backward(y, y, mode=mode, coef=coef)


@pytest.mark.parametrize("mode", activation_modes.MODES)
def test_the_definitions_are_pytorchs(mode):
    torch = pytest.importorskip("torch")
    x = torch.linspace(-4, 8, 97, dtype=torch.float64).reshape(1, 1, 97) + 0.01
    x.requires_grad_()
    function = activation_modes.own(mode)
    y = function(x)
    (dx,) = torch.autograd.grad(y.sum(), x)
    found = ooc_cudnn.activation_forward(x.detach().numpy(), mode=mode)
    assert np.allclose(found, y.detach().numpy(), rtol=1e-14, atol=1e-14)
    found = ooc_cudnn.activation_backward(
        y.detach().numpy(), np.ones((1, 1, 97)), x.detach().numpy(), mode=mode
    )
    # PyTorch's slope of hardsigmoid is a sixth in float32, whatever the dtype.
    near = 1e-7 if mode == "hardsigmoid" else 1e-13
    assert np.allclose(found, dx.numpy(), rtol=near, atol=1e-13)


# Values that are special -------------------------------------------------------------------------

HUGE = np.array([-np.inf, -3e38, -1e4, -90, -0.0, 0.0, 1e-40, 90, 1e4, 3e38, np.inf, np.nan], "f4")


@pytest.mark.parametrize(
    ("mode", "expected"),
    {
        "relu": [0, 0, 0, 0, 0, 0, 1e-40, 90, 1e4, 3e38, np.inf, np.nan],
        "clipped_relu": [0, 0, 0, 0, 0, 0, 1e-40, 6, 6, 6, 6, np.nan],
        "elu": [-1, -1, -1, -1, 0, 0, 1e-40, 90, 1e4, 3e38, np.inf, np.nan],
        "sigmoid": [0, 0, 0, 0, 0.5, 0.5, 0.5, 1, 1, 1, 1, np.nan],
        "tanh": [-1, -1, -1, -1, 0, 0, 1e-40, 1, 1, 1, 1, np.nan],
        "identity": HUGE,
    }.items(),
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_huge_values(mode, expected):
    x = np.tile(HUGE, (2, 3, 20, 1))
    for limit in (2**20, 4000):
        with ooc_cudnn.settings(memory_limit=limit):
            y = ooc_cudnn.activation_forward(x, mode=mode)
        wanted = np.broadcast_to(np.asarray(expected, "f4"), x.shape)
        assert np.allclose(y, wanted, rtol=1e-6, atol=2e-38, equal_nan=True)


def test_where_the_slope_is_zero_the_gradient_is_zero_whatever_dy_is():
    """As in cuDNN and PyTorch: relu selects."""
    y = np.zeros((1, 1, 40, 3), "f4")
    y[..., 1] = 2
    dy = np.full(y.shape, np.inf, "f4")
    dy[..., 2] = np.nan
    dx = ooc_cudnn.activation_backward(y, dy)
    assert np.all(dx == [0, np.inf, 0])
    y[..., 0] = np.nan  # and PyTorch's takes it for positive
    assert (ooc_cudnn.activation_backward(y, np.full_like(y, 3))[..., 0] == 3).all()


def test_at_the_kink():
    y = np.zeros((1, 1, 2, 2), "f4")
    ones = np.ones_like(y)
    assert np.all(ooc_cudnn.activation_backward(y, ones) == 0)
    assert np.all(ooc_cudnn.activation_backward(y, ones, mode="leaky_relu", coef=0.25) == 0.25)
    assert np.all(ooc_cudnn.activation_backward(y + 6, ones, mode="clipped_relu") == 0)
    assert np.all(ooc_cudnn.activation_backward(y, ones, mode="elu", coef=0.5) == 0.5)


# In place ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["relu", "gelu"])
def test_out_may_not_be_x(mode):
    """Or, where a function works in place, the result is right: never a wrong result."""
    call = forward_call(SHAPES["2d"], mode, None)
    for limit in some_limits(call):
        x = call.operands["x"].copy()
        with ooc_cudnn.settings(memory_limit=limit):
            try:
                ooc_cudnn.activation_forward(x, mode=mode, out=x)
            except ValueError as error:
                assert "overlap" in str(error)  # noqa: PT017
                assert np.array_equal(x, call.operands["x"])
            else:
                call.check({"y": x}, f"in place under {limit}")
