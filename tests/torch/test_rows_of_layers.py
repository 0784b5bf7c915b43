"""Linear layers on rows that several axes were joined to: PyTorch's numbers, in the network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from tests.support.torch_checks import check

LENGTH, WIDTH = 9, 12


class Rows(nn.Module):
    """A linear layer on the rows that some function makes of x."""

    def __init__(self, on):
        super().__init__()
        self.before, self.layer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        self.on = on

    def forward(self, x):
        """Tokens in, tokens out."""
        return self.on(self.layer, self.before(x))


def _twice(layer, y):
    rows = layer(y.flatten(0, 1))
    return rows.view(*y.shape[:2], 5) * 2, rows


FOLLOWED = {
    "rows of tokens": lambda layer, y: layer(y.flatten(0, 1)).view(*y.shape[:2], 5),
    "tokens first": lambda layer, y: (
        layer(y.transpose(0, 1).contiguous().view(-1, WIDTH)).view(LENGTH, -1, 5).transpose(0, 1)
    ),
    "tokens of several axes": lambda layer, y: (
        layer(y.reshape(-1, WIDTH)).view(len(y), 3, 3, 5).flatten(1, 2)
    ),
    "the rows are read elsewhere": lambda layer, y: (
        layer(rows := y.reshape(-1, WIDTH)).view(*y.shape[:2], 5) + rows.sum(-1).view(-1, LENGTH, 1)
    ),
}
LEFT = {
    "rows of other bits": lambda layer, y: layer(
        y.detach().view(-1, WIDTH).view(torch.int64).view(torch.float64)
    ).view(*y.shape[:2], 5),
    "rows of six axes": lambda layer, y: layer(y.flatten(0, 1)).view(len(y), 1, 3, 1, 3, 5),
    "rows that are an output": _twice,
    "another last axis": lambda layer, y: layer(y.flatten(0, 1)).reshape(len(y), LENGTH * 5),
    "rows that stay rows": lambda layer, y: layer(y.flatten(0, 1)).relu(),
}


@pytest.mark.parametrize("name", FOLLOWED | LEFT)
def test_rows_are_pytorchs(name, fewest_plans):
    torch.manual_seed(0)
    x = torch.randn(4, LENGTH, WIDTH, dtype=torch.float64)
    check(Rows((FOLLOWED | LEFT)[name]).double(), x, shares=(1 / 2,))


@pytest.mark.parametrize("name", ["rows of tokens", "tokens first"])
def test_a_layer_of_rows_is_the_networks(name):
    plan = ooc.plan(
        Rows(FOLLOWED[name]), torch.empty(4, LENGTH, WIDTH), memory_limit="1GiB", machine="h200"
    )
    outside = [line for line in plan.explain().splitlines() if " outside" in line]
    assert not [line for line in outside if "linear" in line]
