"""Under `strict` a forward that does not do the same twice is refused: it is captured once."""

import itertools
import random

import pytest
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from tests.support.torch_checks import Result, same
from tests.support.torch_models import residual

pytestmark = pytest.mark.usefixtures("few_plans")

SHAPE, LIMIT = (2, 3, 4, 4), "200KiB"
CALLS = itertools.count(1)


@pytest.fixture(autouse=True)
def on_the_host():
    with ooc_cudnn.settings(device="host", machine="host"):
        yield


class Of(nn.Module):
    """A convolution, and a function of the model and what it makes."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.function, self.calls = nn.Conv2d(3, 4, 1), function, 0

    def forward(self, x):
        self.calls += 1
        return self.function(self, self.conv(x))


class Drawn(nn.Module):
    def forward(self, x):
        return x * random.random()


def counted(model, x):
    return x * model.calls


def branching(model, x):
    return x.relu() if model.calls % 2 else x


def ending(model, x):
    return (x, x.relu()) if model.calls % 2 else (x.relu(), x)


def stored(model, x):
    return x + torch.tensor([float(next(CALLS))], dtype=x.dtype)


@pytest.mark.parametrize("function", [counted, branching, ending, stored])
def test_what_python_makes_anew_in_each_call_is_refused(function):
    model = ooc.limit(Of(function), LIMIT, strict=True)
    with pytest.raises(ooc.UnsupportedModelError, match="Of does not do the same in each call"):
        model(torch.ones(SHAPE))


def test_what_python_draws_is_refused_with_its_line():
    model = ooc.limit(Drawn(), LIMIT, strict=True)
    with pytest.raises(ooc.UnsupportedModelError, match=r"aten\.mul(?s:.*)x \* random\.random\(\)"):
        model(torch.ones(SHAPE))


def test_a_counter_stays_as_it_was():
    model = Of(lambda model, x: x)
    ooc.limit(model, LIMIT, strict=True)(torch.ones(SHAPE))
    assert model.calls == 0


def test_what_does_the_same_is_not():
    """A counter that nothing reads is none of it, nor are masks that PyTorch draws."""
    torch.manual_seed(0)
    x = torch.randn(SHAPE)
    model = Of(lambda model, x: nn.functional.dropout(x, 0.5))
    assert ooc.limit(model, LIMIT, strict=True)(x).shape == (2, 4, 4, 4)
    eager, x = residual().double(), torch.randn(4, 3, 16, 16, dtype=torch.float64)
    expected = Result(eager, [x])
    eager.zero_grad()
    for module in eager.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    same(Result(ooc.limit(eager, LIMIT, strict=True), [x]), expected)


def padded(model, x):
    return nn.functional.pad(x, (1, 1), value=float("nan"))


def scaled(model, x):
    return x * torch.tensor([1.0, float("nan"), 1.0, 1.0]).reshape(1, 4, 1, 1)


@pytest.mark.parametrize("function", [padded, scaled])
def test_what_is_not_a_number_is_the_same_twice(function):
    model = Of(function)
    expected = model(torch.ones(SHAPE))
    made = ooc.limit(model, LIMIT, strict=True)(torch.ones(SHAPE))
    assert torch.allclose(made, expected, equal_nan=True)
