"""What forward leaves in modules: what it keeps there while it is captured is fake."""

import copy

import pytest
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc

pytestmark = pytest.mark.usefixtures("few_plans")

X, LIMIT = torch.linspace(-1, 1, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4), "200KiB"


@pytest.fixture(autouse=True)
def on_the_host():
    with ooc_cudnn.settings(device="host", machine="host"):
        yield


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


@pytest.mark.filterwarnings("ignore:The tensor attributes? self")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("keep", [attribute, buffer, empty_buffer, flagged])
def test_what_is_made_at_the_first_call_is_made_in_each_capture(keep, strict):
    """The model had fake tensors since: it ran with no other shape, nor without a limit."""
    model = Keeping(keep)
    expected = copy.deepcopy(model)
    keys = [*model.state_dict()]
    ooc.limit(model, LIMIT, strict=strict)
    for x in (X, X[:1]):
        assert torch.allclose(model(x), expected(x), atol=1e-6)
    assert [*model.state_dict()] == keys
    assert torch.allclose(ooc.release(copy.deepcopy(model))(X), expected(X), atol=1e-6)


class Averaging(nn.Module):
    """A convolution whose mean goes into a buffer."""

    def __init__(self, update):
        super().__init__()
        self.conv, self.update = nn.Conv2d(3, 4, 1), update
        self.register_buffer("mean", torch.zeros(1, 4, 1, 1))

    def forward(self, x):
        y = self.conv(x)
        self.update(self, y.detach().mean((0, 2, 3), keepdim=True))
        return y - 1


def chained(model, mean):
    model.mean.mul_(0.9).add_(mean)


def part(model, mean):
    model.mean[:, 0].copy_(mean[:, 0])


def assigned(model, mean):
    model.mean = 0.9 * model.mean + mean


@pytest.mark.parametrize("update", [chained, part, assigned])
def test_a_buffer_that_what_is_computed_changes_is_refused(update):
    """It stayed as it was at the first call, without a word."""
    model = ooc.limit(Averaging(update), LIMIT)
    with pytest.raises(ooc.UnsupportedModelError, match="buffer mean"):
        model(X)
    assert torch.equal(model.mean, torch.zeros(1, 4, 1, 1))


def test_a_copy_of_a_buffer_may_be_changed():
    def update(model, mean):
        model.mean.clone().mul_(2).add_(mean)

    model = Averaging(update)
    assert torch.allclose(ooc.limit(copy.deepcopy(model), LIMIT)(X), model(X), atol=1e-6)
