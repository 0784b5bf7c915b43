"""Skip connections as tensors of their own: what lives when, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.network.ir.live_ranges import keep_all
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.lowering.lower import peak_live_bytes
from ooc_cudnn.network.passes.copy_skip_connections import copy_skip_connections, skipped_over
from ooc_cudnn.network.search.pass_pipeline import (
    apply_passes,
    canonicalize,
    take_concatenations_apart,
)
from ooc_cudnn.network.search.strategies.copied_skips import CopiedSkips
from tests.fuzz.rewrites import Rewritten
from tests.support.network_steps import spilling_plans

SHAPE = (2, 3, 32, 32)
#: Of drawn networks with skip connections.
SEEDS = [26, 28, 43, 75, 97, 113]


def unet(dtype="float64", *, depth=3):
    """A U-Net that normalises what it joined: nothing of that can be split."""
    net = ooc_cudnn.Network(seed=4)

    def block(x, channels):
        x = net.group_normalization(net.convolution(x, channels, window=3, padding=1), groups=2)
        return net.activation(x, "swish")

    h, skips = block(net.input("x", SHAPE, dtype), 8), []
    for _ in range(depth):
        skips.append(h)
        h = block(net.pooling(h, window=2), 8)
    for at, skip in enumerate(reversed(skips)):
        h = net.interpolation(h, scale_factor=2)
        h = net.concatenate([h, skip], name=f"joined_{at}")
        h = block(net.group_normalization(h, groups=2), 8)
    y = net.convolution(h, 3, window=1)
    return net, net.mean_squared_error(y, net.input("target", SHAPE, dtype))


def positions(step, name):
    return step.uses[name].phases


def test_a_concatenation_is_there_when_it_is_read_and_no_earlier():
    net, loss = unet()
    before = canonicalize(net.training_phases(loss), "best")
    names = skipped_over(before)
    assert sorted(names) == ["joined_0", "joined_1", "joined_2"]
    step = copy_skip_connections(before, names)
    copies = [at for at, phase in enumerate(step.phases) if phase.name.startswith("copy of")]
    assert len(copies) == 6  # three of maps, three of gradients
    forward = [sum(not phase.is_backward for phase in each.phases) for each in (before, step)]
    assert forward[1] == forward[0] + 3 == step.forward_count
    for name in names:
        (copy,) = set(copies) & set(positions(step, name))
        reads = step.phases[copy + 1].reads
        assert name in reads  # nothing between
        made = step.uses[name].written[0]
        between = [step.phases[at].node for at in range(made, copy)]
        assert len(set(between)) == 1  # what makes the other part
        gradient = f"{name}.gradient"
        assert max(positions(step, gradient)) - min(positions(step, gradient)) < 6
    assert skipped_over(step) == ()


def test_less_lives_at_once():
    net, loss = unet("float32", depth=4)
    before = canonicalize(net.training_phases(loss), "best")
    after = copy_skip_connections(before, skipped_over(before))

    def held(step):  # in the middle, where all skip connections live and nothing else has to
        names = [phase.name for phase in step.phases]
        middle = names.index("pooling_4 forward")
        return sum(
            step.tensors[name].nbytes
            for name, used in step.uses.items()
            if name.startswith("joined") and used.phases[0] < middle < used.phases[-1]
        )

    assert held(after) == 0
    assert held(before) > 0
    assert peak_live_bytes(after, keep_all(after)) > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_networks_compute_what_pytorch_does(seed):
    drawn = Rewritten(seed)
    step = canonicalize(drawn.net.training_phases(drawn.loss), "best")
    copied = copy_skip_connections(step, skipped_over(step))
    assert len(copied.phases) > len(step.phases)
    drawn.check(apply_passes(copied, frozenset(), 1, 1))
    drawn.check(apply_passes(take_concatenations_apart(step), frozenset(), 1, 1))


def test_a_plan_with_copies_is_stored_and_computes_what_keeping_all_does():
    net, loss = unet()
    random = np.random.default_rng(0)
    inputs = {name: random.standard_normal(SHAPE) for name in ("x", "target")}
    whole = net.training_step(loss, memory_limit="16MiB", policy="keep")
    full = net.plan(loss, memory_limit="16MiB", policy="keep").device_bytes
    limit = int(0.55 * full)
    with ooc_cudnn.settings(machine="host"):
        made = spilling_plans(net, loss, limit, CopiedSkips())[-1]
    assert made is not None
    assert sorted(made.plan.copied_skips) == ["joined_0", "joined_1", "joined_2"]
    assert made.plan.device_bytes <= limit
    plan = NetworkPlan.from_json(made.plan.to_json())
    assert plan == made.plan
    step = net.training_step(loss, plan=plan)
    assert step(**inputs) == pytest.approx(whole(**inputs), rel=1e-12)
    for name, each in whole.gradients.items():
        expected = np.asarray(each)
        atol = 1e-11 * np.abs(expected).max()
        np.testing.assert_allclose(step.gradients[name], expected, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("name", ["stranger", "x", 1])
def test_a_plan_that_copies_into_what_is_no_such_concatenation_is_refused(name):
    net, loss = unet()
    plan = replace(net.plan(loss, memory_limit="16MiB"), copied_skips=(name,))
    given = {each: np.zeros(SHAPE) for each in ("x", "target")}
    with pytest.raises(ValueError, match=f"of another network: it copies into {name}"):
        net.training_step(loss, plan=NetworkPlan.from_json(plan.to_json()))(**given)


def test_what_lives_as_long_is_made_in_its_place():
    """Parts that nobody reads before, or only who makes another one."""
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 3, 6, 6), gradient=True)
    a, b = (net.convolution(x, channels, window=1) for channels in (4, 2))
    joined = net.concatenate([a, b], name="joined")
    y = net.group_normalization(joined, groups=2)
    step = net.training_phases(net.mean_squared_error(y, net.input("target", y.shape)))
    assert skipped_over(step) == ()
    skip = net.activation(a)
    again = net.concatenate([net.convolution(skip, 3, window=1), skip], name="again")
    y = net.group_normalization(net.activation(again), groups=1)
    target = net.input("target_2", y.shape)
    # who reads the one part makes the other: they live as long
    assert skipped_over(net.training_phases(net.mean_squared_error(y, target))) == ()
