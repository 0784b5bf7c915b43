"""Operands of kernels on a card: an array, its copy on the device, what lies around it.

Outputs are NaN before a run, and every byte that a view does not cover must come back unchanged.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.tensor import INTEGERS
from tests.support.card import cupy

ml_dtypes = pytest.importorskip("ml_dtypes")

DTYPES = ["float16", "bfloat16", "float32", "float64"]
NUMPY = {name: np.dtype(name) for name in ("float16", "float32", "float64")}
NUMPY["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
NUMPY |= {name: np.dtype(name) for name in INTEGERS}
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
#: Sums of half precision add up to four terms in float32 before each is widened
#: (kernels/channel_sums.cuh): a term, and every addition, is rounded to 2^-24.
OF_A_RUN = {"float16": 2.0**-22, "bfloat16": 2.0**-22, "float32": 0.0, "float64": 0.0}
#: Of memory around an array, on either side.
GUARD_BYTES = 256


class Operand:
    """An array of any number of axes, its copy on the device, and the view that the kernels get.

    `layout` is "first" or "last" (where the channels are in memory), or "images" where these are
    innermost (CHWN); with "_rows" the view is some rows of a larger tensor. `offset` shifts it by
    so many elements off its alignment. Where `data` gives no values, and before and behind the
    array, is NaN, of integers the largest.
    """

    def __init__(self, shape, dtype, layout="first", *, offset=0, data=None):
        shape, order = tuple(shape), layout.removesuffix("_rows")
        whole = list(shape)
        if rows := layout.endswith("_rows") and len(shape) > 2:
            whole[2] += 5
        guard = GUARD_BYTES // NUMPY[dtype].itemsize
        begin, total = guard + offset, math.prod(whole)
        filler = np.iinfo(dtype).max if dtype in INTEGERS else np.nan
        self.memory = np.full(begin + total + guard, filler, NUMPY[dtype])
        array = self.memory[begin : begin + total]
        if order == "last":
            array = np.moveaxis(array.reshape(whole[0], *whole[2:], whole[1]), -1, 1)
        elif order == "images":
            array = np.moveaxis(array.reshape(*whole[1:], whole[0]), -1, 0)
        else:
            array = array.reshape(whole)
        if rows:
            array = array[:, :, 2 : 2 + shape[2]]
        assert array.shape == shape
        if data is not None:
            array[...] = np.asarray(data).astype(NUMPY[dtype]).reshape(shape)
        self.array = array
        self.device = cupy.asarray(self.memory.view(np.uint8))
        start = array.__array_interface__["data"][0] - self.memory.__array_interface__["data"][0]
        strides = tuple(step // array.itemsize for step in array.strides)
        self.view = DeviceView(self.device.data.ptr + start, dtype, shape, strides)

    def result(self):
        """What is on the device now, in the array's order; all around it must be as it was."""
        before = self.memory.copy()
        after = cupy.asnumpy(self.device).view(self.memory.dtype)
        self.memory[...] = after
        result = self.array.copy()
        self.memory[...] = before
        # Put the old contents back where the view is: nothing else may differ.
        old = self.array.copy()
        self.memory[...] = after
        self.array[...] = old
        assert np.array_equal(self.memory.view(np.uint8), before.view(np.uint8)), "wrote outside"
        return result

    def bits(self):
        """The result's bytes, in its order."""
        return np.ascontiguousarray(self.result()).view(np.uint8)

    @property
    def wide(self):
        return self.array.astype(np.float64)


def assert_close(result, reference, dtype, slack=0.0):
    """Within rounding of `dtype`, plus `slack`; infinities and NaN in the same places."""
    with np.errstate(over="ignore", invalid="ignore"):
        reference = reference.astype(NUMPY[dtype]).astype(np.float64)  # overflow as stored
        result = result.astype(np.float64)
    finite = np.isfinite(reference) & np.isfinite(result)
    same = np.isnan(reference) & np.isnan(result) | (reference == result)
    tolerance = EPSILON[dtype] * np.abs(reference) + slack
    with np.errstate(invalid="ignore"):
        good = same | (finite & (np.abs(result - reference) <= tolerance))
    bad = np.argwhere(~good)
    assert good.all(), (
        f"{len(bad)} of {good.size} differ, first at {bad[0]}: "
        f"{result[tuple(bad[0])]} for {reference[tuple(bad[0])]}"
    )


def random(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)
