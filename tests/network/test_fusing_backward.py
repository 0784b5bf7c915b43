"""Sums made beside the gradients that they are of: the same gradients, fewer passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ooc_cudnn
from ooc_cudnn import networks
from ooc_cudnn.network.compacting import compacted
from ooc_cudnn.network.fusing_backward import summed
from ooc_cudnn.operations.broadcast_gradient import BroadcastGradient
from ooc_cudnn.operations.gradient_sums import BiasActivationGradient
from tests.support.interpreter import run_step
from tests.support.network_checks import check_network


def calls(step, kind):
    return [phase.call for phase in step.phases if isinstance(phase.call, kind)]


def checked(net, y, twin, rewrite=summed):
    """The rewritten step, which is right."""
    return rewrite(
        check_network(net, y, twin, run=lambda step, *given: run_step(rewrite(step), *given))
    )


def conv(t, name, x, **geometry):
    return F.conv2d(x, t[f"{name}.w"], t[f"{name}.b"], **geometry)


def network_on(shape=(2, 3, 9, 8)):
    net = ooc_cudnn.Network()
    return net, net.input("x", shape, "float64", gradient=True)


@pytest.mark.parametrize("mode", ["relu", "tanh", "gelu"])
def test_bias_and_activation(mode):
    net, x = network_on()
    h = net.activation(net.convolution(x, 4, window=3), mode)
    y = net.convolution(h, 2, window=3)
    twins = {"relu": torch.relu, "tanh": torch.tanh, "gelu": F.gelu}

    def twin(t):
        return conv(t, "convolution_2", twins[mode](conv(t, "convolution_1", t["x"])))

    step = checked(net, y, twin)
    both = 0 if mode == "gelu" else 1  # its y does not tell the slope
    assert len(calls(step, BiasActivationGradient)) == both
    assert len(calls(step, BroadcastGradient)) == 2 - both


def test_a_gradient_that_others_add_to_is_summed_afterwards():
    """A bias before two readers: what one of them makes is not all of it."""
    net, x = network_on()
    h = net.convolution(x, 4, window=3, padding=1)
    y = net.add(net.activation(h, "tanh"), net.activation(h, "sigmoid"))

    def twin(t):
        h = conv(t, "convolution_1", t["x"], padding=1)
        return torch.tanh(h) + torch.sigmoid(h)

    step = checked(net, y, twin)
    assert not calls(step, BiasActivationGradient)
    assert len(calls(step, BroadcastGradient)) == 1


@pytest.mark.parametrize("geometry", [(2, 2, 0), (3, 2, 1)], ids=str)
@pytest.mark.parametrize("mode", ["max", "average_include_padding"])
def test_bias_behind_pooling(mode, geometry):
    """Summed where it is small; where windows are averaged, parts go to the padding."""
    window, stride, padding = geometry
    net, x = network_on()
    h = net.convolution(x, 4, window=3)
    h = net.pooling(h, window=window, stride=stride, padding=padding, mode=mode)
    y = net.convolution(net.activation(h, "tanh"), 2, window=2)

    def twin(t):
        h = conv(t, "convolution_1", t["x"])
        if mode == "max":
            h = F.max_pool2d(h, window, stride, padding)
        else:
            h = F.avg_pool2d(h, window, stride, padding)
        return conv(t, "convolution_2", torch.tanh(h))

    step = checked(net, y, twin, lambda step: summed(compacted(step)))
    (first,) = (
        (call for call in calls(step, BroadcastGradient) if call.shape[1] == 4)
        if mode != "max"
        else calls(step, BiasActivationGradient)
    )
    assert (first.shape == (2, 4, 7, 6)) == (mode != "max")


def test_all_biases_of_vgg_but_the_classifiers():
    net, loss = networks.vgg16(2, 32, "float64", 3, width=1 / 16)
    step = summed(compacted(net.training_phases(loss)))
    assert len(calls(step, BiasActivationGradient)) >= 12


def test_steps_run_so():
    """Within little memory, in pieces and micro-batches: the gradients of one that has plenty."""
    net, x = network_on((2, 3, 8, 10))
    h = net.pooling(net.activation(net.convolution(x, 4, window=3, padding=1)), window=2)
    h = net.activation(net.convolution(h, 4, window=1), "tanh")
    target = net.input("target", h.shape, "float64")
    loss = net.mean_squared_error(h, target)
    random = np.random.default_rng(5)
    given = {
        name: random.standard_normal(net.graph.tensors[name].shape) for name in ("x", "target")
    }
    expected = run_step(net.training_phases(loss), {**net.parameters, **given})
    for limit in ("24kB", "40MB"):
        with ooc_cudnn.settings(device="host", machine="host"):
            step = net.training_step(loss, memory_limit=limit, policy="keep")
            step(**given)
        for name, gradient in net.training_phases(loss).gradients.items():
            np.testing.assert_allclose(
                step.gradients[name], expected[gradient], rtol=1e-10, atol=1e-13
            )
