"""Nodes that change shapes, and local response normalization, beside PyTorch's autograd."""

import pytest
import torch
import torch.nn.functional as F

import ooc_cudnn
from ooc_cudnn.network.graph.nodes import global_pooling
from tests.support.network_checks import check_network

TRANSPOSED = {
    "1-D": ((2, 4, 5), {"window": 3, "stride": 2, "padding": 1, "output_padding": 1}),
    "2-D": ((2, 4, 3, 4), {"window": (3, 2), "stride": (2, 3), "padding": (1, 0)}),
    "3-D": ((1, 4, 2, 3, 2), {"window": 2, "stride": 2}),
    "dilated": ((2, 4, 4, 3), {"window": 2, "dilation": 3, "stride": 2}),
    "grouped": ((2, 4, 3, 3), {"window": 3, "groups": 2, "padding": 1, "bias": False}),
}


def network_on(shape):
    net = ooc_cudnn.Network()
    return net, net.input("x", shape, "float64", gradient=True)


@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_convolution(case):
    shape, options = TRANSPOSED[case]
    net, x = network_on(shape)
    y = net.transposed_convolution(x, 6, name="up", **options)
    others = {k: v for k, v in options.items() if k not in ("window", "bias")}
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(shape) - 3]
    bias = options.get("bias", True)
    check_network(
        net, y, lambda t: function(t["x"], t["up.w"], t["up.b"] if bias else None, **others)
    )


#: shape, builder, its arguments, PyTorch's function of x
NODES = {
    "ceil, max": ((2, 3, 8, 7), "pooling", {"window": 3, "stride": 2, "ceil_mode": True},
                  lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True)),
    "ceil, max, padded": ((1, 2, 10), "pooling",
                          {"window": 3, "stride": 4, "padding": 1, "ceil_mode": True},
                          lambda x: F.max_pool1d(x, 3, 4, 1, ceil_mode=True)),
    "ceil, mean with padding": (
        (2, 2, 7, 8), "pooling",
        {"window": 3, "stride": 2, "padding": 1, "ceil_mode": True,
         "mode": "average_include_padding"},
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)),
    "ceil, mean without": (
        (2, 2, 6, 8, 5), "pooling",
        {"window": 2, "stride": 3, "ceil_mode": True, "mode": "average_exclude_padding"},
        lambda x: F.avg_pool3d(x, 2, 3, ceil_mode=True, count_include_pad=False)),
    "adaptive mean": ((2, 3, 7, 5), "adaptive_pooling", {"output": (3, 2)},
                      lambda x: F.adaptive_avg_pool2d(x, (3, 2))),
    "adaptive mean that divides": ((2, 3, 6, 4), "adaptive_pooling", {"output": 2},
                                   lambda x: F.adaptive_avg_pool2d(x, 2)),
    "adaptive max": ((2, 3, 7, 5), "adaptive_pooling", {"output": (3, 2), "mode": "max"},
                     lambda x: F.adaptive_max_pool2d(x, (3, 2))),
    "global mean": ((2, 3, 4, 5), "global_average", {}, lambda x: x.mean((2, 3), keepdim=True)),
    "global mean, 3-D": ((2, 3, 4, 2, 3), "global_average", {},
                         lambda x: x.mean((2, 3, 4), keepdim=True)),
    "mean of channels": ((2, 5, 3, 4), "channel_mean", {}, lambda x: x.mean(1, keepdim=True)),
    "mean of features": ((3, 5), "channel_mean", {}, lambda x: x.mean(1, keepdim=True)),
    "global max": ((2, 3, 4, 5), "global_max", {}, lambda x: x.amax((2, 3), keepdim=True)),
    "global max, 1-D": ((2, 3, 9), "global_max", {}, lambda x: x.amax(2, keepdim=True)),
    "pad": ((2, 3, 4, 5), "pad", {"padding": ((1, 2), (-1, 3)), "value": 0.5},
            lambda x: F.pad(x, (-1, 3, 1, 2), value=0.5)),
    "roll": ((2, 3, 4, 5), "roll", {"shifts": (1, -2), "axes": (2, 3)},
             lambda x: x.roll((1, -2), (2, 3))),
    "roll of channels": ((2, 5, 3), "roll", {"shifts": (7,), "axes": (1,)},
                         lambda x: x.roll(7, 1)),
    "roll, 3-D": ((1, 2, 3, 2, 3), "roll", {"shifts": (1, 1, 0), "axes": (2, 3, 4)},
                  lambda x: x.roll((1, 1), (2, 3))),
    "crop": ((2, 3, 6, 5), "crop", {"start": (1, 2), "size": (4, 3)},
             lambda x: x[:, :, 1:5, 2:5]),
    "channels": ((2, 5, 3, 4), "channel_slice", {"start": 1, "stop": 3}, lambda x: x[:, 1:3]),
    "channels of vectors": ((3, 5), "channel_slice", {"start": 3, "stop": 5}, lambda x: x[:, 3:]),
    "a shuffle of channels": (
        (2, 6, 3, 4), "rearrange",
        {"factors": ((2,), (3, 2), (3,), (4,)), "parts": ((0,), (2, 1), (3,), (4,))},
        lambda x: F.channel_shuffle(x, 3)),
    "a shuffle of pixels": (
        (2, 8, 3, 5), "rearrange",
        {"factors": ((2,), (2, 2, 2), (3,), (5,)), "parts": ((0,), (1,), (4, 2), (5, 3))},
        lambda x: F.pixel_shuffle(x, 2)),
    "windows": (
        (2, 3, 4, 6), "rearrange",
        {"factors": ((2,), (3,), (2, 2), (2, 3)), "parts": ((0, 2, 4), (3, 5), (1,))},
        lambda x: x.view(2, 3, 2, 2, 2, 3).permute(0, 2, 4, 3, 5, 1).reshape(8, 6, 3)),
    "windows back": (
        (8, 6, 3), "rearrange",
        {"factors": ((2, 2, 2), (2, 3), (3,)), "parts": ((0,), (5,), (1, 3), (2, 4))},
        lambda x: x.view(2, 2, 2, 2, 3, 3).permute(0, 5, 1, 3, 2, 4).reshape(2, 3, 4, 6)),
    "tokens": (
        (3, 2, 3, 4), "rearrange",
        {"factors": ((3,), (2,), (3,), (4,)), "parts": ((0,), (2, 3), (1,))},
        lambda x: x.flatten(2).transpose(1, 2)),
    "nearest": ((2, 3, 4, 5), "interpolation", {"scale_factor": 2},
                lambda x: F.interpolate(x, scale_factor=2)),
    "trilinear": ((1, 2, 3, 4, 2), "interpolation", {"size": (5, 3, 4), "mode": "linear"},
                  lambda x: F.interpolate(x, (5, 3, 4), mode="trilinear")),
    "local response": ((2, 7, 3, 2), "local_response_normalization",
                       {"size": 5, "alpha": 0.3, "k": 2.0},
                       lambda x: F.local_response_norm(x, 5, 0.3, 0.75, 2.0)),
    "local response of an even size": (
        (3, 5, 4), "local_response_normalization", {"size": 4, "alpha": 2.0, "beta": 0.5},
        lambda x: F.local_response_norm(x, 4, 2.0, 0.5)),
}  # fmt: skip


