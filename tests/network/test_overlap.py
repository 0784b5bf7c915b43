"""What lets copies and computing of a step run beside each other."""

from __future__ import annotations

import ooc_cudnn
from ooc_cudnn.network.placing import _Placing
from ooc_cudnn.network.policies import mixed
from ooc_cudnn.network.remaking import can_be_remade
from perfmodel import shipped
from tests.network.test_host_memory import Deep


def test_tasks_that_copy_work_where_nobody_worked_for_long(monkeypatch):
    """So their first pieces come while those before them compute."""
    net = ooc_cudnn.Network()
    y = net.input("x", (1, 3, 1024, 1024))
    for channels in (64, 128, 256):
        for _ in range(2):
            y = net.activation(net.convolution(y, channels, window=3, padding=1))
        y = net.pooling(y, window=2)
    loss = net.mean_squared_error(y, net.input("target", y.shape))
    with ooc_cudnn.settings(allow_tf32=True):
        plan = net.plan(loss, memory_limit="150MiB", machine="h200")
        monkeypatch.setattr(_Placing, "_offset", lambda *given: given[3])
        same_place = net.plan(loss, memory_limit="150MiB", machine="h200")
    assert plan.bands == same_place.bands > 1
    assert plan.seconds < 0.97 * same_place.seconds


def test_a_share_is_remade_and_of_the_rest_all_may_leave():
    deep = Deep()
    step, machine = deep.net.training_phases(deep.loss), shipped("h200")
    can = can_be_remade(step)
    total = sum(step.tensors[name].nbytes for name in can)
    for share in (0.25, 0.5, 1):
        *_, last = mixed(step, machine, share)
        made = sum(step.tensors[name].nbytes for name in last.remade)
        assert share * total - 70_000 < made <= share * total
        assert can <= last.remade | last.offloaded
        assert not last.remade & last.offloaded


def test_best_remakes_some_maps_and_lets_others_leave():
    """Where both together take less than either alone."""
    net, loss = ooc_cudnn.networks.unet_3d(1, 128, stages=3)
    with ooc_cudnn.settings(allow_tf32=True):
        plans = {
            policy: net.plan(loss, memory_limit="1600MiB", machine="h200", policy=policy)
            for policy in ("best", "remake", "offload", "mixed")
        }
    best = plans.pop("best")
    assert best.seconds < 0.95 * min(plan.seconds for plan in plans.values())
    assert {"remade", "offloaded"} <= set(best.fate.values())
