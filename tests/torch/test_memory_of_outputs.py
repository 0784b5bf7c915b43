"""Outputs lie in memory as PyTorch's do: what a caller does to one in place, others show or not."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ooc_cudnn.torch as ooc

LIMIT = "1MiB"
#: Of a convolution's result y and the input x what forward hands out.
FORMS = {
    "dropout of nothing": lambda y, x: (F.dropout(y, 0.0), y),
    "dropout in evaluation": lambda y, x: (F.dropout(y, 0.5, training=False), y, y),
    "no-op conversion": lambda y, x: (y.to(torch.float32), y.contiguous(), y),
    "clone": lambda y, x: (y, y.clone()),
    "two clones": lambda y, x: (y.clone(), y, y.clone()),
    "copy": lambda y, x: (torch.empty_like(y).copy_(y), y),
    "padding by nothing": lambda y, x: (F.pad(y, (0, 0)), y, y.view_as(y)),
    "broadcast": lambda y, x: (torch.broadcast_to(y, y.shape), y),
    "diagonal": lambda y, x: (y.diagonal(0, 2, 3), y),
    "windows": lambda y, x: (y.unfold(2, 2, 2), y),
    "two views of what is hidden": lambda y, x: (y.flatten(1), y.view(2, 2, -1)),
    "views that overlap": lambda y, x: (y[:, :1], y[:, :2]),
    "of a view's copy": lambda y, x: (y.permute(0, 2, 3, 1).flatten(1), y),
    "input and its copy": lambda y, x: (x.clone(), x * 1, y),
}


class Net(nn.Module):
    def __init__(self, form):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.form = nn.Conv2d(2, 2, 1), form

    def forward(self, x):
        return self.form(self.conv(x), x)


def observed(model, changed, *, differentiable):
    """What is seen where one output is doubled in place."""
    x = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(1))
    with torch.set_grad_enabled(differentiable):
        outputs = model(x)
        if changed >= len(outputs):
            pytest.skip("it has fewer outputs")
        outputs[changed].mul_(2)
        if differentiable:
            sum(y.pow(2).sum() for y in outputs).backward()
    return {
        "x": x,
        **{f"y{at}": y.detach() for at, y in enumerate(outputs)},
        **{f"{name}.grad": p.grad for name, p in model.named_parameters() if differentiable},
    }


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    ("changed", "differentiable"), [*itertools.product(range(3), (True, False))]
)
def test_one_is_changed_in_place(name, changed, differentiable):
    expected = observed(Net(FORMS[name]), changed, differentiable=differentiable)
    found = observed(ooc.limit(Net(FORMS[name]), LIMIT), changed, differentiable=differentiable)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["dropout of nothing", "no-op conversion", "clone", "broadcast"])
def test_what_is_one_tensor_is_one(name):
    x = torch.randn(2, 2, 4, 4)
    pairs = [
        [one is other for one in outputs for other in outputs]
        for outputs in (Net(FORMS[name])(x), ooc.limit(Net(FORMS[name]), LIMIT)(x))
    ]
    assert pairs[0] == pairs[1]
