"""Schedules of networks before an independent judge: no two steps may meet in memory unordered."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import ooc_cudnn
from ooc_cudnn.call_planner.planner import Planner
from ooc_cudnn.engines.target import make_request
from ooc_cudnn.network.lowering.host_arena import assign_pinned_offsets
from ooc_cudnn.network.lowering.lower import lower_step
from ooc_cudnn.network.policies.policy import POLICIES
from ooc_cudnn.network.runtime.constraints_here import constraints_for
from ooc_cudnn.network.search.pass_pipeline import apply_passes, canonicalize
from ooc_cudnn.network.search.plan_step import plan_step
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.elementwise.activation import Activation
from ooc_cudnn.pipeline import hazards as tracked
from ooc_cudnn.pipeline import program
from ooc_cudnn.pipeline.program import Binding, Move, Program, Task
from ooc_cudnn.pipeline.schedule import make_schedule
from ooc_cudnn.tensor import TensorSpec, packed_strides
from tests.support.drawn_networks import drawn_network
from tests.support.hazards import clocks, hazards


def schedule_of(seed, share, policy, micro_batches=None):
    """The schedule of a drawn network that has a share of the memory it wants."""
    net, loss, _ = drawn_network(seed, loss=True)
    full = net.plan(loss, memory_limit="1GiB", policy="keep").device_bytes
    limit = int(full * share)
    step = net.training_phases(loss)
    constraints = constraints_for(limit, None, step, {})
    made = plan_step("step", step, constraints, policy=policy, micro_batches=micro_batches)
    return make_schedule(made.lowered.program)


@pytest.mark.parametrize(
    "case",
    [(0, 0.6, "offload"), (7, 0.7, "vdnn_all"), (3, 0.3, "keep"), (4, 0.5, "checkpoint")],
    ids=str,
)
def test_what_touches_the_same_memory_is_ordered(case):
    schedule = schedule_of(*case)
    assert {step.stream for step in schedule.steps} == {"copy_in", "compute", "copy_out"}
    assert hazards(schedule) == []


def test_small_moves_and_arrays_of_many_regions(monkeypatch):
    monkeypatch.setattr(program, "MOVE_BYTES", 512)
    monkeypatch.setattr(tracked, "MOST_REGIONS", 2)
    schedule = schedule_of(3, 0.7, "offload")
    assert hazards(schedule) == []
    moved = [step.piece for step in schedule.steps if step.places[0].operand == ""]
    assert len(moved) > len(set(moved))


def test_micro_batches():
    schedule = schedule_of(8, 0.5, "offload", 2)
    assert hazards(schedule) == []


def images(rows=24):
    """A network that can go down its rows in bands."""
    net = ooc_cudnn.Network(seed=1)
    y = net.input("x", (2, 3, rows, 6), "float64")
    for channels in (4, 4, 5):
        y = net.activation(net.convolution(y, channels, window=3, padding=1), "relu")
    y = net.pooling(y, window=2)
    target = net.input("target", y.shape, "float64")
    return net, net.mean_squared_error(y, target)


@pytest.mark.parametrize("parts", [1, 2])
def test_bands_of_rows(parts):
    net, loss = images()
    step = net.training_phases(loss)
    constraints = constraints_for("64KiB", None, step, {})
    rewritten = apply_passes(canonicalize(step, "best"), frozenset(), parts, 3)
    lowered = lower_step("rows", rewritten, POLICIES["keep"].live_ranges_of(rewritten), constraints)
    schedule = make_schedule(lowered.program)
    assert len(schedule.steps) > 60
    assert hazards(schedule) == []


def test_every_wait_that_is_dropped_is_missed():
    """The judge sees each, and none waits for more than it must: but for what follows anyway."""
    schedule, needed = schedule_of(5, 1, "offload"), 0
    waits = [step.waits for step in schedule.steps]
    known = clocks(schedule, waits, staged=False)
    for at, own in enumerate(waits):
        for wait in own:
            dropped = [*waits]
            dropped[at] = tuple(each for each in own if each != wait)
            if (clocks(schedule, dropped, staged=False)[at] != known[at]).any():
                needed += 1
                assert hazards(schedule, dropped, staged=False), f"{at} need not wait for {wait}"
    assert needed >= 15


def test_items_that_forget_each_other_meet(monkeypatch):
    monkeypatch.setattr(tracked.Hazards, "users", lambda *_, **__: {})
    assert hazards(schedule_of(0, 1, "offload"))


def test_what_follows_in_pinned_memory_is_ordered():
    """Networks' plans have such tensors, and the judge sees who was there before."""
    schedule = schedule_of(4, 0.3, "keep")
    made = schedule.program
    assert any(binding.after for binding in made.bindings.values())
    assert made.pinned_bytes < sum(made.between[name].nbytes for name in made.pinned)
    assert hazards(schedule) == []


