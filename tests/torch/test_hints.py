"""Arguments that a model does not take: the error says what to write, and that is right."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc

IMAGE = np.random.default_rng(0).random((1, 12, 10, 3), "float32")


class WithLoss(nn.Module):
    """A model that makes its loss."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x, target):
        return nn.functional.cross_entropy(self.conv(x), target)


MOVED = np.ascontiguousarray(np.moveaxis(IMAGE, -1, 1))
GRAY = torch.from_numpy(IMAGE[0, ..., 0])
LABELS = torch.zeros(1, 1, 12, 10, dtype=torch.int64)
CASES = {
    "channels last": (nn.Conv2d(3, 4, 3), (IMAGE,), r"numpy\.moveaxis\(x, -1, 1\)$", (MOVED,)),
    "one image, channels last": (
        nn.Conv2d(3, 4, 3), (IMAGE[0],), r"give x\.movedim\(-1, 0\)\[None\], or numpy\.moveaxis",
        (np.ascontiguousarray(np.moveaxis(IMAGE[0], -1, 0)[None]),),
    ),
    "one volume, channels last": (
        nn.Conv3d(3, 4, 3), (torch.ones(8, 7, 6, 3),), r"numpy\.moveaxis\(x, -1, 0\)\[None\]$",
        (torch.ones(8, 7, 6, 3).movedim(-1, 0)[None],),
    ),
    "one image without channels": (
        nn.Conv2d(1, 4, 3), (IMAGE[0, ..., 0],), r"give x\[None, None\]$",
        (IMAGE[0, ..., 0][None, None],),
    ),
    "one gray image": (
        nn.Conv2d(3, 4, 3), (GRAY,),
        r"give x\.expand\(1, 3, -1, -1\), or numpy\.stack\(\[x\] \* 3\)\[None\]$",
        (GRAY.expand(1, 3, -1, -1),),
    ),
    "images without channels": (
        nn.Conv2d(1, 4, 3), (IMAGE[..., 0].repeat(2, 0),), r"give x\[:, None\]$",
        (IMAGE[..., 0].repeat(2, 0)[:, None],),
    ),
    "one image of a batch norm": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (MOVED[0],), r"give x\[None\]$",
        (MOVED,),
    ),
    "float64": (
        nn.Conv2d(3, 4, 3), (MOVED.astype("f8"),),
        r"The model is of float32: give .*x\.astype\('float32'\)$", (MOVED,),
    ),
    "int32": (
        nn.Conv2d(3, 4, 3), (torch.ones(1, 3, 8, 8, dtype=torch.int32),),
        r"give x\.to\(torch\.float32\)", (torch.ones(1, 3, 8, 8),),
    ),
    "labels of one channel": (
        WithLoss(), (torch.from_numpy(MOVED), LABELS), r"take target\.squeeze\(1\)$",
        (torch.from_numpy(MOVED), LABELS.squeeze(1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_to_write_is_said_and_right(name):
    model, wrong, said, right = CASES[name]
    own = ooc.limit(model, "1MiB")
    for call in (own, lambda *given: ooc.infer(copy.deepcopy(model).eval(), *given)):
        with pytest.raises((TypeError, ValueError), match="(?m)" + said):
            call(*wrong)
    assert torch.isfinite(own(*right)).all()


def test_lists_are_no_arrays():
    model = nn.Conv2d(3, 4, 3)
    with pytest.raises(TypeError, match=r"argument 0 must be .*, not list: give torch\.as_tensor"):
        ooc.infer(model, MOVED.tolist())
    with pytest.raises(TypeError, match=r"without a tensor: give .* torch\.as_tensor\("):
        ooc.limit(model, "1MiB")(MOVED.tolist())
