"""Regions of bands make large tensors for themselves: the same is computed, and less is whole."""

from __future__ import annotations

import json
import random as rng
from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.passes.row_tiling import regions_of, whole_maps
from ooc_cudnn.network.passes.row_tiling_remakes import bind_bases
from ooc_cudnn.network.runtime.constraints_here import constraints_for
from ooc_cudnn.network.search.pass_pipeline import canonicalize, take_concatenations_apart
from ooc_cudnn.network.search.region_remakes import choose_remakes, large_tensors
from ooc_cudnn.network.search.search_budget import SearchBudget
from ooc_cudnn.network.search.strategies.remade_row_tiles import RemadeRowTiles
from tests.fuzz.rewrites import Rewritten
from tests.support.network_steps import banded, banded_plan, maps_of, plans_by


def unet(rows=48, width=6, pooling="max", groups=1):
    """Two levels, with a batch norm behind each convolution.

    Of several groups, the convolution of what is joined is none of its parts alone.
    """
    net = ooc_cudnn.Network(seed=3)

    def block(h, channels, name):
        for part in "ab":
            in_groups = groups if (name, part) == ("third", "a") else 1
            h = net.convolution(
                h, channels, window=3, padding=1, groups=in_groups, name=f"{name}{part}"
            )
            h = net.activation(net.batch_normalization(h, name=f"{name}{part}.norm"))
        return h

    x = net.input("x", (1, 2, rows, width), "float64")
    first = block(x, 4, "first")
    h = block(net.pooling(first, window=2, mode=pooling), 8, "second")
    h = net.transposed_convolution(h, 4, window=2, stride=2)
    h = net.convolution(block(net.concatenate([h, first]), 4, "third"), 1, window=1, name="head")
    target = net.input("target", h.shape, "float64")
    return net, net.mean_squared_error(h, target)


def inputs_of(net, names=("x", "target")):
    random = np.random.default_rng(0)
    return {name: random.standard_normal(net.graph.tensors[name].shape) for name in names}


def check(net, loss, step):
    """Compare a step with one that keeps everything: losses, gradients, running statistics."""
    inputs, before = inputs_of(net), {n: np.array(v) for n, v in net.running.items()}
    whole = net.training_step(loss, memory_limit="64MiB", policy="keep")
    value, after = whole(**inputs), {n: np.array(v) for n, v in net.running.items()}
    net.running.update(before)
    assert step(**inputs) == pytest.approx(value, rel=1e-11)
    for name, gradient in whole.gradients.items():
        found = np.asarray(step.gradients[name])
        assert found == pytest.approx(np.asarray(gradient), abs=1e-10), name
    for name, array in after.items():
        assert np.asarray(net.running[name]) == pytest.approx(array, rel=1e-12), name


def level(name):
    """What lies at the upper level: of the encoder and of the decoder."""
    return name.startswith(("first", "third", "concatenate", "activation", "transposed"))


@pytest.mark.parametrize("bands", [2, 5, 16])
@pytest.mark.parametrize("share", [0.3, 0.7, 1.0])
def test_a_unet_computes_the_same(bands, share):
    net, loss = unet()
    draw = rng.Random(bands)
    plan = banded_plan(net, loss, 2**24, bands, anew=lambda name: draw.random() < share)
    assert any("again (band 1)" in task.name for task in plan.tasks)
    check(net, loss, net.training_step(loss, plan=plan))


@pytest.mark.parametrize("bands", [2, 5])
def test_concatenations_are_made_in_bands(bands):
    """Its parts are written to channels of a band's own: none is whole."""
    net, loss = unet(groups=2)
    found = banded(net, loss, 2**24, bands, anew=lambda name: True)
    parts = [each for each in found.step.tensors.values() if each.of and "concat" in each.of]
    assert parts
    assert all(each.origin.row_tile is not None for each in parts)
    check(net, loss, net.training_step(loss, plan=found.plan))


