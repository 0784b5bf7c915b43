"""The bound by the linear program: beside a search through whole schedules, and beside plans."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import networks
from ooc_cudnn.engines.target import Target
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.bound.coarse_step import CoarseStep, Group, TensorSummary, Use, coarsen_step
from ooc_cudnn.network.bound.relaxation import Link, solve
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.search import plan_step
from ooc_cudnn.tensor import ORDERS
from perfmodel import shipped
from tests.support.drawn_networks import drawn_network

# Beside a search ----------------------------------------------------------------------------------


class Layers:
    """A chain of layers: each makes a map of the one before; its gradient reads both.

    The search knows nothing of the program: whole maps are on the device or the host, one may come
    and one may leave in each phase, any may be made again in the order of the layers.
    """

    def __init__(self, sizes, seconds, in_seconds, out_seconds):
        self.sizes, self.count = sizes, len(sizes)
        self.seconds = seconds  # of layers, then of gradients from the last to the first
        self.each_in, self.each_out = in_seconds, out_seconds

    def coarse(self):
        n = self.count
        uses = [[] for _ in range(n)]
        for at in range(n):
            uses[at].append(Use(at, False, True))
            if at:
                uses[at - 1].append(Use(at, True, False))
        for at in reversed(range(n)):
            phase = 2 * n - 1 - at
            for map_ in (at, at - 1) if at else (at,):
                uses[map_].append(Use(phase, True, False))
        things = tuple(
            TensorSummary(f"x{at}", size, sorted(uses[at]), maker=at)
            for at, size in enumerate(self.sizes)
        )
        parents = {at: (at - 1,) if at else () for at in range(n)}
        groups = tuple(Group(at, at, at + 1) for at in range(2 * n))
        return CoarseStep(tuple(self.seconds), groups, n, things, parents)

    def least(self, budget):
        """Seconds of the best of all schedules; infinite where none fits."""
        n = self.count
        size = {held: sum(self.sizes[at] for at in held) for held in subsets(range(n))}
        states = {(frozenset(), frozenset()): 0.0}
        for phase in range(2 * n):
            forward = phase < n
            at = phase if forward else 2 * n - 1 - phase
            reads = {at - 1} if at else set()
            reads |= set() if forward else {at}
            found = {}
            for (there, on_host), before in states.items():
                agains = [frozenset()] if forward else subsets(range(n))
                for again in agains:
                    made = self._made(there, again)
                    if made is None or not reads <= made:
                        continue
                    computing = self.seconds[phase] + sum(self.seconds[i] for i in again)
                    used = frozenset(reads | ({at} if forward else set()))
                    for held in subsets(sorted(made | used)):
                        if not used <= held:
                            continue
                        for come, leave in itertools.product(
                            [None, *sorted(on_host - held)], [None, *sorted(held)]
                        ):
                            arrives = frozenset() if come is None else frozenset([come])
                            if size[held | arrives] > budget:
                                continue
                            gone = frozenset() if leave is None else frozenset([leave])
                            lasts = max(
                                computing,
                                sum(self.sizes[i] for i in arrives) * self.each_in,
                                sum(self.sizes[i] for i in gone) * self.each_out,
                            )
                            key = held | arrives, on_host | gone
                            if before + lasts < found.get(key, np.inf):
                                found[key] = before + lasts
            states = found
        return min(states.values(), default=np.inf)

    @staticmethod
    def _made(there, again):
        """What is there when these have run again, in order; None where a parent is not."""
        made = set(there)
        for at in sorted(again):
            if at and at - 1 not in made:
                return None
            made.add(at)
        return frozenset(made)


def subsets(names):
    names = list(names)
    return [frozenset(s) for k in range(len(names) + 1) for s in itertools.combinations(names, k)]


@pytest.mark.every_case
def test_no_schedule_of_whole_maps_beats_the_bound():
    random, near, far = np.random.default_rng(5), 0, 0
    for draw in range(18):
        n = 4 if draw < 3 else 3
        sizes = [int(size) for size in random.integers(1, 9, n)]
        seconds = [float(each) for each in random.integers(1, 9, 2 * n)]
        speed = [0.3, 3.0, 1e4][draw % 3]
        layers = Layers(sizes, seconds, speed, speed * 1.5)
        most = sum(sizes)
        for budget in {most, int(0.7 * most), max(a + b for a, b in itertools.pairwise(sizes))}:
            least = layers.least(budget)
            found = solve(layers.coarse(), Link(speed, speed * 1.5), budget)
            assert found is not None
            assert found.seconds <= least * (1 + 1e-7), (draw, budget)
            near += found.seconds >= least * (1 - 1e-7)
            far += found.seconds > sum(seconds) * (1 + 1e-7)
    assert near > 12  # often it is reached
    assert far > 12  # and says more than that all is computed once


def test_half_a_parent_makes_half_a_child():
    """While c is there, memory has room for half of a: all of b cannot be made of it later.

    b is large and made of a in one second, a is small and takes ten. Half of a is held, so the
    other half is made again (five seconds), and then all of b (one).
    """
    a = TensorSummary("a", 2, [Use(0, False, True), Use(1, True, False)], maker=0)
    b = TensorSummary("b", 4, [Use(1, False, True), Use(4, True, False)], maker=1)
    c = TensorSummary("c", 6, [Use(2, False, True), Use(3, True, False)], maker=2)
    seconds, groups = (10.0, 1.0, 1.0, 1.0, 1.0), tuple(Group(at, at, at + 1) for at in range(5))
    coarse = CoarseStep(seconds, groups, 3, (a, b, c), {0: (), 1: (0,), 2: ()})
    found = solve(coarse, Link(1e8, 1e8), 7)  # nothing crosses it
    assert found.seconds == pytest.approx(sum(seconds) + 6)


# Beside plans -------------------------------------------------------------------------------------


def machine(slower):
    """An H200 whose link is so many times slower, and whose host takes no time."""
    model = shipped("h200")
    lines = {
        way: {
            name: replace(line, alpha=line.alpha * slower, beta=0.0)
            for name, line in getattr(model.transfer, way).items()
        }
        for way in ("copy_in", "copy_out")
    }
    transfer = replace(model.transfer, **lines)
    none = dict.fromkeys(("call_seconds", "launch_seconds", "step_seconds", "operand_seconds"), 0.0)
    return replace(model, name=f"h200 / {slower}", transfer=transfer, **none)


@pytest.mark.parametrize(("seed", "slower", "share"), [(1, 30, 0.7), (5, 1000, 0.55)])
def test_no_policy_beats_the_bound(seed, slower, share):
    net, loss, _ = drawn_network(seed, loss=True)
    step, model = net.training_phases(loss), machine(slower)
    full = net.plan(loss, memory_limit="1GiB", policy="keep", machine=model).device_bytes
    limit = int(share * full)
    constraints, bound = (
        PlanConstraints(Target(model, limit, limit, ORDERS, None, overlap=True), {}),
        None,
    )
    for policy in (*plan_step.BEST_OF, "vdnn_all"):
        try:
            plan = plan_step.plan_step("step", step, constraints, policy=policy).plan
        except PlanInfeasibleError:
            continue
        bound = bound or plan_step.plan_with_bound(plan, step, constraints).bound_seconds
        assert plan.seconds >= bound * (1 - 1e-6), policy
    assert bound


def test_more_memory_has_no_larger_bound():
    """And with all of it, the bound is what is computed, or copied."""
    net, loss = networks.alexnet(batch=64, image=67, width=1 / 4)
    found = [
        net.plan(loss, memory_limit=limit, policy="keep", machine="h200", bound=True)
        for limit in ("15MiB", "40MiB", "1GiB", "64TiB")
    ]
    *bounds, of_plenty = (plan.bound_seconds for plan in found)
    assert of_plenty == pytest.approx(bounds[-1], rel=5e-3)  # no more is too small to count
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[-1]
    assert found[-2].compute_seconds * 0.8 <= bounds[-1] <= found[-2].seconds


def test_a_plan_says_its_bound():
    net, loss, _ = drawn_network(1, loss=True)
    plan = net.plan(loss, memory_limit="1MiB", policy="keep", machine="h200", bound=True)
    assert "% above the best possible of its kind" in plan.explain()
    assert NetworkPlan.from_json(plan.to_json()) == plan
    without = net.plan(loss, memory_limit="1MiB", policy="keep", machine="h200")
    assert without.bound_seconds is None
    assert "bound" not in without.explain()
    assert plan == replace(without, bound_seconds=plan.bound_seconds)


def test_parts_of_concatenations_are_things():
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 3, 8, 8))
    a, b = (net.convolution(x, channels, window=1) for channels in (4, 5))
    y = net.convolution(net.concatenate([a, b], name="joined"), 2, window=1)
    step = net.training_phases(net.mean_squared_error(y, net.input("target", y.shape)))
    coarse = coarsen_step(step, lambda phase: 1.0, small_bytes=1)
    parts = [thing for thing in coarse.things if thing.name == "joined"]
    assert [part.nbytes for part in parts] == [2 * 4 * 64 * 4, 2 * 5 * 64 * 4]
    assert [part.maker for part in parts] == [0, 1]
