"""Bodies of functions of functions: where they compute, what they change, and what they say."""

import pytest
import torch

from ooc_cudnn.torch.tracing.bodies import Body, Bound, OnClones, text_of
from ooc_cudnn.torch.tracing.body_writes import writes_of


def graph_of(function):
    return torch.fx.symbolic_trace(function)


def makes_tensors():
    """The graph of `x.cpu().to("cpu") * (torch.ones(3) + torch.arange(3, device="cpu"))`."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    ones = graph.call_function(torch.ones, (3,))
    places = graph.call_function(torch.arange, (3,), {"device": torch.device("cpu")})
    moved = graph.call_method("to", (graph.call_method("cpu", (x,)), "cpu"))
    moved = graph.call_method("to", (moved, torch.device("cpu")))
    factor = graph.call_function(torch.add, (ones, places))
    graph.output(graph.call_function(torch.mul, (moved, factor)))
    return torch.fx.GraphModule({}, graph)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_body_makes_tensors_where_those_are_that_it_is_given(device):
    body = Body(makes_tensors())
    for function in (body, body.as_graph()):
        y = function(torch.full((3,), 2.0, device=device))
        assert y.device.type == device
        if device == "cpu":
            assert y.tolist() == [2, 4, 6]


def test_the_text_of_a_body_is_all_that_it_computes():
    one, other = (Body(graph_of(f)) for f in (lambda x: x * 2, lambda x: x * 3))
    assert str(one) != str(other)
    assert str(one) in text_of(one.as_graph()) != text_of(other.as_graph())
    assert str(Bound(one, (torch.ones(1), 4), {})) != str(Bound(one, (torch.ones(1), 5), {}))


def test_on_clones_tensors_stay_as_they_are():
    x = torch.ones(3)
    y, clone = OnClones(lambda x: x.add_(1) * 2, (0,))(x)
    assert x.tolist() == [1, 1, 1]
    assert clone.tolist() == [2, 2, 2]
    assert y.tolist() == [4, 4, 4]


def in_place(x, n):
    n.add_(1)
    return x * n


def of_a_part(x, n):
    n[1:2] = 0
    return x * n


def by_way_of_data(x, n):
    n.data.detach().mul_(2)
    return x * n


def in_vmap(x, n):
    return torch.vmap(in_place)(x, n)


@pytest.mark.parametrize("function", [in_place, of_a_part, by_way_of_data, in_vmap])
def test_what_a_body_writes_to_is_found(function):
    writes = writes_of(function, (torch.ones(3), torch.ones(3)), with_backward=True)
    assert writes.given == (1,)
    assert writes.shown == ()
    assert not writes.backward


def test_a_write_that_autograd_follows_gives_a_history():
    def function(x, n):
        n.add_(x)

    x = torch.ones(3, requires_grad=True)
    writes = writes_of(function, (x, torch.ones(3)), with_backward=True)
    assert (writes.given, writes.follows) == ((1,), (True,))


def test_results_that_show_what_is_given_are_found():
    writes = writes_of(
        lambda x, n: (x * 1, n[1:]), (torch.ones(3), torch.ones(3)), with_backward=False
    )
    assert writes.shown == ((1, 1),)
    assert writes.given == ()


class Changing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n, what):
        ctx.n, ctx.what = n, what
        ctx.own = n.clone()
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        {"given": ctx.n, "gradient": gradient, "own": ctx.own}[ctx.what].add_(1)
        return gradient * 1, None, None


@pytest.mark.parametrize("what", ["given", "gradient", "own"])
def test_what_backward_writes_to_is_found(what):
    x, n = torch.ones(3, requires_grad=True), torch.ones(3)
    writes = writes_of(lambda x, n: Changing.apply(x, n, what), (x, n), with_backward=True)
    assert writes.given == ()
    assert writes.backward == (what == "given")
    assert writes.gradients == (what == "gradient")
