"""Steps with dropout, stored images, bits and indices: the same however they are planned."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn

SHAPE, CLASSES = (8, 3, 12, 12), 5


def network():
    net = ooc_cudnn.Network(seed=3)
    x, labels = net.input("x", SHAPE, "uint8"), net.input("labels", SHAPE[:1], "int64")
    h = net.image(x, mean=100, scale=1 / 64, dtype="float64")
    h = net.pooling(net.activation(net.convolution(h, 6, window=3, padding=1)), window=2)
    h = net.prelu(net.convolution(net.dropout(h, 0.3), 6, window=3), per_channel=True)
    gate = net.activation(net.linear(net.global_average(h), 6), "hardsigmoid")
    h = net.dropout(net.multiply(h, gate), 0.2, per_channel=True)
    logits = net.linear(net.global_average(h), CLASSES)
    return net, net.softmax_cross_entropy(logits, labels)


@pytest.fixture(scope="module")
def images():
    random = np.random.default_rng(0)
    return {
        "x": random.integers(0, 256, SHAPE).astype("uint8"),
        "labels": random.integers(0, CLASSES, SHAPE[0]),
    }


def two_steps(images, **how):
    """Losses of two steps, and gradients and running statistics after them."""
    net, loss = network()
    with ooc_cudnn.settings(device="host", machine="host"):
        step = net.training_step(loss, plan=net.plan(loss, **how))
        losses = [step(**images) for _ in range(2)]
        gradients = {name: np.array(step.gradients[name]) for name in net.parameters}
    return losses, gradients, {name: np.array(array) for name, array in net.running.items()}


@pytest.mark.every_case
def test_limits_and_micro_batches_drop_the_same(images, few_plans):
    losses, gradients, running = two_steps(images, memory_limit="4MiB", micro_batches=1)
    assert losses[0] != losses[1]  # another mask
    assert running["dropout_1.state"][1] == running["dropout_2.state"][1] == 2
    for limit, parts in (("130KiB", 1), ("4MiB", 4), ("100KiB", 3)):
        found = two_steps(images, memory_limit=limit, micro_batches=parts)
        np.testing.assert_allclose(found[0], losses, rtol=1e-13)
        for name, expected in gradients.items():
            error = np.abs(found[1][name] - expected).max()
            assert error <= 1e-12 * np.abs(expected).max(), (limit, parts, name)
        for name, expected in running.items():
            np.testing.assert_array_equal(found[2][name], expected)
