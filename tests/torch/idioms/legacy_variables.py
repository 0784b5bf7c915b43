"""`torch.autograd.Variable`, as models from before PyTorch 0.4 have it: no history, same memory."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd import Variable

from tests.torch.idioms.judge import REFUSED, Idiom
from tests.torch.idioms.models import conv, model, train


def of(name, f, expected=REFUSED, **parts):
    """An idiom of a map, f(s, y). TorchDynamo by itself follows no Variable."""
    return Idiom(name, model(lambda s, x: f(s, s.c(x)), c=conv(), **parts), train, expected)


def buffer():
    return nn.Buffer(torch.ones(4))


def parameter():
    return nn.Parameter(torch.ones(4))


def grid(s, y):
    """The warp of PWC-Net."""
    _, _, height, width = y.shape
    columns = torch.arange(width).view(1, 1, 1, -1).expand(y.shape[0], 1, height, width)
    rows = torch.arange(height).view(1, 1, -1, 1).expand(y.shape[0], 1, height, width)
    made = Variable(torch.cat((columns, rows), 1).float()) / 3 - 1
    return torch.nn.functional.grid_sample(y, (made + y[:, :2]).movedim(1, -1))


def state(s, y):
    """The first state of a ConvLSTM, and its weights."""
    hidden = (Variable(torch.zeros(y.shape)), Variable(torch.zeros(y.shape)).cpu())
    for _ in range(2):
        hidden = (torch.tanh(y + s.d(hidden[0])), hidden[1] + hidden[0])
    return hidden


def statistics(s, y):
    mean = Variable(s.mean)
    return (y - mean[:, None, None]) * Variable(y.mean(0), requires_grad=False, volatile=True)


def without_history(s, y):
    return y * Variable(y).exp() + Variable(s.w)[:, None, None]


def written_through(s, y):
    y = y * 2
    Variable(y)[:, 0] = 1.0
    return y


def leaf_of_its_own(s, y):
    return y * Variable(y, requires_grad=True)


def asked(s, y):
    both = isinstance(y, Variable) and isinstance(s.w, (int, Variable))
    none = isinstance(3, Variable) or type(y) is Variable
    return y * (2 if both and not none else 3)


CASES = (
    of("Variable: the grid of a warp", grid),
    of("Variable: a first state", state, d=conv(size=1)),
    of(
        "Variable of a buffer, and of statistics", statistics, mean=lambda: nn.Buffer(torch.ones(4))
    ),
    of("Variable has no history", without_history, w=parameter),
    of("Variable shares memory", written_through),
    of("Variable(y, requires_grad=True)", leaf_of_its_own),
    of("isinstance(y, Variable)", asked, w=parameter),
)
