"""Offset assignment: buffers that live at the same time have bytes of their own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ooc_cudnn.memory.offset_assignment import LiveBuffer, assign_offsets, held_bytes

buffers = st.builds(
    lambda first, lasting, nbytes: LiveBuffer(first, first + lasting, nbytes),
    st.integers(0, 20),
    st.integers(0, 8),
    st.integers(1, 5000),
)


@given(st.lists(buffers, min_size=1, max_size=30), st.sampled_from([None, 0.92, 1.0]))
def test_no_two_that_live_at_once_share_a_byte(found, enough):
    offsets, peak = assign_offsets(found)
    if enough is not None:
        before, (offsets, peak) = peak, assign_offsets(found, int(enough * peak))
        assert peak <= before
    for index, (one, start) in enumerate(zip(found, offsets, strict=True)):
        assert start % 256 == 0
        assert 0 <= start <= start + one.nbytes <= peak
        for other, begin in zip(found[:index], offsets, strict=False):
            if one.first <= other.last and other.first <= one.last:
                assert start + one.nbytes <= begin or begin + other.nbytes <= start


@given(st.lists(buffers, min_size=1, max_size=30))
def test_the_peak_is_near_what_lives_at_once(found):
    steps = max(buffer.last for buffer in found) + 1
    least = max(held_bytes(found, steps))
    at_step = [
        sum(-(-e.nbytes // 256) * 256 for e in found if e.first <= step <= e.last)
        for step in range(steps)
    ]
    assert held_bytes(found, steps).tolist() == at_step
    assert least <= assign_offsets(found).peak_bytes <= 2 * least


def test_what_reaches_too_far_is_placed_earlier():
    """There is an order in which these take as few bytes as live at once; size does not tell."""
    random = np.random.default_rng(3)
    gained = above = 0
    for _ in range(20):
        # what fills a block of 4096 times 256 bytes exactly, cut at random, in time and bytes
        found = [LiveBuffer(0, 63, 4096 * 256)]
        while len(found) < 60:
            first, last, nbytes = found.pop(int(random.integers(len(found))))
            if random.random() < 0.5 and last > first:
                cut = int(random.integers(first, last))
                found += [LiveBuffer(first, cut, nbytes), LiveBuffer(cut + 1, last, nbytes)]
            elif nbytes >= 512:
                cut = int(random.integers(1, nbytes // 256)) * 256
                found += [LiveBuffer(first, last, cut), LiveBuffer(first, last, nbytes - cut)]
            else:
                found.append(LiveBuffer(first, last, nbytes))
        peak = assign_offsets(found).peak_bytes
        moved = assign_offsets(found, 4096 * 256).peak_bytes
        gained += (peak - moved) / (peak - 4096 * 256 or 1)
        above += moved / (4096 * 256) - 1
    assert gained >= 1  # of 20: one that no order places
    assert above < 0.4  # all 20 together; 0.62 where the fullest step is not begun with
