"""Shapes that change from step to step: nothing grows with their number, and nothing with steps."""

from __future__ import annotations

import copy
import gc
import os
import threading
import tracemalloc

import pytest
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.devices import get_device
from tests.support.sampling import number
from tests.support.torch_checks import close

pytestmark = [
    pytest.mark.usefixtures("fewest_plans"),
    pytest.mark.filterwarnings("ignore:.* is called in more than"),  # each shape counts
]

LIMIT = 2**16
#: Python's objects may grow by so much in a round of shapes that were all there before, and the
#: process by so much.
MOST_OBJECTS, MOST_RESIDENT = 2**20, 32 * 2**20


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(3, 2),
    ).double()  # fmt: skip


def shape(number):
    """One of many: no two numbers below 40 have the same."""
    return (1 + number % 4, 2, 4 + number // 4 % 5, 4 + number // 20 % 2)


def step(model, number):
    random = torch.Generator().manual_seed(number)
    x = torch.randn(shape(number), generator=random, dtype=torch.float64).mul_(1 + number % 3)
    model.zero_grad()
    y = model(x)
    y.square().sum().backward()
    return [y.detach(), *(parameter.grad for parameter in model.parameters())]


def held():
    """Threads, files, bytes of the device, bytes of the process."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as text:
        resident = int(text.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
        "device bytes": get_device("host").arena.held_bytes,
        "resident": resident,
    }


def train(steps, distinct, at_a_time, *, objects_too=True):
    """Steps of a few shapes at a time, of many in all; each is right.

    What is held is counted after all shapes have come once, and after they have come again.
    """
    eager = model()
    limited = ooc.limit(copy.deepcopy(eager), LIMIT)
    numbers = [
        (at // (2 * at_a_time) * at_a_time + at % at_a_time) % distinct for at in range(steps)
    ]
    assert len({shape(number) for number in numbers}) == distinct
    half = steps // 2
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        for at, number in enumerate(numbers):
            if at == half:
                before = held()
                if objects_too:  # what notes them down takes memory itself
                    tracemalloc.start()
            found, expected = step(limited, number), step(eager, number)
            least = max(float(each.abs().max()) for each in expected)
            for index, (one, other) in enumerate(zip(found, expected, strict=True)):
                close(one, other, f"step {at}, value {index}", least)
        after = held()
        objects = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    close(limited[1].running_mean, eager[1].running_mean, "running mean")
    assert int(limited[1].num_batches_tracked) == steps
    assert after["threads"] <= before["threads"]
    assert after["files"] <= before["files"]
    assert after["device bytes"] <= max(before["device bytes"], LIMIT)
    assert after["resident"] - before["resident"] <= MOST_RESIDENT
    return objects


def test_shapes_that_come_again_take_no_more():
    """Eight shapes in turn, which are all kept: steps alone add nothing."""
    train(steps=number(32, of=64), distinct=8, at_a_time=4)
    assert train(steps=number(32, of=96), distinct=8, at_a_time=4) <= MOST_OBJECTS


@pytest.mark.nightly
def test_500_steps_of_40_shapes():
    """More shapes than are kept: some are captured again, and what they held is given back."""
    train(steps=500, distinct=40, at_a_time=4, objects_too=False)


@pytest.mark.every_case
def test_more_shapes_than_are_kept():
    """Twenty in turn, twice: no shape is refused for being one too many."""
    eager = model()
    limited = ooc.limit(copy.deepcopy(eager), LIMIT)
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        for number in [*range(20), *range(3)]:
            expected = step(eager, number)
            least = max(float(each.abs().max()) for each in expected)
            for one, other in zip(step(limited, number), expected, strict=True):
                close(one, other, f"shape {shape(number)}", least)


def test_a_model_that_is_gone_leaves_nothing():
    """Captures and plans go with the model, and threads and memory with the last of them."""

    def once(number):
        step(ooc.limit(model(), LIMIT), number)

    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        for number in range(3):
            once(number)
        before = held()
        for number in range(6):
            once(number % 3)
        after = held()
    for what in ("threads", "files", "device bytes"):
        assert after[what] <= before[what], what
    assert after["resident"] - before["resident"] <= MOST_RESIDENT
