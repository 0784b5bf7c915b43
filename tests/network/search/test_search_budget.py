"""The budget of the planner's search: counted work, a plan in any case, more of it never slower."""

from __future__ import annotations

import pytest

import ooc_cudnn
from ooc_cudnn.engines.target import Target
from ooc_cudnn.memory.pinned import Room
from ooc_cudnn.network.cost.compute_seconds import phase_seconds
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.live_ranges import keep_all
from ooc_cudnn.network.search import remat_solutions
from ooc_cudnn.network.search.incumbent import Incumbent
from ooc_cudnn.network.search.plan_step import plan_again, plan_step
from ooc_cudnn.network.search.policy_planner import PolicyPlanner
from ooc_cudnn.network.search.remat_greedy import search
from ooc_cudnn.network.search.remat_solutions import INPUTS, find_remat_solutions
from ooc_cudnn.network.search.remat_state import RematState
from ooc_cudnn.network.search.search_budget import (
    BOUNDED,
    PHASES_A_SECOND,
    REWRITTEN,
    WORKING,
    SearchBudget,
)
from ooc_cudnn.tensor import ORDERS
from perfmodel import shipped
from tests.support.drawn_networks import drawn_network


@pytest.fixture(scope="module")
def step():
    net = ooc_cudnn.Network(seed=1)
    h = net.input("x", (16, 3, 32, 32))
    for stage in range(3):
        h = net.convolution(h, 16 << stage, window=3, padding=1)
        h = net.activation(net.batch_normalization(h), "relu")
    logits = net.linear(net.global_average(h), 10)
    return net.training_phases(
        net.softmax_cross_entropy(logits, net.input("labels", (16,), "int64"))
    )


def constraints(limit, host=None):
    room = None if host is None else Room(host, host, 0)
    target = Target(shipped("h200"), limit, limit, ORDERS, None, overlap=True)
    return PlanConstraints(target, {}, host=room)


def drawn_step(seed):
    net, loss, _ = drawn_network(seed, loss=True)
    return net.training_phases(loss)


@pytest.mark.parametrize("share", [0.5, 0.2, 0.08])
def test_there_is_a_plan_whatever_the_budget_and_a_larger_one_is_no_slower(step, share):
    everything = plan_step("step", step, constraints(2**40), policy="keep").plan
    limit = constraints(int(share * everything.device_bytes))
    plans = [
        plan_step("step", step, limit, seconds=seconds).plan for seconds in (0.0, 0.5, float("inf"))
    ]
    assert all(plan.device_bytes <= plan.memory_limit for plan in plans)
    seconds = [plan.seconds for plan in plans]
    assert seconds == sorted(seconds, reverse=True)
    assert plans[0].searched_seconds == 0.0
    assert "ended by planning_seconds=0; with 1 it may find" in plans[0].explain()
    assert plans[-1].searched_seconds is None
    assert "planning_seconds" not in plans[-1].explain()
    again = plan_again(step, plans[0], limit).plan
    assert again.seconds == plans[0].seconds


@pytest.mark.parametrize(("seed", "limit"), [(0, 1792), (0, 2124), (1, 18_432), (1, 71_497)])
def test_what_little_work_finds_is_no_slower_than_what_none_does(seed, limit):
    """The search ended with the first plan that it had; what is streamed was faster by a third."""
    step = drawn_step(seed)
    seconds = [
        plan_step("step", step, constraints(limit), seconds=each).plan.seconds
        for each in (0.0, 0.01, 0.1)
    ]
    assert seconds == sorted(seconds, reverse=True)


def test_host_memory_has_room_for_a_plan_whatever_the_budget():
    """Without work host memory was said to be too small, where a search finds a plan."""
    step, little = drawn_step(1), constraints(71_497, host=83_519)
    plan = plan_step("step", step, little, seconds=0.0).plan
    assert plan.host_bytes <= 83_519
    assert plan.searched_seconds == 0.0
    assert plan_step("step", step, little, seconds=0.1).plan.seconds <= plan.seconds


def test_a_budget_is_no_clock(step):
    """The same work ends the search, however long that takes."""
    limit = constraints(2**20)
    plans = [plan_step("step", step, limit, seconds=0.1).plan for _ in range(2)]
    assert plans[0] == plans[1]
    assert plans[0].searched_seconds == plans[1].searched_seconds


def test_work_is_counted():
    budget = SearchBudget(1.0)
    budget.lower(PHASES_A_SECOND - 1)
    assert not budget.is_spent
    budget.lower(1)
    assert budget.is_spent
    assert not budget.is_overdrawn
    assert SearchBudget(0.0).gives_up
    needed = SearchBudget(0.0, needs_plan=True)
    assert needed.is_spent
    assert not needed.gives_up


# What is counted ---------------------------------------------------------------------------------


@pytest.fixture
def budget():
    return SearchBudget(1.0)


def test_what_phases_work_in_is_planned_within_the_budget(step, budget, monkeypatch):
    """Planning it took most of a search in batch slices, and counted as nothing."""
    monkeypatch.setattr(remat_solutions, "search", lambda state, budget: None)
    monkeypatch.setattr(remat_solutions, "fits", lambda state, budget: False)
    assert not list(find_remat_solutions(step, constraints(2**30), 1, budget=budget))
    assert budget.spent == WORKING * len(step.phases)


def test_bounds_are_counted_and_nothing_beats_a_plan_when_the_budget_is_spent(step, budget):
    """A step under little memory dropped tensor after tensor, and was bounded anew each time."""
    limit = constraints(2**40)
    incumbent = Incumbent(limit, step, budget=budget)
    incumbent.best = plan_step("step", step, limit, policy="offload")
    assert incumbent.can_beat_incumbent(step, keep_all(step))
    assert budget.spent == BOUNDED * len(step.phases)
    budget.lower(2 * PHASES_A_SECOND)
    assert not incumbent.can_beat_incumbent(step, keep_all(step))


def test_what_policies_rewrite_is_counted(step, budget):
    PolicyPlanner(step, constraints(2**20), "remake", 1, budget=budget)
    assert budget.spent >= REWRITTEN * len(step.phases)


def test_a_search_for_what_is_made_again_ends_with_the_budget(step):
    machine = constraints(2**30).target.machine

    def state(room_bytes):
        return RematState(step, phase_seconds(machine), room_bytes, machine, copied=INPUTS)

    least_bytes = state(2**30).least_held()
    assert search(state(1.2 * least_bytes), SearchBudget(1.0)) is not None
    assert search(state(1.2 * least_bytes), SearchBudget(0.0)) is None
