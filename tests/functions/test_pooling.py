"""Pooling and its gradient, against direct sums and maxima, themselves against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ooc_cudnn
from tests.support import bounded, reference
from tests.support.bounded import Bounded
from tests.support.calls import POOLING_MODES as MODES
from tests.support.calls import PoolingCase as Case
from tests.support.calls import pooling_backward_call as backward_call
from tests.support.calls import pooling_forward_call as forward_call
from tests.support.function_cases import (
    DTYPES,
    LAID,
    check_laid,
    check_under_falling_limits,
    draw,
    some_limits,
)
from tests.support.sampling import number

pytest.importorskip("ml_dtypes")


CASES = (
    Case("1d", (3, 4, 50), {"window": 2}),
    Case("1d-overlapping-asymmetric", (3, 4, 41), {"window": 5, "padding": ((4, 1),), "stride": 2}),
    Case("2d", (2, 3, 12, 10), {"window": 2}),
    Case("2d-overlapping", (2, 3, 13, 11), {"window": 3, "stride": 2, "padding": 1}),
    Case("2d-stride-1", (2, 3, 11, 8), {"window": 3, "stride": 1, "padding": 1}),
    Case("2d-ragged", (2, 3, 14, 11), {"window": (3, 4)}),
    Case("2d-asymmetric", (2, 3, 11, 8),
         {"window": (3, 2), "padding": ((0, 2), (1, 0)), "stride": (2, 1)}),
    Case("2d-stride-beyond-window", (2, 3, 17, 9), {"window": (2, 1), "stride": (5, 3)}),
    Case("2d-tall-windows", (2, 3, 14, 6), {"window": (7, 2), "stride": (1, 2), "padding": (3, 0)}),
    Case("2d-global", (3, 5, 8, 9), {"window": (8, 9)}),
    Case("2d-padded-beyond-x", (2, 3, 2, 40), {"window": (5, 3), "padding": (4, 2), "stride": 1}),
    Case("2d-1x1", (2, 3, 12, 10), {"window": 1}),
    Case("3d", (2, 2, 8, 6, 5), {"window": 2}),
    Case("3d-overlapping", (2, 2, 9, 5, 6),
         {"window": (3, 2, 3), "padding": ((2, 0), 1, (0, 1)), "stride": (2, 1, 2)}),
    Case("alpha", (2, 3, 13, 11), {"window": 3, "stride": 2}, alpha=-1.5),
    Case("beta", (2, 3, 13, 11), {"window": 3, "stride": 2}, beta=0.5),
    Case("alpha-beta", (2, 3, 13, 11), {"window": 3, "stride": 2, "padding": 1},
         alpha=2.0, beta=-0.25),
    Case("float64", (2, 3, 13, 11), {"window": 3, "stride": 2}, "float64", 0.5, 2.0),
    Case("float16", (2, 6, 13, 11), {"window": 3, "stride": 2}, "float16", 0.5, 2.0),
    Case("bfloat16", (2, 6, 13, 11), {"window": 3, "stride": 2, "padding": 1}, "bfloat16"),
)  # fmt: skip


def find(name):
    return next(case for case in CASES if case.name == name)


MAKE = {"forward": forward_call, "backward": backward_call}


@pytest.mark.parametrize("direction", MAKE)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_under_falling_limits(case, direction):
    for mode in case.modes:
        check_under_falling_limits(MAKE[direction](case, mode), cuts=case.name == "2d")


@pytest.mark.parametrize("direction", MAKE)
@pytest.mark.parametrize("laid", LAID)
def test_any_strides(laid, direction):
    for name, mode in (
        ("2d-asymmetric", "max"),
        ("alpha-beta", "average_exclude_padding"),
        ("3d-overlapping", "average_include_padding"),
    ):
        call = MAKE[direction](find(name), mode)
        check_laid(call, laid)


# What the tests compare with is itself compared -------------------------------------------------


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_reference_is_pytorchs(axes):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    random = np.random.default_rng(7)
    x = random.standard_normal((2, 3, *[9, 8, 7][:axes]))
    taken = torch.tensor(x, requires_grad=True)
    for window, stride, padding in ((2, 2, 0), (3, 2, 1), (3, 1, 1)):
        for mode in MODES:
            if mode.startswith("max"):
                function = getattr(functional, f"max_pool{axes}d")
                y = function(taken, window, stride, padding)
            else:
                function = getattr(functional, f"avg_pool{axes}d")
                include = mode == "average_include_padding"
                y = function(taken, window, stride, padding, count_include_pad=include)
            options = {"window": window, "padding": padding, "stride": stride, "mode": mode}
            found = bounded.pooling(Bounded.exact(x), "float64", **options)
            found.check(y.detach().numpy(), str(options))
            dy = random.standard_normal(found.value.shape)
            (dx,) = torch.autograd.grad(y, taken, torch.tensor(dy))
            expected = bounded.pooling_backward(x, y.detach().numpy(), dy, "float64", **options)
            expected.check(dx.numpy(), str(options))


# Values that are special -------------------------------------------------------------------------

SPECIAL = {
    "equal throughout": lambda random, shape: np.full(shape, 0.7, "f4"),
    "negative throughout": lambda random, shape: -1 - random.random(shape).astype("f4"),
    "-inf throughout": lambda random, shape: np.full(shape, -np.inf, "f4"),
    "-inf in places": lambda random, shape: np.where(
        random.random(shape) < 0.6, -np.inf, random.standard_normal(shape)
    ).astype("f4"),
    "inf in places": lambda random, shape: np.where(
        random.random(shape) < 0.1, np.inf, random.standard_normal(shape)
    ).astype("f4"),
    "NaN in places": lambda random, shape: np.where(
        random.random(shape) < 0.1, np.nan, random.standard_normal(shape)
    ).astype("f4"),
    "zeros of both signs": lambda random, shape: np.where(
        random.random(shape) < 0.5, -0.0, 0.0
    ).astype("f4"),
    "the largest": lambda random, shape: np.where(
        random.random(shape) < 0.5, -3.4e38, 3.4e38
    ).astype("f4"),
}
GEOMETRIES = (
    {"window": 3, "stride": 2, "padding": 1},
    {"window": (4, 3), "stride": (1, 2), "padding": ((3, 1), (0, 2))},
)


@pytest.mark.parametrize("values", SPECIAL)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=["3x3", "4x3"])
def test_special_values_in_maxima(values, geometry):
    x = SPECIAL[values](np.random.default_rng(8), (2, 3, 13, 11))
    for make in (forward_call, backward_call):
        call = make(Case(values, x.shape, geometry), "max", x)
        check_under_falling_limits(call)


@pytest.mark.parametrize("values", [v for v in SPECIAL if v != "the largest"])
@pytest.mark.parametrize("mode", MODES[2:])
def test_special_values_in_averages(values, mode):
    x = SPECIAL[values](np.random.default_rng(8), (2, 3, 13, 11))
    with np.errstate(invalid="ignore"):
        call = forward_call(Case(values, x.shape, GEOMETRIES[0]), mode, x)
    expected = call.results["y"].value
    for limit in some_limits(call):
        with ooc_cudnn.settings(memory_limit=limit):
            y = call.run(out=call.fresh())["y"]
        odd = ~np.isfinite(expected)
        assert np.array_equal(y[odd], expected[odd].astype("f4"), equal_nan=True)
        error = np.abs(y[~odd] - expected[~odd])
        assert np.all(error <= 1e-5)


def test_padding_is_never_a_maximum_nor_takes_a_gradient():
    """Beside padding, negative data stays negative, and all of dy arrives in dx."""
    geometry = {"window": 3, "stride": 1, "padding": 2}
    for value in (-5.0, -np.inf):
        x = np.full((1, 2, 6, 5), value, "f4")
        for limit in (2**20, 2000):
            with ooc_cudnn.settings(memory_limit=limit):
                y = ooc_cudnn.pooling_forward(x, **geometry)
                dx = ooc_cudnn.pooling_backward(y, np.ones_like(y), x, **geometry)
            assert np.all(y == value)
            assert dx.sum() == y.size


def test_a_tie_goes_to_the_first_of_its_window():
    x = np.ones((1, 1, 4, 4), "f4")
    y = ooc_cudnn.pooling_forward(x, window=2)
    dx = ooc_cudnn.pooling_backward(y, y, x, window=2)
    assert np.array_equal(dx[0, 0], [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]])
    # Windows that overlap across a cut agree on the element and its gradients add up there.
    x = np.zeros((1, 1, 9, 3), "f4")
    x[0, 0, 4, 1] = 5
    geometry = {"window": 3, "stride": 1}
    y = ooc_cudnn.pooling_forward(x, **geometry)
    call = backward_call(Case("peak", x.shape, geometry), "max", x)
    with ooc_cudnn.settings(memory_limit=some_limits(call)[-1]), ooc_cudnn.profile() as p:
        dx = ooc_cudnn.pooling_backward(y, np.ones_like(y), x, **geometry)
    assert dx[0, 0, 4, 1] == 3
    assert dx.sum() == y.size
    assert p.calls[0].plan.pieces >= 1


def test_stride_is_the_window_by_default():
    x = draw(np.random.default_rng(9), (2, 3, 12, 9))
    for window in (3, (4, 3), (2, 1)):
        given_stride = ooc_cudnn.pooling_forward(x, window=window, stride=window)
        assert np.array_equal(ooc_cudnn.pooling_forward(x, window=window), given_stride)
        assert given_stride.shape[2:] == tuple(
            e // k for e, k in zip(x.shape[2:], reference.per_axis(window, 2), strict=True)
        )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_averages_of_half_types_are_summed_in_float32(dtype):
    """The mean of 4096 ones is one; in a half type the sum would stand still."""
    x = np.ones((1, 2, 64, 64), DTYPES[dtype])
    for mode in MODES[2:]:
        y = ooc_cudnn.pooling_forward(x, window=64, mode=mode)
        assert np.all(y.astype("f8") == 1)
    # 64 x 64 windows of stride 1 over one site of dx: each share is 2**-12, exactly.
    x, dy = np.ones((1, 1, 1, 1), DTYPES[dtype]), np.ones((1, 1, 64, 64), DTYPES[dtype])
    mode = {"window": 64, "stride": 1, "padding": 63, "mode": "average_include_padding"}
    y = ooc_cudnn.pooling_forward(x, **mode)
    assert y.shape == dy.shape
    dx = ooc_cudnn.pooling_backward(y, dy, x, **mode)
    assert dx[0, 0, 0, 0] == 1


# Random geometry ---------------------------------------------------------------------------------


@st.composite
def geometries(draw_from):
    """A case of any geometry, its mode, and a share of the way from the least limit up."""
    axes = draw_from(st.integers(1, 3))
    window = [draw_from(st.integers(1, 5)) for _ in range(axes)]
    padding = [(draw_from(st.integers(0, k - 1)), draw_from(st.integers(0, k - 1))) for k in window]
    stride = [draw_from(st.integers(1, 6)) for _ in range(axes)]
    spatial = [
        max(1, k - sum(p)) + draw_from(st.integers(0, 9))
        for k, p in zip(window, padding, strict=True)
    ]
    x = (draw_from(st.integers(1, 4)), draw_from(st.integers(1, 5)), *spatial)
    geometry = {"window": tuple(window), "padding": tuple(padding), "stride": tuple(stride)}
    mode, share = draw_from(st.sampled_from(MODES)), draw_from(st.sampled_from([0.0, 0.2, 1.0]))
    return Case("random", x, geometry), mode, share


@pytest.mark.parametrize("direction", MAKE)
@settings(max_examples=number(4, of=16))
@given(drawn=geometries())
def test_random_geometry_under_a_random_limit(direction, drawn):
    case, mode, share = drawn
    call = MAKE[direction](case, mode)
    limits = some_limits(call)
    limit = int(limits[-1] + share * max(0, limits[-2] - limits[-1]))
    with ooc_cudnn.settings(memory_limit=limit):
        call.check(call.run(out=call.fresh()), f"limit {limit}", call.arrays)
