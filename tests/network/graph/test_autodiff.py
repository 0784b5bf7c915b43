"""Backward as a rewrite of the graph: what is made, what is not, and where it goes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ooc_cudnn
from tests.support.network_checks import check_network


@pytest.fixture
def net():
    return ooc_cudnn.Network()


def start(net, channels=4):
    """An input and its first convolution."""
    x = net.input("x", (2, 3, 5, 6), "float64", gradient=True)
    return x, net.convolution(x, channels, window=3, padding=1, name="first")


def convolved(t, x, name):
    return F.conv2d(x, t[f"{name}.w"], t[f"{name}.b"], padding=1)


def writers(step, tensor):
    return [phase.name for phase in step.phases if tensor in phase.writes]


def test_several_consumers_add_up_in_place(net):
    _, h = start(net)
    parts = [net.convolution(h, 4, window=3, padding=1, name=name) for name in "abc"]
    y = net.add(net.add(parts[0], parts[1]), parts[2])

    def twin(t):
        h = convolved(t, t["x"], "first")
        return sum(convolved(t, h, name) for name in "abc")

    step = check_network(net, y, twin)
    assert writers(step, "first.gradient") == [f"{name} data gradient" for name in "cba"]
    assert [phase.call.beta for phase in step.phases if "first.gradient" in phase.writes] == [
        0,
        1,
        1,
    ]


def test_a_sum_hands_its_gradient_on_without_a_phase(net):
    """And it is not changed while the other operand's maker has yet to read it."""
    _, h = start(net)
    for depth in range(3):
        h = net.add(net.convolution(h, 4, window=3, padding=1, name=f"inner_{depth}"), h)

    def twin(t):
        h = convolved(t, t["x"], "first")
        for depth in range(3):
            h = convolved(t, h, f"inner_{depth}") + h
        return h

    check_network(net, h, twin)


def test_what_the_user_gives_is_not_written(net):
    x, h = start(net)
    y = net.add(net.convolution(h, 4, window=3, padding=1, name="inner"), h)
    step = net.gradient_phases(y)
    assert writers(step, step.seeds[y.name]) == []
    # and neither is the gradient of an input that asks, once it is handed on
    z = net.input("z", h.shape, "float64", gradient=True)
    total = net.add(net.convolution(z, 4, window=3, padding=1, name="last"), net.add(z, h))
    check_network(
        net,
        total,
        lambda t: convolved(t, t["z"], "last") + t["z"] + convolved(t, t["x"], "first"),
    )
    assert x.kind == "input"


def test_one_tensor_twice(net):
    _, h = start(net)
    y = net.concatenate([net.add(h, h), h, h])

    def twin(t):
        h = convolved(t, t["x"], "first")
        return torch.cat([2 * h, h, h], 1)

    check_network(net, y, twin)


def test_shared_parameters_add_up(net):
    _, h = start(net)
    a = net.convolution(h, 4, window=3, padding=1, name="a")
    w, b = net.graph.tensors["a.w"], net.graph.tensors["a.b"]
    y = net.convolution(a, 4, window=3, padding=1, w=w, b=b, name="again")
    assert "again.w" not in net.parameters

    def twin(t):
        return convolved(t, convolved(t, convolved(t, t["x"], "first"), "a"), "a")

    step = check_network(net, y, twin)
    assert writers(step, "a.w.gradient") == ["again filter gradient", "a filter gradient"]


def test_shared_scale_adds_up(net):
    _, h = start(net)
    a = net.batch_normalization(h, name="a")
    y = net.batch_normalization(
        net.activation(a),
        scale=net.graph.tensors["a.scale"],
        bias=net.graph.tensors["a.bias"],
        name="b",
    )

    def norm(t, x, name):
        running = t[f"{name}.running_mean"], t[f"{name}.running_variance"]
        return F.batch_norm(x, *running, t["a.scale"], t["a.bias"], t.training)

    check_network(
        net, y, lambda t: norm(t, torch.relu(norm(t, convolved(t, t["x"], "first"), "a")), "b")
    )


