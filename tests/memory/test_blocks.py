"""Regions as 2-D copies: replayed element by element."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_cudnn.memory.blocks import MOST_BLOCKS, blocks, boxes, rows_of


def replay(shape, destination, source, size=40_000):
    """Copy by the blocks alone, counting how often each element is written."""
    to, from_, writes = np.zeros(size), np.arange(size) + 1.0, np.zeros(size, int)
    for block in blocks(shape, destination, source):
        for row in range(block.rows):
            d = block.destination_offset + row * block.destination_pitch
            s = block.source_offset + row * block.source_pitch
            to[d : d + block.width] = from_[s : s + block.width]
            writes[d : d + block.width] += 1
    return to, from_, writes


@st.composite
def layouts(draw):
    """A shape, and for each side the strides of some order of its axes with gaps."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    found = []
    for _ in range(2):
        order = draw(st.permutations(range(len(shape))))
        strides, step = [0] * len(shape), 1
        for axis in order:
            strides[axis] = step
            step = step * shape[axis] + draw(st.sampled_from([0, 0, 1, 3]))
        found.append(tuple(strides))
    return shape, *found


@given(layouts())
def test_every_element_is_copied_once_and_nothing_else(layout):
    shape, destination, source = layout
    to, from_, writes = replay(shape, destination, source)
    expected = np.zeros_like(to)
    for at in np.ndindex(shape):
        d = sum(i * stride for i, stride in zip(at, destination, strict=True))
        s = sum(i * stride for i, stride in zip(at, source, strict=True))
        expected[d] = from_[s]
    assert np.array_equal(to, expected)
    assert writes.sum() == np.prod(shape)
    assert writes.max() <= 1


def test_broadcast_source():
    to, _, _ = replay((2, 3), (3, 1), (0, 1))
    assert np.array_equal(to[:6], [1, 2, 3, 1, 2, 3])


def test_few_blocks():
    # Rows of every channel and image: one copy. Of a channel range of every image: one as well.
    assert len(blocks((2, 3, 4, 8), (96, 32, 8, 1), (384, 128, 8, 1))) == 1
    assert len(blocks((4, 2, 8, 8), (128, 64, 8, 1), (1024, 64, 8, 1))) == 1
    # Rows of a channel range: one per image, at most.
    assert len(blocks((4, 2, 3, 8), (48, 24, 8, 1), (1024, 64, 8, 1))) <= 4
    assert blocks((2, 0, 4), (0, 4, 1), (4, 4, 1)) == ()
    assert len(blocks((1, 1, 1), (1, 1, 1), (1, 1, 1))) == 1


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 60))
def test_boxes_cover_once_in_memory_order(shape, most):
    array = np.arange(np.prod(shape)).reshape(shape)
    parts = [array[box].ravel() for box in boxes(tuple(shape), most)]
    assert np.array_equal(np.concatenate(parts), array.ravel())
    assert max(map(len, parts)) <= most


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_boxes_of_nothing_hold_nothing(shape):
    assert sum(np.empty(shape)[box].size for box in boxes(shape, 4)) == 0


def test_rows_that_no_few_blocks_hold_are_scattered():
    # channels and rows are cut: a block for each image
    strides = (8192, 128, 1)
    assert rows_of((MOST_BLOCKS, 22, 43), strides, 8)[:3] == (43 * 8, 128 * 8, False)
    assert rows_of((MOST_BLOCKS + 1, 22, 43), strides, 8)[:3] == (43 * 8, 128 * 8, True)
    # all channels: images and channels are the rows of one block
    assert rows_of((1000, 64, 43), strides, 8)[:3] == (43 * 8, 128 * 8, False)
    for shape in ((300, 22, 43), (200, 22, 43), (1000, 64, 43)):
        packed = tuple(math.prod(shape[at + 1 :]) for at in range(3))
        assert rows_of(shape, strides, 8).scattered == (blocks(shape, packed, strides) is None)


def test_what_lies_scattered_is_found_out_without_cutting_it_up():
    """Millions of blocks take seconds and much memory: broadcast arrays, every second pixel."""
    shape = 8, 64, 2**20, 2**20
    packed = tuple(math.prod(shape[at + 1 :]) for at in range(4))
    for source in ((0, 0, 2**20, 1), (packed[0] * 4, packed[1] * 4, 2**22, 2)):
        assert blocks(shape, packed, source) is None
    assert len(blocks((MOST_BLOCKS, 2, 4), (8, 4, 1), (1000, 16, 1))) == MOST_BLOCKS
    assert blocks((MOST_BLOCKS + 1, 2, 4), (8, 4, 1), (1000, 16, 1)) is None


def test_of_groups_of_rows_the_pitch_is_that_of_the_rows():
    # 3 rows of 1000 bytes, 2000 apart, of each of 4 images
    assert rows_of((4, 3, 1000), (2**22, 2000, 1), 1)[:2] == (1000, 2000)
