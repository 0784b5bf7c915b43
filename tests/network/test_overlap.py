"""What lets copies and computing of a step run beside each other."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.engines.target import Target
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.lowering.lower import _Lowering
from ooc_cudnn.network.passes.remat_for_backward import rematerializable
from ooc_cudnn.network.policies.policy import mixed
from ooc_cudnn.network.search.plan_step import plan_step
from ooc_cudnn.pipeline.hazards import Hazards
from ooc_cudnn.pipeline.program import Binding
from ooc_cudnn.pipeline.schedule import make_schedule
from ooc_cudnn.pipeline.trace import link_bytes
from ooc_cudnn.pipeline.views import packed_image
from ooc_cudnn.tensor import ORDERS, TensorSpec
from perfmodel import shipped
from tests.network.test_host_memory import Deep
from tests.support.network_steps import banded_plan


def largest(gaps):
    return max(gaps, key=lambda gap: gap[1] - gap[0])


def test_tasks_that_copy_work_where_nobody_worked_for_long(monkeypatch):
    """So their first pieces come while those before them compute."""
    net = ooc_cudnn.Network()
    y = net.input("x", (1, 3, 1024, 1024))
    for channels in (64, 128, 256):
        for _ in range(2):
            y = net.activation(net.convolution(y, channels, window=3, padding=1))
        y = net.pooling(y, window=2)
    loss = net.mean_squared_error(y, net.input("target", y.shape))
    with ooc_cudnn.settings(allow_tf32=True, planning_seconds=0.2):
        plan = net.plan(loss, memory_limit="150MiB", machine="h200")
        monkeypatch.setattr(_Lowering, "_offset", lambda placing, plan, at, gaps: largest(gaps)[0])
        same_place = net.plan(loss, memory_limit="150MiB", machine="h200")
    assert plan.bands == same_place.bands > 1
    assert plan.fate["x"] == "given"  # its rows come with each band
    assert plan.seconds < 0.97 * same_place.seconds


def test_a_smaller_gap_that_nobody_used_is_better_than_a_larger_one():
    placing = _Lowering.__new__(_Lowering)
    placing._held = np.array([0]), np.array([9]), np.array([[4096, 8192, 9]])  # held all the time
    placing._worked = np.full((10, 3), -1)
    placing._worked[8] = 8192, 16384, 8
    gaps = [(0, 4096), (8192, 16384)]
    plan = SimpleNamespace(device_bytes=2048, rings=(("x", 2),))
    assert placing._offset(plan, 9, gaps) == 0
    assert placing._offset(SimpleNamespace(device_bytes=8192, rings=(("x", 2),)), 9, gaps) == 8192
    assert placing._offset(SimpleNamespace(device_bytes=2048, rings=(("x", 0),)), 9, gaps) == 8192


def test_a_share_is_remade_and_of_the_rest_all_may_leave():
    deep = Deep()
    step, machine = deep.net.training_phases(deep.loss), shipped("h200")
    can = rematerializable(step)
    total = sum(step.tensors[name].nbytes for name in can)
    for share in (0.25, 0.5, 1):
        *_, last = mixed(step, machine, share)
        made = sum(step.tensors[name].nbytes for name in last.rematerialized)
        assert share * total - 70_000 < made <= share * total
        assert can <= last.rematerialized | last.offloaded
        assert not last.rematerialized & last.offloaded


@pytest.mark.every_case
def test_best_remakes_some_maps_and_lets_others_leave():
    """Where both together take less than either alone."""
    net, loss = ooc_cudnn.networks.unet_3d(1, 128, stages=3)
    with ooc_cudnn.settings(allow_tf32=True, planning_seconds=10):
        plans = {
            policy: net.plan(loss, memory_limit="1300MiB", machine="h200", policy=policy)
            for policy in ("best", "remake", "offload", "mixed")
        }
    best = plans.pop("best")
    assert best.seconds < 0.95 * min(plan.seconds for plan in plans.values())
    assert {"recomputed", "offloaded"} <= set(best.fate.values())


def test_bands_of_one_image_are_computed_on_where_they_lie(host_device):
    """Rows of one image are packed, channels last, and calls in bands take them so."""
    net = ooc_cudnn.Network(seed=3)
    y = net.input("x", (1, 4, 24, 6), "float64")
    for _ in range(3):
        y = net.activation(net.convolution(y, 4, window=3, padding=1), "tanh")
    loss = net.mean_squared_error(y, net.input("target", y.shape, "float64"))
    random = np.random.default_rng(4)
    given = {name: random.standard_normal(y.shape) for name in ("x", "target")}
    whole = net.training_step(loss, memory_limit="1MiB", policy="keep")
    expected, in_rows = whole(**given), dict[str, int]()
    for order in ("channels_first", "channels_last"):
        plan = replace(banded_plan(net, loss, "1MiB", 3), order=order)
        step = net.training_step(loss, memory_limit="1MiB", plan=plan)
        assert step(**given) == pytest.approx(expected, rel=1e-12)
        for name, gradient in whole.gradients.items():
            found = np.asarray(step.gradients[name])
            assert found == pytest.approx(np.asarray(gradient), abs=1e-12)
        program = next(iter(step._ready.values())).planned.lowered.program
        in_rows[order] = sum(
            "h_y" in axes
            for task in program.tasks
            for axes in task.request.computed_on_in_place.values()
        )
    assert in_rows["channels_first"] == 0 < in_rows["channels_last"]


def test_copies_inside_the_card_are_in_turn_with_computing():
    """They are kernels, and behind fetches from the host they would wait for the link."""
    net = ooc_cudnn.Network()
    x = net.input("x", (4, 8, 16, 16))
    joined = net.concatenate([net.convolution(x, 8, window=3, padding=1), x])
    loss = net.mean_squared_error(joined, net.input("target", joined.shape))
    constraints = PlanConstraints(
        Target(shipped("h200"), 2**30, 2**30, ORDERS, None, overlap=True), {}
    )
    made = plan_step("step", net.training_phases(loss), constraints, policy="keep")
    program = made.lowered.program
    copies = [step for step in make_schedule(program).steps if step.copies]
    inside = [step for step in copies if not link_bytes(program, step)]
    assert {step.copies for step in inside} == {"copy_in", "copy_out"}
    assert {step.stream for step in inside} == {"compute"}
    assert all(step.stream == step.copies for step in copies if link_bytes(program, step))
    assert "copy_out of piece" in str(next(step for step in inside if step.copies == "copy_out"))


def test_bytes_between_rows_are_those_of_the_last_step_that_wrote_there():
    """Two results of a call lie between each other: one leaves its slot after the other is made."""
    bindings = {"block": Binding(TensorSpec((64,), "uint8", "device"), 0)}
    hazards = Hazards(bindings)
    hazards.note("block", ((0, 48),), {"compute": 7}, writes=True)
    hazards.note("block", ((16, 64),), {"compute": 5}, writes=True)
    hazards.close()
    assert hazards.users("block", ((20, 30),), writes=False) == {"compute": 7}


def test_rings_are_as_deep_as_there_is_room():
    given = {"x": TensorSpec((64, 64, 64, 64)), "w": TensorSpec((64, 64, 3, 3)), "padding": 1}
    plan = ooc_cudnn.plan("convolution_forward", machine="h200", memory_limit="48MiB", **given)
    assert dict(plan.rings)["x"] == 3 < plan.pieces
    assert plan.with_deeper_rings(plan.device_bytes) == plan
    roomy = replace(plan, memory_limit=2**40)
    deeper = roomy.with_deeper_rings(2 * plan.device_bytes)
    slots = dict(deeper.rings)
    assert 3 < slots["x"] == slots["y"] <= 6
    assert plan.device_bytes < deeper.device_bytes <= 2 * plan.device_bytes
    assert dict(roomy.with_deeper_rings(2**40).rings)["x"] == plan.pieces


def test_rows_of_one_image_are_seen_as_an_image():
    rows = DeviceView(512, "float32", (1, 4, 2, 5), (160, 1, 20, 4))
    assert packed_image(rows) == replace(rows, strides=(40, 1, 20, 4))
    for shape, strides in (((1, 4, 1, 1), (4, 1, 1, 1)), ((2, 4, 2, 5), (160, 1, 20, 4)),
                           ((1, 4, 2, 5), (40, 10, 5, 1)), ((4, 1), (1, 1))):  # fmt: skip
        view = DeviceView(512, "float32", shape, strides)
        assert packed_image(view) == view
