"""Limits next to nothing and above all memory, wherever a user gives one."""

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.memory import pinned
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.units import MOST_BYTES
from tests.support.on_device import on_the_device

X, W = np.ones((2, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
#: Of ones: three channels of nine.
EXPECTED = np.full((2, 4, 6, 6), 27, np.float32)


def network():
    net = ooc_cudnn.Network()
    y = net.convolution(net.input("x", X.shape), 4, window=3, w=W, bias=False)
    labels = net.input("labels", (2,), "int64")
    return net, y, net.softmax_cross_entropy(net.linear(y, 5), labels)


def call(limit):
    with ooc_cudnn.settings(memory_limit=limit):
        return ooc_cudnn.convolution_forward(X, W)


def forward(limit):
    net, y, _ = network()
    return net.forward(y, x=X, memory_limit=limit)


def forward_by_settings(limit):
    net, y, _ = network()
    with ooc_cudnn.settings(memory_limit=limit):
        return net.forward(y, x=X)


def training(limit):
    net, _, loss = network()
    step = net.training_step(loss, memory_limit=limit)
    step(x=X, labels=np.zeros(2, np.int64))


def by_plan(machine):
    def planned(limit):
        ooc_cudnn.plan("convolution_forward", x=X, w=W, memory_limit=limit, machine=machine)

    return planned


def by_network_plan(policy, machine):
    def planned(limit):
        net, _, loss = network()
        net.plan(loss, memory_limit=limit, machine=machine, policy=policy, bound=True)

    return planned


def limited_module(limit):
    torch = pytest.importorskip("torch")
    from ooc_cudnn.torch import limit as limited

    module = torch.nn.Conv2d(3, 4, 3, bias=False)
    torch.nn.init.ones_(module.weight)
    return limited(module, limit)(torch.from_numpy(X)).detach().numpy()


ENTRIES = {
    "call": call,
    "forward": forward,
    "settings": forward_by_settings,
    "training": training,
    "limit": limited_module,
    **{f"plan {machine}": by_plan(machine) for machine in (None, "h200")},
    **{
        f"network plan {policy} {machine}": by_network_plan(policy, machine)
        for policy in ("best", "offload", "checkmate")
        for machine in (None, "h200")
    },
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("limit", [2**63, "9000000 PB"])
def test_a_limit_above_all_memory_is_none(entry, limit):
    """Networks raised an OverflowError."""
    found = ENTRIES[entry](limit)
    if found is not None:
        np.testing.assert_allclose(found, EXPECTED, rtol=1e-6)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("limit", [1e-12, "1e-10%", 1])
def test_a_limit_of_next_to_nothing_is_an_error_with_the_least_that_would_do(entry, limit):
    """Networks raised a ZeroDivisionError."""
    with pytest.raises(PlanInfeasibleError, match=r"within [01] B.* Set memory_limit=\d+ or more"):
        ENTRIES[entry](limit)


@pytest.mark.parametrize("limit", [2**63, 10**30])
@pytest.mark.parametrize("machine", [None, "h200"])
@pytest.mark.parametrize("policy", ["best", "offload"])
def test_so_is_one_of_host_memory(limit, machine, policy, host_device):
    with ooc_cudnn.settings(host_memory_limit=limit):
        by_network_plan(policy, machine)("8KiB")
    assert pinned.allocate(host_device, 4096, limit).nbytes == 4096


@pytest.mark.parametrize("over", [0, 1, 100])
def test_arrays_that_take_all_of_the_limit_leave_room_for_no_plan(over):
    """The room was divided by, which is 0 where the limit is just what they take."""
    net, y, _ = network()
    held = on_the_device(X)
    with pytest.raises(PlanInfeasibleError, match="has no plan within"):
        net.forward(y, x=held, memory_limit=max(held.nbytes - over, 1))


def test_what_is_counted_has_64_bits(host_device):
    assert limit_bytes(host_device, 2**63) == MOST_BYTES
    assert limit_bytes(host_device, MOST_BYTES - 1) == MOST_BYTES - 1
