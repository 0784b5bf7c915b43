"""Plans by the linear program's shares, and what `best` promises of all plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.cli.network import drawn_inputs
from ooc_cudnn.functions.target import Target
from ooc_cudnn.network import planning
from ooc_cudnn.network.placing import Terms, most_held
from ooc_cudnn.network.policies import POLICIES, Decision
from ooc_cudnn.network.remaking import can_be_remade
from ooc_cudnn.network.shares import remade_by_program
from ooc_cudnn.network.terms import terms_for
from ooc_cudnn.tensor import ORDERS
from perfmodel import shipped
from tests.support.drawn_networks import drawn_network


def under(limit):
    return Terms(Target(shipped("h200"), limit, limit, ORDERS, None, overlap=True), {})


def blocks(batch, image, count, channels=8):
    """A network of residual blocks: of most maps, it is worth it to make them again."""
    net = ooc_cudnn.Network(seed=3)
    h = net.convolution(net.input("x", (batch, 3, image, image)), channels, window=3, padding=1)
    for _ in range(count):
        inner = net.activation(net.batch_normalization(h), "relu")
        inner = net.convolution(inner, channels, window=3, padding=1)
        inner = net.activation(net.batch_normalization(inner), "relu")
        h = net.add(net.convolution(inner, channels, window=3, padding=1), h)
    logits = net.linear(net.global_average(h), 10)
    return net, net.softmax_cross_entropy(logits, net.input("labels", (batch,), "int64"))


def test_what_it_makes_again_fits():
    net, loss = blocks(256, 56, 5, channels=64)
    step = planning._as_taken(net.training_phases(loss), "best")
    taken, can = planning._rewritten(step, frozenset(), 1, 1), can_be_remade(step)
    full = most_held(taken, POLICIES["keep"].residing(taken))
    sizes = []
    for share in (0.8, 0.6, 0.5):
        room = int(share * full)
        again = remade_by_program(taken, under(room), 1, room, can)
        assert again <= can
        assert again == remade_by_program(taken, under(room), 1, room, can)
        held = most_held(*planning._as_decided(step, Decision(again), POLICIES["remake"], 1))
        assert held <= 1.05 * room  # what is small was rounded
        sizes.append(sum(step.tensors[name].nbytes for name in again))
    assert 0 < sizes[0] < sizes[-1]


def test_its_plans_run():
    net, loss = blocks(4, 12, 3)
    inputs = drawn_inputs(net)
    with ooc_cudnn.settings(device="host", machine="host"):
        kept = net.training_step(loss, memory_limit="1GiB", policy="keep")
        value = kept(**inputs)
        limit = int(0.7 * kept.plan.device_bytes)
        step = planning._as_taken(net.training_phases(loss), "best")
        terms, some = terms_for(limit, None, step, {}), 0
        for made in planning._by_program("training_step", step, terms, None, None):
            some += len(made.plan.remade)
            plan = replace(made.plan, policy="best")
            other = net.training_step(loss, memory_limit=limit, plan=plan)
            assert other(**inputs) == pytest.approx(value, rel=1e-5)
            for name, gradient in kept.gradients.items():
                assert np.allclose(other.gradients[name], gradient, rtol=1e-3, atol=1e-5), name
    assert some


def test_the_best_is_never_slower():
    """Than any other policy, nor than with less memory; and it holds no more than it may."""
    net, loss, _ = drawn_network(9, loss=True)
    step = net.training_phases(loss)
    full = net.plan(loss, memory_limit="1GiB", policy="keep", machine="h200").device_bytes
    names = ("best", *planning.BEST_OF, "vdnn_all", "vdnn_conv", "vdnn_dyn")
    terms = under(int(0.7 * full))
    found = {name: planning.plan_step("s", step, terms, policy=name).plan for name in names}
    best = found["best"]
    assert min(plan.seconds for plan in found.values()) == best.seconds
    assert best.device_bytes <= 0.7 * full
    assert planning.plan_step("s", step, under(int(1.2 * full))).plan.seconds <= best.seconds
