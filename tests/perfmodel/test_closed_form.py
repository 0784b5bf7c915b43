"""The closed form: fill, the largest stage, drain, and what else may bind."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import Slowdown, Split, Stages, binding_stage, closed_form
from perfmodel.closed_form import with_turning

SECONDS = st.floats(0.001, 10.0)


def stages(setup, *others, **more):
    """The stages of a call, what passes before it first."""
    return Stages(*others, setup=setup, **more)


def equal_pieces(count, copy_in, compute, copy_out, setup=0.0):
    totals = (count * copy_in, count * compute, count * copy_out)
    return stages(setup, *totals, copy_in, compute, compute, copy_out)


@given(st.integers(1, 50), SECONDS, SECONDS, SECONDS, st.floats(0, 5))
def test_equal_pieces_fill_run_and_drain(count, copy_in, compute, copy_out, setup):
    cost = equal_pieces(count, copy_in, compute, copy_out, setup)
    steady = (count - 1) * max(copy_in, compute, copy_out)
    expected = setup + steady + copy_in + compute + copy_out
    assert closed_form(cost) == pytest.approx(expected)


def test_without_overlap_everything_adds_up_one_way():
    cost = stages(1.0, 2.0, 3.0, 4.0, 0.5, 0.5, 0.5, 0.5)
    assert closed_form(cost, Slowdown(1.5, 1.5), overlap=False) == 10.0


def test_short_first_and_last_pieces_shorten_fill_and_drain():
    even = equal_pieces(10, 1.0, 0.5, 1.0)
    tapered = stages(0.0, 10.0, 5.0, 10.0, 0.1, 0.05, 0.05, 0.1)
    assert closed_form(even) == pytest.approx(11.5)
    assert closed_form(tapered) == pytest.approx(10.15)


@pytest.mark.parametrize(
    ("seconds", "stage"),
    [((3, 1, 2), "copy_in"), ((1, 3, 2), "compute"), ((1, 2, 3), "copy_out"), ((2, 2, 2), None)],
)
def test_the_binding_stage_has_the_most_seconds(seconds, stage):
    cost = equal_pieces(10, *(float(value) for value in seconds))
    assert binding_stage(cost) == (stage or "copy_in")


def test_a_busy_link_can_become_the_binding_stage():
    cost = equal_pieces(100, 1.0, 1.1, 1.0)
    assert binding_stage(cost) == "compute"
    assert binding_stage(cost, Slowdown(1.3, 1.3)) == "copy_in"


def test_a_split_has_sizes_of_at_least_one():
    assert Split.from_json(Split(1, 2, 3, 4).to_json()) == Split(1, 2, 3, 4)
    with pytest.raises(ValueError, match="h_y is 0"):
        Split(1, 1, 1, 0)


def test_rows_of_a_table_are_priced_as_each_by_itself():
    """Arrays that are broadcast: two numbers of pieces, with three slowdowns of computing."""
    one, other = equal_pieces(3, 1.0, 2.0, 1.0, 0.5), equal_pieces(9, 1.0, 2.0, 3.0, 0.5)
    table = Stages(**{
        name: np.array([[getattr(one, name)], [getattr(other, name)]])
        for name in Stages.__dataclass_fields__
    })  # fmt: skip
    table = replace(table, lost=np.array([[0.0, 1.0, 20.0]]), one_slot=np.array([[False], [True]]))
    seconds = closed_form(table, Slowdown(1.2, 1.1))
    assert seconds.shape == (2, 3)
    for at in np.ndindex(seconds.shape):
        assert closed_form(table.at(*at), Slowdown(1.2, 1.1)) == seconds[at]


def test_what_computing_loses_to_copies_counts_where_they_overlap():
    cost = stages(0.0, 4.0, 8.0, 4.0, 1.0, 2.0, 2.0, 1.0)
    losing = replace(cost, lost=0.5)
    assert closed_form(losing) == closed_form(cost) + 0.5
    assert closed_form(losing, overlap=False) == closed_form(cost, overlap=False)
    even = replace(cost, copy_in=8.25)
    assert (binding_stage(even), binding_stage(replace(even, lost=0.5))) == (
        "copy_in", "compute",
    )  # fmt: skip


def test_issuing_binds_where_steps_are_many_and_small():
    cost = stages(0.0, 4.0, 8.0, 4.0, 1.0, 2.0, 2.0, 1.0, issue=20.0)
    assert closed_form(cost) == 21.0
    assert closed_form(cost, overlap=False) == 20.0


@pytest.mark.parametrize("one_slot", [False, True])
def test_what_turns_and_all_else_add_up_where_they_are_about_equal(one_slot):
    cost = stages(0.5, 8.0, 2.0, 8.0, 1.0, 0.25, 0.25, 1.0, one_slot=one_slot)
    plain = closed_form(cost)
    tail = 0.5 if one_slot else 0.5 + cost.last_out  # before and after what overlaps
    bound = plain - tail

    def turning(seconds):
        return closed_form(replace(cost, turning=seconds))

    assert turning(bound) == pytest.approx(tail + bound * 2 ** (1 / 3))
    assert turning(bound / 10) == pytest.approx(plain, rel=1e-3)
    assert turning(10 * bound) == pytest.approx(tail + 10 * bound, rel=1e-3)
    # of files, the longer of both; and one by one, nothing is waited for
    assert closed_form(replace(cost, filing=bound)) == plain
    one_by_one = closed_form(cost, overlap=False)
    assert closed_form(replace(cost, turning=9.0), overlap=False) == one_by_one
    many = np.array([0.0, bound, 10 * bound])
    assert with_turning(bound, many) == pytest.approx(
        [with_turning(bound, each) for each in many.tolist()]
    )
