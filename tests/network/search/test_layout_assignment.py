"""A step's plan says what computing takes in each memory order, and what a mix could reach."""

import pytest

from ooc_cudnn import settings
from ooc_cudnn.network.cost.compute_seconds import layout_seconds, seconds_in
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.network import Network
from ooc_cudnn.tensor import ORDERS
from perfmodel import shipped


@pytest.fixture(scope="module")
def planned():
    net = Network()
    x, labels = net.input("images", (8, 3, 32, 32)), net.input("labels", (8,), "int64")
    for channels in (16, 64):
        x = net.activation(net.convolution(x, channels, window=3, padding=1))
    loss = net.softmax_cross_entropy(net.linear(net.pooling(x, window=2), 10), labels)
    with settings(machine="h200"):
        return net.training_phases(loss), net.plan(loss, memory_limit="1GiB", policy="keep")


def test_every_order_is_told_and_the_fastest_is_taken(planned):
    step, plan = planned
    machine = shipped("h200")
    told = layout_seconds(step, machine, ORDERS)
    by_hand = {
        order: sum(seconds_in(order, phase.call, machine) for phase in step.phases)
        for order in ORDERS
    }
    assert dict(told.throughout) == pytest.approx(by_hand)
    least = sum(min(seconds_in(o, phase.call, machine) for o in ORDERS) for phase in step.phases)
    assert told.each == pytest.approx(least)
    assert told.fastest == min(by_hand, key=by_hand.get)
    assert plan.order == plan.by_order.fastest
    assert plan.by_order.each <= dict(plan.by_order.throughout)[plan.order]


def test_it_is_explained_and_stored(planned):
    _, plan = planned
    said = plan.explain()
    assert "memory order of maps, nothing cut" in said
    assert "channels-first throughout" in said
    assert "channels-last throughout" in said
    found = NetworkPlan.from_json(plan.to_json())
    assert found.by_order == plan.by_order
    assert found.explain() == said