@pytest.mark.parametrize("case", NODES)
def test_node(case):
    shape, builder, options, twin = NODES[case]
    net, x = network_on(shape)
    y = getattr(net, builder)(x, **options)
    check_network(net, y, lambda t: twin(t["x"]))


def test_a_global_maximum_of_many_sites_takes_two_phases(monkeypatch):
    monkeypatch.setattr(global_pooling, "FEW_SITES", 4)
    net, x = network_on((2, 3, 4, 5))
    y = net.global_max(net.activation(x))  # equal maxima: 0
    check_network(net, y, lambda t: F.max_pool2d(t["x"].relu(), (4, 5)))
    assert len(net.forward_phases(y).phases) == 3


def test_zeros_before_a_convolution_cost_no_phase():
    net, x = network_on((2, 3, 6, 5))
    padded = net.pad(x, ((2, 1), (0, 3)))
    y = net.convolution(padded, 4, window=3, padding=1, stride=2, name="c")
    assert len(net.forward_phases(y).phases) == 1
    check_network(
        net,
        y,
        lambda t: F.conv2d(F.pad(t["x"], (1, 4, 3, 2)), t["c.w"], t["c.b"], stride=2),
    )
    z = net.convolution(net.pad(x, ((1, -1), (0, 0))), 4, window=3, name="d")
    assert len(net.forward_phases(z).phases) == 2
    assert (
        len(net.forward_phases(net.convolution(net.pad(x, 1, value=1.0), 2, window=1)).phases) == 2
    )


def test_a_crop_costs_no_phase():
    net, x = network_on((2, 3, 6, 5))
    y = net.activation(net.crop(net.activation(x), (1, 2), (4, 3)))
    assert [p.node for p in net.forward_phases(y).phases] == ["activation_1", "activation_2"]


