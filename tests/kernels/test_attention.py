"""Attention on a card against PyTorch: rows of scores in kernels, products beside them."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import attention, small_attention
from ooc_cudnn.operations.attention.launches import AttentionBackward
from tests.operations.attention.test_launches import GRADIENTS, launch_of, near
from tests.support.attention import CASES, Case, by_pytorch, draw, terms_of
from tests.support.device_operand import DTYPES, NUMPY, Operand
from tests.support.kernel_runs import run

#: Larger ones: rows of a block and not of a warp, and more scores than are made at a time.
LARGE = {
    "long rows": Case((2, 2), (2, 70, 1100, 16, 8), (1, 2, 70, 1100)),
    "shared keys": Case((8, 2), (3, 100, 90, 40, 24), causal=True),
    "a mask": Case((3, 3), (4, 50, 130, 32, 32), (4, 1, 1, 130), is_mask=True),
}


#: Few queries and keys of half types, which a block has in shared memory. The CPU runs the first.
SMALL = {
    "a bias of each head": Case((2, 2), (3, 20, 33, 8, 8), (3, 2, 20, 33)),
    "a window": Case((3, 3), (4, 49, 49, 32, 32), (1, 3, 49, 49)),
    "shifted windows": Case((2, 2), (6, 16, 16, 16, 16), (6, 1, 16, 16)),
    "a bias of all": Case((2, 2), (5, 17, 9, 24, 24), (1, 1, 17, 9)),
    "a bias of keys": Case((2, 2), (3, 64, 64, 64, 64), (1, 2, 1, 64)),
    "a mask": Case((2, 2), (3, 9, 40, 48, 48), (3, 1, 1, 40), is_mask=True),
    "causal": Case((2, 2), (2, 64, 64, 40, 40), causal=True),
    "one query": Case((1, 1), (3, 1, 5, 8, 8)),
}


def layout_of(name):
    """A bias may lie in any order; queries and keys are rows of memory."""
    return "first" if "bias" in name else "last"


def check(case, dtype, random, *, result_dtype=""):
    operands = {
        name: Operand(array.shape, array.dtype.name, layout_of(name), data=array)
        for name, array in draw(case, random, dtype).items()
    }
    right = by_pytorch(case, {name: each.array for name, each in operands.items()})
    forward = launch_of(case, dtype)
    q, k, v, bias, dy = (operands.get(each) for each in ("q", "k", "v", "bias", "dy"))
    lse = Operand(case.lse_shape, forward.lse_dtype)
    y = Operand(case.y_shape, dtype, "last")
    terms = terms_of(dtype)
    near(run(attention, forward, (q, k, v, bias, lse), y, beside=(lse,)), right["y"], dtype, terms)
    near(lse.result(), right["lse"], forward.lse_dtype, 32)
    saved = Operand(case.lse_shape, forward.lse_dtype, data=right["lse"])
    exact = Operand(case.y_shape, dtype, "last", data=right["y"].astype(NUMPY[dtype]))
    made = {
        name: Operand(right[name].shape, result_dtype or dtype, layout_of(name))
        for name in GRADIENTS
        if name in right
    }
    backward = AttentionBackward(forward, "dbias" in made)
    beside = tuple(made[name] for name in GRADIENTS[1:] if name in made)
    given = (q, k, v, bias, exact, dy, saved, *beside)
    found = {"dq": run(attention, backward, given, made["dq"], beside=beside)}
    found |= {name: each.result() for name, each in made.items() if name != "dq"}
    terms = terms_of(dtype, backward=True)
    for name, array in found.items():
        near(array, right[name], result_dtype or dtype, terms)


@pytest.mark.parametrize("at_once", [2**22, 60])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_attention(name, dtype, at_once, random, monkeypatch):
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
    check(CASES[name], dtype, random)


@pytest.mark.parametrize("at_once", [2**22, 20])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_wide_results(dtype, at_once, random, monkeypatch):
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
    check(CASES["windows with a bias"], dtype, random, result_dtype="float32")
    check(CASES["shared keys, causal"], dtype, random, result_dtype="float32")


@pytest.mark.parametrize("at_once", [2**22, 2**14])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LARGE)
def test_long_rows_and_many(name, dtype, at_once, random, monkeypatch):
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
    check(LARGE[name], dtype, random)


@pytest.mark.parametrize("blocks", [1024, 3])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", SMALL)
def test_small_ones(name, dtype, blocks, random, monkeypatch):
    monkeypatch.setattr(small_attention, "BLOCKS", blocks)
    assert small_attention.is_small(launch_of(SMALL[name], dtype))
    check(SMALL[name], dtype, random)
    check(SMALL[name], dtype, random, result_dtype="float32")


def test_of_no_image_nothing_is_launched():
    case = Case((2, 2), (0, 4, 5, 8, 8))
    q, k, v = (
        Operand(each, "float16", "last") for each in (case.q_shape, case.k_shape, case.v_shape)
    )
    lse, y = Operand(case.lse_shape, "float32"), Operand(case.y_shape, "float16", "last")
    made = run(attention, launch_of(case, "float16"), (q, k, v, None, lse), y, beside=(lse,))
    assert made.shape == case.y_shape


def test_nan_and_infinity_stay_in_their_queries(random):
    case = CASES["plain"]
    data = draw(case, random)
    data["q"][0, 0, 0, 0] = np.nan
    data["q"][1, :, 1, 2] = [np.inf, 0, 0, 0]
    data["k"][1, 0, 1] = np.abs(data["k"][1, 0, 1])
    q, k, v = (
        Operand(data[name].shape, "float64", "last", data=data[name]) for name in ("q", "k", "v")
    )
    lse, y = Operand(case.lse_shape, "float64"), Operand(case.y_shape, "float64", "last")
    found = run(attention, launch_of(case, "float64"), (q, k, v, None, lse), y, beside=(lse,))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(by_pytorch(case, data)["y"]))
    assert np.isnan(lse.result()).sum() == 2
