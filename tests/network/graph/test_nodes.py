"""Each node beside PyTorch's autograd: results, gradients, running statistics, in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ooc_cudnn
from ooc_cudnn.operations.core.activation_modes import MODES
from tests.support.activation_modes import pytorch
from tests.support.interpreter import run_step
from tests.support.network_checks import check_network, values

CONVOLUTIONS = {
    "1-D": ((2, 4, 9), {"window": 3, "padding": 1, "stride": 2}),
    "2-D": ((2, 4, 6, 7), {"window": (3, 2), "padding": 1}),
    "3-D": ((1, 2, 4, 5, 3), {"window": 2, "stride": 2, "padding": 1}),
    "dilated": ((2, 4, 7, 7), {"window": 3, "dilation": 2, "padding": 2}),
    "grouped": ((2, 4, 5, 5), {"window": 3, "groups": 2}),
    "without bias": ((2, 4, 5, 5), {"window": 1, "bias": False}),
}


def network_on(shape):
    net = ooc_cudnn.Network()
    return net, net.input("x", shape, "float64", gradient=True)


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution(case):
    shape, options = CONVOLUTIONS[case]
    net, x = network_on(shape)
    y = net.convolution(x, 6, **options)
    others = {k: v for k, v in options.items() if k not in ("window", "bias")}
    function = (F.conv1d, F.conv2d, F.conv3d)[len(shape) - 3]
    bias = options.get("bias", True)

    def twin(t):
        b = t["convolution_1.b"] if bias else None
        return function(t["x"], t["convolution_1.w"], b, **others)

    check_network(net, y, twin)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 1, 1), (3, 4, 5), (2, 3, 2, 4)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape, bias):
    net, x = network_on(shape)
    y = net.linear(net.activation(x, "tanh"), 6, bias=bias)
    assert net.parameters["linear_1.w"].shape == (6, np.prod(shape[1:]))

    def twin(t):
        b = t["linear_1.b"] if bias else None
        return F.linear(torch.tanh(t["x"]).flatten(1), t["linear_1.w"], b)

    check_network(net, y, twin)


@pytest.mark.parametrize("mode", MODES)
def test_activation(mode):
    net, x = network_on((2, 3, 4, 5))
    y = net.activation(x, mode)
    check_network(net, y, lambda t: pytorch(mode)(t["x"]))


def test_the_gradient_of_an_activation_keeps_y_where_y_tells():
    net, x = network_on((2, 3, 4, 5))
    relu = net.activation(x, "relu")
    gelu = net.activation(relu, "gelu")
    backward = net.gradient_phases(gelu).phases[2:]
    assert "activation_1" in backward[1].reads
    assert "x" not in backward[1].reads
    assert "activation_2" not in backward[0].reads


@pytest.mark.parametrize("mode", ["max", "average_include_padding", "average_exclude_padding"])
@pytest.mark.parametrize("shape", [(2, 3, 9), (2, 3, 6, 7), (1, 2, 4, 5, 6)], ids=str)
def test_pooling(mode, shape):
    net, x = network_on(shape)
    y = net.pooling(x, window=3, stride=2, padding=1, mode=mode)
    axes = len(shape) - 2
    options = {"kernel_size": 3, "stride": 2, "padding": 1}
    if mode == "max":
        function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[axes - 1]
    else:
        function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[axes - 1]
        options["count_include_pad"] = mode == "average_include_padding"
    check_network(net, y, lambda t: function(t["x"], **options))


@pytest.mark.parametrize("algorithm", ["accurate", "log"])
@pytest.mark.parametrize("mode", ["channel", "instance"])
def test_softmax(algorithm, mode):
    net, x = network_on((2, 3, 4, 5))
    y = net.softmax(x, algorithm=algorithm, mode=mode)
    function = torch.softmax if algorithm == "accurate" else torch.log_softmax

    def twin(t):
        if mode == "channel":
            return function(t["x"], 1)
        return function(t["x"].flatten(1), 1).reshape(t["x"].shape)

    check_network(net, y, twin)


@pytest.mark.parametrize("per_channel", [False, True])
def test_dropout(per_channel):
    net, x = network_on((6, 8, 5, 5))
    y = net.dropout(x, 0.25, per_channel=per_channel, name="drop")
    given = values(net)
    seeds = {"drop": np.random.default_rng(1).standard_normal(y.shape)}
    step = net.gradient_phases(y)
    kept = []
    for count in (1, 2):
        arrays = run_step(step, given, seeds)
        mask = (arrays["drop"] / given["x"]).round(12)
        assert set(np.unique(mask)) == {0, round(4 / 3, 12)}
        assert abs((mask == 0).mean() - 0.25) < (0.15 if per_channel else 0.05)
        assert (mask == mask[:, :, :1, :1]).all() == per_channel
        assert np.allclose(arrays["x.gradient"], seeds["drop"] * mask)
        assert given["drop.state"][1] == count
        kept.append(mask)
    assert (kept[0] != kept[1]).any()  # other numbers in each step
    inference = net.forward_phases(net.activation(y))
    assert [phase.node for phase in inference.phases] == ["activation_1"]
    assert inference.base("drop") == "x"
    with pytest.raises(ValueError, match=r"dropout_1: p must be from 0 to 1, not 1\.5"):
        net.dropout(x, 1.5)


def test_add():
    net, x = network_on((2, 3, 4, 5))
    z = net.input("z", (2, 3, 4, 5), "float64", gradient=True)
    check_network(net, net.add(x, z), lambda t: t["x"] + t["z"])


def test_concatenate():
    net, x = network_on((2, 3, 4, 5))
    z = net.input("z", (2, 2, 4, 5), "float64", gradient=True)
    check_network(net, net.concatenate([x, z, x]), lambda t: torch.cat([t["x"], t["z"], t["x"]], 1))
