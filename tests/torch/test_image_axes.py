"""What PyTorch computes some images at a time: results and gradients are those of all."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.network.graph.nodes.external import Outside
from tests.support.torch_checks import Result, same


class Between(nn.Module):
    """A function between two convolutions."""

    def __init__(self, function, channels):
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 4, 3), nn.Conv2d(channels, 2, 1)
        self.function = function

    def forward(self, x):
        return self.last(self.function(self.first(x)))


CASES = {
    "unfolded": (lambda x: x.unfold(2, 3, 2).sin().amax(-1), 4),
    "repeated": (lambda x: x.sin().repeat(1, 2, 1, 1), 8),
    "selected": (lambda x: x.sin().index_select(1, torch.tensor([3, 0, 0])), 3),
    "each repeated": (lambda x: x.sin().repeat_interleave(2, 1), 8),
    "smoothed": (lambda x: F.interpolate(x, size=5, mode="bicubic", antialias=True), 4),
    "the exactly nearest": (lambda x: F.interpolate(x, size=11, mode="nearest-exact"), 4),
}


@pytest.mark.parametrize("name", CASES)
def test_images_are_computed_apart(name, few_plans):
    torch.manual_seed(0)
    eager = Between(*CASES[name]).double()
    own, x = copy.deepcopy(eager), torch.randn(4, 2, 9, 10, dtype=torch.float64)
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        ooc.limit(own, "64KiB")
        found = Result(own, [x])
        same(found, Result(eager, [x]))
    nodes = own.forward.last.lowered.network.graph.nodes.values()
    assert [node.images for node in nodes if isinstance(node, Outside)] == [4]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sort(1).values.narrow(0, 0, 2).cumsum(1),
        lambda x: x.sort(1).values.split([2])[0].cumsum(1),
        lambda x: x * torch.einsum("nncw->ncw", x[:, :2])[:, None],
    ],
    ids=["narrow", "split", "a diagonal"],
)
def test_all_images_by_their_number_are_computed_together(function, few_plans):
    torch.manual_seed(0)
    eager = Between(function, 4).double()
    own, x = copy.deepcopy(eager), torch.randn(2, 2, 6, 5, dtype=torch.float64)
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        ooc.limit(own, "64KiB")
        same(Result(own, [x]), Result(eager, [x]))
