"""The least limit that an error names, where launches want workspace as those on a card do."""

from __future__ import annotations

import pytest

import ooc_cudnn
from ooc_cudnn import PlanInfeasibleError
from ooc_cudnn.devices.host.device import HostDevice
from ooc_cudnn.devices.kernels.runners import WORKSPACE
from ooc_cudnn.network.search import plan_search
from tests.functions.test_plan import CALLS


@pytest.fixture
def with_workspace(monkeypatch):
    """The host device asks for what its own launches take, and for what kernels would."""
    own = HostDevice.workspace

    def workspace(device, launches, budget_bytes, *, sparing=0):
        answer = own(device, launches, budget_bytes)
        if answer is None:
            return None
        asks = [(WORKSPACE.get(type(each.operation)), each.operation) for each, _ in launches]
        needed = max([answer[0], *(ask(operation) for ask, operation in asks if ask is not None)])
        if budget_bytes is not None and -(-needed // 256) * 256 > budget_bytes:
            return None
        return needed, (*answer[1], "kernels")

    monkeypatch.setattr(HostDevice, "workspace", workspace)


@pytest.mark.parametrize("function", CALLS)
def test_calls(function, with_workspace):
    arguments, _ = CALLS[function]
    with pytest.raises(PlanInfeasibleError) as refused:
        ooc_cudnn.plan(function, memory_limit=1, **arguments)
    least = refused.value.smallest_bytes
    assert ooc_cudnn.plan(function, memory_limit=least, **arguments).device_bytes <= least


@pytest.mark.parametrize("policy", [pytest.param("best", marks=pytest.mark.every_case), "keep"])
def test_steps(policy, with_workspace, monkeypatch):
    """In bands and in parts sums are added to, and that takes more than all at once: they do not
    count where they do not fit."""
    monkeypatch.setattr(plan_search, "BEST_OF", ("keep", "remake"))  # the others take as much
    monkeypatch.setattr(plan_search, "VDNN", ())
    net = ooc_cudnn.Network(seed=1)
    y = net.activation(net.convolution(net.input("x", (2, 2, 4, 3)), 2, window=3), "relu")
    loss = net.softmax_cross_entropy(net.linear(y, 3), net.input("labels", (2,), "int64"))
    with pytest.raises(PlanInfeasibleError) as refused:
        net.plan(loss, memory_limit=1, policy=policy)
    least = refused.value.smallest_bytes
    assert net.plan(loss, memory_limit=least, policy=policy).device_bytes <= least
