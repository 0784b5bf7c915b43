"""Bits, and indices that tell slopes, too: the same gradients, and little kept for backward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ooc_cudnn
from ooc_cudnn import networks
from ooc_cudnn.network.passes.compress_activations import compress_activations
from ooc_cudnn.operations.elementwise.activation_bitmask import MaskedActivationCall
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationGradientCall
from ooc_cudnn.operations.pooling.indices import IndexedPoolingCall
from tests.support import drawn_kinds
from tests.support.drawn_networks import drawn_network
from tests.support.interpreter import run_step
from tests.support.network_checks import check_network, values


def network_on(shape=(2, 3, 9, 8)):
    net = ooc_cudnn.Network()
    return net, net.input("x", shape, "float64", gradient=True)


def run_compacted(step, *given):
    return run_step(compress_activations(step), *given)


def checked(net, y, twin):
    """The compacted step, which is right."""
    return compress_activations(check_network(net, y, twin, run=run_compacted))


def calls(step, kind):
    return [phase.call for phase in step.phases if isinstance(phase.call, kind)]


def read_in_backward(step):
    return {step.base(n) for phase in step.phases if phase.is_backward for n in phase.reads}


def conv(t, name, x, **geometry):
    return F.conv2d(x, t[f"{name}.w"], t[f"{name}.b"], **geometry)


def test_the_index_tells_the_slope_of_a_relu():
    """As in VGG: nothing of the size of the convolution's result is kept, and no y is read."""
    net, x = network_on()
    h = net.activation(net.convolution(x, 4, window=3, padding=1))
    h = net.pooling(h, window=3, stride=2, padding=1)
    y = net.convolution(h, 2, window=3)

    def twin(t):
        h = F.max_pool2d(torch.relu(conv(t, "convolution_1", t["x"], padding=1)), 3, 2, 1)
        return conv(t, "convolution_2", h)

    step = checked(net, y, twin)
    (pooling,) = calls(step, IndexedPoolingCall)
    assert pooling.positive
    assert not calls(step, MaskedActivationCall | ActivationGradientCall)
    large = {n for n in read_in_backward(step) if step.tensors[n].shape == (2, 4, 9, 8)}
    assert all(step.tensors[n].kind == "gradient" for n in large)


def test_two_poolings_of_one_relu_have_bits():
    net, x = network_on()
    h = net.activation(net.convolution(x, 4, window=1))
    y = net.add(net.pooling(h, window=2), net.pooling(h, window=2, mode="average_include_padding"))

    def twin(t):
        h = torch.relu(conv(t, "convolution_1", t["x"]))
        return F.max_pool2d(h, 2) + F.avg_pool2d(h, 2)

    step = checked(net, y, twin)
    assert len(calls(step, MaskedActivationCall)) == len(calls(step, IndexedPoolingCall)) == 1
    assert not {"activation_1", "convolution_1"} & read_in_backward(step)


def test_bits_where_a_sum_follows():
    net, x = network_on()
    h = net.activation(net.convolution(x, 4, window=3, padding=1), "relu")
    h = net.add(h, net.activation(net.convolution(x, 4, window=1), "leaky_relu", coef=0.5))
    y = net.pooling(h, window=2)

    def twin(t):
        one = torch.relu(conv(t, "convolution_1", t["x"], padding=1))
        two = F.leaky_relu(conv(t, "convolution_2", t["x"]), 0.5)
        return F.max_pool2d(one + two, 2)

    step = checked(net, y, twin)
    assert len(calls(step, MaskedActivationCall)) == 2
    assert not read_in_backward(step) & {"activation_1", "activation_2", "add_1", "pooling_1"}


def test_the_gradient_of_a_fork_adds_up_without_a_phase_of_the_relu():
    """What the ReLU reads has another reader: its gradient is added to in place."""
    net, x = network_on()
    z = net.convolution(x, 4, window=1)
    one = net.pooling(net.activation(z), window=2)
    two = net.pooling(net.activation(z, "tanh"), window=2, mode="average_include_padding")
    y = net.add(one, two)

    def twin(t):
        z = conv(t, "convolution_1", t["x"])
        return F.max_pool2d(torch.relu(z), 2) + F.avg_pool2d(torch.tanh(z), 2)

    (tanh,) = calls(checked(net, y, twin), ActivationGradientCall)
    assert tanh.mode == "tanh"


