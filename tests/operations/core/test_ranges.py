"""Windows on one axis, against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ooc_cudnn.operations.core.ranges import grouped_ranges, input_rows, output_extent, ranges
from ooc_cudnn.operations.core.window_arguments import padding_pairs, per_axis


@st.composite
def windows(draw):
    extent, window = draw(st.integers(1, 20)), draw(st.integers(1, 6))
    stride, dilation = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    padding = draw(st.tuples(st.integers(0, 25), st.integers(0, 25)))
    assume(extent + sum(padding) >= (window - 1) * dilation + 1)
    return extent, window, stride, padding, dilation


def positions(extent, window, stride, padding, dilation):
    """Where the window starts, counted one by one on the padded axis."""
    span, found, start = (window - 1) * dilation + 1, 0, 0
    while start + span <= padding[0] + extent + padding[1]:
        found, start = found + 1, start + stride
    return found


@given(windows())
def test_output_extent_counts_the_positions(axis):
    assert output_extent(*axis) == positions(*axis)


@given(windows(), st.data())
def test_input_rows_are_those_the_window_touches(axis, data):
    extent, window, stride, padding, dilation = axis
    whole = output_extent(*axis)
    a = data.draw(st.integers(0, whole - 1))
    b = data.draw(st.integers(a + 1, whole))
    rows = input_rows((a, b), *axis)
    assert 0 <= rows.start <= rows.stop <= extent
    assert min(rows.before, rows.after) >= 0
    touched = {
        o * stride - padding[0] + tap * dilation for o in range(a, b) for tap in range(window)
    }
    inside = {row for row in touched if 0 <= row < extent}
    assert inside <= set(range(rows.start, rows.stop))
    # The piece by itself, with its own padding, gives exactly these outputs ...
    own = rows.stop - rows.start, window, stride, (rows.before, rows.after), dilation
    assert output_extent(*own) == b - a
    # ... and the first window starts where it does in the whole.
    if rows.start < rows.stop:
        assert rows.start - rows.before == a * stride - padding[0]
    # Nothing more is read than from the first window's start to the last one's end, or to the
    # end of the whole.
    if inside:
        assert rows.start == max(0, min(touched))
        assert rows.stop == (extent if b == whole else min(extent, max(touched) + 1))
        if (a, b) == (0, whole):
            assert rows == (0, extent, *padding)


@given(windows(), st.data())
def test_no_rows_need_no_padding_that_cannot_be(axis, data):
    """A piece may need no row of an intermediate at all; then that is an empty piece."""
    extent, window, stride, _, dilation = axis
    whole = output_extent(*axis)
    at = data.draw(st.sampled_from([0, whole]))
    rows = input_rows((at, at), *axis)
    assert 0 <= rows.start <= rows.stop <= extent
    assert min(rows.before, rows.after) >= 0
    own = rows.stop - rows.start, window, stride, (rows.before, rows.after), dilation
    assert output_extent(*own) == 0


@given(st.integers(1, 50), st.integers(1, 60))
def test_ranges_cover_without_gaps(extent, size):
    found = ranges(extent, size)
    assert [i for start, stop in found for i in range(start, stop)] == list(range(extent))
    assert all(stop - start == size for start, stop in found[:-1])


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 40))
def test_grouped_ranges_never_straddle_a_group(groups, group, size):
    found = grouped_ranges(groups * group, group, size)
    if groups > 1:
        assert found.places == len({(low // group, (high - 1) // group) for low, high in found})
    assert [i for start, stop in found for i in range(start, stop)] == list(range(groups * group))
    assert [found[at] for at in range(-len(found), len(found))] == 2 * list(found)
    for start, stop in found:
        assert stop - start <= max(size, 1)
        first, last = start // group, (stop - 1) // group
        assert first == last or (start % group == 0 and stop % group == 0)


def test_padding_in_every_spelling():
    assert padding_pairs(2, 3) == ((2, 2),) * 3
    assert padding_pairs((1, 2), 2) == ((1, 1), (2, 2))
    assert padding_pairs(((1, 2), 3), 2) == ((1, 2), (3, 3))
    assert padding_pairs([[1, 2], [3, 4]], 2) == ((1, 2), (3, 4))
    assert padding_pairs(np.array([[1, 2], [3, 4]]), 2) == ((1, 2), (3, 4))
    assert padding_pairs(np.int64(1), 1) == ((1, 1),)
    assert padding_pairs(((0, 1),), 1) == ((0, 1),)
    assert per_axis(np.array([1, 2]), 2, name="stride", least=1) == (1, 2)
    assert per_axis(range(1, 3), 2, name="stride", least=1) == (1, 2)


@pytest.mark.parametrize(
    "value", [-1, (1, -1), ((0, -1), 0), True, (True, 1), "1", 1.5, (1.0, 1), (1,), (1, 2, 3), None]
)
def test_padding_that_is_none(value):
    with pytest.raises((TypeError, ValueError), match="padding must"):
        padding_pairs(value, 2)


@pytest.mark.parametrize("value", [0, -1, True, (1, 0), (1,), "11", 2.0, None, {}])
def test_strides_that_are_none(value):
    with pytest.raises((TypeError, ValueError), match="stride must"):
        per_axis(value, 2, name="stride", least=1)
