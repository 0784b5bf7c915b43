"""Softmax and its gradient, over channels and over whole images, against float64."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from tests.support import bounded
from tests.support.calls import softmax_axes, softmax_backward
from tests.support.calls import softmax_backward_call as backward_call
from tests.support.calls import softmax_forward_call as forward_call
from tests.support.function_cases import (
    LAID,
    check_laid,
    check_under_falling_limits,
    some_limits,
)

pytest.importorskip("ml_dtypes")
ALGORITHMS, MODES = ("accurate", "log"), ("channel", "instance")
WAYS = [(algorithm, mode) for algorithm in ALGORITHMS for mode in MODES]
SHAPES = {
    "vectors": (37, 11),
    "1d": (3, 5, 37),
    "2d": (3, 6, 9, 7),
    "3d": (2, 5, 5, 4, 4),
    "one channel": (3, 1, 9, 7),
    "one site": (9, 40, 1, 1),
    "many channels": (2, 300, 3, 2),
}
#: dtype, alpha, beta
SCALES = (
    ("float32", 1.0, 0.0),
    ("float32", -1.5, 0.0),
    ("float32", 2.0, -0.25),
    ("float64", 0.5, 2.0),
    ("float16", 0.5, 2.0),
    ("bfloat16", 1.0, 0.0),
)


MAKE = {"forward": forward_call, "backward": backward_call}


@pytest.mark.parametrize("direction", MAKE)
@pytest.mark.parametrize(("algorithm", "mode"), WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_under_falling_limits(shape, algorithm, mode, direction):
    call = MAKE[direction](SHAPES[shape], algorithm, mode)
    check_under_falling_limits(call, cuts=shape in ("2d", "vectors"))


@pytest.mark.parametrize("direction", MAKE)
@pytest.mark.parametrize(("algorithm", "mode"), WAYS)
@pytest.mark.parametrize(("dtype", "alpha", "beta"), SCALES)
def test_dtypes_and_scales_under_falling_limits(dtype, alpha, beta, algorithm, mode, direction):
    for shape in ("2d", "vectors"):
        call = MAKE[direction](SHAPES[shape], algorithm, mode, dtype, alpha, beta)
        check_under_falling_limits(call, cuts=False)


@pytest.mark.parametrize("direction", MAKE)
@pytest.mark.parametrize("laid", LAID)
def test_any_strides(laid, direction):
    for algorithm, mode, shape in (
        ("accurate", "channel", "2d"),
        ("accurate", "channel", "vectors"),
        ("log", "instance", "2d"),
    ):
        call = MAKE[direction](SHAPES[shape], algorithm, mode, "float32", 2.0, -0.25)
        check_laid(call, laid)


@pytest.mark.parametrize(("algorithm", "mode"), WAYS)
def test_the_reference_is_pytorchs(algorithm, mode):
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(16)
    x = torch.tensor(3 * random.standard_normal((3, 6, 4, 5)), requires_grad=True)
    function = torch.softmax if algorithm == "accurate" else torch.log_softmax
    y = function(x if mode == "channel" else x.flatten(1), 1).reshape(x.shape)
    dy = random.standard_normal(x.shape)
    (dx,) = torch.autograd.grad(y, x, torch.tensor(dy))
    options = {"algorithm": algorithm, "mode": mode}
    y = y.detach().numpy()
    bounded.softmax(x.detach().numpy(), "float64", **options).check(y)
    softmax_backward(y, dy, "float64", algorithm, mode).check(dx.numpy())


# Values that are special -------------------------------------------------------------------------


def compare(x, algorithm, mode):
    """The library's result under several limits, beside PyTorch's in float64."""
    torch = pytest.importorskip("torch")
    call = forward_call(x.shape, algorithm, mode)
    function = torch.softmax if algorithm == "accurate" else torch.log_softmax
    exact = torch.tensor(x).double()
    exact = function(exact if mode == "channel" else exact.flatten(1), 1)
    exact = exact.reshape(x.shape).numpy()
    found = []
    for limit in some_limits(call):
        with ooc_cudnn.settings(memory_limit=limit):
            found.append(ooc_cudnn.softmax_forward(x, algorithm=algorithm, mode=mode))
    for y in found:
        assert np.allclose(y, exact, rtol=1e-5, atol=1e-37, equal_nan=True)
    return found[-1]


@pytest.mark.parametrize(("algorithm", "mode"), WAYS)
def test_huge_values_neither_overflow_nor_vanish(algorithm, mode):
    random = np.random.default_rng(17)
    for offset in (0, 1000, -1000, 1e6, -1e6):
        x = (offset + np.round(4 * random.standard_normal((3, 6, 9, 7)))).astype("f4")
        y = compare(x, algorithm, mode)
        whole = y if algorithm == "accurate" else np.exp(y)
        assert np.allclose(whole.sum(axis=softmax_axes(mode, 4), dtype="f8"), 1, atol=1e-4)
    x = random.choice(np.array([-1e38, 0, 88, 89, 1e38], "f4"), (3, 6, 9, 7))
    compare(x, algorithm, mode)


@pytest.mark.parametrize(("algorithm", "mode"), WAYS)
def test_masked_values(algorithm, mode):
    """-inf has no share; where all is masked there is no softmax, and NaN says so."""
    random = np.random.default_rng(18)
    x = random.standard_normal((3, 6, 9, 7)).astype("f4")
    x[random.random(x.shape) < 0.5] = -np.inf
    x[0, :, 3] = -np.inf  # rows of which every channel is masked
    x[1, :, :5] = -np.inf  # an image whose first pieces hold nothing
    x[2, :, 4:] = -np.inf  # ... or whose last ones
    x[2, 5, 8, 6] = 0
    compare(x, algorithm, mode)
    x[1] = -np.inf
    assert np.isnan(compare(x, algorithm, mode)[1]).all()


@pytest.mark.parametrize(("algorithm", "mode"), WAYS)
@pytest.mark.parametrize("value", [np.nan, np.inf], ids=["NaN", "inf"])
def test_nan_and_inf_stay_where_they_belong(algorithm, mode, value):
    random = np.random.default_rng(19)
    x = random.standard_normal((3, 6, 9, 7)).astype("f4")
    for at in ((1, 2, 0, 3), (1, 5, 8, 6)):
        x[at] = value
    y = compare(x, algorithm, mode)
    assert np.isfinite(y[[0, 2]]).all()
    wrong = np.isnan(y[1]) | np.isinf(y[1])
    if mode == "channel":
        assert wrong[:, 0, 3].all()
        assert wrong[:, 1:8].sum() == 0
    else:
        assert wrong.all()


def test_every_row_sums_to_one():
    x = np.random.default_rng(20).standard_normal((2, 1000, 6, 5)).astype("f4")
    for limit in (2**24, 60_000):
        with ooc_cudnn.settings(memory_limit=limit):
            y = ooc_cudnn.softmax_forward(x)
        assert np.allclose(y.sum(axis=1, dtype="f8"), 1, atol=1e-5)
