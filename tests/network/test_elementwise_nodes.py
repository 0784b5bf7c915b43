"""PReLU, sums and products with what is broadcast, numbers, stored images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ooc_cudnn
from ooc_cudnn.network.passes.fuse_chains import fuse_chains
from tests.support.network_checks import check_network, values

SHAPE = (2, 3, 4, 5)


def network_on(shape=SHAPE, dtype="float64"):
    net = ooc_cudnn.Network()
    return net, net.input("x", shape, dtype, gradient=dtype == "float64")


@pytest.mark.parametrize("shape", [SHAPE, (3, 4), (2, 3, 7)], ids=str)
@pytest.mark.parametrize("per_channel", [True, False])
def test_prelu(per_channel, shape):
    net, x = network_on(shape)
    y = net.prelu(net.convolution(x, 4, window=1) if len(shape) > 2 else x, per_channel=per_channel)
    assert net.parameters["prelu_1.w"].tolist() == [0.25] * (y.shape[1] if per_channel else 1)

    def twin(t):
        given = t["x"]
        if len(shape) > 2:
            convolution = F.conv1d if len(shape) == 3 else F.conv2d
            given = convolution(given, t["convolution_1.w"], t["convolution_1.b"])
        return F.prelu(given, t["prelu_1.w"])

    check_network(net, y, twin)


B_SHAPES = [SHAPE, (3,), (1, 3, 1, 1), (2, 1, 1, 1), (2, 3, 1, 1), (2, 3), (1,), (1, 1, 1, 1)]


def as_broadcast(b):
    if b.ndim == 1:
        return b.reshape(1, -1, 1, 1)
    return b.reshape(*b.shape, 1, 1) if b.ndim == 2 else b


@pytest.mark.parametrize("b_shape", B_SHAPES, ids=str)
@pytest.mark.parametrize("op", ["add", "multiply"])
def test_with_what_is_broadcast(op, b_shape):
    net, x = network_on()
    b = net.input("b", b_shape, "float64", gradient=True)
    a, b = net.activation(x, "tanh"), net.activation(b, "sigmoid") if len(b_shape) > 1 else b
    y = getattr(net, op)(a, b)

    def twin(t):
        met = torch.sigmoid(t["b"]) if len(b_shape) > 1 else t["b"]
        return getattr(torch, {"multiply": "mul"}.get(op, op))(
            torch.tanh(t["x"]), as_broadcast(met)
        )

    check_network(net, y, twin)


def test_squeeze_and_excitation():
    """A map times what is computed from it; one product's operands are the same tensor."""
    net, x = network_on((2, 4, 5, 3))
    h = net.multiply(net.activation(x, "tanh"), net.activation(x, "tanh"))
    gate = net.activation(net.linear(net.global_average(h), 4), "hardsigmoid")
    y = net.multiply(net.add(net.multiply(h, gate), h), h)

    def twin(t):
        h = torch.tanh(t["x"]) ** 2
        gate = F.linear(h.mean((2, 3)), t["linear_1.w"].flatten(1), t["linear_1.b"])
        gate = F.relu6(gate + 3) / 6
        return (h * gate[:, :, None, None] + h) * h

    check_network(net, y, twin)


@pytest.mark.parametrize("same", ["add", "multiply"])
def test_a_tensor_with_itself(same):
    net, x = network_on()
    h = net.activation(x, "tanh")
    y = getattr(net, same)(h, h)
    check_network(
        net, y, lambda t: torch.tanh(t["x"]) * (2 if same == "add" else torch.tanh(t["x"]))
    )


def test_numbers():
    net, x = network_on()
    y = net.multiply(net.add(net.activation(x, "tanh"), -0.5), np.float32(3))
    assert net.running["add_1.constant"].tolist() == [-0.5]

    def twin(t):
        return (torch.tanh(t["x"]) + t["add_1.constant"]) * t["multiply_1.constant"]

    check_network(net, y, twin)


def test_quotients():
    net, x = network_on()
    y = net.divide(net.divide(net.activation(x, "tanh"), -0.75), 3)
    assert net.running["divide_1.constant"].tolist() == [-0.75]

    def twin(t):
        return torch.tanh(t["x"]) / t["divide_1.constant"] / t["divide_2.constant"]

    check_network(net, y, twin)


@pytest.mark.parametrize("b_shape", [(2, 3, 4, 5), (3,), (1,), (2, 1, 4, 5), (2, 3), (2, 3, 1, 1)])
def test_quotients_of_maps(b_shape):
    net, x = network_on()
    b = net.input("b", b_shape, "float64", gradient=True)
    y = net.divide(net.activation(x, "tanh"), b)
    wide = {1: (1, -1, 1, 1), 2: (*b_shape, 1, 1)}.get(len(b_shape), b_shape)
    check_network(net, y, lambda t: torch.tanh(t["x"]) / t["b"].reshape(wide))


@pytest.mark.parametrize("op", ["add", "multiply", "divide"])
@pytest.mark.parametrize("value", [1e5, 0.1, 1e-8, 3.0, float("inf"), float("nan")])
def test_a_number_is_not_rounded_to_a_half_type(op, value):
    """What float16 does not hold is a factor of one, in float32."""
    net = ooc_cudnn.Network()
    x = net.input("x", (1, 2, 4), "float16")
    y = getattr(net, op)(x, value)
    data = np.linspace(-3, 60_000, 8, dtype="f2").reshape(1, 2, 4)
    with np.errstate(all="ignore"):
        ufunc = {"add": np.add, "multiply": np.multiply, "divide": np.divide}[op]
        expected = ufunc(data.astype("f4"), np.float32(value)).astype("f2")
    with ooc_cudnn.settings(device="host", machine="host"):
        found = net.forward(y, x=data)
    np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("b_shape", [(4,), (1, 3, 4, 1), (3, 2)], ids=str)
def test_what_does_not_fit_is_named(b_shape):
    net, x = network_on()
    with pytest.raises(ValueError, match=r"add_1: b must have the shape of a"):
        net.add(x, net.input("b", b_shape, "float64"))


@pytest.mark.parametrize("stored", ["uint8", "int8", "uint16", "int16"])
def test_images(stored):
    net = ooc_cudnn.Network()
    x = net.input("x", SHAPE, stored)
    h = net.image(x, mean=[10, 20, 30], scale=1 / 16, dtype="float64")
    y = net.convolution(h, 4, window=3)
    most = np.iinfo(stored)
    random = np.random.default_rng(0)
    given = random.integers(max(most.min, -200), min(most.max, 200), SHAPE, stored)

    def twin(t):
        mean, scale = t["image_1.mean"].reshape(3, 1, 1), t["image_1.scale"]
        h = (t["x"].to(torch.float64) - mean) * scale
        return F.conv2d(h, t["convolution_1.w"], t["convolution_1.b"])

    check_network(net, y, twin, inputs={"x": given})
    # inference makes no map of floats
    assert [len(phase.call.operations) for phase in fuse_chains(net.forward_phases(y)).phases] == [
        3
    ]
    with pytest.raises(TypeError, match="image_2: x must be one of uint8, int8, uint16, int16"):
        net.image(h)
    with pytest.raises(ValueError, match="one per channel"):
        net.image(x, mean=[1, 2])


def test_values_of_the_seed_are_drawn_once():
    net, x = network_on()
    net.dropout(x, 0.5)
    net.dropout(x, 0.5)
    one, two = (net.running[f"dropout_{at}.state"] for at in (1, 2))
    assert one[0] != two[0]
    assert values(net)["dropout_1.state"].dtype == np.int64