@pytest.mark.parametrize("groups", [1, 2])
def test_no_tensor_of_the_upper_level_is_whole(groups):
    """Each region begins with the image, or with what the lower level made."""
    net, loss = unet(groups=groups)
    step = bind_bases(take_concatenations_apart(canonicalize(net.training_phases(loss), "best")))
    largest = 48 * 6 * 4 * 8
    names = frozenset(t.source for t in step.tensors.values() if t.nbytes >= largest)
    for anew, count in ((frozenset(), 5), (names, 0)):
        regions = regions_of(step, whole_maps(step), anew)
        whole = [
            name
            for name in regions.uses
            if name not in regions.banded_tensors
            and regions.step.tensors[name].kind in ("map", "gradient")
            and regions.step.tensors[name].nbytes >= largest
        ]
        assert (len(whole) > count) == (count > 0), whole


def test_what_is_compared_is_not_made_again():
    """A maximum's gradient looks for it in x: what is made again may differ in its last bit."""
    net = ooc_cudnn.Network(seed=3)
    x = net.input("x", (1, 2, 24, 6), "float64")
    h = net.activation(net.batch_normalization(net.convolution(x, 4, window=3, padding=1)))
    y = net.linear(net.pooling(h, window=3, stride=1, padding=1), 2)
    loss = net.mean_squared_error(y, net.input("target", y.shape, "float64"))
    step = canonicalize(net.training_phases(loss), "vdnn_all")  # without indices of maxima
    compared = {phase.binds[o] for phase in step.phases for o in phase.call.compared}
    assert compared
    regions = regions_of(step, frozenset(), frozenset(maps_of(step)))
    for phase in regions.step.phases:
        for operand in phase.call.compared:
            tensor = regions.step.tensors[phase.binds[operand]]
            assert tensor.origin.copy != "rematerialized", phase.name


def test_a_plan_is_read_back():
    net, loss = unet()
    plan = banded_plan(net, loss, 2**24, 2, anew=level)
    assert plan.anew
    data = json.loads(json.dumps(plan.to_json()))
    again = NetworkPlan.from_json(data)
    check(net, loss, net.training_step(loss, plan=again))
    data["anew"] = []
    with pytest.raises(ValueError, match="another network"):
        net.training_step(loss, plan=NetworkPlan.from_json(data))(**inputs_of(net))


@pytest.mark.parametrize("host", [None, 0])
def test_what_is_chosen_costs_least_or_fits_the_host(host):
    """All large tensors cross the link; with no host memory to speak of, each is made again."""
    net, loss = unet(rows=768, width=64)
    step = canonicalize(net.training_phases(loss), "best")
    with ooc_cudnn.settings(host_memory_limit=None if host is None else "1KiB"):
        constraints = constraints_for("4MiB", "h200", step, {})
    step = bind_bases(take_concatenations_apart(step))
    large = large_tensors(step, constraints)
    names, seconds = choose_remakes(step, constraints, SearchBudget(60.0))
    assert names <= large
    assert seconds > 0
    if host == 0:
        assert names == large
    assert not large_tensors(step, constraints_for("4GiB", "h200", step, {}))


def test_the_strategy_proposes_what_follows_its_plan():
    net, loss = unet(rows=96, width=64)
    step = canonicalize(net.training_phases(loss), "best")
    constraints = constraints_for("750KiB", None, step, {})
    plans = plans_by(RemadeRowTiles(), step, constraints)
    assert plans
    assert plans[0].plan.bands > 1
    check(net, loss, net.training_step(loss, plan=replace(plans[0].plan, policy="best")))


@pytest.mark.parametrize("seed", range(40))
def test_drawn_networks(seed):
    drawn = Rewritten(seed)
    step = canonicalize(drawn.net.training_phases(drawn.loss), "best")
    step = bind_bases(take_concatenations_apart(step))
    draw = rng.Random(seed)
    names = frozenset(name for name in sorted(maps_of(step)) if draw.random() < 0.7)
    drawn.check(regions_of(step, whole_maps(step), names).step)
