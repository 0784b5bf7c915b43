"""Where the closed form and the replay agree, and where they do not, with the reason for each.

The closed form assumes that nothing waits but for data: pieces alike, and slots enough that a copy
in never waits for a result to leave. The replay assumes nothing.
"""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import Slowdown, Stages, TransferModel, VirtualStep, closed_form, replay

SECONDS = st.floats(0.001, 10.0)


def stages(setup, *others, **more):
    """The stages of a call, what passes before it first."""
    return Stages(*others, setup=setup, **more)


#: Any stage may bind.
STAGES = st.tuples(st.floats(0.1, 10.0), st.floats(0.1, 10.0), st.floats(0.1, 10.0))


def cost_of(pieces):
    """Totals and ends of (copy in, compute, copy out) pieces."""
    copy_in, compute, copy_out = (sum(stage) for stage in zip(*pieces, strict=True))
    first, last = pieces[0], pieces[-1]
    return stages(0.0, copy_in, compute, copy_out, first[0], first[1], last[1], last[2])


def steps_of(pieces, ring):
    """The schedule: x and y have `ring` slots each, which a later piece takes over."""
    steps = []
    for index, (copy_in, compute, copy_out) in enumerate(pieces):
        # x's slot is free when it was computed on, y's when it has left
        read = (3 * (index - ring) + 1,) if index >= ring else ()
        left = (3 * (index - ring) + 2,) if index >= ring else ()
        steps.append(VirtualStep("copy_in", copy_in, read))
        steps.append(VirtualStep("compute", compute, (3 * index, *left)))
        steps.append(VirtualStep("copy_out", copy_out, (3 * index + 1,)))
    return steps


def ratio(pieces, ring=3, slowdown=1.0):
    """The closed form's seconds over the replay's."""
    factors = Slowdown(slowdown, slowdown)
    link = TransferModel({}, {}, {"pinned/pinned": factors})
    return closed_form(cost_of(pieces), factors) / replay(steps_of(pieces, ring), link).seconds


class TestTheyAgree:
    @given(SECONDS, SECONDS, SECONDS, st.integers(1, 30))
    def test_on_equal_pieces_that_wait_for_no_slot(self, copy_in, compute, copy_out, count):
        pieces = [(copy_in, compute, copy_out)] * count
        assert ratio(pieces, ring=count) == pytest.approx(1.0)

    @pytest.mark.parametrize("slow_in", [1.12, 1.8])
    @pytest.mark.parametrize("slow_out", [1.0, 1.3, 1.8])
    def test_within_two_pieces_where_the_link_is_busy_both_ways(self, slow_in, slow_out):
        pieces, factors = [(1.0, 0.2, 1.0)] * 40, Slowdown(slow_in, slow_out)
        link = TransferModel({}, {}, {"pinned/pinned": factors})
        predicted = closed_form(cost_of(pieces), factors)
        # a piece each way: both are busy until the faster copy is done, then the slower goes on
        faster, slower = sorted((slow_in, slow_out))
        steady = faster + (1.0 - faster / slower)
        assert predicted == pytest.approx(39 * steady + 1.0 + 0.2 + 1.0)
        found = replay(steps_of(pieces, 40), link).seconds
        assert found == pytest.approx(predicted, abs=2.0 * (steady - 1.0))

    @given(SECONDS, SECONDS, SECONDS, st.floats(1, 2))
    def test_on_one_piece_in_which_the_directions_never_meet(
        self, copy_in, compute, copy_out, slowdown
    ):
        pieces = [(copy_in, compute, copy_out)]
        assert ratio(pieces, slowdown=slowdown) == pytest.approx(1.0)
        assert closed_form(cost_of(pieces)) == pytest.approx(copy_in + compute + copy_out)

    def test_on_a_short_ring_of_what_is_staged(self):
        """Eight pieces, one slot each way: the formula and the steps agree."""
        latency, seconds, compute = 3.0, 1.0, 0.25
        steps = []
        for piece in range(8):
            before = (3 * piece - 2,) if piece else ()
            late = {"latency": latency, "turn": latency}
            steps.append(VirtualStep("copy_in", seconds, before, **late))
            steps.append(VirtualStep("compute", compute, (3 * piece,)))
            steps.append(VirtualStep("copy_out", 0.1, (3 * piece + 1,)))
        turning = 8 * (latency + seconds)
        cost = stages(
            0.0, 8 * seconds + latency, 8 * compute, 0.8, seconds + latency, compute, compute, 0.1,
            filing=turning,
        )  # fmt: skip
        assert replay(steps).seconds == pytest.approx(closed_form(cost), rel=0.01)

    @given(STAGES, st.integers(1, 40), st.integers(3, 5))
    def test_on_equal_pieces_in_rings_of_three(self, piece, count, ring):
        assert ratio([piece] * count, ring) == pytest.approx(1.0)

    @given(STAGES, st.integers(30, 60), st.floats(1.0, 1.5))
    def test_within_a_piece_where_the_directions_slow_each_other(self, piece, count, slowdown):
        pieces = [piece] * count
        factors = Slowdown(slowdown, slowdown)
        link = TransferModel({}, {}, {"pinned/pinned": factors})
        found = replay(steps_of(pieces, 3), link).seconds
        # the directions meet piece by piece, and less often than if both were busy from the start
        assert closed_form(cost_of(pieces), factors) == pytest.approx(found, rel=0.05)

    @pytest.mark.parametrize("slowdown", [1.0, 1.1, 1.3])
    @pytest.mark.parametrize("bound", [0, 1, 2])
    def test_within_two_per_cent_where_one_stage_binds_clearly(self, bound, slowdown):
        piece = [1.0, 1.0, 1.0]
        piece[bound] = 3.0
        assert ratio([tuple(piece)] * 60, slowdown=slowdown) == pytest.approx(1.0, rel=0.02)

    @pytest.mark.parametrize("stage", [0, 1])
    def test_with_a_big_first_piece(self, stage):
        """What brings the weights, say: the closed form knows the first piece by itself."""
        pieces = [[1.0, 1.0, 1.0] for _ in range(11)]
        pieces[0][stage] = 10.0
        assert ratio(pieces) == pytest.approx(1.0)

    def test_with_a_last_piece_that_is_smaller(self):
        pieces = [(2.0, 1.0, 2.0)] * 20 + [(0.5, 0.25, 0.5)]
        assert ratio(pieces) == pytest.approx(1.0, rel=0.02)


