"""Axes in another order, by whatever name: PyTorch's numbers, and nothing that PyTorch computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.tracing.graph import Operation
from ooc_cudnn.torch.tracing.permutations import PERMUTES, permutation
from tests.support.torch_checks import check

#: There and back: of (n, channels, rows, columns).
PAIRS = {
    "mT": lambda x, f: f(x.mT).mT,
    "mH": lambda x, f: f(x.mH).mH,
    "adjoint": lambda x, f: f(x.adjoint()).adjoint(),
    "transpose": lambda x, f: f(x.transpose(2, -1)).transpose(-2, 3),
    "swapdims": lambda x, f: f(x.swapdims(2, 3)).swapdims(2, 3),
    "swapaxes": lambda x, f: f(x.swapaxes(-1, 2)).swapaxes(-1, 2),
    "movedim": lambda x, f: f(x.movedim(1, -1).movedim(-1, 1)),
    "movedim of several": lambda x, f: f(x.movedim((2, 3), (3, 2))).moveaxis((2, 3), (3, 2)),
    "permute": lambda x, f: f(x.permute(0, 1, -1, 2)).permute(0, 1, 3, -2),
}


class Turned(nn.Module):
    """Pooling between convolutions, of turned maps."""

    def __init__(self, turn):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)
        self.turn = turn

    def forward(self, x):
        """Turn, pool along rows, and turn back."""
        return self.second(self.turn(self.first(x), torch.relu))


@pytest.mark.parametrize("name", PAIRS)
def test_it_is_pytorchs(name, fewest_plans):
    torch.manual_seed(0)
    model = Turned(PAIRS[name])
    plan = ooc.plan(model, torch.empty(2, 3, 5, 7), memory_limit="1GiB", machine="h200")
    assert "computed outside" not in plan.explain()
    check(model.double(), torch.randn(2, 3, 5, 7).double(), shares=(1 / 2,))


@pytest.mark.parametrize("name", sorted(PERMUTES))
def test_a_permutation_is_that_of_pytorch(name):
    """Of axes of other extents each, told by their extents."""
    shape = (2, 3) if name in ("t", "numpy_T", "matrix_H") else (2, 3, 4, 5)
    given = {
        "permute": {"dims": (3, -3, 0, 2)},
        "transpose": {"dim0": 1, "dim1": -1},
        "swapdims": {"dim0": -4, "dim1": 2},
        "swapaxes": {"axis0": 0, "axis1": -1},
        "movedim": {"source": (0, 3), "destination": (-1, 0)},
        "moveaxis": {"source": 1, "destination": -1},
    }.get(name, {})
    packet = getattr(torch.ops.aten, name)
    made = packet(torch.empty(shape), *given.values())
    order = permutation(Operation(None, name, (), {}, given, ()), len(shape))
    assert tuple(shape[axis] for axis in order) == made.shape
