"""Walks by group meet every element once, in its own group: group_walk.cuh, in Python."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ooc_cudnn.devices.kernels.channel_reduction import workspace_bytes
from ooc_cudnn.devices.kernels.group_walk import REDUCTION_BLOCKS, walk_channels, walk_images
from ooc_cudnn.devices.view import DeviceView


def view(shape, dtype, layout, offset=0):
    """Packed channels-first or channels-last, or ("_rows") some rows of a larger tensor."""
    sizes = list(shape)
    if layout.endswith("_rows") and len(shape) > 2:
        sizes[2] += 5
    order = [0, 1, *range(2, len(shape))]
    if layout.startswith("last"):
        order = [0, *range(2, len(shape)), 1]
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= sizes[axis]
    item = {"float16": 2, "float32": 4, "float64": 8}[dtype]
    return DeviceView(4096 + offset * item, dtype, tuple(shape), tuple(strides))


def met(walk):
    """(group or column, offset) of every element that the threads of all blocks meet."""
    outer, middle, inner = walk.size
    stride, group_stride = walk.stride[0], walk.group_stride[-1]
    across, down = walk.block
    for group, part in itertools.product(range(walk.groups), range(walk.parts)):
        for tile in range(part, walk.tiles, walk.parts):
            row_tile = tile if walk.columns else tile // walk.column_tiles
            column_tile = group if walk.columns else tile % walk.column_tiles
            for x, y, u in itertools.product(range(across), range(down), range(walk.unroll)):
                row = row_tile * down * (walk.unroll if walk.unroll_rows else 1) + y
                column = column_tile * across * (1 if walk.unroll_rows else walk.unroll) + x
                row += u * down if walk.unroll_rows else 0
                column = (column + (0 if walk.unroll_rows else u * across)) * walk.pack
                if row >= outer * middle:
                    continue
                at = (row // middle, row % middle)
                end = walk.last_inner if at[1] == middle - 1 else inner
                for element in range(column, min(column + walk.pack, end)):
                    offset = at[0] * stride[0] + at[1] * stride[1] + element * stride[2]
                    if walk.columns:
                        yield element, offset
                    else:
                        yield group, offset + group * group_stride


def addresses(operand):
    index = np.indices(operand.shape).reshape(len(operand.shape), -1)
    return index, (index.T * np.array(operand.strides)).sum(axis=1)


SHAPES = [(2, 3, 5, 7), (1, 1, 1, 1), (3, 16, 4), (5, 1, 9), (7, 3), (2, 40, 3), (1, 2, 700)]


@pytest.mark.parametrize("layout", ["first", "last", "first_rows", "last_rows"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "offset"), [("float16", 0), ("float32", 0), ("float16", 1)])
def test_every_element_is_met_once_in_its_group(shape, layout, dtype, offset):
    operand = view(shape, dtype, layout, offset)
    index, offsets = addresses(operand)
    for axis, walk in ((1, walk_channels([operand], 4)), (0, walk_images([operand], 4))):
        expected = sorted(zip(index[axis].tolist(), offsets.tolist(), strict=True))
        groups = shape[1] if walk.columns else walk.groups
        assert sorted((group % groups, offset) for group, offset in met(walk)) == expected
        assert math.prod(walk.block) <= 256
        assert walk.block[0] * walk.pack <= 256 or not walk.columns


def test_packs_are_wide_where_memory_allows():
    assert walk_channels([view((2, 64, 32, 32), "float16", "last")], 100).pack == 8
    assert walk_channels([view((2, 3, 32, 32), "float32", "last")], 100).pack == 4  # joined rows
    assert walk_channels([view((2, 3, 32, 32), "float32", "last", 1)], 100).pack == 1
    assert walk_images([view((2, 3, 32, 32), "float32", "first")], 100).pack == 4


@pytest.mark.parametrize("channels", [1, 2, 3, 21, 33, 64, 257, 1001, 5000, 100_000])
@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_partial_sums_fit_the_workspace(channels, layout, dtype):
    for sites, offset in itertools.product((1, 7, 4096, 2**20), (0, 1)):
        operand = view((2, channels, sites), dtype, layout, offset)
        walk = walk_channels([operand, operand], REDUCTION_BLOCKS)
        columns = walk.repeats * channels if walk.columns and walk.groups > 1 else channels
        assert 8 * walk.parts * columns <= workspace_bytes(operand.shape, 1)
