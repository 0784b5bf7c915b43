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


#: Of the input x and a convolution, what forward makes of x in place, and hands out.
WRITTEN = {
    "x.mul_(2)": lambda x, conv: x.mul_(2),
    "a value that is used no more": lambda x, conv: (x.mul_(2), x)[1],
    "x twice": lambda x, conv: (F.relu(x, inplace=True), x),
    "hardtanh": lambda x, conv: F.hardtanh(x, 0, 1, inplace=True),
    "dropout in evaluation": lambda x, conv: F.dropout(x, 0.5, False, True),
    "a part": lambda x, conv: (x[:, 0].zero_(), x)[1],
    "a layer's result": lambda x, conv: x.copy_(conv(x.clone())).mul_(2),
    "by a parameter": lambda x, conv: (x.add_(conv.bias[:, None, None]), conv(x.detach())),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_an_input_that_is_written_to_and_returned_is_itself(name):
    def form(y, x):
        return WRITTEN[name](x, net.conv)

    seen = []
    for limit in (None, LIMIT):
        net = Net(form)
        model = net if limit is None else ooc.limit(net, limit)
        x = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(1))
        outputs = model(x)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        identity = [y is x for y in outputs]
        if outputs[0].requires_grad:
            sum(y.sum() for y in outputs).backward()
        gradients = {n: p.grad for n, p in net.named_parameters()}
        seen.append((identity, x.requires_grad, x.detach().clone(), gradients))
    assert True in seen[0][0]
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-5)


def test_inputs_that_are_swapped_in_place():
    class Swap(nn.Module):
        def forward(self, x, y):
            before = x.clone()
            x.copy_(y)
            y.copy_(before)
            return x * 2

    x, y = torch.randn(2, 2, 3, 3), torch.randn(2, 2, 3, 3)
    given = x.clone(), y.clone()
    result = ooc.limit(Swap(), LIMIT)(x, y)
    assert torch.equal(x, given[1])
    assert torch.equal(y, given[0])
    assert torch.equal(result, given[1] * 2)
