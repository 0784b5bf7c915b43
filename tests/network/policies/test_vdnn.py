"""vDNN's policies on its card: what leaves, when, and what waits."""

from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import networks
from ooc_cudnn.network.policies.policy import POLICIES
from ooc_cudnn.network.policies.vdnn import vdnn_all, vdnn_conv


@pytest.fixture(scope="module")
def vgg():
    return networks.vgg16(128, dropout=0)


def left(step, residency):
    return {name for name, live_ranges in residency(step).items() if len(live_ranges) > 1}


def test_what_layers_of_feature_extraction_read_leaves(vgg):
    net, loss = vgg
    step = net.training_phases(loss)
    by_all, by_conv = left(step, vdnn_all), left(step, vdnn_conv)
    # of all 13 convolutions and 5 poolings; the images are not written back
    assert len(by_all) == 18
    assert by_conv == {name for name in by_all if "relu" not in name or _feeds(net, name)}
    assert not [name for name in by_all if name.startswith(("fc", "logits"))]


def _feeds(net, name):
    """Whether a convolution reads a map."""
    tensor = net.graph.tensors[name]
    return any(n.name.startswith("conv") for n in net.graph.nodes.values() if tensor in n.inputs)


def test_a_fetch_is_at_most_one_convolution_ahead(vgg):
    net, loss = vgg
    step = net.training_phases(loss)
    for name, live_ranges in vdnn_all(step).items():
        if len(live_ranges) == 1:
            continue
        back = live_ranges[1]
        reads = [at for at in range(back.first, len(step.phases)) if _reads(step, at, name)]
        between = {step.phases[at].node for at in range(back.first, reads[0])}
        between -= {step.phases[reads[0]].node}
        assert sum(node.startswith("conv") and "." not in node for node in between) <= 1, name


def _reads(step, at, name):
    return name in {step.base(each) for each in step.phases[at].reads}


@pytest.mark.parametrize("policy", ["vdnn_all", "vdnn_conv"])
def test_batches_are_whole_and_layers_wait(vgg, policy):
    net, loss = vgg
    plan = net.plan(loss, memory_limit="12GiB", policy=policy, machine="titanx")
    assert POLICIES[policy].synchronous
    assert (plan.micro_batches, plan.synchronous) == (1, True)
    assert "offloaded" in plan.fate.values()
    # what leaves comes back, and the weights are fetched
    offloaded = sum(each.nbytes for each in plan.fates if each.fate == "offloaded")
    assert plan.bytes_in >= offloaded


def test_dyn_takes_the_first_that_fits(vgg):
    net, loss = vgg
    found = [
        net.plan(loss, memory_limit=limit, policy="vdnn_dyn", machine="titanx")
        for limit in ("16GiB", "8GiB", "6.5GiB")
    ]
    away = [sum(each.nbytes for each in plan.fates if each.fate == "offloaded") for plan in found]
    assert away[0] == 0 < away[1] <= away[2]
    assert [plan.micro_batches for plan in found] == [1, 1, 1]


def test_the_best_may_be_a_plan_of_vdnn(host_device):
    """It follows the step that vDNN takes, whose backward keeps whole maps."""
    net = ooc_cudnn.Network(seed=1)
    h = net.activation(net.convolution(net.input("x", (4, 3, 8, 8)), 4, window=3), "relu")
    y = net.convolution(net.pooling(h, window=2), 4, window=1)
    loss = net.mean_squared_error(y, net.input("target", y.shape))
    given = {"x": np.ones((4, 3, 8, 8), "float32"), "target": np.zeros(y.shape, "float32")}
    vdnn = net.training_step(loss, memory_limit="1MiB", policy="vdnn_conv")
    expected = vdnn(**given)
    kept = net.plan(loss, memory_limit="1MiB", policy="keep")
    assert vdnn.plan.fate.keys() != kept.fate.keys()
    best = replace(vdnn.plan, policy="best")
    assert net.training_step(loss, memory_limit="1MiB", plan=best)(**given) == expected
