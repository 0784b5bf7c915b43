"""Micro-batches that are asked for are those of the plan, whatever the policy."""

import pytest

from ooc_cudnn import Network, networks
from ooc_cudnn.network.search import plan_search


@pytest.fixture(scope="module")
def built():
    return networks.alexnet(batch=4, image=67, classes=10, width=1 / 16)


@pytest.mark.parametrize("policy", ["keep", "mixed", "vdnn_all", "vdnn_dyn"])
def test_every_policy_takes_as_many_as_are_asked_for(built, policy):
    net, loss = built
    plan = net.plan(loss, machine="h200", policy=policy, micro_batches=2)
    assert plan.micro_batches == 2


def test_bands_do_too():
    net = Network()
    x = net.input("x", (2, 8, 4096, 4096))
    y = net.convolution(x, 32, window=3, padding=1)
    y = net.convolution(net.activation(y), 32, window=3, padding=1)
    score = net.linear(net.global_average(net.pooling(y, window=2)), 2)
    loss = net.softmax_cross_entropy(score, net.input("labels", (2,), "int64"))
    plan = net.plan(loss, machine="h200", memory_limit="2GiB", micro_batches=2)
    assert plan.bands > 1
    assert plan.micro_batches == 2


def test_no_micro_batches_are_tried_where_weights_alone_take_more_than_there_is(monkeypatch):
    """They took minutes, and none could fit."""
    net, loss = networks.vgg16(batch=8, image=32, width=1 / 8, classes=10, dropout=0)
    tried = []
    monkeypatch.setattr(
        plan_search, "split_into_microbatches", lambda step, parts: tried.append(parts) or step
    )
    net.plan(loss, memory_limit="1MiB", machine="h200", policy="offload")
    assert set(tried) == {1}
    net.plan(loss, memory_limit="200MiB", machine="h200", policy="offload")
    assert 2 in tried
