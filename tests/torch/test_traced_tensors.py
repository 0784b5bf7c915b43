"""Tensors as TorchDynamo is to trace them: buffers that `+=` hands on, hooks that are removed."""

import copy

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.errors import UnsupportedModelError
from tests.support.torch_checks import close

pytestmark = pytest.mark.usefixtures("fewest_plans")


class Model(nn.Module):
    """A convolution, and what a function makes of its map."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function, self.conv = function, nn.Conv2d(3, 4, 3)
        self.count = nn.Buffer(torch.ones(1))
        self.mean = nn.Buffer(torch.zeros(4), persistent=False)

    def forward(self, x):
        return self.function(self, self.conv(x))


def counted(m, y):
    m.count += 1
    m.mean *= 0.9
    m.mean += y.detach().mean((0, 2, 3)) * 0.1
    return y * m.count + m.mean[:, None, None]


def put_again(m, y):
    m.count = m.count.add_(1)
    return y * m.count


def removed_at_once(m, y):
    y.register_hook(lambda gradient: gradient * 2).remove()
    return y * 3


def removed_behind_a_product(m, y):
    handle = y.register_hook(lambda gradient: gradient * 2)
    z = y * 3
    handle.remove()
    handle.remove()
    return z + y


def removed_between_others(m, y):
    y.register_hook(lambda gradient: gradient * 2)
    handle = y.register_hook(lambda gradient: gradient + 3)
    y.register_hook(lambda gradient: gradient * 5)
    handle.remove()
    return y * 7


def removed_in_a_branch(m, y):
    handle = y.register_hook(lambda gradient: gradient * 2)
    if not m.training:
        handle.remove()
    return y * 3


@pytest.mark.parametrize(
    "function",
    [
        counted,
        put_again,
        removed_at_once,
        removed_behind_a_product,
        removed_between_others,
        removed_in_a_branch,
    ],
)
def test_as_in_eager(function):
    eager = Model(function).double()
    under = ooc.limit(copy.deepcopy(eager), "1MiB")
    for trains in (True, False, True):
        outputs = []
        for model in (under, eager):
            model.train(trains)
            model.x = torch.linspace(-1, 1, 252, dtype=torch.float64).reshape(2, 3, 6, 7)
            outputs.append(model(model.x.requires_grad_()))
            outputs[-1].square().sum().backward()
        close(*outputs, "output")
        close(under.x.grad, eager.x.grad, "x")
    assert under.state_dict().keys() == eager.state_dict().keys()
    for name, each in eager.named_buffers():
        close(dict(under.named_buffers())[name], each, name)
        assert isinstance(dict(under.named_buffers())[name], nn.Buffer) == isinstance(
            each, nn.Buffer
        )


def test_a_handle_that_outlives_forward_is_refused():
    def kept(m, y):
        m.handle = y.register_hook(lambda gradient: gradient * 2)
        return y * 3

    model = ooc.limit(Model(kept), "1MiB")
    with pytest.raises(UnsupportedModelError, match=r"call remove\(\) in forward"):
        model(torch.ones(2, 3, 6, 7))
    assert not hasattr(model, "handle")