def test_frozen_parameters_cost_nothing(net):
    x = net.input("x", (2, 3, 5, 6), "float64")
    h = net.activation(net.convolution(x, 4, window=3, padding=1, name="a"))
    h = net.activation(net.convolution(h, 4, window=3, padding=1, name="b"))
    y = net.convolution(h, 4, window=3, padding=1, name="c")

    def twin(t):
        h = torch.relu(convolved(t, torch.relu(convolved(t, t["x"], "a")), "b"))
        return convolved(t, h, "c")

    net.freeze("a", "b.w")
    assert net.wanted == ("b.b", "c.w", "c.b")
    step = check_network(net, y, twin)
    backward = [phase.name for phase in step.phases[step.forward_count :]]
    assert backward == [
        "c bias gradient", "c filter gradient", "c data gradient", "activation_2 data gradient",
        "b bias gradient",
    ]  # fmt: skip
    kept = {name for phase in step.phases[step.forward_count :] for name in phase.reads}
    assert not kept & {"x", "a", "activation_1", "b"}
    net.unfreeze("a.b")
    assert "a.b" in check_network(net, y, twin).gradients
    with pytest.raises(ValueError, match="'d' is neither a parameter nor a node"):
        net.freeze("d")


def test_what_the_loss_does_not_need_is_left_out(net):
    _, h = start(net)
    net.convolution(h, 8, window=3, name="aside")
    step = net.gradient_phases(net.activation(h))
    assert {phase.node for phase in step.phases} == {"first", "activation_1"}
    assert "aside.w" not in step.gradients


def test_concatenation_is_a_view_of_one_buffer(net):
    x, h = start(net)
    a = net.activation(h)
    joined = net.concatenate([h, a, x])
    dense = net.concatenate([joined, net.convolution(joined, 2, window=3, padding=1, name="b")])
    y = net.convolution(dense, 2, window=1, name="c")

    def twin(t):
        h = convolved(t, t["x"], "first")
        joined = torch.cat([h, torch.relu(h), t["x"]], 1)
        dense = torch.cat([joined, convolved(t, joined, "b")], 1)
        return F.conv2d(dense, t["c.w"], t["c.b"])

    step = check_network(net, y, twin)
    copies = [phase.name for phase in step.phases if "copy" in phase.name]
    assert copies == ["concatenate_1 copy of x"]  # an input is where it is
    assert step.base("activation_1") == "concatenate_2"
    assert step.place("activation_1").region[1] == (4, 8)
    assert step.base("first.gradient") == "concatenate_2.gradient"


def test_what_has_its_place_in_one_concatenation_is_copied_to_another(net):
    _, h = start(net)
    y = net.concatenate([net.concatenate([h, h]), h])

    def twin(t):
        h = convolved(t, t["x"], "first")
        return torch.cat([h, h, h], 1)

    check_network(net, y, twin)


def test_a_loss_is_one_number(net):
    _, h = start(net)
    with pytest.raises(ValueError, match=r"the loss must be one number, but first has shape"):
        net.training_phases(h)
    loss = net.linear(net.pooling(h, window=(5, 6), mode="average_include_padding"), 1)
    with pytest.raises(ValueError, match="linear_1 has shape"):
        net.training_phases(loss)


def test_running_statistics_stay_in_inference(net):
    _, h = start(net)
    y = net.batch_normalization(h, name="norm")
    names = {"norm.running_mean", "norm.running_variance"}
    assert not names & {n for phase in net.forward_phases(y).phases for n in phase.writes}
    assert [p.name for p in net.gradient_phases(y).phases if names & set(p.writes)] == [
        "norm running statistics"
    ]


def test_settings_of_the_step_count(net):
    _, h = start(net)
    with ooc_cudnn.settings(allow_tf32=False, deterministic=True):
        step = net.gradient_phases(h)
    operation = step.phases[0].call.operations[0]
    assert (operation.allow_tf32, operation.deterministic) == (False, True)
    assert np.all([not p.call.forward.allow_tf32 for p in step.phases if "data" in p.name])
