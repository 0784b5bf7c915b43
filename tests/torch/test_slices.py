"""Parts of maps, also such that begin or end out of range; single images without a batch."""

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from tests.support.torch_checks import check
from tests.support.torch_operations import Apply

pytestmark = pytest.mark.usefixtures("fewest_plans")

SLICES = {
    "[..., -10:]": lambda x: x[..., -10:],
    "[..., :10]": lambda x: x[..., :10],
    "[..., -100:3]": lambda x: x[..., -100:3],
    "[..., -3:-1]": lambda x: x[..., -3:-1],
    "[..., ::2]": lambda x: x[..., ::2],
    "[:, :, -10:]": lambda x: x[:, :, -10:],
    "[:, -10:]": lambda x: x[:, -10:],
    "[-1:]": lambda x: x[-1:],
    "[-10:]": lambda x: x[-10:],
    "narrow": lambda x: x.narrow(3, -3, 3),
    "select": lambda x: x.select(3, -1).unsqueeze(3),
    "an index": lambda x: x[..., [6, 0, -1]],
    "nothing, joined": lambda x: torch.cat([x, x[..., 9:]], -1),
    "no channels, joined": lambda x: torch.cat([x, x[:, 5:]], 1),
    "the sum of nothing": lambda x: x + x[..., 9:].sum(),
    "the mean of nothing, where it counts": lambda x: x + x[..., 5:3].mean().nan_to_num(),
    "chunk": lambda x: x.chunk(5, 3)[1],
    "split": lambda x: x.split(4, 3)[1],
}


@pytest.mark.parametrize("name", SLICES)
def test_a_slice_is_that_of_eager(name):
    check(Apply(SLICES[name]).double(), torch.randn(2, 4, 5, 7, dtype=torch.float64), shares=())


@pytest.mark.parametrize(
    "part",
    [lambda x: x[..., 7:], lambda x: x[..., 5:3], lambda x: x[0:0]],
    ids=["behind", "backwards", "no images"],
)
def test_a_result_without_elements_is_refused_by_a_sentence(part):
    model = ooc.limit(Apply(part), "1MiB")
    with pytest.raises((ooc.UnsupportedOperationError, ValueError), match=r"elements|greater than"):
        model(torch.randn(2, 4, 5, 7))


SINGLE = {
    "convolution": nn.Conv2d(4, 4, 3, padding=1),
    "maximum": nn.MaxPool2d(2),
    "mean": nn.AvgPool2d((2, 3)),
    "adaptive mean": nn.AdaptiveAvgPool2d(1),
    "adaptive maximum": nn.AdaptiveMaxPool2d(2),
    "transposed": nn.ConvTranspose2d(4, 4, 2, stride=2),
    "shuffle": nn.PixelShuffle(2),
    "several": nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 2, 1)),
}


@pytest.mark.parametrize("name", SINGLE)
def test_an_image_without_a_batch(name):
    model = nn.Sequential(nn.Tanh(), SINGLE[name]).double()
    check(model, torch.randn(4, 6, 8, dtype=torch.float64), shares=())


def test_a_volume_and_a_line_without_a_batch():
    torch.manual_seed(0)
    check(nn.Conv3d(2, 3, 3).double(), torch.randn(2, 4, 5, 6, dtype=torch.float64), shares=())
    check(nn.Conv1d(2, 3, 3).double(), torch.randn(2, 9, dtype=torch.float64), shares=())
