"""Lazy layers: a first call initialises them, with numbers of the stream that PyTorch draws of."""

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.torch.errors import UnsupportedModelError

pytestmark = pytest.mark.usefixtures("fewest_plans")

X = torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(1))


def net():
    return nn.Sequential(
        nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)
    )


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LazyConv2d(4, 3), nn.LazyConv2d(2, 1)

    def forward(self, x):
        y = self.first(x)
        return self.second(y if y.mean() > 0 else -y)


def number():
    return torch.rand(()).item()


def drawn(limit):
    """Weights of two models and numbers drawn between their calls."""
    torch.manual_seed(0)
    models = [limit(net()), limit(net())]
    seen = []
    for model in (*models, *models):
        y = model(X)
        seen += [number(), y.detach().clone()]
    return seen + [each.detach() for model in models for each in model.state_dict().values()]


def test_they_are_drawn_of_pytorchs_stream():
    ours, eager = drawn(lambda model: ooc.limit(model, "1MiB")), drawn(lambda model: model)
    assert len(ours) == len(eager)
    for one, other in zip(ours, eager, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_call_that_finds_no_plan_has_initialised_them_once():
    torch.manual_seed(0)
    eager = net()
    eager(X)
    after = number()
    torch.manual_seed(0)
    model = ooc.limit(net(), 64)
    with pytest.raises(PlanInfeasibleError):
        model(X)
    ooc.limit(model, "1MiB")(X)
    assert number() == after
    assert torch.equal(model[0].weight, eager[0].weight)


def test_a_refused_call_has_initialised_those_before_the_refused_line():
    torch.manual_seed(0)
    eager = Branching()
    eager.first(X)
    after = number()
    torch.manual_seed(0)
    model = ooc.limit(Branching(), "1MiB")
    with pytest.raises(UnsupportedModelError, match=r"y\.mean"):
        model(X)
    assert number() == after
    assert torch.equal(model.first.weight, eager.first.weight)
    assert "_infer_parameters" not in vars(model.second)


def test_a_plan_leaves_them_as_they_are():
    torch.manual_seed(0)
    model = net().append(nn.Linear(2, 3))
    state = torch.get_rng_state()
    plan = ooc.plan(model, tuple(X.shape), memory_limit="1MiB", machine="h200")
    assert plan.device_bytes <= 2**20
    assert torch.equal(torch.get_rng_state(), state)
    assert type(model[0]) is nn.LazyConv2d
    assert model[0].has_uninitialized_params()
    model(X)
    again = ooc.plan(model, tuple(X.shape), memory_limit="1MiB", machine="h200")
    assert again.device_bytes == plan.device_bytes


def test_one_that_is_all_of_the_model():
    assert ooc.limit(nn.LazyConv2d(4, 3), "1MiB")(X).shape == (2, 4, 4, 3)


@pytest.mark.parametrize("around", [lambda layer: layer, nn.Sequential])
def test_what_is_said_of_one_without_a_call_leaves_it_as_it_is(around):
    """Of one that is all of the model, plans were refused; `output_shape` initialised it."""
    for limited in (False, True):
        model = around(nn.LazyConv2d(4, 3))
        model = ooc.limit(model, "1MiB") if limited else model
        state = torch.get_rng_state()
        plan = ooc.plan(model, tuple(X.shape), memory_limit="1MiB", machine="h200")
        assert plan.device_bytes <= 2**20
        assert ooc.plan_infer(model.eval(), tuple(X.shape), memory_limit="1MiB").count == 1
        assert ooc.output_shape(model, tuple(X.shape)) == (2, 4, 4, 3)
        assert torch.equal(torch.get_rng_state(), state)
        assert any(type(each) is nn.LazyConv2d for each in model.modules())


def test_one_that_is_all_of_the_model_is_initialised_by_infer_as_by_a_call():
    results = []
    for call in (lambda q: q(X), lambda q: ooc.infer(q, X, memory_limit="1MiB")):
        torch.manual_seed(0)
        model = nn.LazyConv2d(4, 3).eval()
        with torch.no_grad():
            results.append((call(model), model.weight, torch.get_rng_state()))
        assert type(model) is nn.Conv2d
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
