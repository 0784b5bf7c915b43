"""Gradients of activations in the memory of what they are made of: fewer bytes, the same bits."""

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import networks
from ooc_cudnn.network.passes.compress_activations import compress_activations
from ooc_cudnn.network.passes.inplace_gradients import share_gradient_memory
from ooc_cudnn.network.policies.policy import keep
from ooc_cudnn.network.policies.vdnn import vdnn_all
from tests.support.interpreter import run_step
from tests.support.network_checks import values


def most_bytes(step, residency=vdnn_all):
    """The most that lives at once, the inputs of layers on the host meanwhile."""
    held = np.zeros(len(step.phases), np.int64)
    for name, live_ranges in residency(step).items():
        for live_range in live_ranges:
            held[live_range.first : live_range.last + 1] += step.tensors[name].nbytes
    return held.max()


def branching():
    """Gradients that are read after an activation's: by another branch, a view, a sum."""
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 3, 4, 4), "float64", gradient=True)
    h = net.activation(net.convolution(x, 4, window=3, padding=1), "tanh")
    left, right = net.activation(h, "relu"), net.activation(h, "gelu")
    joined = net.activation(net.concatenate([left, net.add(right, h)]), "sigmoid")
    target = net.input("target", joined.shape, "float64")
    return net, net.mean_squared_error(net.activation(joined, "elu"), target)


def normalised():
    """A gradient that each kind of normalization makes of one that nobody reads any more."""
    net = ooc_cudnn.Network()
    x = net.input("x", (3, 4, 6, 5), "float64")
    h = net.layer_normalization(net.instance_normalization(x))
    for at, make in enumerate(
        (
            net.batch_normalization,
            lambda h: net.group_normalization(h, 2),
            net.layer_normalization,
            net.instance_normalization,
            lambda h: net.local_response_normalization(h, 3),
        )
    ):
        h = make(net.convolution(h, 4, window=3, padding=1, name=f"c{at}"))
        h = net.activation(h, ("relu", "gelu", "tanh", "identity", "sigmoid")[at])
    target = net.input("target", h.shape, "float64")
    return net, net.mean_squared_error(h, target)


@pytest.mark.parametrize(
    "make",
    [
        branching,
        normalised,
        lambda: networks.vgg16(2, 32, "float64", 3, width=1 / 16),
        lambda: networks.googlenet(2, 96, "float64", 3, width=1 / 8),
        lambda: networks.resnet50(2, 32, "float64", 3, width=1 / 16),
    ],
    ids=["branching", "normalised", "vgg16", "googlenet", "resnet50"],
)
def test_the_same_gradients_of_fewer_bytes(make):
    net, loss = make()
    step = net.training_phases(loss)
    made = share_gradient_memory(step)
    assert len(made.tensors) < len(step.tensors)
    assert most_bytes(made) <= most_bytes(step)
    assert most_bytes(made, keep) <= most_bytes(step, keep)
    images = {n: t.shape for n, t in net.graph.tensors.items() if n == "labels"}
    labels = {name: np.arange(np.prod(shape)).reshape(shape) % 3 for name, shape in images.items()}
    arrays = [run_step(each, values(net, 3, labels)) for each in (step, made)]
    for name in step.outputs:
        assert arrays[0][name].tobytes() == arrays[1][name].tobytes()
    for name, gradient in step.gradients.items():
        assert arrays[0][gradient].tobytes() == arrays[1][made.gradients[name]].tobytes(), name


def test_the_widest_layers_hold_three_maps_and_not_four():
    """The input of a convolution, y and dy of the activation after it; and not dx of that, too."""
    net = ooc_cudnn.Network()
    x, labels = net.input("x", (8, 3, 32, 32)), net.input("labels", (8,), "int64")
    for name in ("first", "second"):
        x = net.activation(net.convolution(x, 16, window=3, padding=1), "tanh", name=name)
    x = net.linear(net.pooling(x, window=2), 10)
    step = compress_activations(net.training_phases(net.softmax_cross_entropy(x, labels)))
    assert (
        most_bytes(step) - most_bytes(share_gradient_memory(step))
        > 0.6 * step.tensors["first"].nbytes
    )


def test_windows_that_no_kernel_keeps_are_not_in_place():
    """Of a wide window each channel is read again for those around it."""
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 40, 4, 4), "float64", gradient=True)
    h = net.activation(net.local_response_normalization(net.activation(x, "tanh"), 18), "tanh")
    loss = net.mean_squared_error(h, net.input("target", h.shape, "float64"))
    step = net.training_phases(loss)
    (phase,) = (each for each in share_gradient_memory(step).phases if "local_response" in each.name
                and each.is_backward)  # fmt: skip
    assert phase.binds["dx"] != phase.binds["dy"]


@pytest.mark.parametrize(
    ("make", "limit"),
    [(branching, "150kB"), (branching, "40MB"), (normalised, "12kB"), (normalised, "40MB")],
)
def test_steps_run_in_place(make, limit, few_plans):
    """Whether tensors stay on the device or are streamed."""
    net, loss = make()
    random = np.random.default_rng(5)
    given = {
        name: random.standard_normal(net.graph.tensors[name].shape) for name in ("x", "target")
    }
    expected = run_step(net.training_phases(loss), {**values(net, 3), **net.parameters, **given})
    with ooc_cudnn.settings(device="host", machine="host"):
        step = net.training_step(loss, memory_limit=limit)
        value = step(**given)
    assert value == pytest.approx(expected[loss.name][0], rel=1e-13)
    for name, gradient in net.training_phases(loss).gradients.items():
        np.testing.assert_allclose(step.gradients[name], expected[gradient], rtol=1e-10, atol=1e-13)
