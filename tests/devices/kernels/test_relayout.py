"""Copies of rows that lie along another axis than the first: planned here, run in tests/kernels."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.kernels.relayout import merged_rows, plan_relayout
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.tensor import packed_strides

WHOLE = (2, 3, 4, 6, 5)


def view(shape, order, *, whole=None, pointer=4096):
    return DeviceView(pointer, "float32", shape, packed_strides(whole or shape, order))


def offsets(rows, operand):
    """Where each element of a copy lies, in the order in which the kernel goes through them."""
    axes = zip(rows.sizes, rows.strides[operand], strict=True)
    steps = [np.arange(size) * step for size, step in axes]
    return (steps[0][:, None, None] + steps[1][:, None] + steps[2]).ravel()


@pytest.mark.parametrize("order", ["channels_first", "channels_last"])
@pytest.mark.parametrize("axis", [3, 4])
def test_a_copy_of_rows_meets_every_element_once(axis, order):
    shape = tuple(2 if at == axis else extent for at, extent in enumerate(WHOLE))
    part, packed = view(shape, order, whole=WHOLE), view(shape, order)
    rows, _ = merged_rows(part, packed)
    index = np.indices(shape).reshape(5, -1)
    pairs = {tuple(np.dot(v.strides, at) for v in (part, packed)) for at in index.T}
    assert set(zip(offsets(rows, 0), offsets(rows, 1), strict=True)) == pairs
    assert len(offsets(rows, 0)) == part.size
    assert rows.contiguous
    launch = plan_relayout(part, packed)
    assert launch is not None
    assert launch.expression.startswith("copy_strided")


def test_heads_of_channels_are_one_copy():
    """Images, heads and sites do not merge: the heads are beyond the rows."""
    shape = 5, 8, 3, 7
    _, depth, heads, sites = shape
    of_channels = DeviceView(
        4096, "float16", shape, (sites * heads * depth, 1, depth, heads * depth)
    )
    of_heads = DeviceView(8192, "float16", shape, (heads * sites * depth, 1, sites * depth, depth))
    rows, outside = merged_rows(of_heads, of_channels)
    beyond = outside.axes[0]
    assert beyond == (heads, sites * depth, depth)
    found = {
        (to + head * beyond.destination, at + head * beyond.value)
        for head in range(heads)
        for to, at in zip(offsets(rows, 0), offsets(rows, 1), strict=True)
    }
    index = np.indices(shape).reshape(4, -1)
    assert found == {
        tuple(np.dot(v.strides, at) for v in (of_heads, of_channels)) for at in index.T
    }
    launch = plan_relayout(of_heads, of_channels)
    assert launch is not None
    assert launch.grid[1:] == (heads, 1)


def test_what_lies_too_scattered_is_refused():
    shape = (2,) * 7
    part = DeviceView(4096, "float32", shape, tuple(3**at for at in range(6, -1, -1)))
    with pytest.raises(ValueError, match="too scattered"):
        merged_rows(part, view(shape, "channels_first"))
