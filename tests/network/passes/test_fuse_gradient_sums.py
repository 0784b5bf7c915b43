"""Sums made beside the gradients that they are of: the same gradients, fewer passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ooc_cudnn
from ooc_cudnn import networks
from ooc_cudnn.network.passes.compress_activations import compress_activations
from ooc_cudnn.network.passes.fuse_activation_gradients import fuse_activation_gradients
from ooc_cudnn.network.passes.fuse_gradient_sums import fuse_gradient_sums
from ooc_cudnn.operations.convolution.data_gradient import DataGradientCall
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationGradientCall
from ooc_cudnn.operations.elementwise.broadcast_reduction import BroadcastGradientCall
from ooc_cudnn.operations.elementwise.gradient_reductions import BiasActivationGradientCall
from ooc_cudnn.operations.normalization.batch_fused_gradient import ActivationSumsCall
from ooc_cudnn.operations.normalization.batch_two_phase import (
    BatchNormalizationDataCall,
    ChannelSumsCall,
)
from ooc_cudnn.operations.normalization.group import GroupNormalizationGradientCall
from tests.support.interpreter import run_step
from tests.support.network_checks import check_network


def calls(step, kind):
    return [phase.call for phase in step.phases if isinstance(phase.call, kind)]


def checked(net, y, twin, rewrite=fuse_gradient_sums):
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
    assert len(calls(step, BiasActivationGradientCall)) == both
    assert len(calls(step, BroadcastGradientCall)) == 2 - both


def test_a_gradient_that_others_add_to_is_summed_afterwards():
    """A bias before two readers: what one of them makes is not all of it."""
    net, x = network_on()
    h = net.convolution(x, 4, window=3, padding=1)
    y = net.add(net.activation(h, "tanh"), net.activation(h, "sigmoid"))

    def twin(t):
        h = conv(t, "convolution_1", t["x"], padding=1)
        return torch.tanh(h) + torch.sigmoid(h)

    step = checked(net, y, twin)
    assert not calls(step, BiasActivationGradientCall)
    assert len(calls(step, BroadcastGradientCall)) == 1


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

    step = checked(net, y, twin, lambda step: fuse_gradient_sums(compress_activations(step)))
    (first,) = (
        (call for call in calls(step, BroadcastGradientCall) if call.shape[1] == 4)
        if mode != "max"
        else calls(step, BiasActivationGradientCall)
    )
    assert (first.shape == (2, 4, 7, 6)) == (mode != "max")


def normalised(t, name, x):
    """Batch normalization."""
    names = ("running_mean", "running_variance", "scale", "bias")
    return F.batch_norm(x, *(t[f"{name}.{each}"] for each in names), training=t.training)


def through(step):
    """The rewritten step, as plans take it."""
    return fuse_gradient_sums(compress_activations(fuse_activation_gradients(step)))


@pytest.mark.parametrize("mode", ["relu", "leaky_relu", "tanh"])
def test_no_gradient_between_a_normalization_and_a_rectifier(mode):
    net, x = network_on()
    h = net.batch_normalization(net.convolution(x, 4, window=3, bias=False))
    h = net.activation(h, mode, **({"coef": 0.125} if mode == "leaky_relu" else {}))
    y = net.add(h, net.input("other", h.shape, "float64"))
    twins = {"relu": torch.relu, "tanh": torch.tanh, "leaky_relu": lambda v: F.leaky_relu(v, 0.125)}

    def twin(t):
        h = normalised(t, "batch_normalization_1", F.conv2d(t["x"], t["convolution_1.w"]))
        return twins[mode](h) + t["other"]

    step = checked(net, y, twin, through)
    backward = [phase for phase in step.phases if phase.is_backward]
    if mode == "tanh":  # its slope costs more than a comparison
        assert len(calls(step, ActivationGradientCall)) == 1
        return
    assert [call.mode for call in calls(step, ChannelSumsCall)] == [mode]
    assert [call.mode for call in calls(step, BatchNormalizationDataCall)] == [mode]
    assert not any({"activation_1", "batch_normalization_1"} & set(p.reads) for p in backward)
    assert not any("mask" in name for name in step.tensors)


@pytest.mark.parametrize("wanted", [True, False], ids=["data", "no data"])
@pytest.mark.parametrize("groups", [2, 4])
def test_no_gradient_between_a_normalization_of_groups_and_a_rectifier(groups, wanted):
    net, x = network_on((2, 4, 6, 5))
    if not wanted:
        x = net.input("given", (2, 4, 6, 5), "float64")
    h = net.activation(net.group_normalization(x, groups, name="norm"), "leaky_relu", coef=0.125)
    y = net.add(h, net.convolution(net.graph.tensors["x"], 4, window=1))

    def twin(t):
        given = t["x" if wanted else "given"]
        h = F.group_norm(given, groups, t["norm.scale"], t["norm.bias"])
        return F.leaky_relu(h, 0.125) + conv(t, "convolution_1", t["x"])

    step = checked(net, y, twin, through)
    (call,) = calls(step, GroupNormalizationGradientCall)
    assert (call.mode, call.coef, call.data) == ("leaky_relu", 0.125, wanted)
    assert calls(step, ActivationGradientCall) == []
    backward = [phase for phase in step.phases if phase.is_backward]
    assert not any({"activation_1", "norm"} & set(phase.reads) for phase in backward)


def test_a_normalization_that_others_read_keeps_its_gradient():
    """The gradient between a normalization and one of its two readers is not all of it."""
    net, x = network_on()
    h = net.batch_normalization(net.convolution(x, 4, window=3, bias=False))
    y = net.add(net.activation(h), h)

    def twin(t):
        h = normalised(t, "batch_normalization_1", F.conv2d(t["x"], t["convolution_1.w"]))
        return torch.relu(h) + h

    step = checked(net, y, twin, through)
    assert [call.mode for call in calls(step, ChannelSumsCall)] == ["identity"]


def test_a_block_with_its_shortcut():
    """As in ResNets: the gradient goes both ways, through a ReLU whose result one layer reads."""
    net, x = network_on((2, 4, 6, 5))
    h = net.activation(net.batch_normalization(net.convolution(x, 4, window=1, bias=False)))
    h = net.batch_normalization(net.convolution(h, 4, window=3, padding=1, bias=False))
    h = net.activation(net.add(h, x))
    y = net.convolution(h, 2, window=1)

    def twin(t):
        h = F.conv2d(t["x"], t["convolution_1.w"])
        h = torch.relu(normalised(t, "batch_normalization_1", h))
        h = F.conv2d(h, t["convolution_2.w"], padding=1)
        h = torch.relu(normalised(t, "batch_normalization_2", h) + t["x"])
        return conv(t, "convolution_3", h)

    step = checked(net, y, twin, through)
    assert sorted(call.mode for call in calls(step, ChannelSumsCall)) == ["identity", "relu"]
    assert len(calls(step, ActivationGradientCall)) == 1


def test_two_norms_of_one_gradient_get_their_sums_both():
    """As where a ResNet gets smaller: its shortcut is normalised, too."""
    net, x = network_on((2, 4, 6, 5))
    for _ in range(2):
        both = (net.convolution(x, 4, window=window, padding=window // 2) for window in (3, 1))
        x = net.activation(net.add(*map(net.batch_normalization, both)))

    def twin(t):
        x = t["x"]
        for at in (1, 3):
            deep = conv(t, f"convolution_{at}", x, padding=1)
            side = conv(t, f"convolution_{at + 1}", x)
            x = torch.relu(
                normalised(t, f"batch_normalization_{at}", deep)
                + normalised(t, f"batch_normalization_{at + 1}", side)
            )
        return x

    step = checked(net, x, twin, through)
    assert len(calls(step, ActivationSumsCall)) == 1
    assert len(calls(step, ChannelSumsCall)) == 3


def test_what_a_convolution_adds_to_a_shortcut_is_added_by_who_reads_it():
    net, x = network_on((2, 4, 6, 5))
    for _ in range(3):
        h = net.batch_normalization(net.convolution(x, 4, window=3, padding=1, bias=False))
        x = net.activation(net.add(h, x))

    def twin(t):
        x = t["x"]
        for at in (1, 2, 3):
            h = F.conv2d(x, t[f"convolution_{at}.w"], padding=1)
            x = torch.relu(normalised(t, f"batch_normalization_{at}", h) + x)
        return x

    step = checked(net, x, twin, through)
    assert len(calls(step, ActivationSumsCall)) == 2
    assert len(calls(step, ActivationGradientCall)) == 1  # what comes into the last one is one part
    # of the first one, the network's input is asked for
    assert [call.beta for call in calls(step, DataGradientCall)] == [0, 0, 1]


def test_fixed_orders_are_summed_as_ever():
    net, loss = networks.resnet50(2, 32, "float64", 3, width=1 / 16)
    with ooc_cudnn.settings(deterministic=True):
        step = net.training_phases(loss)
    assert fuse_activation_gradients(step).phases == step.phases


def test_biases_of_vgg_but_the_classifiers_and_those_before_poolings():
    net, loss = networks.vgg16(2, 32, "float64", 3, width=1 / 16)
    step = fuse_gradient_sums(compress_activations(net.training_phases(loss)))
    assert len(calls(step, BiasActivationGradientCall)) == 13 - 5


def test_half_types_are_summed_apart():
    net = ooc_cudnn.Network()
    h = net.activation(net.convolution(net.input("x", (2, 3, 8, 8), "float16"), 4, window=3))
    step = fuse_gradient_sums(net.gradient_phases(net.convolution(h, 2, window=3)))
    assert not calls(step, BiasActivationGradientCall)


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
