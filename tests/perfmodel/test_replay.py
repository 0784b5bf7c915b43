"""The replay: steps on a virtual clock, and every lower bound of what they take."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel import Slowdown, Timeline, TransferModel, VirtualStep, replay

STREAMS = ("copy_in", "compute", "copy_out")


def busy_link(slow_in, slow_out=None):
    """A link that is slower while both directions are busy, and the factors of all its calls."""
    factors = Slowdown(slow_in, slow_in if slow_out is None else slow_out)
    return TransferModel({}, {}, {"pinned/pinned": factors}), factors


def schedule(pieces, ring=None):
    """Return the steps of (in, compute, out) pieces through a ring of slots."""
    steps = []
    for index, (copy_in, compute, copy_out) in enumerate(pieces):
        free = () if ring is None or index < ring else (3 * (index - ring) + 2,)
        steps.append(VirtualStep("copy_in", copy_in, free))
        steps.append(VirtualStep("compute", compute, (3 * index,)))
        steps.append(VirtualStep("copy_out", copy_out, (3 * index + 1,)))
    return steps


def busy_seconds(timeline, steps, stream):
    """For how long a stream was running one of its steps."""
    return sum(
        finish - start
        for step, start, finish in zip(steps, timeline.start, timeline.finish, strict=True)
        if step.stream == stream
    )


PIECES = st.lists(
    st.tuples(st.floats(0, 10), st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=15
)


@settings(max_examples=60)
@given(PIECES, st.integers(1, 4), st.floats(1, 2), st.floats(1, 2))
def test_no_makespan_beats_a_lower_bound(pieces, ring, slow_in, slow_out):
    steps, slowdown = schedule(pieces, ring), max(slow_in, slow_out)
    timeline = replay(steps, busy_link(slow_in, slow_out)[0])
    serial = sum(step.seconds for step in steps)
    for stream in STREAMS:
        alone = sum(step.seconds for step in steps if step.stream == stream)
        busy = busy_seconds(timeline, steps, stream)
        assert timeline.seconds >= busy - 1e-9
        assert alone - 1e-9 <= busy <= alone * slowdown + 1e-9
    assert timeline.seconds >= max(sum(piece) for piece in pieces) - 1e-9
    assert timeline.seconds <= serial * slowdown + 1e-9
    in_order = dict.fromkeys(STREAMS, 0.0)
    for index, step in enumerate(steps):
        assert timeline.start[index] >= in_order[step.stream]
        assert all(timeline.start[index] >= timeline.finish[earlier] for earlier in step.waits)
        in_order[step.stream] = timeline.finish[index]


@given(PIECES)
def test_a_ring_of_one_slot_is_serial(pieces):
    timeline = replay(schedule(pieces, ring=1), busy_link(1.5)[0])
    assert timeline.seconds == pytest.approx(sum(sum(piece) for piece in pieces))


@settings(max_examples=40)
@given(PIECES, st.integers(1, 3))
def test_a_deeper_ring_is_never_slower_on_independent_roads(pieces, ring):
    shallow, deep = replay(schedule(pieces, ring)), replay(schedule(pieces, ring + 1))
    assert deep.seconds <= shallow.seconds + 1e-9


def test_a_partly_shared_link_slows_only_the_shared_part():
    # out runs from 1 to 3 alone; in joins at 2 and both run at half speed until out is done
    steps = [
        VirtualStep("compute", 1.0),
        VirtualStep("copy_out", 2.0, (0,)),
        VirtualStep("compute", 1.0),
        VirtualStep("copy_in", 2.0, (2,)),
    ]
    timeline = replay(steps, busy_link(2.0)[0])
    assert timeline.start == (0.0, 1.0, 1.0, 2.0)
    assert timeline.finish == (1.0, 4.0, 2.0, 5.0)
    assert busy_seconds(timeline, steps, "copy_out") == 3.0


def test_each_pair_of_placements_has_factors_of_its_own():
    # two copies out, the first to pinned memory, the second to pageable; one long copy in
    factors = {"pinned/pinned": Slowdown(2.0, 1.0), "pinned/pageable": Slowdown(4.0, 3.0)}
    steps = [
        VirtualStep("copy_in", 2.0, placement="pinned"),
        VirtualStep("copy_out", 1.0, placement="pinned"),
        VirtualStep("copy_out", 1.0, placement="pageable"),
    ]
    timeline = replay(steps, TransferModel({}, {}, factors))
    # in: half a second's worth by 1, three quarters more by 4; then alone
    assert timeline.finish == pytest.approx((4.0 + 0.75, 1.0, 4.0))


@pytest.mark.parametrize(("loss", "finish"), [(0.0, 4.0), (0.25, 4.5), (0.75, 5.0)])
def test_computing_loses_seconds_to_a_copy_beside_it_but_at_most_half_its_speed(loss, finish):
    steps = [VirtualStep("compute", 4.0), VirtualStep("copy_in", 2.0)]
    timeline = replay(steps, loss=loss)
    assert timeline.finish == pytest.approx((finish, 2.0))


def test_two_copies_at_once_take_twice_as_much_from_computing():
    steps = [
        VirtualStep("compute", 4.0),
        VirtualStep("copy_in", 1.0),
        VirtualStep("copy_out", 2.0),
    ]
    # a second at 60 % of its speed, one at 80 %, and the rest alone
    assert replay(steps, loss=0.2).finish == pytest.approx((4.0 + 0.4 + 0.2, 1.0, 2.0))


def lines_run(work):
    """How many lines of Python some work takes: its length on any machine, however busy."""
    count, before = 0, sys.gettrace()

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_four_times_the_steps_take_four_times_the_work():
    def of(pieces):
        steps = schedule([(1.0, 0.5, 1.0)] * pieces, ring=3)
        return lines_run(lambda: replay(steps, busy_link(1.1)[0])) / len(steps)

    few, many = of(500), of(2000)
    assert many == pytest.approx(few, rel=0.02)
    assert many < 100


def test_a_hundred_thousand_steps():
    steps = schedule([(1.0, 0.5, 1.0)] * 33_334, ring=3)
    timeline = replay(steps, busy_link(1.1)[0])
    assert timeline.seconds == pytest.approx(33_334 * 1.1, rel=1e-3)


def test_a_barrier_over_all_steps_is_cheap():
    steps = [VirtualStep("copy_in", 1.0) for _ in range(20_000)]
    steps.append(VirtualStep("compute", 1.0, tuple(range(20_000))))
    steps.extend(VirtualStep("copy_out", 0.5) for _ in range(20_000))
    assert replay(steps).seconds == 20_001.0


def test_bad_steps_are_refused():
    with pytest.raises(ValueError, match="step 0 waits for 0"):
        replay([VirtualStep("compute", 1.0, (0,))])
    with pytest.raises(ValueError, match="step 1 waits for -1"):
        replay([VirtualStep("compute", 1.0), VirtualStep("compute", 1.0, (-1,))])
    with pytest.raises(ValueError, match="stream is 'both'"):
        replay([VirtualStep("both", 1.0)])


def test_nothing_takes_no_time():
    assert replay([]) == Timeline((), ())
    assert replay([]).seconds == 0.0


def test_a_step_starts_when_it_is_issued_and_what_waits_for_it_later():
    steps = [
        VirtualStep("copy_in", 1.0, issued=0.5),
        VirtualStep("compute", 1.0, (0,), issued=1.0),
        VirtualStep("copy_in", 1.0, issued=4.0),
        VirtualStep("copy_out", 1.0, (1,), issued=2.0),
    ]
    timeline = replay(steps)
    assert timeline.start == (0.5, 1.5, 4.0, 2.5)
    assert timeline.seconds == 5.0


def test_what_is_staged_starts_a_while_after_it_is_issued_and_its_slot_was_last_used():
    steps = [
        VirtualStep("copy_in", 1.0, latency=0.5, turn=0.5),
        VirtualStep("compute", 1.0, (0,)),
        VirtualStep("copy_in", 1.0, (1,), latency=0.5, turn=0.5),
        VirtualStep("copy_in", 1.0, (1,), latency=2.5, turn=2.5),
    ]
    # one was staged while its slot was computed on, the other took longer than that
    assert replay(steps[:3]).start == (0.5, 1.5, 2.5)
    assert replay([*steps[:2], steps[3]]).start == (0.5, 1.5, 4.0)


@pytest.mark.parametrize("slabs", [1, 2, 4, 10])
@pytest.mark.parametrize("stream", ["copy_in", "copy_out"])
def test_staged_copies_take_over_each_others_slabs(stream, slabs, monkeypatch):
    """Of one slab, four are under way, the fifth follows the first; larger ones free theirs early.

    Four of four slabs or more follow each other, and a slab of each is free before the others are.
    """
    monkeypatch.setattr(sys.modules["perfmodel.replay"], "SLABS", 4)
    steps = [VirtualStep(stream, 0.25, latency=1.0, turn=1.0, slabs=slabs)] * 5
    start = replay(steps).start
    first = 1.0 if stream == "copy_in" else 0.0
    each = 1.0 + 0.25 / slabs
    if slabs == 1:
        expected = [first + 0.25 * place for place in range(4)] + [first + each]
    elif slabs == 2:
        expected = [first, first + 0.25, first + each, first + each + 0.25, first + 2 * each]
    else:
        expected = [first + each * place for place in range(5)]
    assert start == pytest.approx(expected)


def test_a_result_is_in_host_memory_a_while_after_it_left():
    """Its slot is free when it has left: the next piece does not wait for the writing."""
    steps = [
        VirtualStep("copy_out", 1.0, latency=5.0),
        VirtualStep("compute", 1.0, (0,)),
        VirtualStep("copy_out", 1.0, (1,), latency=2.0),
    ]
    timeline = replay(steps)
    assert timeline.start == (0.0, 1.0, 2.0)
    assert timeline.seconds == 6.0  # the first one, which was larger, landed last