def test_a_sum_hands_its_gradient_to_the_pooling_and_to_what_the_relu_reads():
    """They share it: what the ReLU makes is added to what the pooling reads."""
    net, x = network_on()
    z = net.convolution(x, 4, window=1)
    total = net.add(z, net.pooling(net.activation(z), window=3, stride=1, padding=1))
    y = net.convolution(total, 2, window=1)

    def twin(t):
        z = conv(t, "convolution_1", t["x"])
        return conv(t, "convolution_2", z + F.max_pool2d(torch.relu(z), 3, 1, 1))

    checked(net, y, twin)


def test_no_bits_where_the_map_is_read_anyway():
    net, x = network_on()
    h = net.activation(net.convolution(x, 4, window=3), "relu")
    step = compress_activations(net.gradient_phases(net.convolution(h, 2, window=1)))
    assert not calls(step, MaskedActivationCall)
    # and none where it is a result itself, or lies where another node reads it
    assert not calls(compress_activations(net.gradient_phases(h)), MaskedActivationCall)
    other = net.activation(net.convolution(x, 2, window=3), "relu")
    joined = net.convolution(net.concatenate([h, other]), 2, window=3)
    assert not calls(compress_activations(net.gradient_phases(joined)), MaskedActivationCall)


def test_nothing_is_saved_for_a_gradient_that_nobody_wants():
    net = ooc_cudnn.Network()
    h = net.pooling(net.activation(net.input("x", (2, 3, 6, 6)), "relu"), window=2)
    step = net.gradient_phases(net.convolution(h, 2, window=1))
    assert not calls(compress_activations(step), MaskedActivationCall | IndexedPoolingCall)


def relu(d):
    x = d.some()
    d.made(d.net.activation(x), lambda t: torch.relu(t[x.name]))


KINDS = {
    relu: 4,
    drawn_kinds.pooling: 4,
    drawn_kinds.convolution: 2,
    drawn_kinds.add: 1,
    drawn_kinds.concatenate: 1,
}


#: Of these seeds a pooling comes behind its ReLU, and tells its slope.
TOLD = (8, 79, 81, 82, 105, 110, 124, 139)


@pytest.mark.parametrize("seed", [*TOLD, *range(9, 21)])
def test_drawn_networks(seed):
    net, output, twin = drawn_network(seed, kinds=KINDS)
    step = compress_activations(net.gradient_phases(output))
    assert any(call.positive for call in calls(step, IndexedPoolingCall)) == (seed in TOLD)
    check_network(net, output, twin, run=run_compacted, inference=False)


def test_indices_where_both_maps_are_read_anyway():
    """As in a module of GoogLeNet, whose convolutions read x and y: so these may be made again."""
    net, x = network_on()
    h = net.convolution(x, 4, window=1)
    pooled = net.convolution(net.pooling(h, window=3, stride=1, padding=1), 2, window=1)
    y = net.add(net.convolution(h, 2, window=1), pooled)
    assert calls(compress_activations(net.gradient_phases(y)), IndexedPoolingCall)


@pytest.mark.parametrize(
    "make",
    [
        lambda: networks.vgg16(2, 32, "float64", 3, width=1 / 16),
        lambda: networks.googlenet(2, 96, "float64", 3, width=1 / 16),
    ],
    ids=["vgg16", "googlenet"],
)
def test_networks_that_ship_keep_less(make):
    net, loss = make()
    step = net.training_phases(loss)
    made = compress_activations(step)
    given = [values(net, 3, {"labels": np.arange(2)}) for _ in range(2)]
    plain, arrays = (run_step(each, own) for each, own in zip((step, made), given, strict=True))
    for name, gradient in step.gradients.items():
        error = np.abs(arrays[gradient] - plain[gradient]).max()
        assert error <= 1e-13 * np.abs(plain[gradient]).max(), name

    def kept(step):
        """Bytes of all maps that backward reads."""
        bases = (step.tensors[name] for name in read_in_backward(step))
        return sum(tensor.nbytes for tensor in bases if tensor.kind == "map")

    assert kept(made) < 0.75 * kept(step)


def test_bits_and_indices_take_no_name_of_a_user():
    net, x = network_on()
    offset = net.input("pool.index", x.shape, "float64", gradient=True)
    relu = net.activation(net.convolution(x, 3, window=3, padding=1, name="conv"), name="relu")
    h = net.add(net.add(relu, offset, name="relu.mask"), x)
    y = net.pooling(h, window=2, name="pool")

    def twin(t):
        h = torch.relu(conv(t, "conv", t["x"], padding=1)) + t["pool.index"] + t["x"]
        return F.max_pool2d(h, 2)

    step = checked(net, y, twin)
    assert calls(step, IndexedPoolingCall)
    assert calls(step, MaskedActivationCall)
