"""Attention as it is launched: float64 against autograd, and the host's runner in every dtype."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.host import attention, chunks
from ooc_cudnn.operations.attention.launches import Attention, AttentionBackward
from ooc_cudnn.tensor import numpy_dtype
from tests.support.attention import CASES, bias_dtype, by_pytorch, draw, terms_of
from tests.support.host_operations import DTYPES, LAYOUTS, UNIT, laid_out

GRADIENTS = ("dq", "dk", "dv", "dbias")


def launch_of(case, dtype):
    return Attention(
        case.q_shape,
        case.k_shape,
        case.extents[4],
        dtype,
        case.scale,
        case.bias,
        bias_dtype(case, dtype),
        case.causal,
    )


def near(found, right, dtype, terms=24):
    """Within a few roundings of numbers as large as the largest."""
    found, right = np.asarray(found).astype("f8"), np.asarray(right)
    finite = np.isfinite(right)
    np.testing.assert_array_equal(found[~finite], right[~finite])
    arithmetic = UNIT["float64" if dtype == "float64" else "float32"]
    room = terms * arithmetic * max(1, np.abs(right[finite]).max(initial=0))
    off = np.abs(found[finite] - right[finite])
    assert (off <= room + 1.01 * UNIT[dtype] * np.abs(right[finite])).all(), off.max()


@pytest.mark.parametrize("name", CASES)
def test_float64_is_autograd(name, random):
    case = CASES[name]
    operands = draw(case, random)
    right = by_pytorch(case, operands)
    forward = launch_of(case, "float64")
    q, k, v, dy = (operands[each] for each in ("q", "k", "v", "dy"))
    bias = operands.get("bias")
    y, lse = forward.reference(q, k, v, bias)
    assert y.shape == forward.output_shape
    near(y, right["y"], "float64")
    near(lse, right["lse"], "float64")
    backward = AttentionBackward(forward, "dbias" in right)
    made = backward.reference(q, k, v, bias, dy)
    assert made[0].shape == backward.output_shape
    for result, value in zip(GRADIENTS, made, strict=True):
        assert (value is None) == (result not in right)
        if value is not None:
            near(value, right[result], "float64")


@pytest.mark.parametrize("chunk", [1, 40, 2**18])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_the_host(name, dtype, chunk, random, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", chunk)
    case = CASES[name]
    layout = LAYOUTS[len(name) % len(LAYOUTS)]
    operands = draw(case, random, dtype)
    right = by_pytorch(case, operands)
    forward = launch_of(case, dtype)
    given = {each: laid_out(array, layout) for each, array in operands.items()}
    q, k, v, dy, bias = (given.get(each) for each in ("q", "k", "v", "dy", "bias"))
    y = laid_out(np.full(case.y_shape, np.nan), layout, dtype)
    lse = laid_out(np.full(case.lse_shape, np.nan), layout, forward.lse_dtype)
    with np.errstate(all="ignore"):
        attention.attention(forward, (q, k, v, bias, lse), y, np.empty(0))
    near(y, right["y"], dtype)
    near(lse, right["lse"], forward.lse_dtype)
    # gradients of what y is, rounded or not
    exact_y = right["y"].astype(numpy_dtype(dtype))
    made = {
        result: laid_out(np.full(right[result].shape, np.nan), layout, dtype)
        for result in GRADIENTS
        if result in right
    }
    backward = AttentionBackward(forward, "dbias" in made)
    beside = [made[each] for each in GRADIENTS[1:] if each in made]
    with np.errstate(all="ignore"):
        attention.attention_backward(
            backward, (q, k, v, bias, exact_y, dy, lse, *beside), made["dq"], np.empty(0)
        )
    for result, array in made.items():
        near(array, right[result], dtype, terms_of(dtype, backward=True))


def test_nan_and_infinity_stay_in_their_queries(random):
    case = CASES["plain"]
    operands = draw(case, random)
    operands["q"][0, 0, 0, 0] = np.nan
    operands["q"][1, :, 1, 2] = [np.inf, 0, 0, 0]
    operands["k"][1, 0, 1] = np.abs(operands["k"][1, 0, 1])
    forward = launch_of(case, "float64")
    q, k, v = (operands[each] for each in ("q", "k", "v"))
    y, lse = np.empty(case.y_shape), np.empty(case.lse_shape)
    with np.errstate(all="ignore"):
        attention.attention(forward, (q, k, v, None, lse), y, np.empty(0))
    right = by_pytorch(case, operands)["y"]
    np.testing.assert_array_equal(np.isnan(y), np.isnan(right))
    assert np.isnan(y[0, :, 0, 0]).all()
    assert np.isnan(y[1, :, 1, 2]).all()
    assert np.isnan(y).sum() == 2 * case.extents[4]


def test_work_is_of_scores_or_of_deep_heads():
    shallow = Attention((2, 64, 8, 1024), (2, 64, 8, 1024), 64, "float16", 1.0)
    scores = 2 * 8 * 1024 * 1024
    assert shallow.work().key == "pointwise/float16/softmax"
    assert shallow.work().device_bytes > 16 * scores
    backward = AttentionBackward(shallow).work()
    assert backward.device_bytes > 2 * shallow.work().device_bytes
    deep = Attention((2, 2048, 1, 4096), (2, 2048, 1, 4096), 2048, "float16", 1.0)
    assert deep.work().flops == 4 * 2 * 4096**2 * 2048
