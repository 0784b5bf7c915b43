"""No plan takes more memory than there is; and these plans are hardly slower with more of it."""

from __future__ import annotations

import random

import pytest

import ooc_cudnn
from ooc_cudnn.engines.target import Target
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.search.plan_step import plan_step
from ooc_cudnn.tensor import ORDERS
from perfmodel import shipped
from tests.support.sampling import number

DOUBLED = (120_000, 240_000, 480_000, 960_000)
#: Of the seconds with less memory. docs/planning-networks.md says so, too.
MOST_SLOWER = 0.02


def drawn_step(seed):
    """A step that pauses, of a drawn network with several outputs, sums and concatenations."""
    draw, net = random.Random(seed), ooc_cudnn.Network(seed=1)
    shape = (draw.choice([1, 4, 6]), 3, 16, 16)
    maps = [net.input("x", shape, "float64", gradient=draw.random() < 0.5)]
    for _ in range(draw.randint(3, 7)):
        x, kind = draw.choice(maps[-3:]), draw.random()
        if kind < 0.5:
            channels = draw.choice([4, 8])
            y = net.activation(net.convolution(x, channels, window=3, padding=1))
        elif kind < 0.65 and x is not maps[0]:
            y = net.batch_normalization(x)
        elif kind < 0.65:
            y = net.convolution(x, 8, window=1)
        elif kind < 0.8:
            y = net.add(x, draw.choice([each for each in maps if each.shape == x.shape]))
        else:
            y = net.concatenate([x, draw.choice(maps)])
        maps.append(y)
    outputs = [maps[-1], *draw.sample(maps[1:], min(2, len(maps) - 1))]
    return net.pausing_phases(*{id(each): each for each in outputs}.values())


@pytest.mark.parametrize(
    ("seed", "limits"),
    [(2, DOUBLED), (6, (120_000, 160_000)), (11, DOUBLED), (7, DOUBLED), (12, (120_000, 160_000))][
        : number(1, of=5)
    ],
)
def test_more_memory_is_hardly_slower(seed, limits):
    """By two hundredths at the most, of these steps on the host. It is not promised of all.

    `best` is a search: where a plan hardly waits, say, those that copy more are not looked at. Of
    drawn steps as small as these, some are a few tenths slower with more memory on an H200, most of
    them in bands of rows.
    """
    step, machine, before = drawn_step(seed), shipped("host"), float("inf")
    for limit in limits:
        constraints = PlanConstraints(Target(machine, limit, limit, ORDERS, None, overlap=True), {})
        plan = plan_step("step", step, constraints).plan
        assert plan.device_bytes <= limit
        assert plan.seconds <= (1 + MOST_SLOWER) * before
        before = min(before, plan.seconds)
