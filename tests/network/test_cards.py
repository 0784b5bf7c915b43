"""Steps of networks are planned for every card whose profile is scaled from data sheets."""

import pytest

from ooc_cudnn import networks
from perfmodel import shipped
from perfmodel.data_sheets import SHEETS

#: What each takes, and a limit under which not everything is kept.
STEPS = {
    "alexnet": ({"batch": 8, "image": 67, "width": 0.25}, "3MiB"),
    "resnet50": ({"batch": 8, "image": 64, "width": 0.5}, "24MiB"),
    "unet": ({"batch": 2, "image": 188, "width": 0.125}, "16MiB"),
}


def planned(network, machine, *, policy="vdnn_dyn"):
    options, limit = STEPS[network]
    net, loss = getattr(networks, network)(dtype="bfloat16", **options)
    return net.plan(loss, policy=policy, machine=machine, memory_limit=limit)


@pytest.mark.parametrize(
    "network",
    [
        "alexnet",
        *(pytest.param(name, marks=pytest.mark.every_case) for name in ("resnet50", "unet")),
    ],
)
def test_every_card_has_a_plan(network):
    """The slower a card is in all of its figures, the longer the step takes."""
    seconds = {}
    for name in SHEETS:
        plan = planned(network, name)
        assert plan.machine == name
        assert plan.seconds > 0
        assert plan.device_bytes <= plan.memory_limit
        seconds[name] = plan.seconds
    for slower, faster in (
        ("rtx3060", "rtx3090"), ("rtx3090", "rtx4090"), ("rtx4090", "rtx5090"),
        ("t4", "v100-16gb"), ("a100-40gb", "a100-80gb"), ("a100-80gb", "gh200"),
    ):  # fmt: skip
        assert seconds[faster] <= 1.01 * seconds[slower], (faster, slower)
    assert seconds["v100-16gb"] == seconds["v100-32gb"]


def test_the_best_plan_of_a_card_says_that_nobody_measured_it():
    plan = planned("alexnet", "RTX 3090", policy="best")
    first = plan.explain().splitlines()[0]
    assert "on rtx3090 (not measured: from data sheets), policy best" in first


def test_a_share_of_a_card_is_of_its_memory():
    options, _ = STEPS["alexnet"]
    net, loss = networks.alexnet(**options)
    plan = net.plan(loss, policy="keep", machine="rtx3060", memory_limit=0.5)
    assert plan.memory_limit == shipped("rtx3060").device_bytes // 2
