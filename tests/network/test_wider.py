"""Some channels of a concatenation are computed on where they lie, but for cuDNN."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.engines.target import Target
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.search.plan_step import plan_step
from ooc_cudnn.operations.core.pointwise import Relayout
from ooc_cudnn.pipeline.schedule import make_schedule
from ooc_cudnn.pipeline.simulate import ReplayedSchedule
from perfmodel import shipped
from tests.support.network_checks import assert_close, twin_step, values


def dense_block(dtype="float32", side=28, channels=32):
    """Layers as DenseNet's, each of which reads all before it; and what pools some of them."""
    net = ooc_cudnn.Network()
    x = net.input("x", (3, channels, side, side), dtype)
    for at in range(3):
        y = net.activation(net.batch_normalization(x, name=f"norm{at}"))
        y = net.convolution(y, channels, window=3, padding=1, bias=False, name=f"conv{at}")
        x = net.concatenate([x, y], name=f"join{at}")
    y = net.activation(net.convolution(x, channels, window=1, name="last"))
    x = net.concatenate([net.pooling(x, window=3, stride=1, padding=1), y], name="inception")
    return net, net.mean_squared_error(x, net.input("target", x.shape, dtype), name="loss")


def twin(torch, given, training):
    """The same in PyTorch."""
    functional, x = torch.nn.functional, given["x"]
    for at in range(3):
        vectors = ("running_mean", "running_variance", "scale", "bias")
        mean, variance, scale, bias = (given[f"norm{at}.{each}"] for each in vectors)
        y = functional.batch_norm(x, mean, variance, scale, bias, training=training)
        y = functional.conv2d(functional.relu(y), given[f"conv{at}.w"], padding=1)
        x = torch.cat([x, y], 1)
    y = functional.relu(functional.conv2d(x, given["last.w"], given["last.b"]))
    x = torch.cat([functional.max_pool2d(x, 3, 1, 1), y], 1)
    return functional.mse_loss(x, given["target"])


@pytest.mark.parametrize("order", ["channels_first", "channels_last"])
@pytest.mark.parametrize("limit", ["64MiB", "400KiB"])
def test_a_step_is_that_of_pytorch(order, limit, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("ooc_cudnn.devices.host.device.HostDevice.layouts", lambda *_: (order,))
    net, loss = dense_block("float64", side=9, channels=4)
    given = values(net)
    expected, gradients, _ = twin_step(
        net, loss, lambda held: twin(torch, held, held.training), given, np.ones(())
    )
    with ooc_cudnn.settings(device="host", machine="host", memory_limit=limit):
        for name in net.parameters:
            net.parameters[name] = given[name]
        step = net.training_step(loss)
        found = step(x=given["x"], target=given["target"])
    assert found == pytest.approx(float(expected.detach()), rel=1e-11)
    for name, made in step.gradients.items():
        assert_close(made, gradients[name], name, least=1e-3)


def planned(order):
    net, loss = dense_block()
    target = Target(shipped("h200"), 2**33, 2**33, (order,), None, overlap=True)
    return plan_step(
        "training_step", net.training_phases(loss), PlanConstraints(target, {}), policy="keep"
    )


@pytest.mark.parametrize("order", ["channels_first", "channels_last"])
def test_normalizations_and_poolings_copy_no_map_inside_the_card(order):
    made = planned(order)
    schedule = make_schedule(made.lowered.program)
    for step in schedule.steps:
        task = schedule.program.items[step.item]
        shape = [stop - start for start, stop in step.places[0].region] if step.places else ()
        if step.stream == "compute" and len(shape) == 4:
            what = f"{task.name}: {step}"
            assert not step.copies or "conv" in task.name, what
            if "norm" in task.name:
                assert not any(isinstance(e.operation, Relayout) for e in step.launches), what


def test_what_is_copied_inside_the_card_takes_its_time():
    made = planned("channels_last")
    schedule, machine = make_schedule(made.lowered.program), shipped("h200")
    replayed = ReplayedSchedule(schedule)
    inside = [
        (step, cost)
        for step, cost in zip(schedule.steps, replayed.costs, strict=True)
        if step.copies and step.stream == "compute"
    ]
    assert inside
    for step, cost in inside:
        (place,) = step.places
        shape = tuple(stop - start for start, stop in place.region)
        spec = schedule.program.items[step.item].request.specs[place.operand]
        passes = machine.compute.seconds(Relayout(shape, spec.dtype).work())
        assert cost.seconds == passes > 2 * math.prod(shape) * spec.itemsize / 5e12
    tasks = [item for item in schedule.program.items if hasattr(item, "request")]
    by_plan = sum(task.plan.compute_seconds for task in tasks)
    computing = sum(
        cost.seconds
        for step, cost in zip(schedule.steps, replayed.costs, strict=True)
        if step.stream == "compute"
    )
    assert by_plan == pytest.approx(computing, rel=0.02)
