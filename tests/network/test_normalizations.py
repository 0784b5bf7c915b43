"""Normalizations in networks beside PyTorch's autograd, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ooc_cudnn
from ooc_cudnn.network.passes.microbatch import split_into_microbatches
from ooc_cudnn.network.passes.remat_for_backward import rematerializable, rematerialize
from ooc_cudnn.operations.normalization.batch_two_phase import ChannelMomentsCall
from tests.support.interpreter import run_step
from tests.support.network_checks import check_network

SHAPES = [(4, 6), (3, 4, 5), (2, 4, 4, 3), (2, 4, 2, 3, 2)]


def network_on(shape, *, gradient=True):
    net = ooc_cudnn.Network()
    return net, net.input("x", shape, "float64", gradient=gradient)


def batch_norm(t, x, name="norm"):
    running = t[f"{name}.running_mean"], t[f"{name}.running_variance"]
    return F.batch_norm(x, *running, t[f"{name}.scale"], t[f"{name}.bias"], t.training, 0.3, 1e-3)


def layer_norm(t, x):
    vectors = t["norm.scale"], t["norm.bias"]
    return F.layer_norm(x.movedim(1, -1), x.shape[1:2], *vectors, 1e-3).movedim(-1, 1)


def group_norm(groups):
    return lambda t, x: F.group_norm(x, groups, t["norm.scale"], t["norm.bias"], 1e-3)


#: A builder of "norm" on a tensor, and its twin.
CASES = {
    "batch": (
        lambda net, x: batch_norm_of(net, x, "norm"),
        batch_norm,
    ),
    "group": (
        lambda net, x: net.group_normalization(x, 2, epsilon=1e-3, name="norm"),
        group_norm(2),
    ),
    "instance": (
        lambda net, x: net.instance_normalization(x, epsilon=1e-3, name="norm"),
        lambda t, x: group_norm(x.shape[1])(t, x),
    ),
    "layer": (lambda net, x: net.layer_normalization(x, epsilon=1e-3, name="norm"), layer_norm),
    "layer of images": (
        lambda net, x: net.layer_normalization(x, over="image", epsilon=1e-3, name="norm"),
        group_norm(1),
    ),
}


@pytest.mark.parametrize(
    ("case", "shape"),
    # PyTorch refuses instances of one element.
    [(c, s) for c in CASES for s in SHAPES if (c, len(s)) != ("instance", 2)],
)
def test_normalization(case, shape):
    make, twin = CASES[case]
    net, x = network_on(shape)
    check_network(net, make(net, x), lambda t: twin(t, t["x"]))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients_add_up_at_a_fork(case, deterministic):
    """What is normalised is added to what comes out of it, and scale and bias are used twice."""
    make, twin = CASES[case]
    net, x = network_on(SHAPES[2])
    with ooc_cudnn.settings(deterministic=deterministic):
        h = make(net, x)
        y = net.add(net.activation(h, "tanh"), x)
        check_network(net, y, lambda t: twin(t, t["x"]).tanh() + t["x"])


@pytest.mark.parametrize("case", CASES)
def test_nobody_wants_the_gradient_of_an_input(case):
    make, twin = CASES[case]
    net, x = network_on(SHAPES[2], gradient=False)
    step = check_network(net, make(net, x), lambda t: twin(t, t["x"]))
    assert not any("data gradient" in phase.name for phase in step.phases)


@pytest.mark.parametrize("case", CASES)
def test_frozen_scale_and_bias_have_no_phase(case):
    make, twin = CASES[case]
    net, x = network_on(SHAPES[2])
    y = make(net, x)
    net.freeze("norm.scale", "norm.bias")
    step = check_network(net, y, lambda t: twin(t, t["x"]))
    assert not any("parameter gradients" in phase.name for phase in step.phases)


def test_running_statistics_are_updated_once_a_step():
    net, x = network_on(SHAPES[2])
    step = net.gradient_phases(CASES["batch"][0](net, x))
    written = [name for phase in step.phases for name in phase.writes]
    assert written.count("norm.running_mean") == written.count("norm.running_variance") == 1


def test_batch_statistics_are_phases_of_their_own():
    """So that what makes x may go on while images are summed, and y need never be whole."""
    net, x = network_on(SHAPES[2])
    step = net.gradient_phases(CASES["batch"][0](net, x))
    assert [phase.name.removeprefix("norm ") for phase in step.phases] == [
        "moments", "statistics", "running statistics", "forward",
        "sums", "parameter gradients", "data gradient",
    ]  # fmt: skip


def test_bad_arguments():
    net, x = network_on(SHAPES[2])
    with pytest.raises(ValueError, match="4 channels cannot be put in 3 equal groups"):
        net.group_normalization(x, 3)
    with pytest.raises(TypeError, match=r"groups must be an int, not 2\.0"):
        net.group_normalization(x, 2.0)
    with pytest.raises(ValueError, match="over must be channels or image, not 'sites'"):
        net.layer_normalization(x, over="sites")
    with pytest.raises(ValueError, match="epsilon must be from 0"):
        net.instance_normalization(x, epsilon=-1)


@pytest.mark.parametrize("parts", [2, 5])
def test_what_knows_no_other_image_goes_some_images_at_a_time(parts):
    """Group, instance and layer normalization, with what they normalise remade for backward."""
    net, x = network_on((5, 4, 5, 3))
    h = net.group_normalization(net.activation(x, "tanh"), 2, epsilon=1e-3, name="norm")
    vectors = {"scale": net.graph.tensors["norm.scale"], "bias": net.graph.tensors["norm.bias"]}
    h = net.layer_normalization(net.activation(h, "gelu"), epsilon=1e-3, name="site", **vectors)
    y = net.activation(net.instance_normalization(h, epsilon=1e-3, **vectors), "tanh")

    def twin(t):
        h = layer_norm(t, F.gelu(group_norm(2)(t, t["x"].tanh())))
        return group_norm(4)(t, h).tanh()

    def run(step, *given):
        return run_step(
            split_into_microbatches(rematerialize(step, {"norm", "site"}), parts), *given
        )

    assert {"norm", "site"} <= rematerializable(net.gradient_phases(y))
    check_network(net, y, twin, run=run, inference=False)


def test_statistics_of_a_concatenation_are_those_of_its_parts():
    """Each channel is gone through once, however many normalizations read it."""
    net, x = network_on((3, 2, 4, 3))
    first = batch_norm_of(net, net.convolution(x, 3, window=1, name="c0"), "n0")
    whole = net.graph.tensors["c0"]
    for at in (1, 2, 3):
        made = net.convolution(first, 2, window=1, name=f"c{at}")
        whole = net.concatenate([whole, made], name=f"all{at}")
        first = batch_norm_of(net, whole, f"n{at}")
    y = net.add(first, batch_norm_of(net, whole, "again"))

    def twin(t):
        def conv(h, name):
            return F.conv2d(h, t[f"{name}.w"], t[f"{name}.b"])

        whole = conv(t["x"], "c0")
        first = batch_norm(t, whole, "n0")
        for at in (1, 2, 3):
            whole = torch.cat([whole, conv(first, f"c{at}")], 1)
            first = batch_norm(t, whole, f"n{at}")
        return first + batch_norm(t, whole, "again")

    step = check_network(net, y, twin)
    gathered = [phase.call for phase in step.phases if isinstance(phase.call, ChannelMomentsCall)]
    assert [call.shape[1] for call in gathered] == [3, 2, 2, 2]


def batch_norm_of(net, x, name):
    return net.batch_normalization(x, epsilon=1e-3, exponential_average_factor=0.3, name=name)
