"""Steps of drawn networks through the real engine beside PyTorch: policies, parts, bands."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import PlanInfeasibleError
from tests.fuzz.networks import PLENTY, Drawn
from tests.support.network_steps import banded_plan, check_step


def wanted(drawn):
    """What a step takes that keeps everything."""
    return drawn.net.plan(drawn.loss, memory_limit=PLENTY, policy="keep").device_bytes


@pytest.mark.parametrize(
    ("policy", "parts"),
    [
        ("keep", 2),
        ("offload", 2),
        ("remake", 3),
        ("checkpoint", 1),
        ("vdnn_all", 1),
        ("vdnn_conv", 2),
        ("vdnn_dyn", 1),
        ("best", 2),
    ],
)
def test_policies_and_micro_batches(policy, parts):
    drawn = Drawn(5)
    limit = wanted(drawn) * 2 // 3
    step, _ = check_step(drawn, limit, policy=policy, micro_batches=parts)
    asked = 1 if policy == "vdnn_dyn" else min(parts, 3)
    assert (step.plan.policy, step.plan.micro_batches) == (policy, asked)


@pytest.mark.parametrize(
    ("seed", "bands", "parts"),
    [
        (1003, 2, 2),  # what is compared was made again
        (1012, 5, 1),  # a band of padding alone
        (1881, 5, 2),  # rows that share bytes of bits: no bands
        (1106, 2, 1),  # what is made again whole, read before it ended
    ],
)
def test_bands_of_rows(seed, bands, parts):
    drawn = Drawn(seed)
    plan = banded_plan(drawn.net, drawn.loss, PLENTY, bands, parts)
    step, _ = check_step(drawn, PLENTY, plan=plan)
    assert step.plan.bands == bands
    assert any("(band 1)" in task.name for task in step.plan.tasks) == (seed != 1881)


@pytest.mark.parametrize(("seed", "policy"), [(0, "best"), (3, "keep"), (9, "vdnn_all")])
def test_with_exactly_the_least_memory(seed, policy):
    drawn = Drawn(seed)
    with pytest.raises(PlanInfeasibleError) as refused:
        drawn.net.plan(drawn.loss, memory_limit=256, policy=policy)
    least = refused.value.smallest_bytes
    check_step(drawn, least, policy=policy)
    with pytest.raises(PlanInfeasibleError):
        drawn.net.plan(drawn.loss, memory_limit=least - 1, policy=policy)


def test_what_only_moves_changes_no_bit():
    """Where no call is cut: sums over pieces differ in their last bits."""
    drawn = Drawn(1)
    with ooc_cudnn.settings(deterministic=True):  # which takes more workspace
        limit = wanted(drawn)
        found = [
            check_step(drawn, bytes_, policy=policy, micro_batches=1)[1]
            for bytes_, policy in ((PLENTY, "keep"), (limit, "offload"), (limit, "vdnn_all"))
        ]
    for other in found[1:]:
        assert [name for name in other if not np.array_equal(other[name], found[0][name])] == []


def test_the_settings_at_the_call_say_what_arithmetic_it_is():
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 3, 8, 8), "float32")
    y = net.convolution(x, 4, window=3, padding=1)
    loss = net.mean_squared_error(y, net.input("target", y.shape, "float32"))
    step = net.training_step(loss)
    net.freeze(*net.parameters)
    inputs = {"x": np.ones(x.shape, "f4"), "target": np.zeros(y.shape, "f4")}
    for allowed in (True, False):
        with ooc_cudnn.settings(allow_tf32=allowed):
            step(**inputs)
            arithmetic = repr(step._step.phases)
        assert f"allow_tf32={allowed}" in arithmetic
        assert f"allow_tf32={not allowed}" not in arithmetic
        assert set(step.gradients) == set(net.parameters)
