"""Labels of a loss within a plan: those that are no classes, and those that do not count."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.lowering.targets import Classes, check_labels
from tests.support.torch_checks import close

pytestmark = pytest.mark.usefixtures("fewest_plans")

LIMIT, CLASSES = "200KiB", 5
SHAPE = (2, 12, 12)


class WithLossInside(nn.Module):
    """A model that returns its loss."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x, target):
        return self.loss(self.model(x), target)


WAYS = {
    "with_loss": lambda model, loss: ooc.with_loss(model, loss, LIMIT),
    "limit": lambda model, loss: ooc.limit(WithLossInside(model, loss), LIMIT),
}


def segmenter():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, CLASSES, 3, padding=1), nn.BatchNorm2d(CLASSES)).double()


def images():
    return torch.randn(2, 3, 12, 12, dtype=torch.float64)


def labels(*others):
    """Classes, and some labels that are others."""
    made = torch.arange(2 * 12 * 12).reshape(SHAPE) % CLASSES
    made[1, 3, : len(others)] = torch.tensor(others)
    return made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("wrong", "ignored"), [(77, -100), (5, -100), (-1, 255), (-100, 255), (254, 255)]
)
def test_a_label_that_is_no_class_is_named_and_nothing_changes(way, wrong, ignored):
    model, loss = segmenter(), nn.CrossEntropyLoss(ignore_index=ignored)
    step, x = WAYS[way](model, loss), images()
    step(x, labels())
    before = {name: each.clone() for name, each in model.state_dict().items()}
    said = rf"a label {wrong}, and the model 5 classes: labels are 0 to 4, or {ignored} \(ignore_"
    for target in (labels(0, wrong), labels(0, wrong).numpy()):
        with pytest.raises(IndexError, match=said):
            step(x, target)
    with pytest.raises(IndexError):  # as PyTorch does
        loss(copy.deepcopy(model)(x), labels(wrong))
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


@pytest.mark.parametrize("way", WAYS)
def test_labels_that_do_not_count_are_left_out_as_in_pytorch(way):
    eager, loss = segmenter(), nn.CrossEntropyLoss(ignore_index=255)
    own, x = copy.deepcopy(eager), images()
    target = labels(*[255] * 9)
    found, expected = WAYS[way](own, loss)(x, target), loss(eager(x), target)
    close(found, expected, "loss")
    found.backward()
    expected.backward()
    least = max(float(each.grad.abs().max()) for each in eager.parameters())
    for (name, one), other in zip(own.named_parameters(), eager.parameters(), strict=True):
        close(one.grad, other.grad, name, least)


def test_labels_of_a_file_are_looked_at_too(tmp_path):
    stored = np.lib.format.open_memmap(tmp_path / "labels.npy", "w+", "int64", SHAPE)
    stored[...] = labels(9)
    step = WAYS["with_loss"](segmenter(), nn.CrossEntropyLoss(ignore_index=255))
    with pytest.raises(IndexError, match="a label 9"):
        step(images(), stored)
    stored[stored == 9] = 255
    assert torch.isfinite(step(images(), stored))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
def test_numbers_that_no_label_of_its_dtype_can_be_are_compared_as_they_are(dtype):
    check_labels(np.array([44, 0, 255], dtype), Classes(300, -100))  # 300 is 44 in a byte
    check_labels(np.array([], dtype), Classes(3, -100))
    with pytest.raises(IndexError, match=f"a label {-100 % 256}, and the model 3 classes"):
        check_labels(np.array([0, -100 % 256], dtype), Classes(3, -100))
