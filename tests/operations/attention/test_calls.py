"""Attention under every split: images, and heads or queries, in both memory orders."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.operations.attention.calls import AttentionCall, AttentionGradientCall
from ooc_cudnn.operations.core.call import Piece
from ooc_cudnn.operations.core.subcall import SubCall
from ooc_cudnn.tensor import numpy_dtype
from perfmodel import Split
from tests.operations.attention.test_launches import launch_of
from tests.support.attention import CASES, by_pytorch, draw, terms_of
from tests.support.every_split import check_every_split
from tests.support.host_operations import DTYPES

SCALINGS = ((1.0, 0.0), (2.0, -0.25))


def sizes_of(expected):
    """Sums are no larger than the largest of them: roundings are of numbers like that."""
    return {
        name: np.full(each.shape, max(1, np.abs(each[np.isfinite(each)]).max(initial=0)))
        for name, each in expected.items()
    }


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_forward(name, dtype, scaling, random):
    case, (alpha, beta) = CASES[name], scaling
    operands = draw(case, random, dtype)
    right = by_pytorch(case, operands)
    call = AttentionCall(launch_of(case, dtype), alpha=alpha, beta=beta)
    expected = {each: right[each] for each in call.results}
    old = {"y": random.standard_normal(case.y_shape).astype(numpy_dtype(dtype))} if beta else {}
    del operands["dy"]
    check_every_split(
        call, operands, expected, terms=terms_of(dtype), sizes=sizes_of(expected), old=old, most=9
    )


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_backward(name, dtype, scaling, random):
    case, (alpha, beta) = CASES[name], scaling
    operands = draw(case, random, dtype)
    right = by_pytorch(case, operands)
    forward = launch_of(case, dtype)
    call = AttentionGradientCall(forward, "dbias" in right, alpha=alpha, beta=beta)
    arrays = {
        **operands,
        "y": right["y"].astype(numpy_dtype(dtype)),
        "lse": right["lse"].astype(forward.lse_dtype),
    }
    expected = {each: right[each] for each in call.results}
    old = {}
    if beta:
        scaled = [each for each in call.results if call.scaling(each)[1]]
        shapes = {each: call.operands[each].shape for each in scaled}
        drawn = {each: random.standard_normal(shape) for each, shape in shapes.items()}
        old = {each: array.astype(numpy_dtype(dtype)) for each, array in drawn.items()}
    terms = terms_of(dtype, backward=True)
    check_every_split(
        call, arrays, expected, terms=terms, sizes=sizes_of(expected), old=old, most=9
    )


def test_windows_of_an_image_stay_together(random):
    case = CASES["windows with a bias"]
    operands = draw(case, random, "float32")
    right = by_pytorch(case, operands)
    forward = launch_of(case, "float32")
    call = AttentionGradientCall(forward, True, images=2)
    assert call.extents.n == 2
    assert call.region("q", Piece((1, 2), (0, 1), (0, 3), (0, 1)))[0] == (2, 4)
    arrays = {**operands, "y": right["y"].astype("f4"), "lse": right["lse"].astype("f4")}
    expected = {each: right[each] for each in call.results}
    check_every_split(call, arrays, expected, terms=64, sizes=sizes_of(expected))


def test_rows_are_heads_or_queries():
    call = AttentionCall(launch_of(CASES["plain"], "float32"))
    assert call.extents == Split(n=2, c_y=1, c_x=1, h_y=2)
    piece = Piece((1, 2), (0, 1), (1, 2), (0, 1))
    assert call.region("q", piece) == ((1, 2), (0, 4), (1, 2), (0, 5))
    assert call.region("v", piece) == ((1, 2), (0, 3), (1, 2), (0, 7))
    turned = call.along(3)
    assert turned.extents.h_y == 5
    assert turned.region("lse", piece) == ((1, 2), (0, 1), (0, 2), (1, 2))
    assert turned.region("v", piece) == ((1, 2), (0, 3), (0, 2), (0, 7))


def test_heads_that_share_keys_are_not_cut():
    call = AttentionCall(launch_of(CASES["shared keys"], "float32"))
    assert call.extents.h_y == 1
    assert call.along(3).extents.h_y == 5


def test_beside_the_gradient_of_a_bias_images_alone_are_cut():
    forward = launch_of(CASES["windows with a bias"], "float32")
    call, plain = AttentionGradientCall(forward, True), AttentionGradientCall(forward)
    assert call.reduced == call.along(3).reduced == ("n",)
    assert call.loop_order[-1] == "n"
    assert call.extents.h_y == call.along(3).extents.h_y == 1
    assert (plain.reduced, plain.along(3).reduced) == ((), ("h_y",))
    assert (plain.extents.h_y, plain.along(3).extents.h_y) == (3, 4)
    assert "dbias" not in plain.operands
    of_images = launch_of(CASES["a bias of images"], "float32")
    assert AttentionGradientCall(of_images, True).reduced == ()


def test_only_causal_pieces_depend_on_where_they_lie():
    upper, lower = Piece((0, 1), (0, 1), (0, 2), (0, 1)), Piece((0, 1), (0, 1), (2, 4), (0, 1))
    plain, causal = (
        AttentionCall(launch_of(CASES[each], "float32"), row_axis=3) for each in ("plain", "causal")
    )
    assert plain.launch_key(upper) == plain.launch_key(lower)
    assert causal.launch_key(upper) != causal.launch_key(lower)
    assert causal.on_piece(lower, "float32").first == 2


def test_images_alone_add_up_what_is_cut_along_queries():
    call = AttentionGradientCall(launch_of(CASES["plain"], "float32"))
    alone = SubCall.of_images(call, (0, 1))
    assert (alone.reduced, alone.along(3).reduced) == ((), ("h_y",))
    assert alone.along(3).loop_order == call.along(3).loop_order
