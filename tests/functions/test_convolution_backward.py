"""The three gradients of a convolution, against PyTorch's autograd in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ooc_cudnn
from tests.support import gradients
from tests.support.calls import ConvolutionCase as Case
from tests.support.calls import gradient_call
from tests.support.function_cases import (
    DTYPES,
    FEW_LAID,
    check_laid,
    check_under_falling_limits,
    draw,
    some_limits,
)
from tests.support.sampling import number

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")


CASES = (
    Case("1d", (4, 3, 41), (5, 3, 3), {"padding": 1}),
    Case("1d-asymmetric-strided", (3, 4, 50), (3, 4, 4), {"padding": ((3, 0),), "stride": 2}),
    Case("1d-valid", (2, 3, 40), (4, 3, 5)),
    Case("2d", (3, 4, 10, 7), (5, 4, 3, 3), {"padding": 1}),
    Case("2d-valid", (2, 3, 11, 8), (4, 3, 4, 2)),
    Case("2d-asymmetric", (2, 4, 9, 8), (3, 4, 3, 2), {"padding": ((0, 2), (1, 0))}),
    Case("2d-padding-beyond-window", (2, 4, 6, 5), (3, 4, 2, 2), {"padding": ((4, 5), 3)}),
    Case("2d-strided-1x1-in-padding", (2, 4, 5, 6), (3, 4, 1, 1), {"padding": 4, "stride": 3}),
    Case("2d-stride", (2, 4, 13, 9), (3, 4, 3, 3), {"padding": 1, "stride": (2, 3)}),
    # Rows and columns of x that no window sees: their gradient is 0, not what was there.
    Case("2d-stride-beyond-window", (2, 4, 15, 9), (3, 4, 2, 1),
         {"padding": ((1, 0), 0), "stride": (4, 3)}),
    Case("2d-ragged", (2, 4, 12, 10), (3, 4, 3, 3), {"stride": (4, 3)}),
    Case("2d-dilation", (2, 4, 12, 9), (3, 4, 3, 2), {"padding": (3, 1), "dilation": (3, 2)}),
    Case("2d-everything", (2, 4, 13, 8), (4, 2, 2, 3),
         {"padding": ((3, 1), (0, 2)), "stride": (2, 1), "dilation": (3, 2), "groups": 2}),
    Case("2d-window-of-all-rows", (2, 4, 8, 9), (3, 4, 8, 3), {"padding": (0, 1)}),
    Case("3d", (2, 3, 6, 5, 4), (4, 3, 2, 3, 2), {"padding": ((1, 0), 1, (0, 1))}),
    Case("3d-stride-dilation", (2, 3, 9, 5, 6), (3, 3, 2, 2, 2),
         {"padding": 1, "stride": (2, 1, 2), "dilation": (2, 1, 2)}),
    Case("groups", (2, 6, 9, 6), (4, 3, 3, 3), {"padding": 1, "groups": 2}),
    Case("groups-3", (2, 6, 9, 6), (6, 2, 2, 3), {"padding": ((1, 0), 1), "groups": 3}),
    Case("depthwise", (2, 6, 9, 6), (6, 1, 3, 3), {"padding": 1, "groups": 6}),
    Case("depthwise-multiplier", (2, 4, 9, 6), (8, 1, 3, 3),
         {"padding": 1, "stride": 2, "groups": 4}),
    Case("1x1", (2, 8, 9, 6), (6, 8, 1, 1)),
    Case("alpha", (2, 4, 9, 6), (3, 4, 3, 3), {"padding": 1}, alpha=-1.5),
    Case("beta", (2, 4, 9, 6), (3, 4, 3, 3), {"padding": 1}, beta=0.5),
    Case("alpha-beta", (2, 4, 9, 6), (3, 4, 3, 3), {"padding": 1, "stride": 2},
         "float32", 2.0, -0.25),
    Case("float64", (2, 4, 9, 6), (3, 4, 3, 3), {"padding": 1}, "float64", 0.5, 2.0),
    Case("float16", (2, 8, 9, 6), (4, 8, 3, 3), {"padding": 1}, "float16", 0.5, 2.0),
    Case("bfloat16", (2, 8, 9, 6), (4, 8, 3, 3), {"padding": 1}, "bfloat16"),
)  # fmt: skip
WHICH = ("data", "filter", "bias")


def find(name):
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_under_falling_limits(case, which):
    check_under_falling_limits(gradient_call(case, which), cuts=case.name == "2d")


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("laid", FEW_LAID)
def test_any_strides(laid, which):
    call = gradient_call(find("alpha-beta"), which)
    check_laid(call, laid)


# Shapes that are not given -----------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_smallest_x_is_taken_where_none_is_given(case):
    y = gradients.output_shape(case.x, case.w, **case.geometry)
    smallest = list(case.x)
    for axis in range(2, len(smallest)):
        while smallest[axis] > 1:
            shape = list(smallest)
            shape[axis] -= 1
            try:
                same = gradients.output_shape(shape, case.w, **case.geometry) == y
            except ZeroDivisionError:
                break
            if not same:
                break
            smallest = shape
    random = np.random.default_rng(4)
    w, dy = draw(random, case.w, case.dtype), draw(random, y, case.dtype)
    dx = ooc_cudnn.convolution_backward_data(w, dy, **case.geometry)
    assert dx.shape == tuple(smallest)
    assert dx.dtype == dy.dtype
    expected = gradients.backward_data(smallest, w, dy, case.dtype, **case.geometry)
    expected.check(dx, str(case))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_largest_window_is_taken_where_none_is_given(case):
    y = gradients.output_shape(case.x, case.w, **case.geometry)
    largest = list(case.w)
    for axis in range(2, len(largest)):
        while True:
            shape = list(largest)
            shape[axis] += 1
            if gradients.output_shape(case.x, shape, **case.geometry) != y:
                break
            largest = shape
    if set(np.ravel(case.geometry.get("stride", 1))) == {1}:
        assert largest == list(case.w)
    random = np.random.default_rng(4)
    x, dy = draw(random, case.x, case.dtype), draw(random, y, case.dtype)
    dw = ooc_cudnn.convolution_backward_filter(x, dy, **case.geometry)
    assert dw.shape == tuple(largest)
    assert dw.dtype == dy.dtype
    expected = gradients.backward_filter(x, largest, dy, case.dtype, **case.geometry)
    expected.check(dw, str(case))


def test_a_new_result_is_packed_in_the_order_of_its_operands():
    case = find("2d")
    for which, name in (("data", "dx"), ("filter", "dw"), ("bias", "db")):
        call = gradient_call(case, which)
        made = call.run()[name]
        call.check({name: made})
        assert made.flags.c_contiguous
        # Every further call gives memory of its own.
        again = call.run()[name]
        assert not np.shares_memory(made, again)


# Sums --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_summed_in_float32(dtype):
    """A long sum of ones is exact in float32, and would stand still in a half type."""
    x, dy = np.ones((9, 4, 33, 19), DTYPES[dtype]), np.ones((9, 4, 33, 19), DTYPES[dtype])
    dy[0] = 0  # 8 * 33 * 19 = 5016 terms
    for limit in (2**20, 60_000, 30_000):
        with ooc_cudnn.settings(memory_limit=limit):
            dw = ooc_cudnn.convolution_backward_filter(x, dy)
            db = ooc_cudnn.convolution_backward_bias(dy)
        for found in (dw, db):
            assert np.all(found.astype("f8") == np.float64(np.asarray(5016).astype(found.dtype)))


def test_the_sum_over_images_and_rows_leaves_the_device_once():
    """dw is copied out once, whatever the split; x and dy in once if they need no halo."""
    call = gradient_call(Case("1x1", (6, 4, 12, 16), (4, 4, 1, 1)), "filter")
    for limit in some_limits(call):
        with ooc_cudnn.settings(memory_limit=limit), ooc_cudnn.profile() as p:
            call.run(out=call.fresh())
        (done,) = p.calls
        out_bytes = call.old["dw"].nbytes
        if limit != min(some_limits(call)):
            assert done.bytes_out == out_bytes
    assert done.plan.pieces > 1


def test_beta_is_applied_once_whatever_the_split():
    dy = np.ones((8, 2, 16, 16), "f4")
    for limit in (2**20, 6000, 3000):
        out = np.full(2, 10, "f4")
        with ooc_cudnn.settings(memory_limit=limit):
            ooc_cudnn.convolution_backward_bias(dy, alpha=0.5, beta=3, out=out)
        assert np.array_equal(out, [1054, 1054])


def test_gradients_that_are_not_finite_stay_where_they_belong():
    """Infinity in one image's dy is in that image's dx alone, and in dw wherever it is seen."""
    w, dy = np.ones((2, 3, 3, 3), "f4"), np.ones((4, 2, 8, 8), "f4")
    dy[1, 0, 4, 4] = np.inf
    for limit in (2**20, 5000):
        with ooc_cudnn.settings(memory_limit=limit):
            dx = ooc_cudnn.convolution_backward_data(w, dy, padding=1)
        wrong = ~np.isfinite(dx)
        assert wrong[1, :, 3:6, 3:6].all()
        wrong[1, :, 3:6, 3:6] = False
        assert not wrong.any()


# Random geometry ---------------------------------------------------------------------------------


@st.composite
def geometries(draw_from):
    """A case of any geometry, and how much of the way from the least limit to plenty it gets."""
    axes = draw_from(st.integers(1, 3))
    groups = draw_from(st.sampled_from([1, 1, 2, 3]))
    window = [draw_from(st.integers(1, 4)) for _ in range(axes)]
    dilation = [draw_from(st.integers(1, 3)) for _ in range(axes)]
    stride = [draw_from(st.integers(1, 4)) for _ in range(axes)]
    padding = [(draw_from(st.integers(0, 4)), draw_from(st.integers(0, 4))) for _ in range(axes)]
    spatial = [
        max(1, (k - 1) * d + 1 - sum(p)) + draw_from(st.integers(0, 9))
        for k, d, p in zip(window, dilation, padding, strict=True)
    ]
    c_x, c_y = (groups * draw_from(st.integers(1, 4)) for _ in range(2))
    geometry = {
        "padding": tuple(padding),
        "stride": tuple(stride),
        "dilation": tuple(dilation),
        "groups": groups,
    }
    x, w = (draw_from(st.integers(1, 4)), c_x, *spatial), (c_y, c_x // groups, *window)
    return Case("random", x, w, geometry), draw_from(st.sampled_from([0.0, 0.1, 0.4, 1.0]))


@pytest.mark.parametrize("which", WHICH)
@settings(max_examples=number(4, of=16))
@given(drawn=geometries())
def test_random_geometry_under_a_random_limit(which, drawn):
    case, share = drawn
    call = gradient_call(case, which)
    limits = some_limits(call)
    limit = int(limits[-1] + share * max(0, limits[-2] - limits[-1]))
    out = call.fresh()
    with ooc_cudnn.settings(memory_limit=limit):
        call.check(call.run(out=out), f"limit {limit}", call.arrays)
