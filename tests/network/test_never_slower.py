"""`best` is never slower than a policy that plans in seconds, however little it may compare."""

from __future__ import annotations

import random

import pytest

import ooc_cudnn
from ooc_cudnn.engines.target import Target
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.cost.compute_bound import ComputeBound
from ooc_cudnn.network.cost.overlap_bound import least_seconds
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.search import incumbent
from ooc_cudnn.network.search.plan_step import plan_step
from ooc_cudnn.network.tradeoff.curve import QUICK
from ooc_cudnn.tensor import ORDERS
from perfmodel import shipped
from tests.support.sampling import number

SHARES = (0.6, 0.25, 1.5)[: number(2, of=3)]


def drawn_step(seed):
    """A step of training of a drawn network: sums, concatenations, poolings and batch norms."""
    draw, net = random.Random(seed), ooc_cudnn.Network(seed=1)
    images, normalizes = draw.choice([1, 6]), draw.random() < 0.5
    maps = [net.input("x", (images, 3, 32, 32))]
    for _ in range(draw.randint(3, 5)):
        x, kind = draw.choice(maps[-2:]), draw.random()
        if kind < 0.5:
            y = net.convolution(x, draw.choice([8, 16, 32]), window=3, padding=1)
            y = net.activation(net.batch_normalization(y) if normalizes else y)
        elif kind < 0.65 and x.shape[2] > 8:
            y = net.pooling(x, window=2)
        elif kind < 0.8:
            y = net.add(x, draw.choice([each for each in maps if each.shape == x.shape]))
        else:
            y = net.concatenate([x, *(each for each in maps if each.shape[2:] == x.shape[2:])][:3])
        maps.append(y)
    score = net.linear(net.global_average(maps[-1]), 10)
    labels = net.input("labels", (images,), "int64")
    return net.training_phases(net.softmax_cross_entropy(score, labels))


def planned(step, machine, limit, policy):
    constraints = PlanConstraints(Target(machine, limit, limit, ORDERS, None, overlap=True), {})
    made = plan_step("step", step, constraints, policy=policy)
    # plans are left out by these
    step, plan, live_ranges = made.step, made.plan, made.lowered.live_ranges
    seconds = ComputeBound(constraints).of_phases(step, plan.order)
    assert sum(seconds) <= plan.compute_seconds * (1 + 1e-9)
    least = least_seconds(step, live_ranges, machine, seconds)
    assert least.unwaited <= least.seconds <= plan.seconds * (1 + 1e-9)
    seconds, pieces = zip(*((task.seconds, task.pieces) for task in plan.tasks), strict=True)
    about = least_seconds(step, live_ranges, machine, seconds, (), pieces)
    assert about.seconds <= plan.seconds * 1.01
    return plan


@pytest.mark.parametrize("seed", range(number(1, of=5)))
def test_best_is_never_slower_than_a_policy(seed, monkeypatch):
    """Not even where no other plans are compared: with less work, `best` finds less."""
    step = drawn_step(seed)
    machine = shipped(("h200", "titanx", "p100", "host")[seed % 4])
    full = planned(step, machine, 2**40, "keep").device_bytes
    for share in SHARES:
        limit, by_policy = int(share * full), {}
        for policy in QUICK[1:]:
            try:
                by_policy[policy] = planned(step, machine, limit, policy).seconds
            except PlanInfeasibleError:
                continue
        if not by_policy:
            continue  # then there is none to be found
        with monkeypatch.context() as patch:
            patch.setattr(incumbent, "WORK_A_SECOND", 0)
            best = planned(step, machine, limit, "best")
        assert best.seconds <= min(by_policy.values()), (share, best.taken, by_policy)
