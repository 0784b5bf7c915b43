"""Copies have ended when somebody waits for them, where there is room for that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import networks
from ooc_cudnn.memory.offset_assignment import LiveBuffer, held_bytes
from ooc_cudnn.network.cost.copy_timeline import offload_ends, prefetch_starts
from ooc_cudnn.network.ir.live_ranges import check_live_ranges
from ooc_cudnn.network.lowering.prefetch import prefetch_earlier
from ooc_cudnn.network.policies.offload import offload_just_in_time
from ooc_cudnn.network.policies.policy import POLICIES
from ooc_cudnn.network.search import candidate, pass_pipeline, refine_prefetch
from perfmodel import shipped
from tests.support.drawn_networks import drawn_network


def held(step, live_ranges):
    extents = [
        LiveBuffer(live_range.first, live_range.last, step.tensors[base].nbytes)
        for base, found in live_ranges.items()
        for live_range in found
    ]
    return held_bytes(extents, len(step.phases))


def test_copies_follow_each_other():
    ends = [1.0, 2.0, 3.0, 4.0, 5.0]
    # the second one waits for the first, which ends at 2.5; those of one phase do for each other
    assert offload_ends([(0, 1.5), (1, 1.0)], ends) == [2, 3]
    assert offload_ends([(0, 0.5), (0, 1.0)], ends) == [2, 2]
    assert offload_ends([(3, 9.0)], ends) == [4]
    # the last one has ended at 4 and begins at 3.5; the other has ended at 3
    assert prefetch_starts([(3, 1.5), (4, 0.5)], ends) == [1, 3]
    assert prefetch_starts([(4, 0.5), (4, 1.0)], ends) == [2, 3]
    assert prefetch_starts([(0, 1.0), (2, 9.0)], ends) == [0, 0]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", ["keep", "offload"])
def test_stays_are_longer_where_there_is_room(seed, policy):
    net, loss, _ = drawn_network(seed, loss=True)
    step = pass_pipeline.apply_passes(
        pass_pipeline.canonicalize(net.training_phases(loss), policy), frozenset(), 1, 1
    )
    decided = POLICIES[policy].decisions(step, shipped("h200"))[-1]
    live_ranges = dict(POLICIES[policy].live_ranges_of(step))
    if decided.offloaded:
        live_ranges = dict(offload_just_in_time(step, decided.offloaded))
    before, seconds = held(step, live_ranges), [1e-6] * len(step.phases)
    for room in (int(before.max()), 2 * int(before.max())):
        longer = prefetch_earlier(step, live_ranges, shipped("h200"), seconds, room)
        check_live_ranges(step, longer)
        assert (held(step, longer) <= np.maximum(room, before)).all()
        for base, found in live_ranges.items():
            for old, new in zip(found, longer[base], strict=True):
                assert new.first <= old.first <= old.last <= new.last
                assert new.first == old.first or old.fetched
                assert new.last == old.last or old.leaves is not None
    assert (held(step, longer) >= before).all()
    assert held(step, longer).sum() > before.sum()


def test_what_is_fetched_begins_behind_what_is_streamed():
    """Its copy would be before the pieces, which are waited for first."""
    net = ooc_cudnn.Network(seed=1)
    h = net.convolution(net.input("x", (4, 3, 8, 8)), 4, window=3)
    h = net.convolution(net.convolution(h, 4, window=3), 4, window=3)
    loss = net.mean_squared_error(h, net.input("target", h.shape))
    step = net.training_phases(loss)
    live_ranges = dict(POLICIES["keep"].live_ranges_of(step))
    streaming = {base: found for base, found in live_ranges.items() if base != "x"}
    seconds = [1e-9] * len(step.phases)
    first, last = (live_ranges[f"convolution_{number}.w"][0].first for number in (1, 3))
    for found, begins in ((live_ranges, 0), (streaming, first + 1)):
        longer = prefetch_earlier(step, found, shipped("h200"), seconds, 2**40)
        assert longer["convolution_3.w"][0].first == begins < last


def test_nobody_waits_for_weights(monkeypatch):
    """Those of the narrow middle of a U-Net take longer to come than it takes to compute."""
    net, loss = networks.unet(batch=1)
    with ooc_cudnn.settings(allow_tf32=True):
        plan = net.plan(loss, machine="h200", memory_limit="2GiB")
        monkeypatch.setattr(
            refine_prefetch, "prefetch_earlier", lambda step, live_ranges, *others: live_ranges
        )
        waiting = net.plan(loss, machine="h200", memory_limit="2GiB")
    assert plan.seconds < 0.85 * waiting.seconds
    assert plan.device_bytes <= 2**31


def test_results_are_the_same(monkeypatch, host_device):
    net = ooc_cudnn.Network(seed=1)
    x = net.input("x", (8, 3, 8, 8), "float64")
    y = net.activation(net.convolution(x, 4, window=3, padding=1), "tanh")
    y = net.convolution(y, 4, window=3, padding=1)
    loss = net.mean_squared_error(y, net.input("target", y.shape, "float64"))
    random = np.random.default_rng(2)
    given = {name: random.standard_normal((8, c, 8, 8)) for name, c in (("x", 3), ("target", 4))}
    whole = net.training_step(loss, memory_limit="1MiB", policy="keep")
    expected = whole(**given)
    placed = candidate.lower_step

    def longer(name, step, live_ranges, constraints, **how):
        seconds = [1e-6] * len(step.phases)
        found = prefetch_earlier(step, live_ranges, constraints.target.machine, seconds, 2**20)
        assert found != live_ranges
        return placed(name, step, found, constraints, **how)

    monkeypatch.setattr(candidate, "lower_step", longer)
    made = net.training_step(loss, memory_limit="1MiB", policy="offload")
    assert made(**given) == pytest.approx(expected, rel=1e-12)
    for name, gradient in whole.gradients.items():
        np.testing.assert_allclose(made.gradients[name], gradient, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("pauses", [True, False])
def test_gradients_that_are_given_when_a_step_pauses_are_not_fetched_before(pauses):
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 3, 8, 8))
    y = net.activation(net.convolution(x, 4, window=3))
    step = replace(net.pausing_phases(y), pauses=pauses)
    (seed,) = step.seeds.values()
    live_ranges = POLICIES["keep"].live_ranges_of(step)
    seconds = [1e-9] * len(step.phases)
    longer = prefetch_earlier(step, live_ranges, shipped("h200"), seconds, 2**30)
    assert live_ranges[seed][0].fetched
    assert longer[seed][0].first == (step.turn if pauses else 0)
