"""How often regions are copied in, and what copies wait for: against a ring gone through."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_cudnn.functions.plan import plan_request
from ooc_cudnn.pipeline.planner import make_plan
from ooc_cudnn.pipeline.pricing import SplitProblem
from ooc_cudnn.pipeline.reuse import Gate, Reuse
from ooc_cudnn.pipeline.simulate import simulate
from ooc_cudnn.tensor import TensorSpec
from perfmodel import Split

LOOPS = st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=5)


def regions_of(loops):
    """The region that each piece needs."""
    for indices in itertools.product(*(range(times) for times, _ in loops)):
        yield tuple(at for at, (_, depends) in zip(indices, loops, strict=True) if depends)


@given(LOOPS, st.integers(1, 8))
def test_loads_are_those_of_a_ring(loops, slots):
    ring, loads = [], 0
    for region in regions_of(loops):
        if region not in ring:
            ring, loads = [*ring, region][-slots:], loads + 1
    assert Reuse(loops).loads(slots) == loads


@given(LOOPS, st.integers(1, 8))
def test_a_gate_lasts_from_the_first_use_of_the_last_region_to_the_last_use_of_the_first(
    loops, slots
):
    gate = Reuse(loops).gate(slots)
    if gate is None:
        return
    block = list(regions_of(loops))[: gate.block_pieces]
    seen = list(dict.fromkeys(block))
    assert len(seen) == gate.regions == slots - gate.spare
    last_use = max(at for at, region in enumerate(block) if region == seen[0])
    assert gate.pieces == last_use - block.index(seen[-1]) + 1
    assert gate.blocks * gate.block_pieces == len(list(regions_of(loops)))


def test_what_is_used_by_piece_after_piece_and_never_again_needs_no_gate():
    assert Reuse([(5, True), (3, True), (4, False)]).gate(3) is None
    assert Reuse([(5, True), (4, False), (3, True)]).gate(3) == Gate(5, 12, 3, 0, 8)
    assert Reuse([(5, True), (4, False), (3, True)]).gate(2) is None  # all are loaded again


@pytest.mark.parametrize("machine", ["h200", "p100"])
@pytest.mark.parametrize(
    "split",
    [
        Split(n=35, c_y=32, c_x=64, h_y=86),
        Split(n=35, c_y=16, c_x=64, h_y=86),
        Split(n=35, c_y=8, c_x=64, h_y=128),  # a slot is left
        Split(n=35, c_y=32, c_x=32, h_y=256),
        Split(n=35, c_y=32, c_x=64, h_y=64),  # too many regions: all are loaded again
    ],
    ids=str,
)
def test_the_closed_form_waits_as_the_replay_does(machine, split):
    request = plan_request(
        "convolution_forward", machine=machine, memory_limit=2**34, padding=1,
        x=TensorSpec((512, 64, 256, 256), "float32", "pinned"),
        w=TensorSpec((64, 64, 3, 3), "float32", "pinned"),
    )  # fmt: skip
    request = replace(request, loop_order=("n", "c_y", "h_y", "c_x"))
    plan = make_plan(request, None, split)
    assert plan.seconds == pytest.approx(simulate(request, plan).seconds, rel=0.07)


def test_waiting_is_a_good_part_of_it_where_the_ring_is_full():
    request = plan_request(
        "convolution_forward", machine="p100", memory_limit=2**34, padding=1,
        x=TensorSpec((512, 64, 256, 256), "float32", "pinned"),
        w=TensorSpec((64, 64, 3, 3), "float32", "pinned"),
    )  # fmt: skip
    problem = SplitProblem(
        replace(request, loop_order=("n", "c_y", "h_y", "c_x")), "channels_first", 0
    )
    split = Split(n=35, c_y=32, c_x=64, h_y=86)
    price = problem.price(split)
    assert 0.15 * price.seconds < problem.priced[split].cost.waiting_seconds < 0.3 * price.seconds
