"""Extents: those that live at the same time have bytes of their own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ooc_cudnn.memory.extents import Extent, held_bytes, place

extents = st.builds(
    lambda first, lasting, nbytes: Extent(first, first + lasting, nbytes),
    st.integers(0, 20),
    st.integers(0, 8),
    st.integers(1, 5000),
)


@given(st.lists(extents, min_size=1, max_size=30))
def test_no_two_that_live_at_once_share_a_byte(found):
    offsets, peak = place(found)
    for index, (one, start) in enumerate(zip(found, offsets, strict=True)):
        assert start % 256 == 0
        assert 0 <= start <= start + one.nbytes <= peak
        for other, begin in zip(found[:index], offsets, strict=False):
            if one.first <= other.last and other.first <= one.last:
                assert start + one.nbytes <= begin or begin + other.nbytes <= start


@given(st.lists(extents, min_size=1, max_size=30))
def test_the_peak_is_near_what_lives_at_once(found):
    steps = max(extent.last for extent in found) + 1
    least = max(held_bytes(found, steps))
    at_step = [
        sum(-(-e.nbytes // 256) * 256 for e in found if e.first <= step <= e.last)
        for step in range(steps)
    ]
    assert held_bytes(found, steps).tolist() == at_step
    assert least <= place(found).peak_bytes <= 2 * least
