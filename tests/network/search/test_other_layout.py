"""Concatenations that are streamed: the other memory order, in which parts of them lie in a row."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.network.runtime.constraints_here import constraints_for
from ooc_cudnn.network.search.pass_pipeline import canonicalize
from ooc_cudnn.network.search.plan_step import plan_again
from ooc_cudnn.network.search.strategies.other_layout import CRAWLING, OtherLayout, crawls
from ooc_cudnn.network.search.strategies.strategy import PlanRequest
from tests.support.joined_maps import unet
from tests.support.network_checks import assert_close
from tests.support.network_steps import Recorder
from tests.support.sampling import number


@pytest.mark.every_case
def test_parts_of_a_concatenation_cross_the_link_at_its_rate():
    """They took ten times as long: 64 bytes of each position, in rows of their own."""
    net, loss = unet(96, levels=2)
    kept = net.plan(loss, memory_limit="64GiB", machine="h200")
    plan = net.plan(loss, memory_limit=kept.device_bytes // 5, machine="h200")
    assert kept.order == plan.by_order.fastest == "channels_last"
    assert plan.order == "channels_first"
    copied = plan.bytes_in + plan.bytes_out
    assert copied / (plan.copy_in_seconds + plan.copy_out_seconds) > 30e9
    assert "maps lie channels-first" in plan.explain()
    assert "maps lie" not in kept.explain()


def test_it_is_asked_for_where_the_link_crawls():
    net, loss = unet(96, levels=2)
    step = canonicalize(net.training_phases(loss), "best")
    constraints = constraints_for("64GiB", "h200", step, {})
    plan = net.plan(loss, memory_limit="64GiB", machine="h200")
    recorder = Recorder(constraints)
    assert not OtherLayout().is_worth_trying(PlanRequest("step", step, constraints), recorder)
    rate = constraints.target.machine.transfer.copy_seconds("copy_in", "pinned", 2**30)
    plan = replace(plan, bytes_in=2**30, bytes_out=0, copy_out_seconds=0.0, seconds=1.0)
    for times in (0.99, 1.01):
        plan = replace(plan, copy_in_seconds=times * CRAWLING * rate)
        assert crawls(plan, constraints) is (times > 1)
        recorder.best = LoweredStep(plan, step, None)
        request = PlanRequest("step", step, constraints)
        assert OtherLayout().is_worth_trying(request, recorder) is (times > 1)


def test_its_plans_compute_the_same(monkeypatch):
    """In either order, in tiles of rows and spilling; and a stored plan is found again."""
    orders = ("channels_last", "channels_first")
    monkeypatch.setattr("ooc_cudnn.devices.host.device.HostDevice.layouts", lambda *_: orders)
    net, loss = unet(16, "float64", levels=2, axes=2)
    random = np.random.default_rng(0)
    shapes = net.graph.tensors
    inputs = {name: random.standard_normal(shapes[name].shape) for name in ("x", "target")}
    with ooc_cudnn.settings(device="host", machine="host", memory_limit="64MiB"):
        step = canonicalize(net.training_phases(loss), "best")
        whole = net.training_step(loss)
        expected = float(whole(**inputs)), {n: np.array(g) for n, g in whole.gradients.items()}
        constraints = constraints_for("1MiB", None, step, {})
        constraints = replace(constraints, order="channels_last")
        recorder = Recorder(constraints)
        candidates = OtherLayout().candidates(PlanRequest("s", step, constraints), recorder)
        recorder.explore("training_step", candidates)
        plans = {made.plan.policy: made.plan for made in recorder.plans}
        assert set(plans) == {"rows", "spill"}
        for plan in [plans[policy] for policy in number(("spill",), of=("spill", "rows"))]:
            assert plan.order == "channels_first"
            plan = replace(plan, policy="best")
            stored = NetworkPlan.from_json(json.loads(json.dumps(plan.to_json())))
            again = plan_again(net.training_phases(loss), stored, constraints)
            assert again.plan.seconds == pytest.approx(plan.seconds)
            ran = net.training_step(loss, plan=plan)
            assert float(ran(**inputs)) == pytest.approx(expected[0], rel=1e-11)
            for name, made in ran.gradients.items():
                assert_close(np.array(made), expected[1][name], name, least=1e-3)
