"""Attention in networks: nodes against PyTorch, steps under falling limits, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ooc_cudnn
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.passes.remat_for_backward import rematerializable, rematerialize
from tests.support.interpreter import run_step
from tests.support.network_checks import assert_close, check_network, sizes_of, twin_step, values
from tests.support.sampling import number


def by_pytorch(q, k, v, bias=None, **told):
    """Of (n, depth, heads, queries), or without heads; a mask is of bytes."""
    heads = [(x if x.ndim == 4 else x[:, :, None]).permute(0, 2, 3, 1) for x in (q, k, v)]
    group = heads[0].shape[1] // heads[1].shape[1]
    heads[1:] = [each.repeat_interleave(group, 1) for each in heads[1:]]
    if bias is not None:  # PyTorch wants two axes
        bias = bias != 0 if bias.dtype == torch.uint8 else bias
        bias = bias if bias.ndim > 1 else bias[None]
    y = F.scaled_dot_product_attention(*heads, bias, **told).permute(0, 3, 1, 2)
    return y.reshape(q.shape[0], v.shape[1], *q.shape[2:])


FORMS = {
    "heads": ((2, 4, 3, 5), (2, 4, 3, 7), (2, 6, 3, 7), None, {}),
    "no heads": ((2, 4, 5), (2, 4, 7), (2, 3, 7), None, {"scale": 0.3}),
    "shared keys": ((2, 4, 6, 5), (2, 4, 2, 7), (2, 3, 2, 7), None, {}),
    "causal": ((2, 4, 2, 6), (2, 4, 2, 6), (2, 4, 2, 6), None, {"causal": True}),
    "a bias of heads": ((3, 4, 2, 5), (3, 4, 2, 5), (3, 4, 2, 5), (2, 5, 5), {}),
    "a bias of images": ((3, 4, 2, 5), (3, 4, 2, 6), (3, 4, 2, 6), (3, 1, 1, 6), {}),
    "a bias of keys": ((3, 4, 2, 5), (3, 4, 2, 6), (3, 4, 2, 6), (6,), {}),
    "windows": ((6, 4, 2, 5), (6, 4, 2, 5), (6, 4, 2, 5), (2, 5, 5), {"images": 3}),
    "one query": ((2, 4, 2, 1), (2, 4, 2, 9), (2, 4, 2, 9), None, {}),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("declared", ["parameter", "input"])
def test_gradients_are_autograd(name, declared):
    *shapes, bias, told = FORMS[name]
    net = ooc_cudnn.Network()
    q, k, v = (
        net.input(each, shape, "float64", gradient=True)
        for each, shape in zip("qkv", shapes, strict=True)
    )
    added = None
    if bias is not None and declared == "parameter":
        added = net.parameter("bias", bias, "float64")
    elif bias is not None:
        added = net.input("bias", bias, "float64", gradient=True)
    y = net.attention(net.activation(q, "tanh"), k, v, bias=added, **told)
    assert y.shape == (shapes[0][0], shapes[2][1], *shapes[0][2:])
    named = {"causal": "is_causal", "scale": "scale"}
    as_pytorch = {named[each]: value for each, value in told.items() if each in named}

    def twin(t):
        met = t["bias"] if bias is not None else None
        return by_pytorch(torch.tanh(t["q"]), t["k"], t["v"], met, **as_pytorch)

    check_network(net, y, twin)


def test_a_mask_has_no_gradient():
    net = ooc_cudnn.Network()
    q = net.input("q", (2, 4, 3, 5), "float64", gradient=True)
    mask = net.input("mask", (2, 1, 5, 5), "uint8")
    y = net.attention(q, q, q, bias=mask)
    seen = np.random.default_rng(0).integers(0, 2, (2, 1, 5, 5)).astype("u1")
    seen[0, 0, 2] = 0  # a query that sees nothing
    check_network(
        net, y, lambda t: by_pytorch(t["q"], t["q"], t["q"], t["mask"]), inputs={"mask": seen}
    )


def network(**told):
    """Attention of maps that convolutions make, between others."""
    net = ooc_cudnn.Network(seed=1)
    x = net.input("x", (6, 3, 4, 10), "float64", gradient=True)
    labels = net.input("labels", (6,), "int64")
    h = net.activation(net.convolution(x, 8, window=1))
    q, k, v = (net.convolution(h, 8, window=1, bias=False) for _ in range(3))
    bias = net.parameter("bias", (4, 10, 10), "float64")
    h = net.add(net.attention(q, k, v, bias=bias, **told), h)
    h = net.attention(h, h, net.convolution(h, 5, window=1), **told)
    return net, net.softmax_cross_entropy(net.linear(net.global_average(h), 5), labels)


def twin(causal):
    def convolved(t, x, at):
        return F.conv2d(x, t[f"convolution_{at}.w"], t.tensors.get(f"convolution_{at}.b"))

    def made(t):
        h = torch.relu(convolved(t, t["x"], 1))
        q, k, v = (convolved(t, h, at) for at in (2, 3, 4))
        bias = t["bias"]
        if causal:
            unseen = torch.ones(10, 10, dtype=torch.bool).triu(1)
            bias = bias.masked_fill(unseen, -torch.inf)
        h = by_pytorch(q, k, v, bias) + h
        h = by_pytorch(h, h, convolved(t, h, 5), is_causal=causal)
        logits = F.linear(h.mean((2, 3)), t["linear_1.w"], t["linear_1.b"])
        return F.cross_entropy(logits, t["labels"])

    return made


@pytest.mark.parametrize("causal", [False, True])
def test_steps_under_falling_limits(causal, few_plans):
    net, loss = network(causal=causal)
    given = values(net, inputs={"labels": np.arange(6) % 5})
    for name in net.parameters:
        net.parameters[name] = given[name]
    expected, gradients, _ = twin_step(net, loss, twin(causal), given, np.ones(1))
    inputs = {name: given[name] for name in ("x", "labels")}

    def check(limit, policy="best", **asked):
        step = net.training_step(loss, memory_limit=limit, policy=policy, **asked)
        assert_close(np.asarray(step(**inputs)), expected, "loss")
        for name, gradient in gradients.items():
            assert_close(
                np.asarray(step.gradients[name]), gradient, name, least=sizes_of(gradients)
            )
        assert step.plan.device_bytes <= limit
        return step.plan

    with ooc_cudnn.settings(device="host", machine="host"):
        full = check(2**30, "keep").device_bytes
        with pytest.raises(PlanInfeasibleError) as error:
            net.plan(loss, memory_limit=1)
        least = error.value.smallest_bytes
        assert least < full / 3
        for limit in number((least,), of=(least, (3 * least + full) // 4, (least + full) // 2)):
            assert check(limit).device_bytes <= limit
        check((least + full) // 2, "remake")
        for parts in number((3,), of=(2, 3)):
            plan = net.plan(loss, memory_limit=full, micro_batches=parts)
            assert check(full, plan=plan).device_bytes <= full


def test_y_is_made_again_and_with_it_what_is_saved_of_rows():
    net = ooc_cudnn.Network()
    q, k, v = (net.input(each, (2, 4, 3, 5), "float64", gradient=True) for each in "qkv")
    y = net.activation(net.attention(net.activation(q, "tanh"), k, v), "tanh")
    again = {"activation_1", "attention_1"}

    def run(step, *given):
        if any(phase.is_backward for phase in step.phases):
            assert rematerializable(step) >= {*again, "attention_1.lse"}
            step = rematerialize(step, again)
            assert "attention_1 forward again" in [phase.name for phase in step.phases]
        return run_step(step, *given)

    check_network(
        net, y, lambda t: torch.tanh(by_pytorch(torch.tanh(t["q"]), t["k"], t["v"])), run=run
    )


def test_rows_of_one_head_are_made_again_beside_y_and_not_in_it():
    """Without an axis of heads y is written as a view; a step that pauses has given it before."""
    net = ooc_cudnn.Network()
    q, k, v = (net.input(each, (2, 4, 5), "float64", gradient=True) for each in "qkv")
    y = net.attention(net.activation(q, "tanh"), k, v)
    step = net.pausing_phases(y)
    rewritten = rematerialize(step, {"activation_1", "attention_1.lse"})
    again = [phase for phase in rewritten.phases if phase.name.endswith("again")]
    assert len(again) == 2

    def written(phases):
        return {rewritten.base(name) for phase in phases for name in phase.writes}

    assert len(written(again)) == 3
    assert not written(again) & written(step.phases[: step.forward_count])


@pytest.mark.parametrize(
    ("shapes", "told", "error"),
    [
        (((2, 4, 3, 5), (2, 4, 2, 5), (2, 4, 2, 5)), {}, "must divide the 3 of q, not be 2"),
        (((2, 4, 3, 5), (2, 5, 3, 5), (2, 4, 3, 5)), {}, r"k must have shape \(2, 4, key heads"),
        (((2, 4, 3, 5), (2, 4, 3, 5), (2, 4, 3, 6)), {}, "v must have shape"),
        (((2, 4, 3, 5), (3, 4, 3, 5), (3, 4, 3, 5)), {}, "k must have shape"),
        (((2, 4), (2, 4), (2, 4)), {}, r"q must have shape \(n, depth, heads"),
        (((4, 2, 3, 5),) * 3, {"images": 3}, "images must divide 4"),
    ],
)
def test_bad_shapes_are_refused(shapes, told, error):
    net = ooc_cudnn.Network()
    q, k, v = (net.input(each, shape) for each, shape in zip("qkv", shapes, strict=True))
    with pytest.raises(ValueError, match=error):
        net.attention(q, k, v, **told)
    assert list(net.graph.tensors) == ["q", "k", "v"]


def test_bad_dtypes_and_biases_are_refused():
    net = ooc_cudnn.Network()
    q, wide = net.input("q", (2, 4, 3, 5)), net.input("wide", (2, 4, 3, 5), "float64")
    with pytest.raises(TypeError, match="k must be float32 as q, but wide is float64"):
        net.attention(q, wide, q)
    with pytest.raises(TypeError, match="bias must be float32 or uint8, but wide is float64"):
        net.attention(q, q, q, bias=wide)
    with pytest.raises(ValueError, match=r"broadcast to the scores \(2, 3, 5, 5\)"):
        net.attention(q, q, q, bias=net.input("long", (6, 5)))
    half = net.input("half", (2, 4, 3, 5), "float16")
    assert net.attention(half, half, half, bias=net.input("float32s", (5, 5))).dtype == "float16"


def test_heads_and_channels():
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 12, 5), "float64", gradient=True)
    heads = net.split_heads(x, 3)
    assert heads.shape == (2, 4, 3, 5)
    y = net.join_heads(net.activation(heads, "tanh"))
    check_network(net, y, lambda t: torch.tanh(t["x"]))
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 12, 5), "float64", gradient=True)

    def twin(t):
        return torch.tanh(t["x"].reshape(2, 3, 4, 5).transpose(1, 2))

    check_network(net, net.activation(net.split_heads(x, 3), "tanh"), twin)
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 4, 5), "float64", gradient=True)
    assert not net.forward_phases(net.activation(net.split_heads(x, 1))).phases[1:]  # a view


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_packed(bias, again):
    net = ooc_cudnn.Network()
    x = net.input("x", (3, 24, 5), "float64", gradient=True)
    h = net.activation(x, "tanh")
    added = net.parameter("bias", (2, 5, 5), "float64") if bias else None
    y = net.packed_attention(h, 2, bias=added, causal=not bias)
    y = net.add(net.join_heads(y), net.convolution(h, 8, window=1))  # h has another reader

    def run(step, *given):
        wanted = {"attention.q", "attention.v", "packed_attention_1", "packed_attention_1.k"}
        if again and any(phase.is_backward for phase in step.phases):
            step = rematerialize(step, wanted & rematerializable(step))
        return run_step(step, *given)

    def twin(t):
        h = torch.tanh(t["x"])
        q, k, v = h.reshape(3, 3, 2, 4, 5).transpose(2, 3).unbind(1)
        y = by_pytorch(q, k, v, t["bias"] if bias else None, is_causal=not bias)
        rest = F.conv1d(h, t["convolution_1.w"], t["convolution_1.b"])
        return y.transpose(1, 2).reshape(3, 8, 5) + rest

    check_network(net, y, twin, run=run)


@pytest.mark.every_case
def test_packed_steps_under_falling_limits(few_plans):
    net = ooc_cudnn.Network(seed=1)
    x = net.input("x", (6, 8, 10), "float64", gradient=True)
    h = net.convolution(x, 24, window=1)
    h = net.convolution(net.join_heads(net.packed_attention(h, 2)), 5, window=1)
    loss = net.mean_squared_error(h, net.input("target", h.shape, "float64"))
    given = values(net)
    for name in net.parameters:
        net.parameters[name] = given[name]
    inputs = {name: given[name] for name in ("x", "target")}
    with ooc_cudnn.settings(device="host", machine="host"):
        step = net.training_step(loss, memory_limit=2**30, policy="keep")
        step(**inputs)
        expected = {name: np.array(array) for name, array in step.gradients.items()}
        with pytest.raises(PlanInfeasibleError) as error:
            net.plan(loss, memory_limit=1)
        least, full = error.value.smallest_bytes, step.plan.device_bytes
        for limit, parts in ((least, 1), ((least + full) // 2, 1), (full, 3)):
            plan = net.plan(loss, memory_limit=limit, micro_batches=parts)
            step = net.training_step(loss, plan=plan)
            step(**inputs)
            for name, array in expected.items():
                assert_close(np.asarray(step.gradients[name]), array, name)


@pytest.mark.parametrize(
    ("add", "error"),
    [
        (lambda net, x: net.split_heads(x, 5), "heads must divide the 24 channels of x"),
        (lambda net, x: net.packed_attention(x, 5), r"3 \* heads must divide the 24 channels"),
        (lambda net, x: net.join_heads(x), r"x must have shape \(n, depth, heads, sites\)"),
    ],
)
def test_heads_that_do_not_divide_are_refused(add, error):
    net = ooc_cudnn.Network()
    with pytest.raises(ValueError, match=error):
        add(net, net.input("x", (2, 24, 5)))
