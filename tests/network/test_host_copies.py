"""What a step keeps on the host lies as on the device, so that the link copies it as it is."""

from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.pipeline.execute import Executor


def test_arrays_of_a_step_lie_as_planned(monkeypatch):
    """The host device has channels first; a card's plan may have them last, wherever maps are."""
    net = ooc_cudnn.Network()
    x = net.input("x", (4, 3, 8, 8))
    h = net.activation(net.convolution(x, 8, window=3, padding=1))
    h = net.pooling(net.convolution(h, 8, window=3, padding=1), window=2)
    loss = net.mean_squared_error(h, net.input("target", h.shape))
    given = {"x": np.ones(x.shape, "f4"), "target": np.zeros(h.shape, "f4")}
    ran, run = [], Executor.run

    def watched(executor, device, arrays, **how):
        ran.append((executor.program.between, arrays))
        return run(executor, device, arrays, **how)

    monkeypatch.setattr(Executor, "run", watched)
    plan = replace(net.plan(loss, memory_limit="20kB", policy="offload"), order="channels_last")
    assert "offloaded" in plan.fate.values()
    first = net.training_step(loss)(**given)
    step = net.training_step(loss, plan=plan)
    assert step(**given) == pytest.approx(first, rel=1e-6)
    for name, gradient in step.gradients.items():  # as the parameter that it is added to
        assert gradient.flags.c_contiguous, name
    between, arrays = ran[-1]
    assert any(spec.order == "channels_last" for spec in between.values())
    for name, spec in between.items():
        strides = tuple(stride // spec.itemsize for stride in arrays[name].strides)
        assert strides == spec.strides, name
