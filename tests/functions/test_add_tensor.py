"""add_tensor: y = alpha * b + beta * y with b broadcast, in place on y or into another array."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ooc_cudnn
from tests.support.calls import add_tensor_call
from tests.support.function_cases import (
    LAID,
    Call,
    check_laid,
    check_under_falling_limits,
    lay,
    some_limits,
)

pytest.importorskip("ml_dtypes")
Y = (3, 4, 9, 7)
#: Every way to broadcast over four axes, and the short form for channels.
SHAPES = (
    *(tuple(e if kept else 1 for e, kept in zip(Y, keeps, strict=True))
      for keeps in itertools.product([True, False], repeat=4)),
    (4,),
)  # fmt: skip
#: dtype, alpha, beta
SCALES = (
    ("float32", 1.0, 1.0),
    ("float32", -1.5, 1.0),
    ("float32", 2.0, -0.25),
    ("float32", 0.0, 0.5),
    ("float64", 0.5, 2.0),
    ("float16", 0.5, 2.0),
    ("bfloat16", 1.0, 1.0),
)


class InPlace(Call):
    """The same call without out: y itself is the result."""

    def run(self, arrays=None, out=None):
        y = out["y"]
        y[...] = self.operands["y"]
        b = (arrays or self.operands)["b"]
        assert ooc_cudnn.add_tensor(b, y, **self.options) is y
        return out


def in_place(call):
    results, old = call.results, call.old
    return InPlace("add_tensor", call.operands, call.options, results, ("y",), old, name=call.name)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_broadcast_under_falling_limits(shape):
    call = add_tensor_call(shape, Y, "float32", -1.5, 0.5)
    check_under_falling_limits(call)
    for limit in some_limits(call):
        with ooc_cudnn.settings(memory_limit=limit, verify=2):
            where = in_place(call)
            where.check(where.run(out=where.fresh()), f"in place under {limit}")


@pytest.mark.parametrize(("dtype", "alpha", "beta"), SCALES)
@pytest.mark.parametrize("y", [(4, 3, 37), Y, (2, 3, 5, 4, 4)], ids=["1d", "2d", "3d"])
def test_dtypes_and_scales_under_falling_limits(y, dtype, alpha, beta):
    for shape in ((y[1],), (1, y[1], *[1] * (len(y) - 2)), y):
        call = add_tensor_call(shape, y, dtype, alpha, beta)
        check_under_falling_limits(call, cuts=False)
        where = in_place(call)
        for limit in some_limits(call):
            with ooc_cudnn.settings(memory_limit=limit, verify=2), ooc_cudnn.profile() as p:
                where.check(where.run(out=where.fresh()), f"in place under {limit}")
            assert p.calls[0].peak_device_bytes == p.calls[0].plan.device_bytes <= limit


@pytest.mark.parametrize("laid", LAID)
def test_any_strides(laid):
    for shape in ((4,), (1, 4, 1, 1), (3, 1, 9, 1), Y):
        call = add_tensor_call(shape, Y, "float32", 2.0, -0.25)
        check_laid(
            Call(call.function, call.operands, call.options, {"out": call.results["y"]}, ("out",)),
            laid,
        )
        for limit in some_limits(call)[::2]:
            y, b = lay(call.operands["y"], laid), lay(call.operands["b"], laid)
            with ooc_cudnn.settings(memory_limit=limit):
                assert ooc_cudnn.add_tensor(b, y, **call.options) is y
            call.check({"y": y}, f"in place, {laid} under {limit}")


def test_without_beta_y_is_not_read():
    b = np.arange(4, dtype="f4")
    for limit in (2**20, 3000):
        y = np.full(Y, np.nan, "f4")
        with ooc_cudnn.settings(memory_limit=limit):
            ooc_cudnn.add_tensor(b, y, alpha=2, beta=0)
        assert np.array_equal(y, np.broadcast_to(2 * b.reshape(1, 4, 1, 1), Y))


def test_a_plain_call_adds():
    y = np.ones(Y, "f4")
    assert ooc_cudnn.add_tensor(np.full(4, 2, "f4"), y) is y
    assert np.all(y == 3)


def test_b_that_is_broadcast_in_memory():
    """A b of stride 0 is a b like any other."""
    y = np.ones(Y, "f4")
    b = np.broadcast_to(np.arange(7, dtype="f4"), Y)
    for limit in (2**20, 3000):
        with ooc_cudnn.settings(memory_limit=limit):
            ooc_cudnn.add_tensor(b, y)
    assert np.array_equal(y, 1 + 2 * b)


def test_b_and_y_may_not_share_memory():
    y = np.arange(np.prod(Y), dtype="f4").reshape(Y)
    kept = y.copy()
    with pytest.raises(ValueError, match="overlap"):
        ooc_cudnn.add_tensor(y[:1], y)
    assert np.array_equal(y, kept)
