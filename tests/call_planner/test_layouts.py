"""The cheapest sequence of layouts against every sequence there is."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ooc_cudnn.call_planner.layouts import LayoutNode, cheapest, seconds_of, uniform_seconds

LAYOUTS = ("NCHW", "NHWC", "CHWN")


def drawn(random, steps):
    """A chain whose seconds are of any size; some operations lack a layout, some ways are none."""
    found = []
    for at in range(steps):
        has = [layout for layout in LAYOUTS if random.random() < 0.8] or [LAYOUTS[at % 3]]
        seconds = {layout: 10.0 ** random.uniform(-5, -2) for layout in has}
        entering = {
            way: 10.0 ** random.uniform(-6, -2)
            for way in itertools.permutations(LAYOUTS, 2)
            if random.random() < 0.95
        }
        found.append(LayoutNode(f"operation {at}", seconds, entering))
    return found


def by_hand(steps, layouts, arrives):
    """The seconds of a sequence, added up without `seconds_of`."""
    places = [arrives, *layouts]
    total = 0.0
    for at, step in enumerate(steps):
        source, target = places[at], places[at + 1]
        if target not in step.seconds:
            return math.inf
        total += step.seconds[target]
        if source != target:
            total += step.entering.get((source, target), math.inf)
    return total


@pytest.mark.parametrize("seed", range(60))
def test_no_sequence_is_cheaper(seed):
    random = np.random.default_rng(seed)
    steps = drawn(random, int(random.integers(1, 6)))
    arrives = str(random.choice(LAYOUTS))
    every = {
        layouts: by_hand(steps, layouts, arrives)
        for layouts in itertools.product(LAYOUTS, repeat=len(steps))
    }
    best = min(every.values())
    if math.isinf(best):
        with pytest.raises(ValueError, match="no layout leads to"):
            cheapest(steps, arrives)
        return
    found = cheapest(steps, arrives)
    assert found.seconds == pytest.approx(best, rel=1e-12)
    assert every[found.layouts] == pytest.approx(best, rel=1e-12)
    assert seconds_of(steps, found.layouts, arrives) == pytest.approx(best, rel=1e-12)
    for layout, seconds in uniform_seconds(steps, arrives).items():
        assert seconds >= found.seconds * (1 - 1e-12), layout


def test_equal_seconds_keep_the_layout():
    steps = [LayoutNode("pooling", dict.fromkeys(LAYOUTS, 1.0), {("NCHW", "NHWC"): 0.0})] * 3
    assert cheapest(steps, "NHWC").layouts == ("NHWC",) * 3


def test_a_result_is_left_where_it_must_lie():
    entering = dict.fromkeys(itertools.permutations(LAYOUTS, 2), 1.0)
    steps = [
        LayoutNode("convolution", {"NCHW": 3.0, "NHWC": 2.5}, entering),
        LayoutNode("y", {"NCHW": 0.0}, entering),
    ]
    assert cheapest(steps, "NCHW").layouts == ("NCHW", "NCHW")
    assert uniform_seconds(steps, "NCHW") == {"NCHW": 3.0, "NHWC": 4.5}


def test_a_chain_of_nothing_takes_no_time():
    assert cheapest([], "NHWC").seconds == 0.0
    assert uniform_seconds([], "NHWC") == {}