def test_several_read_what_was_cropped_padded_and_resized():
    """Their gradients add up."""
    net, x = network_on((2, 3, 6, 4))
    h = net.activation(x, "tanh")
    parts = [
        net.crop(net.pad(h, 1), (2, 0), (4, 4)),
        net.crop(h, (0, 0), (4, 4)),
        net.interpolation(h, (4, 4), mode="linear"),
        net.adaptive_pooling(h, 4),
    ]
    y = net.concatenate(parts)

    def twin(t):
        h = t["x"].tanh()
        resized = F.interpolate(h, (4, 4), mode="bilinear")
        parts = [F.pad(h, (1, 1, 1, 1))[:, :, 2:6, 0:4], h[:, :, :4], resized]
        return torch.cat([*parts, F.adaptive_avg_pool2d(h, 4)], 1)

    check_network(net, y, twin)


def test_gradients_of_channels_are_made_in_their_place():
    """A gate's two halves: no zeros, no sum, no copy."""
    net, x = network_on((2, 4, 3, 5))
    h = net.convolution(x, 6, window=1, name="c")
    a, b = net.channel_slice(h, 0, 3), net.channel_slice(h, 3, 6)
    y = net.multiply(net.activation(a, "tanh"), net.activation(b, "sigmoid"))

    def twin(t):
        a, b = F.conv2d(t["x"], t["c.w"], t["c.b"]).chunk(2, 1)
        return a.tanh() * b.sigmoid()

    check_network(net, y, twin)
    names = [phase.name for phase in net.gradient_phases(y).phases]
    assert not any(word in name for name in names for word in ("copy", "zeros", "sum of"))


@pytest.mark.parametrize("shape", [(2, 4, 3, 5), (3, 4), (1, 3, 2, 3, 4)])
def test_a_gate_of_one_channel_times_a_map(shape):
    """And a map and the mean of its channels, whose gradients add up."""
    net, x = network_on(shape)
    h = net.activation(x, "tanh")
    gate = net.activation(net.channel_mean(h), "sigmoid")
    y = net.multiply(net.add(h, net.channel_mean(h)), gate)

    def twin(t):
        h = t["x"].tanh()
        mean = h.mean(1, keepdim=True)
        return (h + mean) * mean.sigmoid()

    check_network(net, y, twin)


def test_channels_that_several_read_or_nobody_add_up():
    """In parts that overlap, beside readers of all of it, of a sum that others read, too."""
    net, x = network_on((2, 6, 3, 5))
    h = net.activation(x, "tanh")
    k = net.add(h, net.activation(h))
    one, two, both = (net.channel_slice(k, *each) for each in ((1, 3), (2, 4), (0, 6)))
    y = net.add(net.multiply(one, two), net.channel_slice(net.add(both, h), 4, 6))

    def twin(t):
        h = t["x"].tanh()
        k = h + h.relu()
        return k[:, 1:3] * k[:, 2:4] + (k + h)[:, 4:6]

    check_network(net, y, twin)
    check_network(net, net.channel_slice(net.channel_slice(k, 1, 5), 1, 3), lambda t: (
        t["x"].tanh() + t["x"].tanh().relu())[:, 2:4])  # fmt: skip


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda net, x: net.channel_slice(x, 2, 4), "2 to 4 must be some of the 3 channels"),
        (lambda net, x: net.rearrange(x, ((2,), (3,), (6,), (5,)), ((0,), (1,), (2,), (2,))),
         "parts must hold each factor once"),
        (lambda net, x: net.rearrange(x, ((2,), (3,), (3, 3), (5,)), ((0,), (1,), (2, 3), (4,))),
         "factors make"),
        (lambda net, x: net.concatenate([x, x], axis=0), "axis must be that of channels"),
        (lambda net, x: net.crop(x, 3, 4), "crop_1: start .* reach beyond"),
        (lambda net, x: net.interpolation(x), "interpolation_1: one of size"),
        (lambda net, x: net.transposed_convolution(x, 4, window=3, output_padding=1),
         "output_padding must be smaller than the stride"),
        (lambda net, x: net.transposed_convolution(x, 5, window=3, groups=3), "groups must divide"),
        (lambda net, x: net.local_response_normalization(x, 0), "size must be at least 1"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(build, why):
    net, x = network_on((2, 3, 6, 5))
    with pytest.raises(ValueError, match=why):
        build(net, x)