class TestRingsOfOneSlot:
    """Nothing is copied beside computing; a result leaves while the next piece comes in."""

    @given(STAGES, st.integers(1, 40), st.floats(1.0, 1.5))
    def test_directions_meet_between_equal_pieces(self, piece, count, slowdown):
        copy_in, _, copy_out = piece
        cost = dataclasses.replace(
            cost_of([piece] * count), one_slot=True,
            meeting_in=(count - 1) * copy_in, meeting_out=(count - 1) * copy_out,
        )  # fmt: skip
        factors = Slowdown(slowdown, slowdown)
        link = TransferModel({}, {}, {"pinned/pinned": factors})
        found = replay(steps_of([piece] * count, 1), link).seconds
        assert closed_form(cost, factors) == pytest.approx(found)

    @given(STAGES, st.integers(1, 10), st.integers(1, 6))
    def test_results_leave_alone_where_nothing_is_loaded(self, piece, blocks, results):
        """Channels of y are gone through for each region of x: only some pieces load."""
        copy_in, compute, copy_out = piece
        steps, before = [], ()
        for _ in range(blocks):
            # x's slot is free when the last result before was computed
            steps.append(VirtualStep("copy_in", copy_in, before[:1]))
            loaded = len(steps) - 1
            for _ in range(results):
                steps.append(VirtualStep("compute", compute, (loaded, *before[1:])))
                steps.append(VirtualStep("copy_out", copy_out, (len(steps) - 1,)))
                before = len(steps) - 2, len(steps) - 1
        pieces = blocks * results
        cost = Stages(
            blocks * copy_in, pieces * compute, pieces * copy_out,
            copy_in, compute, compute, copy_out, one_slot=True,
            meeting_in=(blocks - 1) * copy_in, meeting_out=(blocks - 1) * copy_out,
        )  # fmt: skip
        assert closed_form(cost) == pytest.approx(replay(steps).seconds)


class TestTheyDoNotAgree:
    """The closed form is a lower bound there, but for slowdowns; each says by how much it errs."""

    @given(st.lists(STAGES, min_size=1, max_size=20), st.integers(1, 4))
    def test_the_closed_form_is_never_above_the_replay(self, pieces, ring):
        assert ratio(pieces, ring) <= 1.0 + 1e-9

    @pytest.mark.parametrize(
        ("ring", "expected"),
        # one slot: compute waits for the copy out before, copies in for compute: 1 + 1 seconds each
        [(1, 0.5), (2, 1.0), (3, 1.0)],
    )
    def test_with_one_slot_stages_take_turns(self, ring, expected):
        assert ratio([(1.0, 1.0, 1.0)] * 200, ring) == pytest.approx(expected, rel=0.02)

    def test_with_ragged_pieces_who_is_slow_changes(self):
        # each stage is idle while another has its large piece, so none is busy all along
        pieces = [(3.0, 0.1, 0.1), (0.1, 3.0, 0.1), (0.1, 0.1, 3.0)] * 20
        assert ratio(pieces, ring=1) < 0.6
        assert ratio(pieces, ring=3) > ratio(pieces, ring=1) + 0.1

    def test_with_a_long_computation_in_the_middle_results_leave_late(self):
        # copies bind before and after it, but neither runs during most of it: slots are full
        pieces = [(1.0, 0.1, 1.0)] * 5 + [(1.0, 10.0, 1.0)] + [(1.0, 0.1, 1.0)] * 5
        found = ratio(pieces)
        # closed form: 1 + 11 + 1; replay: 6 + 10 and then 6 results to leave
        assert found == pytest.approx(13 / 22, rel=0.02)

    def test_with_two_sweeps_no_result_leaves_during_the_first(self):
        # the first sweep only reads, the second reads again and writes: the stages of different
        # sweeps overlap less than their totals say, unless first_compute is that of a whole sweep
        pieces = [(1.0, 0.2, 0.0)] * 10 + [(0.0, 0.2, 1.0)] * 10
        assert ratio(pieces) == pytest.approx(0.57, abs=0.05)
        whole_sweep = stages(0.0, 10.0, 4.0, 10.0, 10.0, 0.2, 0.2, 1.0)
        found = replay(steps_of(pieces, 10), None).seconds
        assert closed_form(whole_sweep) == pytest.approx(found, rel=0.02)
