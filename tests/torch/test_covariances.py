"""`torch.cov` and `torch.corrcoef` in forward are PyTorch's."""

import copy

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from tests.support.torch_checks import Of, close

pytestmark = pytest.mark.usefixtures("fewest_plans")


@pytest.mark.parametrize(
    "function",
    [
        lambda y: torch.cov(y.flatten(1)),
        lambda y: y.flatten(1).cov(correction=0),
        lambda y: torch.corrcoef(y.flatten(2).mean(1)),
        lambda y: y * y.flatten().cov(),
        lambda y: y * y[0, 0].flatten().corrcoef(),
        lambda y: y * torch.cov((y.detach() * 9).long().flatten(1)).mean(),
        lambda y: (y, torch.cov(y.flatten(1)[:, :1])),  # no degrees of freedom
    ],
)
@pytest.mark.filterwarnings("ignore:cov")
def test_as_in_eager(function):
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Conv2d(3, 4, 3), Of(function)).double()
    under = ooc.limit(copy.deepcopy(eager), "1MiB")
    for trains in (True, False):
        for model in (eager, under):
            x = torch.linspace(-1, 2, 252, dtype=torch.float64).sin().reshape(2, 3, 6, 7)
            model.x = x.requires_grad_(trains)
            made = model(model.x)
            model.y, *model.others = made if isinstance(made, tuple) else (made,)
            if trains:
                model.y.square().sum().backward()
        close(under.y, eager.y, "output")
        torch.testing.assert_close(under.others, eager.others, equal_nan=True)
        if trains:
            close(under.x.grad, eager.x.grad, "x")


def test_a_map_has_too_many_axes():
    model = ooc.limit(nn.Sequential(nn.Conv2d(3, 4, 3), Of(torch.cov)), "1MiB")
    with pytest.raises(RuntimeError, match="two or fewer dimensions"):
        model(torch.ones(2, 3, 6, 7))
