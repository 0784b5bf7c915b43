"""Computing begins before the inputs are all there."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.network.ir.live_ranges import LiveRange, check_live_ranges, keep_all
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.stream_first_use import stream_first_uses
from ooc_cudnn.network.search import candidate, plan_search, refine_prefetch


def network(images=8, size=8):
    net = ooc_cudnn.Network(seed=1)
    x = net.input("x", (images, 3, size, size), "float64")
    y = net.activation(net.convolution(x, 4, window=3, padding=1), "tanh")
    return net, net.mean_squared_error(y, net.input("target", y.shape, "float64"))


def test_later_readers_find_inputs_on_the_device_or_stream_them():
    net, loss = network()
    step = net.training_phases(loss)
    assert isinstance(step, Step)
    live_ranges, uses = keep_all(step), step.uses
    (later,) = stream_first_uses(step, live_ranges)
    check_live_ranges(step, later)
    others = live_ranges.keys() - {"x", "target"}
    assert {name: later[name] for name in others} == {name: live_ranges[name] for name in others}
    first, *rest = uses["x"].phases
    assert live_ranges["x"] == (LiveRange(first, rest[-1], fetched=True),)
    assert later["x"] == (LiveRange(rest[0], rest[-1], fetched=True),)


def test_without_a_fetched_input_there_is_nothing_to_stream():
    net, loss = network()
    step = net.training_phases(loss)
    assert list(stream_first_uses(step, {})) == []


def test_the_first_convolution_computes_while_images_come(monkeypatch):
    net = ooc_cudnn.Network()
    y = net.activation(net.convolution(net.input("x", (256, 3, 224, 224)), 64, window=3, padding=1))
    loss = net.softmax_cross_entropy(
        net.linear(net.pooling(y, window=224, mode="average_include_padding"), 10),
        net.input("labels", (256,), "int64"),
    )
    monkeypatch.setattr(plan_search, "VDNN", ())  # its readers stream, too
    with ooc_cudnn.settings(allow_tf32=True):
        plan = net.plan(loss, machine="h200", memory_limit="40GiB")
        monkeypatch.setattr(refine_prefetch, "stream_first_uses", lambda *given: ())
        waiting = net.plan(loss, machine="h200", memory_limit="40GiB")
    assert plan.seconds < 0.95 * waiting.seconds
    assert dict(waiting.live_ranges)["x"][0].first == 0
    assert all(live_range.first > 0 for live_range in dict(plan.live_ranges).get("x", ()))


def test_results_are_the_same(monkeypatch, host_device):
    net, loss = network()
    random = np.random.default_rng(2)
    given = {name: random.standard_normal((8, c, 8, 8)) for name, c in (("x", 3), ("target", 4))}
    whole = net.training_step(loss, memory_limit="1MiB", policy="keep")
    expected = whole(**given)
    placed = candidate.lower_step

    def streaming(name, step, live_ranges, constraints, **how):
        (later,) = stream_first_uses(step, live_ranges)
        return placed(name, step, later, constraints, **how)

    monkeypatch.setattr(candidate, "lower_step", streaming)
    made = net.training_step(loss, memory_limit="1MiB", policy="keep")
    assert made(**given) == pytest.approx(expected, rel=1e-12)
    for name, gradient in whole.gradients.items():
        np.testing.assert_allclose(made.gradients[name], gradient, rtol=1e-11, atol=1e-13)
