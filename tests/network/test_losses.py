"""Losses and linear layers beside PyTorch's autograd, in float64; and what they refuse."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ooc_cudnn
from tests.support.network_checks import check_network

SHAPES = [(4, 5), (2, 3, 4), (2, 3, 4, 5), (1, 3, 2, 3, 4)]


def network_on(shape):
    net = ooc_cudnn.Network()
    return net, net.input("x", shape, "float64", gradient=True)


def drawn_labels(shape, dtype="int64", ignored=-100):
    random = np.random.default_rng(3)
    labels = random.integers(0, shape[1], (shape[0], *shape[2:]))
    labels[random.random(labels.shape) < 0.2] = ignored
    labels.flat[0] = 1
    return labels.astype(dtype)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax_cross_entropy(shape, reduction):
    net, x = network_on(shape)
    labels = net.input("labels", (shape[0], *shape[2:]), "int64")
    weights = np.random.default_rng(4).uniform(0.5, 2, shape[1])
    loss = net.softmax_cross_entropy(
        x, labels, weights=weights, label_smoothing=0.1, reduction=reduction, name="loss"
    )
    assert (loss.shape, loss.dtype) == ((1,), "float64")

    def twin(t):
        return F.cross_entropy(
            t["x"], t["labels"], t["loss.weights"], reduction=reduction, label_smoothing=0.1
        )

    check_network(net, loss, twin, inputs={"labels": drawn_labels(shape)})


def test_labels_of_bytes_and_weights_that_are_an_input():
    shape = (2, 3, 4, 5)
    net, x = network_on(shape)
    labels, weights = net.input("labels", (2, 4, 5), "uint8"), net.input("w", (3,), "float64")
    loss = net.softmax_cross_entropy(x, labels, weights=weights, ignore_index=255)
    given = {"labels": drawn_labels(shape, "uint8", 255), "w": np.array([0.5, 2.0, 1.0])}

    def twin(t):
        return F.cross_entropy(t["x"], t["labels"].long(), t["w"], ignore_index=255)

    check_network(net, loss, twin, inputs=given)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sigmoid_cross_entropy(shape, reduction):
    net, x = network_on(shape)
    target = net.input("target", shape, "float64")
    random = np.random.default_rng(5)
    weight = random.uniform(0.5, 2, (shape[0], *[1] * (len(shape) - 1)))
    positive = random.uniform(0.5, 2, shape[1])
    loss = net.sigmoid_cross_entropy(
        x, target, weight=weight, positive_weight=positive, reduction=reduction, name="loss"
    )

    def twin(t):
        wide = t["loss.positive_weight"].reshape(-1, *[1] * (len(shape) - 2))
        return F.binary_cross_entropy_with_logits(
            t["x"], t["target"], t["loss.weight"], reduction=reduction, pos_weight=wide
        )

    check_network(net, loss, twin, inputs={"target": random.uniform(0, 1, shape)})


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mean_squared_error_of_two_maps(shape, reduction):
    net, x = network_on(shape)
    other = net.activation(net.input("z", shape, "float64", gradient=True), "tanh")
    loss = net.mean_squared_error(x, other, reduction=reduction)
    check_network(net, loss, lambda t: F.mse_loss(t["x"], torch.tanh(t["z"]), reduction=reduction))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_class_sums(shape):
    net, x = network_on(shape)
    labels = net.input("labels", (shape[0], 1, *shape[2:]), "int64")
    y = net.softmax_class_sums(x, labels)
    assert y.shape == (shape[0], 3 * shape[1])
    numbers = np.random.default_rng(3).integers(0, shape[1], labels.shape)

    def twin(t):
        p = t["x"].softmax(1)
        is_of = torch.zeros_like(p).scatter(1, t["labels"], 1)
        sums = (p * is_of, p, is_of)
        return torch.cat([each.flatten(2).sum(2) if each.ndim > 2 else each for each in sums], 1)

    check_network(net, y, twin, inputs={"labels": numbers})


def test_labels_of_class_sums_are_refused_where_they_are_none():
    net, x = network_on((2, 3, 4, 4))
    labels = net.input("labels", (2, 4, 4), "int64")
    with pytest.raises(ValueError, match=r"must have shape \(2, 1, 4, 4\), but labels has"):
        net.softmax_class_sums(x, labels)
    with pytest.raises(TypeError, match="labels must be one of"):
        net.softmax_class_sums(x, x)


def test_losses_of_several_heads_add_up():
    net, x = network_on((4, 3, 2, 2))
    labels = net.input("labels", (4,), "int64")
    heads = [net.softmax_cross_entropy(net.linear(x, 5), labels) for _ in range(3)]
    loss = net.total_loss([*heads, heads[0]], (1, 0.3, 0.3, 0.5))

    def twin(t):
        found = [
            F.cross_entropy(F.linear(t["x"].flatten(1), t[f"{n}.w"], t[f"{n}.b"]), t["labels"])
            for n in ("linear_1", "linear_2", "linear_3")
        ]
        return 1.5 * found[0] + 0.3 * found[1] + 0.3 * found[2]

    check_network(net, loss, twin, inputs={"labels": np.array([0, 4, 2, 2])})
    assert check_network(net, net.total_loss(heads), lambda t: 2 / 3 * sum(
        F.cross_entropy(F.linear(t["x"].flatten(1), t[f"{n}.w"], t[f"{n}.b"]), t["labels"]) * 1.5
        for n in ("linear_1", "linear_2", "linear_3")
    ), inputs={"labels": np.array([0, 4, 2, 2])})  # fmt: skip


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 1, 1), (2, 3, 4, 5), (1, 2, 3)], ids=str)
def test_flatten(shape):
    net, x = network_on(shape)
    y = net.flatten(net.activation(x, "tanh"))
    step = check_network(net, y, lambda t: torch.tanh(t["x"]).flatten(1))
    # Where only axes of 1 go, nothing is copied.
    assert len(step.phases) == (2 if max(shape[2:], default=1) == 1 else 4)


def test_what_losses_refuse():
    net, x = network_on((2, 3, 4, 4))
    labels, flat = net.input("labels", (2, 4, 4), "int64"), net.input("flat", (2,), "int64")
    target = net.input("target", (2, 3, 4, 4), "float64")
    narrow = net.input("narrow", (2, 3, 4, 4), "float32")
    entropy = net.softmax_cross_entropy
    for error, said, build in (
        (TypeError, "labels must be one of uint8", lambda: entropy(x, target)),
        (ValueError, r"labels must have shape \(2, 4, 4\)", lambda: entropy(x, flat)),
        (ValueError, "reduction must be", lambda: entropy(x, labels, reduction="none")),
        (ValueError, "label_smoothing", lambda: entropy(x, labels, label_smoothing=1.5)),
        (TypeError, "ignore_index", lambda: entropy(x, labels, ignore_index=0.5)),
        (ValueError, r"weights must have shape \(3,\)", lambda: entropy(x, labels,
                                                                        weights=np.ones(4))),
        (TypeError, "weights must be float64", lambda: entropy(x, labels,
                                                               weights=np.ones(3, "f4"))),
        (TypeError, "target must be float64", lambda: net.mean_squared_error(x, narrow)),
        (ValueError, "target must have shape", lambda: net.mean_squared_error(
            x, net.pooling(x, window=2))),
        (TypeError, "losses must be a list", lambda: net.total_loss(x)),
        (ValueError, "1 losses and 2 factors", lambda: net.total_loss(
            [net.mean_squared_error(x, target)], (1, 2))),
    ):  # fmt: skip
        known = set(net.graph.tensors)
        with pytest.raises(error, match=said):
            build()
        assert not [name for name in set(net.graph.tensors) - known if "cross" in name]
    with pytest.raises(ValueError, match="sigmoid_cross_entropy_1: its target, x, has no gradient"):
        net.training_phases(net.sigmoid_cross_entropy(target, x))
