"""Products of matrices where there is no cuBLAS: NumPy's, on the same memory."""

from __future__ import annotations

import ctypes

import numpy as np

from ooc_cudnn.tensor import ACCUMULATOR, numpy_dtype


def multiply(
    left, right, result, count, *, turned=(False, False), factor=1.0, adds=False,
    allow_tf32=False, stream=None,
):  # fmt: skip
    """What `ooc_cudnn.devices.kernels.products.multiply` does."""
    assert left.dtype == right.dtype
    assert result.dtype in (left.dtype, ACCUMULATOR[left.dtype])
    wide = ACCUMULATOR[left.dtype]
    factors = []
    for matrices, is_turned in zip((left, right), turned, strict=True):
        array = _array(matrices, count).astype(wide)
        factors.append(array.swapaxes(1, 2) if is_turned else array)
    made = wide_product(*factors) * np.dtype(wide).type(factor)
    target = _array(result, count)
    assert made.shape == target.shape
    target[...] = made + target.astype(wide) if adds else made


@np.errstate(all="ignore")
def wide_product(left, right):
    """Infinity and NaN as on a card, without a word."""
    return left @ right


def _array(matrices, count):
    dtype = numpy_dtype(matrices.dtype)
    assert matrices.step >= matrices.columns
    last = (count - 1) * matrices.apart + (matrices.rows - 1) * matrices.step + matrices.columns
    raw = (ctypes.c_char * (last * dtype.itemsize)).from_address(matrices.pointer)
    strides = (matrices.apart, matrices.step, 1)
    shape = (count, matrices.rows, matrices.columns)
    return np.ndarray(shape, dtype, raw, strides=tuple(s * dtype.itemsize for s in strides))