@pytest.mark.parametrize("shape", [(4, 2, 4, 4), (1, 2, 4, 4, 4)], ids=["images", "planes"])
def test_a_piece_waits_for_what_it_touches_alone(monkeypatch, shape):
    """Each computes when its part of a tensor has come, and its part leaves when it is done."""
    monkeypatch.setattr(program, "MOVE_BYTES", 4 * math.prod(shape) // 4)
    strides = packed_strides(shape, "channels_last")
    host, there = (TensorSpec(shape, "float32", at, strides) for at in ("pinned", "device"))
    call = Chain((Activation(shape),), "float32")
    target = constraints_for("1MiB", "h200", None, {}).target
    request = make_request(
        "relu", call, {"x": there, "y": there}, target.machine, 2**20, ("channels_last",),
        overlap=True, aligned={},
    )  # fmt: skip
    split = replace(call.extents, **{"n" if shape[0] > 1 else "h_y": 1})
    plan = Planner(request, None).plan(split)
    bindings = {
        "X": Binding(host),
        "Y": Binding(host),
        "x": Binding(there, 0),
        "y": Binding(there, host.nbytes),
    }
    items = (
        Move("fetch", "copy_in", "X", "x"),
        Task("relu", request, plan, {"x": "x", "y": "y"}, 2 * host.nbytes),
        Move("offload", "copy_out", "y", "Y"),
    )
    made = Program("step", items, bindings, 2 * host.nbytes, {"X": host, "Y": host})
    schedule = make_schedule(made)
    assert [step.stream for step in schedule.steps] == 4 * ["copy_in"] + 4 * ["compute"] + 4 * [
        "copy_out"
    ]
    assert [step.waits for step in schedule.steps[4:]] == [(at,) for at in range(8)]
    assert hazards(schedule) == []


def test_what_leaves_for_the_same_place_waits_for_what_left_before():
    """Though it is of one stream: threads may write the first one to the host after the second."""
    spec = TensorSpec((8, 8), placement="pinned")
    bindings = {name: Binding(spec) for name in "AB"}
    bindings |= {
        name: Binding(replace(spec, placement="device"), at) for name, at in (("a", 0), ("b", 256))
    }
    items = tuple(Move("offload", "copy_out", name.lower(), name) for name in "AB")
    moves = Program("moves", items, bindings, 512, dict.fromkeys("AB", spec))
    assert [step.waits for step in make_schedule(moves).steps] == [(), ()]
    made = assign_pinned_offsets(moves, apart=())
    schedule = make_schedule(made)
    assert [step.waits for step in schedule.steps] == [(), (0,)]
    assert hazards(schedule) == []
    assert hazards(schedule, [(), ()]) != hazards(schedule, [(), ()], staged=False) == []


def test_who_takes_over_pinned_memory_waits_for_all_who_were_there(monkeypatch):
    """B leaves for where A is still fetched from: by another stream, and of other memory."""
    spec = TensorSpec((8, 8), placement="pinned")
    bindings = {name: Binding(spec) for name in "AB"}
    bindings |= {
        name: Binding(replace(spec, placement="device"), at) for name, at in (("a", 0), ("b", 256))
    }
    items = (Move("fetch", "copy_in", "A", "a"), Move("offload", "copy_out", "b", "B"))
    moves = Program("moves", items, bindings, 512, dict.fromkeys("AB", spec))
    assert assign_pinned_offsets(moves, apart="B").pinned == {"A": 0}
    made = assign_pinned_offsets(moves, apart=())
    assert made.pinned == {"A": 0, "B": 0}
    assert made.host_bytes == 256 < moves.host_bytes
    assert hazards(make_schedule(made)) == []
    monkeypatch.setattr(tracked.Hazards, "_users_before", lambda *_: {})
    assert hazards(make_schedule(made))


def test_of_many_regions_neighbours_become_one():
    """Who reads the first rows waits for those that wrote about these, not for all."""
    array, count = tracked._Regions(), 1000
    for at in range(count):
        array.use(((0, 2), (at, at + 1)), {"copy_out": at}, writes=True)
        if at % 10 == 9:
            array.close()
            assert len(array.written) <= tracked.MOST_REGIONS
    for first in (0, 500, 990):
        latest = array.users(((0, 2), (first, first + 10)), writes=False)["copy_out"]
        assert first + 9 <= latest < first + 10 + 4 * count / tracked.MOST_REGIONS
