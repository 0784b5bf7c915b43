"""A user's autograd.Function, as TorchDynamo is to trace it."""

import pytest
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.errors import UnsupportedModelError
from tests.support.torch_checks import close

pytestmark = pytest.mark.usefixtures("fewest_plans")


@pytest.fixture(autouse=True)
def on_the_host():
    with ooc_cudnn.settings(device="host", machine="host"):
        yield


class Doubled(torch.autograd.Function):
    """Changes its input in place, and says so."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class InContainers(torch.autograd.Function):
    """Two maps in what a function makes of them."""

    @staticmethod
    def forward(ctx, x, held):
        return held(x * 2, x * 3)

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0] * 2, None


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.function = nn.Conv2d(3, 4, 3), function

    def forward(self, x):
        return self.function(self.conv(x))


def made(function):
    return Model(function).double(), ooc.limit(Model(function).double(), "1MiB")


@pytest.mark.parametrize("trains", [False, True])
def test_a_dirty_input_is_changed(trains):
    if trains and torch.__version__ < "2.13":
        pytest.skip("PyTorch before 2.13 does not follow the mark")
    outputs = []
    for model in made(lambda y: (Doubled.apply(y), y + 1)):
        with torch.set_grad_enabled(trains):
            outputs.append(model(torch.ones(2, 3, 6, 7, dtype=torch.float64)))
    for ours, pytorchs in zip(outputs[1], outputs[0], strict=True):
        close(ours, pytorchs, "output")


@pytest.mark.parametrize(
    "held",
    [
        lambda *maps: list(maps),
        lambda one, other: (one, [other]),
        lambda one, other: (one, (other,)),
        lambda one, other: {"one": one, "other": other},
    ],
    ids=["a list", "a list in a tuple", "a tuple in a tuple", "a dictionary"],
)
def test_a_container_is_returned_where_autograd_is_off_and_refused_where_it_is_on(held):
    eager, limited = made(lambda y: InContainers.apply(y, held))
    x = torch.ones(2, 3, 6, 7, dtype=torch.float64)
    with torch.no_grad():
        pairs = zip(*(torch.utils._pytree.tree_leaves(m(x)) for m in (limited, eager)), strict=True)
    for ours, pytorchs in pairs:
        close(ours, pytorchs, "output")
    with pytest.raises(UnsupportedModelError, match="let it return a tensor, or one tuple"):
        limited(x)
