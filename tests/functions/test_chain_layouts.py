"""Chains whose windows have layouts of their own: right under any split, chosen where they pay."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import operations
from ooc_cudnn.call_planner.chain_layouts import (
    WORTH_DIFFERING,
    layouts_to_plan,
    seconds_by_layout,
    steps_of,
)
from ooc_cudnn.call_planner.layouts import seconds_of
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.planner import make_plan
from ooc_cudnn.call_planner.search import Search
from ooc_cudnn.functions.call.plan_api import describe_call
from ooc_cudnn.operations.chain.lowering import SEPARATOR
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import TensorSpec, packed_strides
from tests.support.forced import Forced, legal_splits
from tests.support.mixed_layouts import SEVERAL, run_in_any_layouts
from tests.support.splits import LAYOUTS, Split, make

#: Splits of a chain along each axis.
SPLITS = 6


@pytest.mark.parametrize("name", SEVERAL)
def test_any_layouts_under_any_split(name):
    assert run_in_any_layouts(name, splits=SPLITS) >= SPLITS


def test_layouts_that_are_not_one_for_each_window_are_refused():
    made = Split(make("chain: vgg of three blocks"))
    with pytest.raises(ValueError, match="shorter"):
        made.run(next(legal_splits(made.splittable)), layout=SEPARATOR.join(LAYOUTS))


# Which are chosen --------------------------------------------------------------------------------


def spec(*shape, order="channels_last"):
    return TensorSpec(shape, "float32", "device", packed_strides(shape, order))


def chain_on_card(order="channels_last"):
    """A request on a card: convolutions of few and of many channels, bias, ReLU and pooling."""
    like = partial(spec, order=order)
    applied = [
        operations.Convolution(like(16, 3, 3, 3), padding=1),
        operations.AddTensor(like(16)),
        operations.Activation("relu"),
        operations.Pooling(2),
        operations.Convolution(like(16, 16, 3, 3), padding=1),
        operations.Convolution(like(8, 16, 1, 1)),
    ]
    return on_card(applied, like(64, 3, 96, 96), order)


def on_card(applied, x, order="channels_last"):
    """A chain of operations, its operands on a card."""
    described = describe_call("chain_forward", {"x": x, "operations": applied})
    chain = described.build(described.arrays, current())
    y = spec(*chain.operands["y"].shape, order=order)
    return Forced(chain, {**described.arrays, "y": y})


def drawn(request, seed):
    """The request on a machine that measured each convolution, and re-layouts, at random."""
    random, factors = np.random.default_rng(seed), {}
    for layout in LAYOUTS:
        search = Search(request, layout)
        for launch, _ in search.launches(request.chain.extents, request.chain.loop_order):
            work = launch.operation.work()
            factors.setdefault(work.kind, 10.0 ** random.uniform(-1.5, 1.5))
    machine = request.machine
    return replace(
        request, machine=replace(machine, compute=machine.compute.corrected(factors, {}))
    )


def uncut_seconds(request, layout):
    """Of computing a chain in one piece."""
    chain = request.chain
    launches, _ = chain.launches(chain.whole_piece(0), layout=layout, orders=dict(request.orders))
    return sum(request.machine.compute.seconds(launch.operation.work()) for launch in launches)


@pytest.mark.parametrize("seed", range(12))
def test_no_sequence_of_layouts_computes_faster(seed):
    """Against every sequence there is, each priced by the launches it has."""
    request = drawn(chain_on_card(LAYOUTS[seed % 2]).request(), seed)
    windows = len(request.chain.windows)
    every = {
        layouts: uncut_seconds(request, SEPARATOR.join(layouts))
        for layouts in itertools.product(LAYOUTS, repeat=windows)
    }
    best = min(every.values())
    plan = make_plan(request)
    chosen = plan.layout.split(SEPARATOR)
    chosen = chosen * windows if len(chosen) == 1 else chosen
    assert every[tuple(chosen)] <= best / WORTH_DIFFERING * 1.001
    steps, orders = steps_of(request), dict(request.orders)
    for layouts, seconds in every.items():  # by the same seconds as the launches themselves
        path = (*layouts, orders["y"])
        assert seconds_of(steps, path, orders["x"]) == pytest.approx(seconds)
    told = dict(plan.by_layout)
    for layout in LAYOUTS:
        assert told[layout] == pytest.approx(every[(layout,) * windows])


def test_both_kinds_of_choice_are_met():
    """Of the drawn machines some mix layouts, and some do not; what is chosen is explained."""
    plans = [make_plan(drawn(chain_on_card(LAYOUTS[s % 2]).request(), s)) for s in range(12)]
    mixed = [plan for plan in plans if SEPARATOR in plan.layout]
    assert 0 < len(mixed) < len(plans)
    said = mixed[0].explain()
    assert f"layout     {mixed[0].layout.replace('_', '-')}" in said
    assert "channels-first throughout" in said
    assert "channels-last throughout" in said
    assert Plan.from_json(mixed[0].to_json()) == mixed[0]
    assert Plan.from_json(mixed[0].to_json()).explain() == said


def test_lines_alone_mix_layouts_only_where_they_say_much():
    """What was not measured may be off by half."""
    request = drawn(chain_on_card().request(), 3)
    found = seconds_by_layout(request)
    assert layouts_to_plan(request, found)[2:] == (found[0][0],)
    lines = replace(request.machine, compute=replace(request.machine.compute, corrections={}))
    unmeasured = replace(request, machine=lines)
    (best, _), (second, seconds) = found[:2]
    for share, mixes in ((0.5, True), (0.9, False)):
        told = ((best, share * seconds), (second, seconds))
        assert (best in layouts_to_plan(unmeasured, told)) is mixes
        assert best in layouts_to_plan(request, told)


def test_a_single_window_has_nothing_to_mix():
    x = TensorSpec((2, 3, 8, 8), "float32", "device", packed_strides((2, 3, 8, 8)))
    plan = ooc_cudnn.plan("pooling_forward", x=x, window=2)
    assert plan.by_layout == ()
    assert "throughout" not in plan.explain()


def test_windows_before_one_that_reads_padding_alone_take_no_time():
    """Its one row of windows lies in the padding above, so nothing reads the map before it."""
    applied = [
        operations.Convolution(spec(4, 2, 3, 3)),
        operations.Convolution(spec(3, 4, 2, 1), padding=(2, 0), stride=(8, 1)),
    ]
    steps = steps_of(on_card(applied, spec(1, 2, 5, 5)).request())
    assert len(steps) == 3
    assert set(steps[0].seconds.values()) == {0.0}
