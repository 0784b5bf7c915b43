"""Steps that host memory is too small for: more is made again, until what is left fits."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.errors import HostOutOfMemoryError
from ooc_cudnn.memory.pinned import Room
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.lowering.lower import peak_live_bytes
from ooc_cudnn.network.passes.insert_remat_events import insert_remat_events
from ooc_cudnn.network.passes.split_concatenations import split_concatenations
from ooc_cudnn.network.policies.policy import POLICIES
from ooc_cudnn.network.runtime.constraints_here import constraints_for
from ooc_cudnn.network.search import pass_pipeline, plan_step
from ooc_cudnn.network.search.host_budget import amounts, least_on_host, remat_to_fit
from ooc_cudnn.network.search.strategies.host_memory import HostMemory
from ooc_cudnn.pipeline.schedule import make_schedule
from tests.support.drawn_networks import drawn_network
from tests.support.hazards import hazards
from tests.support.network_steps import Recorder, plans_by
from tests.support.sampling import number

LIMIT = "256KiB"


class Drawn:
    """A network, and arrays for its inputs."""

    def __init__(self, net, y):
        self.net = net
        self.loss = net.mean_squared_error(y, net.input("target", y.shape, "float64"))
        random = np.random.default_rng(2)
        self.inputs = {
            name: random.standard_normal(net.graph.tensors[name].shape) for name in ("x", "target")
        }
        self.step = pass_pipeline.canonicalize(net.training_phases(self.loss), "best")

    def within(self, host, limit=LIMIT):
        """What is planned for so much host memory, with what did not fit before."""
        constraints = replace(
            constraints_for(limit, "h100", self.step, {}), host=Room(host, host, 0)
        )
        recorder = Recorder(constraints)
        recorder.is_short = True
        plans = plans_by(HostMemory(), self.step, constraints, recorder)
        return [made._replace(plan=replace(made.plan, policy="best")) for made in plans]

    def run(self, plan):
        step = self.net.training_step(self.loss, plan=plan)
        value = step(**self.inputs)
        return {"loss": np.array(value)} | {
            name: np.array(each) for name, each in step.gradients.items()
        }


def stage(net, h, channels):
    h = net.convolution(h, channels, window=3, padding=1)
    return net.activation(net.batch_normalization(h), "relu")


def unet():
    """A U-Net, of whose widest maps the device holds three."""
    net = ooc_cudnn.Network(seed=1)
    skip = stage(net, stage(net, net.input("x", (1, 2, 32, 32), "float64"), 8), 8)
    deep = stage(net, net.pooling(skip, window=2, mode="max"), 16)
    up = net.transposed_convolution(deep, 8, window=2, stride=2)
    return Drawn(net, net.convolution(stage(net, net.concatenate([up, skip]), 8), 2, window=1))


def chain():
    net = ooc_cudnn.Network(seed=1)
    h = net.input("x", (4, 8, 16, 16), "float64")
    for _ in range(6):
        h = net.activation(net.convolution(h, 8, window=3, padding=1), "tanh")
    return Drawn(net, h)


@pytest.mark.parametrize("make", [chain, pytest.param(unet, marks=pytest.mark.every_case)])
def test_what_is_made_again_leaves_less_on_the_host(make):
    """And changes nothing."""
    drawn, found = make(), []
    free = drawn.within(2**30)[0].plan
    kept = drawn.run(drawn.net.plan(drawn.loss, memory_limit="64MiB", policy="keep"))
    for share in number((0.8, 0.5), of=(0.8, 0.6, 0.5)):
        cap = int(share * free.host_bytes)
        made = drawn.within(cap)[-1]
        assert made.plan.host_bytes <= cap
        assert hazards(make_schedule(made.lowered.program)) == []
        found.append(len(made.plan.again))
        for name, gradient in drawn.run(made.plan).items():
            most = np.abs(kept[name]).max()
            assert np.abs(gradient - kept[name]).max() <= 1e-13 * max(most, 1e-3), (share, name)
    assert found[0] > 0
    assert found == sorted(found)


def test_it_changes_no_bit_where_no_call_is_cut():
    drawn = chain()
    with ooc_cudnn.settings(deterministic=True):
        drawn.step = pass_pipeline.canonicalize(drawn.net.training_phases(drawn.loss), "best")
        free = drawn.within(2**30, "512KiB")[0].plan
        made = drawn.within(int(0.7 * free.host_bytes), "512KiB")[-1].plan
        assert made.again
        keep = drawn.net.plan(drawn.loss, memory_limit="64MiB", policy="keep")
        kept, found = drawn.run(keep), drawn.run(made)
    pieces = {task.name: task.pieces for task in keep.tasks}
    assert all(task.pieces <= pieces.get(task.name, 1) for task in made.tasks)
    assert [name for name in kept if not np.array_equal(kept[name], found[name])] == []


@pytest.mark.every_case
def test_the_least_that_is_named_is_enough():
    drawn = unet()
    free = drawn.within(2**30)[0].plan.host_bytes
    asked = {"memory_limit": LIMIT, "machine": "h100"}
    with (
        ooc_cudnn.settings(host_memory_limit=1000),
        pytest.raises(HostOutOfMemoryError) as refused,
    ):
        drawn.net.plan(drawn.loss, **asked)
    least = refused.value.requested_bytes
    assert least < 0.5 * free
    with ooc_cudnn.settings(host_memory_limit=least):
        assert drawn.net.plan(drawn.loss, **asked).host_bytes <= least


def test_plans_are_made_again_from_what_is_stored():
    drawn = unet()
    plan = drawn.within(int(0.6 * drawn.within(2**30)[0].plan.host_bytes))[-1].plan
    assert plan.again
    assert plan.apart
    stored = NetworkPlan.from_json(json.loads(json.dumps(plan.to_json())))
    step = drawn.net.training_phases(drawn.loss)
    again = plan_step.plan_again(step, stored, constraints_for(LIMIT, "h100", step, {}))
    assert again.plan.tasks == plan.tasks
    assert again.plan.host_bytes == plan.host_bytes


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_keeps_less_than_the_least(seed):
    """Of drawn networks, whatever the policy; what is handed in is not counted."""
    net, loss, _ = drawn_network(seed, loss=True)
    full = net.plan(loss, memory_limit="1GiB", machine="h100", policy="keep").device_bytes
    step = net.training_phases(loss)
    constraints = constraints_for(int(0.7 * full), "h100", step, {})
    for policy in ("best", "keep", "offload", "remake"):
        made = plan_step.plan_step("step", step, constraints, policy=policy)
        assert least_on_host(made.step, constraints) <= made.plan.host_bytes, policy


def test_what_lives_at_once_is_what_was_asked_for():
    drawn = unet()
    step = pass_pipeline.apply_passes(split_concatenations(drawn.step), frozenset(), 1, 1)
    constraints = constraints_for(LIMIT, "h100", step, {})
    sizes = amounts(step, constraints)
    assert sizes == sorted(sizes, reverse=True)
    assert remat_to_fit(step, constraints, sizes[0]) == ()
    again = remat_to_fit(step, constraints, 0.6 * sizes[0])
    assert again
    rewritten = insert_remat_events(step, again)
    assert peak_live_bytes(rewritten, POLICIES["keep"].live_ranges_of(rewritten)) <= 0.6 * sizes[0]


def test_policies_make_again_what_host_memory_has_no_room_for():
    """Where the device is large enough for less."""
    drawn = chain()
    asked = {"memory_limit": LIMIT, "machine": "h100", "policy": "mixed", "micro_batches": 1}
    free = drawn.net.plan(drawn.loss, **asked)
    with ooc_cudnn.settings(host_memory_limit=free.host_bytes - 1):
        bounded = drawn.net.plan(drawn.loss, **asked)
    assert bounded.host_bytes < free.host_bytes
