"""What a tensor is without its data: shapes, strides, orders, JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_cudnn.tensor import (
    ORDERS,
    TensorSpec,
    dtype_name,
    memory_order,
    numpy_dtype,
    packed_strides,
)

shapes = st.lists(st.integers(1, 5), min_size=2, max_size=5).map(tuple)


@given(shapes, st.sampled_from(ORDERS))
def test_packed_strides_are_numpys(shape, order):
    x = np.empty(shape, "i1")
    if order == "channels_last" and len(shape) > 2:
        stored = (shape[0], *shape[2:], shape[1])
        x = np.empty(stored, "i1").transpose(0, -1, *range(1, len(shape) - 1))
    assert packed_strides(shape, order) == x.strides
    found = memory_order(shape, packed_strides(shape, order))
    # With one channel, or one site, both orders are the same bytes.
    assert (
        found == order
        or packed_strides(shape, found) == packed_strides(shape, order)
        or (shape[1] == 1 or set(shape[2:]) <= {1})
    )


@given(shapes, st.permutations(range(5)), st.lists(st.integers(0, 3), min_size=5, max_size=5))
def test_an_order_promises_packed_insides_and_no_shared_elements(shape, permutation, gaps):
    strides, step = [0] * len(shape), 1
    for axis in (axis for axis in permutation if axis < len(shape)):
        strides[axis] = step
        step = step * shape[axis] + gaps[axis]
    order = memory_order(shape, tuple(strides))
    if order is None:
        return
    packed = packed_strides(shape, order)
    inside = range(1 if order == "channels_last" else 2, len(shape))
    assert all(shape[axis] == 1 or strides[axis] == packed[axis] for axis in inside)
    seen = {sum(i * s for i, s in zip(at, strides, strict=True)) for at in np.ndindex(shape)}
    assert len(seen) == np.prod(shape)


@pytest.mark.parametrize(
    "strides", [(0, 12, 4, 1), (36, 12, 4, -1), (12, 12, 4, 1), (36, 12, 2, 1)]
)
def test_strides_without_an_order(strides):
    assert memory_order((2, 3, 3, 4), strides) is None


def test_dtypes():
    pytest.importorskip("ml_dtypes")
    for name in ("float16", "bfloat16", "float32", "float64"):
        assert dtype_name(numpy_dtype(name)) == name
        assert dtype_name(name) == name
        assert TensorSpec((2, 3), name).nbytes == 6 * numpy_dtype(name).itemsize
    assert dtype_name(np.float32) == dtype_name("f4") == "float32"
    for name in ("uint8", "int8", "uint16", "int16", "int32", "int64"):
        assert dtype_name(np.dtype(name), integers=True) == name
        assert TensorSpec((2, 3), name).nbytes == 6 * np.dtype(name).itemsize
    for bad in ("int8", np.int32, "nonsense", 3, None.__class__):
        with pytest.raises(TypeError, match="dtype must be one of"):
            dtype_name(bad)


def test_specs():
    spec = TensorSpec((2, 3, 4, 5), "float16", "disk")
    assert spec.strides == (60, 20, 5, 1)
    assert (spec.elements, spec.nbytes, spec.order) == (120, 240, "channels_first")
    assert TensorSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert hash(spec) == hash(TensorSpec([2, 3, 4, 5], np.float16, "disk"))
    assert spec != TensorSpec((2, 3, 4, 5), "float16", "pinned")
    assert TensorSpec((np.int64(2), 3)).shape == (2, 3)


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (((),), "shape"),
        (((2, 0),), "shape"),
        (((2, -1),), "shape"),
        (((2,), "uint32"), "dtype"),
        (((2,), "float32", "gpu"), "placement"),
        (((2, 3), "float32", "disk", (1,)), "strides"),
    ],
)
def test_specs_that_are_none(arguments, pattern):
    with pytest.raises((TypeError, ValueError), match=pattern):
        TensorSpec(*arguments)
