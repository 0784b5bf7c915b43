"""The fused functions with pooling, and backward: each result as if computed one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ooc_cudnn
from tests.support.calls import FusedCase as Case
from tests.support.calls import fused_backward_call as backward_call
from tests.support.calls import fused_pooling_call as pooling_call
from tests.support.function_cases import (
    FEW_LAID,
    check_laid,
    check_under_falling_limits,
    some_limits,
)
from tests.support.sampling import number

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")


CASES = (
    Case("1d", (4, 3, 42), (5, 3, 3), {"padding": 1}, activation="tanh"),
    Case("1d-asymmetric", (3, 4, 50), (3, 4, 4), {"padding": ((3, 0),), "stride": 2},
         {"window": 3, "pooling_padding": ((2, 0),), "pooling_stride": 2, "mode": "max"}),
    Case("2d", (3, 4, 12, 8), (5, 4, 3, 3), {"padding": 1}),
    Case("2d-overlapping", (3, 4, 13, 9), (5, 4, 3, 3), {"padding": 1},
         {"window": 3, "pooling_stride": 2, "pooling_padding": 1}),
    Case("2d-stride-1", (2, 4, 11, 8), (3, 4, 3, 3), {"padding": (1, 0)},
         {"window": (3, 2), "pooling_stride": 1, "mode": "max_deterministic"}, "elu"),
    # Near its border the pooling must not see what a convolution would give beyond y's rows.
    Case("2d-average-at-borders", (2, 4, 11, 8), (3, 4, 3, 3), {"padding": 2},
         {"window": 3, "pooling_stride": 2, "pooling_padding": 1,
          "mode": "average_exclude_padding"}, "sigmoid"),
    Case("2d-average-include", (2, 4, 11, 8), (3, 4, 3, 3), {"padding": 1},
         {"window": (3, 2), "pooling_padding": ((2, 1), (0, 1)), "pooling_stride": (2, 1),
          "mode": "average_include_padding"}, "leaky_relu", 0.3),
    Case("2d-negative-beside-padding", (2, 4, 11, 8), (3, 4, 3, 3), {"padding": 1},
         {"window": 3, "pooling_stride": 1, "pooling_padding": 2}, "leaky_relu", 3.0),
    Case("2d-everything", (2, 4, 14, 9), (4, 2, 2, 3),
         {"padding": ((3, 1), (0, 2)), "stride": (2, 1), "dilation": (3, 2), "groups": 2},
         {"window": (2, 3), "pooling_stride": (3, 1)}, "elu"),
    Case("2d-pieces-of-padding", (2, 2, 4, 5), (2, 2, 1, 1), {"padding": 5},
         {"window": 2, "pooling_stride": 3}, "elu"),
    Case("3d", (2, 3, 7, 5, 5), (4, 3, 2, 3, 2), {"padding": ((1, 0), 1, (0, 1))}),
    Case("groups", (2, 6, 10, 6), (4, 3, 3, 3), {"padding": 1, "groups": 2}),
    Case("depthwise", (2, 6, 10, 6), (6, 1, 3, 3), {"padding": 1, "groups": 6}),
    Case("1x1", (2, 8, 10, 6), (6, 8, 1, 1)),
    Case("alpha-beta", (2, 4, 10, 6), (3, 4, 3, 3), {"padding": 1}, alpha=2.0, beta=-0.25),
    Case("float64", (2, 4, 10, 6), (3, 4, 3, 3), {"padding": 1},
         dtype="float64", alpha=0.5, beta=2.0),
    Case("float16", (2, 8, 10, 6), (4, 8, 3, 3), {"padding": 1},
         dtype="float16", alpha=0.5, beta=2.0),
    Case("bfloat16", (2, 8, 10, 6), (4, 8, 3, 3), {"padding": 1},
         {"window": 2, "mode": "average_include_padding"}, dtype="bfloat16"),
)  # fmt: skip


def find(name):
    return next(case for case in CASES if case.name == name)


MAKE = {"pooling": pooling_call, "backward": backward_call}


@pytest.mark.parametrize("function", MAKE)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_under_falling_limits(case, function):
    check_under_falling_limits(MAKE[function](case), cuts=case.name == "2d", most=2)


@pytest.mark.parametrize("function", MAKE)
@pytest.mark.parametrize("laid", FEW_LAID)
def test_any_strides(laid, function):
    check_laid(MAKE[function](find("alpha-beta")), laid)


@pytest.mark.parametrize("which", ["dx", "dw", "db"])
def test_out_may_name_some_of_the_gradients(which):
    call = backward_call(find("2d"))
    names = ("dx", "dw", "db")
    for limit in some_limits(call):
        array = np.full(call.results[which].value.shape, np.nan, "f4")
        out = tuple(array if name == which else None for name in names)
        with ooc_cudnn.settings(memory_limit=limit):
            made = ooc_cudnn.convolution_add_activation_backward(
                *call.operands.values(), out=out, **call.options
            )
        assert isinstance(made, tuple)
        assert made[names.index(which)] is array
        call.check(dict(zip(names, made, strict=True)), f"limit {limit}")


@pytest.mark.parametrize("activation", ["swish", "gelu"])
def test_activations_whose_y_does_not_tell_the_slope_are_refused(activation):
    call = backward_call(find("2d"))
    options = {**call.options, "activation": activation, "coef": None}
    with pytest.raises(ValueError, match=activation):
        ooc_cudnn.convolution_add_activation_backward(*call.operands.values(), **options)


@pytest.mark.parametrize("activation", ["elu", "leaky_relu"])
def test_activations_that_fold_back_are_refused(activation):
    """With a negative coef, y does not tell the slope either."""
    call = backward_call(find("2d"))
    options = {**call.options, "activation": activation, "coef": -0.5}
    with pytest.raises(ValueError, match="coef"):
        ooc_cudnn.convolution_add_activation_backward(*call.operands.values(), **options)


@pytest.mark.parametrize(
    ("activation", "coef"),
    [
        ("relu", None),
        ("clipped_relu", 1.0),
        ("elu", 0.5),
        ("sigmoid", None),
        ("tanh", None),
        ("leaky_relu", 0.2),
        ("identity", None),
    ],
)
def test_every_other_activation(activation, coef):
    case = find("2d")
    case = Case(activation, case.x, case.w, case.geometry, activation=activation, coef=coef)
    for make in MAKE.values():
        call = make(case)
        for limit in some_limits(call)[-1:]:
            with ooc_cudnn.settings(memory_limit=limit, verify=2):
                call.check(call.run(out=call.fresh()), f"limit {limit}", call.arrays)


def test_backward_reads_each_operand_once():
    """Where windows need no halo, everything comes in once and each result leaves once."""
    case = Case("1x1", (8, 4, 12, 16), (4, 4, 1, 1))
    call = backward_call(case)
    whole = sum(array.nbytes for array in call.operands.values())
    results = sum(array.nbytes for array in call.old.values())
    with ooc_cudnn.settings(memory_limit=whole // 2), ooc_cudnn.profile() as p:
        call.check(call.run(out=call.fresh()))
    (done,) = p.calls
    assert done.plan.pieces > 1
    assert (done.bytes_in, done.bytes_out) == (whole, results)


def test_the_backward_function_equals_the_three_gradients():
    call = backward_call(find("2d"))
    x, w, y, dy = call.operands.values()
    dz = ooc_cudnn.activation_backward(y, dy)
    alone = (
        ooc_cudnn.convolution_backward_data(w, dz, padding=1, input_shape=x.shape),
        ooc_cudnn.convolution_backward_filter(x, dz, padding=1, filter_shape=w.shape),
        ooc_cudnn.convolution_backward_bias(dz),
    )
    call.check(dict(zip(call.results, alone, strict=True)), "one by one")
    call.check(call.run(), "fused")


# Random geometry ---------------------------------------------------------------------------------


@st.composite
def geometries(draw_from):
    """A convolution, an activation and a pooling of any geometry, and a share of memory."""
    axes = draw_from(st.integers(1, 2))
    groups = draw_from(st.sampled_from([1, 1, 2]))
    window = [draw_from(st.integers(1, 4)) for _ in range(axes)]
    dilation = [draw_from(st.integers(1, 2)) for _ in range(axes)]
    stride = [draw_from(st.integers(1, 3)) for _ in range(axes)]
    padding = [(draw_from(st.integers(0, 3)), draw_from(st.integers(0, 3))) for _ in range(axes)]
    pooled = [draw_from(st.integers(1, 4)) for _ in range(axes)]
    pads = [(draw_from(st.integers(0, k - 1)), draw_from(st.integers(0, k - 1))) for k in pooled]
    pool_stride = [draw_from(st.integers(1, 4)) for _ in range(axes)]
    spatial = []
    for k, d, s, p, q, r in zip(window, dilation, stride, padding, pooled, pads, strict=True):
        product = max(1, q - sum(r)) + draw_from(st.integers(0, 7))
        spatial.append(max(1, (product - 1) * s + (k - 1) * d + 1 - sum(p)))
    c_x, c_y = (groups * draw_from(st.integers(1, 3)) for _ in range(2))
    geometry = {
        "padding": tuple(padding),
        "stride": tuple(stride),
        "dilation": tuple(dilation),
        "groups": groups,
    }
    pooling = {
        "window": tuple(pooled),
        "pooling_padding": tuple(pads),
        "pooling_stride": tuple(pool_stride),
        "mode": draw_from(st.sampled_from(["max", "average_exclude_padding"])),
    }
    x, w = (draw_from(st.integers(1, 3)), c_x, *spatial), (c_y, c_x // groups, *window)
    activation = draw_from(st.sampled_from(["relu", "elu", "tanh"]))
    case = Case("random", x, w, geometry, pooling, activation)
    return case, draw_from(st.sampled_from([0.0, 0.2, 1.0]))


@pytest.mark.parametrize("function", MAKE)
@settings(max_examples=number(4, of=16))
@given(drawn=geometries())
def test_random_geometry_under_a_random_limit(function, drawn):
    case, share = drawn
    call = MAKE[function](case)
    limits = some_limits(call)
    limit = int(limits[-1] + share * max(0, limits[-2] - limits[-1]))
    with ooc_cudnn.settings(memory_limit=limit):
        call.check(call.run(out=call.fresh()), f"limit {limit}", call.arrays)
