"""What forward leaves in modules: what PyTorch leaves there, and never a tensor without data."""

import copy

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.calls import calls_of
from tests.support.torch_checks import close, followed_in_calls, held

pytestmark = pytest.mark.usefixtures("fewest_plans")

X, LIMIT = torch.linspace(-1, 1, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4), "200KiB"


class Keeping(nn.Module):
    """A convolution, and a scale that is made at the first call."""

    cache = None

    def __init__(self, keep):
        super().__init__()
        self.conv, self.keep, self.is_made, self.late = nn.Conv2d(3, 4, 1), keep, False, None
        self.register_buffer("empty", None)

    def forward(self, x):
        y = self.conv(x)
        return y * self.keep(self, torch.arange(4.0).reshape(1, 4, 1, 1))


def attribute(model, scale):
    if model.cache is None:
        model.cache = scale
    return model.cache


def buffer(model, scale):
    if not hasattr(model, "table"):
        model.register_buffer("table", scale, persistent=False)
    return model.table


def empty_buffer(model, scale):
    if model.empty is None:
        model.empty = scale
    return model.empty


def flagged(model, scale):
    if not model.is_made:
        model.is_made, model.late = True, scale
    return model.late


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("keep", [attribute, buffer, empty_buffer, flagged])
def test_what_is_made_at_the_first_call_is_kept(keep, strict):
    """The model had fake tensors since: it ran with no other shape, nor without a limit."""
    model = Keeping(keep)
    expected = copy.deepcopy(model)
    ooc.limit(model, LIMIT, strict=strict)
    for x in (X, X, X[:1]):
        assert torch.allclose(model(x), expected(x), atol=1e-6)
        assert [*model.state_dict()] == [*expected.state_dict()]
        found, wanted = ({**held(each), **dict(each.named_buffers())} for each in (model, expected))
        assert found.keys() == wanted.keys()
        for name, each in wanted.items():
            if isinstance(each, torch.Tensor):
                assert type(found[name]) is torch.Tensor
                assert torch.equal(found[name], each)
            else:
                assert found[name] == each
    assert torch.allclose(ooc.release(copy.deepcopy(model))(X), expected(X), atol=1e-6)


def a_result(model, y):
    model.last = y
    return y * 2


def a_result_without_history(model, y):
    model.last = y.detach().mean()
    return y * 2


def of_the_call_before(model, y):
    made = y if model.last is None else y + model.last
    model.last = y.detach() * 0.5
    return made


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.conv, self.last, self.function = nn.Conv2d(3, 4, 1), None, function

    def forward(self, x):
        return self.function(self, self.conv(x))


@pytest.mark.parametrize("function", [a_result, a_result_without_history, of_the_call_before])
def test_what_is_computed_may_be_kept(function):
    torch.manual_seed(0)
    under = followed_in_calls(Of(function).double(), X.double(), calls=3, memory_limit=LIMIT)
    assert len(calls_of(under)) <= 2


def test_gradients_go_through_what_was_kept():
    torch.manual_seed(0)
    eager = Of(a_result).double()
    under = ooc.limit(copy.deepcopy(eager), LIMIT)
    for model in (under, eager):
        model(X.double())
        model.last.square().sum().backward()
    close(under.conv.weight.grad, eager.conv.weight.grad, "gradient")


def test_a_tensor_that_is_counted_up_stays_the_same_tensor():
    """Whoever holds it sees every step, and backward of two calls may come after both."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.count = nn.BatchNorm2d(3), torch.zeros((), dtype=torch.long)

        def forward(self, x):
            self.count += 1
            return self.norm(x.rot90(1, (-2, -1)) * self.count)

    eager, limited = Counting(), ooc.limit(Counting(), "4000")
    for model in (eager, limited):
        held, outputs = model.count, [model(X), model(X * 0.5)]
        assert model.count is held
        assert held == 2
        for each in reversed(outputs):
            each.square().sum().backward()
    for one, other in zip(limited.parameters(), eager.parameters(), strict=True):
        close(one.grad, other.grad, "gradient", least=1.0, tolerance=1e-4)
