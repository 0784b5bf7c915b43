"""What a search makes again, the plans of it, and what `best` promises of all plans."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.cli.network import drawn_inputs
from ooc_cudnn.engines.target import Target
from ooc_cudnn.network.cost.compute_seconds import phase_seconds
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.live_ranges import check_live_ranges
from ooc_cudnn.network.ir.step import RematEvent
from ooc_cudnn.network.lowering.lower import peak_live_bytes
from ooc_cudnn.network.passes.insert_remat_events import insert_remat_events
from ooc_cudnn.network.policies.policy import POLICIES
from ooc_cudnn.network.runtime.constraints_here import constraints_for
from ooc_cudnn.network.search import pass_pipeline, plan_step, remat_greedy
from ooc_cudnn.network.search.remat_plans import propose_remat_plans
from ooc_cudnn.network.search.remat_solutions import (
    ALL,
    INPUTS,
    RematSolution,
    find_remat_solutions,
    refetch_live_ranges,
)
from ooc_cudnn.network.search.remat_state import RematState
from ooc_cudnn.tensor import ORDERS
from perfmodel import shipped
from tests.support.drawn_networks import drawn_network
from tests.support.network_steps import Recorder
from tests.support.residual import blocks


def under(limit):
    return PlanConstraints(Target(shipped("h200"), limit, limit, ORDERS, None, overlap=True), {})


def taken(net, loss):
    """The step that is planned, and what it holds if all is kept."""
    step = pass_pipeline.canonicalize(net.training_phases(loss), "best")
    step = pass_pipeline.apply_passes(step, frozenset(), 1, 1)
    return step, peak_live_bytes(step, POLICIES["keep"].live_ranges_of(step))


def searchable(step, room, *, copied):
    return RematState(step, phase_seconds(shipped("h200")), room, shipped("h200"), copied=copied)


def joined_network():
    """Concatenations, which several phases make, and poolings that say where maxima are."""
    net = ooc_cudnn.Network(seed=3)
    h = net.activation(net.convolution(net.input("x", (4, 3, 12, 12)), 8, window=3), "relu")
    for _ in range(2):
        parts = [net.activation(net.convolution(h, 4, window=1), "relu") for _ in range(2)]
        pooled = net.pooling(h, window=3, stride=1, padding=1)
        h = net.concatenate([*parts, net.convolution(pooled, 4, window=1)])
    labels = net.input("labels", (4,), "int64")
    return net, net.softmax_cross_entropy(net.linear(net.global_average(h), 3), labels)


@pytest.mark.parametrize(
    ("make", "most"), [(lambda: blocks(4, 12, 3), 1.0), (joined_network, 1.1)], ids=["one", "some"]
)
def test_its_bytes_are_those_of_the_step(make, most):
    """Of any events: every version of a map lives from its making to its last reader.

    What several phases make counts as made at once.
    """
    step, full = taken(*make())
    drawn = random.Random(5)
    for _ in range(20):
        state = searchable(step, full / 2, copied=INPUTS)
        backward = [at for at, phase in enumerate(step.phases) if phase.is_backward]
        made = [name for name, item in state.items.items() if item.made_by]
        events = {RematEvent(drawn.choice(backward), drawn.choice(made)) for _ in range(8)}
        state.change(add=events)
        rewritten = insert_remat_events(step, state.in_order())
        held = peak_live_bytes(rewritten, POLICIES["keep"].live_ranges_of(rewritten))
        assert held <= state.held().max() <= most * held
        assert state.least_held() <= held
        state.change(remove=state.unread())
        state.change(remove=set(state.events))
        assert state.held().max() == full
        assert state.seconds == 0


def test_what_leaves_is_back_for_its_readers():
    """Of any events: maps that are made again or come back, weights and inputs that come back."""
    step, full = taken(*blocks(256, 28, 3, channels=16))
    drawn, left = random.Random(3), 0
    for _ in range(40):
        state = searchable(step, full / 2, copied=ALL)
        backward = [at for at, phase in enumerate(step.phases) if phase.is_backward]
        for _ in range(8):
            ways = state.ways(drawn.choice(backward), drawn.choice(list(state.items)))
            state.change(add=[drawn.choice(ways).event])
        while unread := state.unread():
            state.change(remove=unread)
        whole = searchable(step, full / 2, copied=ALL)
        whole.change(add=state.events)
        assert whole.slots == state.slots
        assert np.array_equal(whole.held(), state.held())
        assert whole.least_held() <= state.held().max()
        made = RematSolution.of(state)
        rewritten = insert_remat_events(step, made.again)
        live_ranges = refetch_live_ranges(step, rewritten, made, int(full / 2))
        check_live_ranges(rewritten, live_ranges)
        left += sum(step.tensors[each.name].kind == "map" for each in made.back)
        # what is little stays longer than is counted; copies that begin at once count twice
        assert 0.85 * state.held().max() <= peak_live_bytes(rewritten, live_ranges)
        assert peak_live_bytes(rewritten, live_ranges) <= 1.01 * state.held().max()
    assert left > 20


def test_what_is_tried_in_a_copy_changes_nothing():
    """Whatever events are added to a copy of a state, and taken out of it."""
    step, full = taken(*blocks(256, 28, 3, channels=16))
    drawn = random.Random(4)
    state = searchable(step, full / 2, copied=ALL)
    backward = [at for at, phase in enumerate(step.phases) if phase.is_backward]
    for _ in range(20):
        before = state.in_order(), [*state.slots], state.held(), state.seconds
        trial = state.copy()
        for _ in range(4):
            ways = state.ways(drawn.choice(backward), drawn.choice(list(state.items)))
            trial.change(add=[drawn.choice(ways).event])
        added = trial.events - state.events
        trial.change(remove=drawn.sample(trial.in_order(), 2))
        assert (state.in_order(), state.slots, state.seconds) == (*before[:2], before[3])
        assert np.array_equal(state.held(), before[2])
        state.change(add=added)


@pytest.mark.every_case
def test_what_it_makes_again_fits():
    """Less memory takes more seconds, and what a search says is said again."""
    step, full = taken(*blocks(256, 56, 6, channels=64))
    seconds, before = phase_seconds(shipped("h200")), 0.0
    for share in (0.8, 0.6, 0.4, 0.25):
        room = int(share * full)
        made, again = (next(find_remat_solutions(step, under(room), 1)) for _ in range(2))
        assert made == again
        rewritten = insert_remat_events(step, made.again)
        assert peak_live_bytes(rewritten, refetch_live_ranges(step, rewritten, made, room)) <= room
        takes = sum(map(seconds, rewritten.phases))
        assert takes > before
        before = takes
    assert max(Counter(each.name for each in made.again).values()) > 1  # and let go in between
    assert not list(find_remat_solutions(step, under(full // 10), 1))


def test_what_is_alike_goes_together(monkeypatch):
    """Of equal blocks several maps go at once: one by one, counts end before all fits."""
    step, full = taken(*blocks(256, 56, 24, channels=64))
    state, added = searchable(step, full // 4, copied=INPUTS), []
    best = remat_greedy._Search._best

    def counted(self, *args):
        before, made = len(self.state.events), best(self, *args)
        added.append(0 if made is None else len(made.events) - before)
        return made

    monkeypatch.setattr(remat_greedy._Search, "_best", counted)
    monkeypatch.setattr(remat_greedy._Search, "improve", lambda self: None)
    together = remat_greedy.search(state)
    monkeypatch.setattr(remat_greedy, "ALIKE", 0.0)
    steps, added[:] = len(added), []
    alone = remat_greedy.search(state)
    assert steps < len(added) / 2
    assert together.seconds <= 1.02 * alone.seconds
    assert max(together.held().max(), alone.held().max()) <= state.room


def test_copies_that_save_nothing_are_not_searched(monkeypatch):
    """What is made again in less time than it takes to copy it is made again."""
    step, full = taken(*blocks(256, 56, 3, channels=64))
    constraints = under(int(0.6 * full))
    made = next(find_remat_solutions(step, constraints, 1))
    again = partial(find_remat_solutions, step, constraints, 1, copied=ALL, before=made.events)
    state = searchable(step, full, copied=ALL)
    state.change(add=made.events)
    assert 0 < state.saved_by_copies < 1
    assert next(again()).seconds <= made.seconds
    monkeypatch.setattr("ooc_cudnn.network.search.remat_solutions.WORTH_COPYING", 1.0)
    assert not list(again())


@pytest.mark.parametrize(
    ("make", "share", "parts", "copied"),
    [
        (lambda: blocks(4, 12, 3), 0.62, 1, INPUTS),
        (lambda: blocks(4, 12, 3), 0.62, 1, ALL),
        (joined_network, 0.7, 1, ALL),
        (joined_network, 0.6, 2, INPUTS),
    ],
    ids=["made", "leaves", "joined", "parts"],
)
def test_its_plans_run(make, share, parts, copied):
    net, loss = make()
    inputs = drawn_inputs(net)
    with ooc_cudnn.settings(device="host", machine="host"):
        kept = net.training_step(loss, memory_limit="1GiB", policy="keep", micro_batches=parts)
        value = kept(**inputs)
        step, full = taken(net, loss)
        limit = int(share * full)
        constraints = constraints_for(limit, None, step, {})
        recorder = Recorder(constraints)
        recorder.explore(
            "step", propose_remat_plans(step, constraints, recorder, (copied,), parts=parts)
        )
        made = recorder.plans[0]
        assert made.plan.again
        plan = type(made.plan).from_json(replace(made.plan, policy="best").to_json())
        other = net.training_step(loss, memory_limit=limit, plan=plan)
        assert other(**inputs) == pytest.approx(value, rel=1e-5)
        for name, gradient in kept.gradients.items():
            assert np.allclose(other.gradients[name], gradient, rtol=1e-3, atol=1e-5), name


@pytest.mark.every_case
def test_the_best_is_never_slower():
    """Than any other policy, nor than with less memory; and it holds no more than it may."""
    net, loss, _ = drawn_network(9, loss=True)
    step = net.training_phases(loss)
    full = net.plan(loss, memory_limit="1GiB", policy="keep", machine="h200").device_bytes
    names = ("best", *plan_step.BEST_OF, "vdnn_all", "vdnn_conv", "vdnn_dyn")
    constraints = under(int(0.7 * full))
    found = {name: plan_step.plan_step("s", step, constraints, policy=name).plan for name in names}
    best = found["best"]
    assert min(plan.seconds for plan in found.values()) == best.seconds
    assert best.device_bytes <= 0.7 * full
    assert plan_step.plan_step("s", step, under(int(1.2 * full))).plan.seconds <= best.seconds


def test_of_one_image_there_are_no_parts_to_search():
    net = ooc_cudnn.Network()
    h = net.activation(net.linear(net.input("x", (1, 12), gradient=True), 30, name="fc"), "tanh")
    net.linear(h, 4, name="end")
    step = net.gradient_phases(net.graph.tensors["end"])
    assert list(find_remat_solutions(step, under(2**20), 2, copied=INPUTS)) == []


@pytest.mark.every_case
def test_long_chains_of_makings_do_not_send_a_unet_to_the_link():
    """It took a fifth longer while each candidate was ranked with all that must be made for it."""
    net, loss = ooc_cudnn.networks.unet(batch=1)
    step = net.training_phases(loss)
    everything = plan_step.plan_step("step", step, under(2**40), policy="keep").plan
    limit = int(0.4 * everything.device_bytes)
    made = plan_step.plan_step("step", step, under(limit)).plan
    assert made.device_bytes <= limit
    assert made.seconds <= 1.15 * everything.seconds
