"""Tensors that are on the host for a while, and concatenations that are taken apart."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.network.ir.live_ranges import LiveRange, check_live_ranges
from ooc_cudnn.network.ir.step import Uses
from ooc_cudnn.network.lowering.spill_belady import spill_one
from ooc_cudnn.network.passes.split_concatenations import split_concatenations
from ooc_cudnn.network.search.strategies import spill
from ooc_cudnn.pipeline.schedule import make_schedule
from tests.fuzz.networks import Drawn
from tests.support.hazards import hazards
from tests.support.network_steps import spilling_plans
from tests.support.sampling import number


@pytest.mark.every_case
def test_steps_of_drawn_networks():
    """Beside those that `tests.fuzz.networks` runs."""
    drawn = Drawn(3)
    full = drawn.net.plan(drawn.loss, memory_limit="1GiB", policy="keep").device_bytes
    for share in (0.5, 0.8):
        limit = int(share * full)
        made = spilling_plans(drawn.net, drawn.loss, limit)[0]
        check_live_ranges(made.step, made.lowered.live_ranges)
        assert hazards(make_schedule(made.lowered.program)) == []
        drawn.check(limit, "best", plan=made.plan)


def test_what_is_made_for_each_reader_anew(monkeypatch):
    """All that is made again is; it goes straight into its reader, and is never whole."""
    monkeypatch.setattr(spill, "LARGE", 0)
    monkeypatch.setattr(spill, "remat_seconds", lambda *_: lambda name: 0.0)
    drawn, some = Drawn(15), 0
    full = drawn.net.plan(drawn.loss, memory_limit="1GiB", policy="keep").device_bytes
    made = spilling_plans(drawn.net, drawn.loss, int(0.6 * full))[-1]
    for name in made.plan.anew:
        again = [phase for phase in made.step.phases if f"{name} remade" in phase.writes]
        assert all(phase.is_backward for phase in again)
        some += len(again)
    twice = [name for name in made.step.tensors if name.endswith(" (2) remade")]
    assert some
    assert twice
    assert set(made.plan.anew) <= set(made.plan.rematerialized)
    assert hazards(make_schedule(made.lowered.program)) == []
    drawn.check(int(0.6 * full), "best", plan=made.plan)


class Joined:
    """A network whose widest map is a concatenation that two convolutions read."""

    def __init__(self, dtype="float64"):
        net = self.net = ooc_cudnn.Network(seed=2)
        x = net.input("x", (2, 3, 10, 8), dtype)
        a = net.activation(net.convolution(x, 4, window=3, padding=1), "tanh")
        b = net.convolution(a, 5, window=3, padding=1)
        joined = net.concatenate([b, a], name="joined")
        one = net.convolution(joined, 3, window=3, padding=1, name="one")
        other = net.convolution(joined, 3, window=1, name="other")
        y = net.add(one, other)
        self.loss = net.mean_squared_error(y, net.input("target", y.shape, dtype))
        random = np.random.default_rng(5)
        self.inputs = {
            name: random.standard_normal(net.graph.tensors[name].shape) for name in ("x", "target")
        }


def test_a_concatenation_is_taken_apart():
    joined = Joined()
    before = joined.net.training_phases(joined.loss)
    step = split_concatenations(before)
    assert "joined" in before.tensors
    assert not {"joined", "joined.gradient"} & set(step.tensors)
    names = [phase.name for phase in step.phases if phase.node == "one"]
    assert names[:2] == ["one forward [0]", "one forward [1]"]
    assert sum("filter gradient" in name for name in names) == 2
    # of the gradients the one that is read last is made first
    order = [name for name in names if "data gradient" in name]
    assert order == ["one data gradient [1]", "one data gradient [0]"]
    maps = [tensor for tensor in step.tensors.values() if len(tensor.shape) == 4]
    assert max(tensor.shape[1] for tensor in maps if tensor.kind == "map") == 5
    assert split_concatenations(step) == step


def test_what_is_apart_gives_the_same():
    joined = Joined()
    whole = joined.net.training_step(joined.loss, memory_limit="1GiB", policy="keep")
    expected = whole(**joined.inputs)
    for limit in number((14_000,), of=(14_000, 40_000)):
        for made in spilling_plans(joined.net, joined.loss, limit)[::2]:
            assert made.plan.apart
            assert made.plan.device_bytes <= limit
            assert hazards(make_schedule(made.lowered.program)) == []
            step = joined.net.training_step(joined.loss, memory_limit=limit, plan=made.plan)
            assert step(**joined.inputs) == pytest.approx(expected, rel=1e-12)
            for name, gradient in whole.gradients.items():
                found = np.asarray(step.gradients[name])
                assert found == pytest.approx(np.asarray(gradient), abs=1e-12), name


def test_what_is_read_by_others_or_in_few_bits_stays_together():
    joined = Joined("float16")
    step = joined.net.training_phases(joined.loss)
    assert split_concatenations(step) == step
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 3, 6, 6), gradient=True)
    y = net.concatenate([net.convolution(x, 4, window=1), net.convolution(x, 2, window=1)])
    y = net.convolution(net.activation(y), 2, window=1)
    step = net.training_phases(net.mean_squared_error(y, net.input("target", y.shape)))
    assert split_concatenations(step) == step


def test_what_a_linear_layer_flattens_stays_together():
    """Its windows see a view whose channels are all numbers of an image, not the parts."""
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 3, 1, 1), gradient=True)
    y = net.concatenate([net.convolution(x, 4, window=1), net.convolution(x, 2, window=1)])
    y = net.linear(y, 3)
    step = net.training_phases(net.mean_squared_error(y, net.input("target", y.shape)))
    assert split_concatenations(step) == step


def test_a_concatenation_within_another_is_taken_apart():
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 3, 6, 6), gradient=True)
    a, b, c = (net.convolution(x, channels, window=1) for channels in (4, 2, 3))
    y = net.concatenate([net.concatenate([a, b], name="inner"), c], name="outer")
    y = net.convolution(y, 2, window=1)
    step = split_concatenations(
        net.training_phases(net.mean_squared_error(y, net.input("target", y.shape)))
    )
    assert not {"inner", "outer"} & set(step.tensors)
    assert sorted(t.shape[1] for n, t in step.tensors.items() if n.startswith("outer [")) == [
        2,
        3,
        4,
    ]


def test_who_is_idle_for_longest_leaves_first():
    joined = Joined()
    step = joined.net.training_phases(joined.loss)
    uses = {
        "x": Uses((0, 9), ()),
        "joined": Uses((1, 5, 8), (1, 5)),
        "one": Uses((4, 6), (4,)),
    }
    live_ranges = {
        "x": (LiveRange(0, 9, fetched=True),),
        "joined": (LiveRange(1, 8),),
        "one": (LiveRange(4, 6, leaves=6),),
    }
    # x is smaller, but idle for longer; it was not changed, and need not leave
    found = spill_one(step, uses, {"one"}, live_ranges, 6)
    assert found["x"] == (LiveRange(0, 0, fetched=True), LiveRange(9, 9, fetched=True))
    found = spill_one(step, uses, {"one"}, found, 6)
    assert found["joined"] == (LiveRange(1, 5, leaves=5), LiveRange(8, 8, fetched=True))
    # the phase's own: it makes it on the host
    found = spill_one(step, uses, {"one"}, found, 6)
    assert found["one"] == (LiveRange(4, 4, leaves=4),)
    assert spill_one(step, uses, {"one"}, found, 6) is None


def test_a_unet_whose_widest_maps_are_joined_is_faster_apart():
    net, loss = ooc_cudnn.networks.unet_3d(1, 128, stages=2)
    with ooc_cudnn.settings(allow_tf32=True, planning_seconds=10):  # bands of rows come before
        best = net.plan(loss, memory_limit="800MiB", machine="h200")
        mixed = net.plan(loss, memory_limit="800MiB", machine="h200", policy="mixed")
    assert best.apart
    assert best.taken == "spill"
    assert best.seconds < 0.9 * mixed.seconds
    assert {"offloaded"} <= set(best.fate.values())
