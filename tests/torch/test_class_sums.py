"""Soft Dice losses written in plain PyTorch: sums of shares and of labels are nodes of the plan."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc

CLASSES = 5


@pytest.fixture(autouse=True)
def on_the_host():
    with ooc_cudnn.settings(device="host", machine="host", planning_seconds=0.05):
        yield


def one_hot(scores, labels):
    return torch.zeros_like(scores).scatter_(1, labels.long(), 1)


def dice(scores, labels, *, background=True, batch=False):
    """As MONAI's: p and t may lack the first class."""
    p, t = scores.softmax(1), one_hot(scores, labels)
    if not background:
        p, t = p[:, 1:], t[:, 1:]
    axes = [*([0] if batch else []), *range(2, scores.ndim)]
    both = (p * t).sum(axes)
    return (1 - (2 * both + 1e-5) / (p.sum(axes) + t.sum(axes) + 1e-5)).mean()


def by_one_hot(scores, labels):
    p = scores.softmax(1)
    t = nn.functional.one_hot(labels[:, 0].long(), CLASSES).permute(0, 3, 1, 2).to(p.dtype)
    both = (p * t).sum((2, 3))
    return (both / (p.sum((2, 3)) + t.sum((2, 3)))).mean()


def without_background_of_the_batch(scores, labels):
    return dice(scores, labels, background=False, batch=True)


def squares_beside(scores, labels):
    """It reads shares that are also squared: those are left to PyTorch."""
    return dice(scores, labels) + scores.softmax(1).square().mean()


def with_cross_entropy(scores, labels):
    return dice(scores, labels) + nn.functional.cross_entropy(scores, labels[:, 0].long())


def of_a_bool(scores, labels):
    """As nnU-Net's: the sums of labels are integers, and PyTorch's."""
    with torch.no_grad():
        is_of = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
        is_of = is_of.scatter_(1, labels.long(), 1)[:, 1:]
        there = is_of.sum((2, 3))
    p = scores.softmax(1)[:, 1:]
    both, found = (p * is_of).sum((2, 3)), p.sum((2, 3))
    both, found, there = both.sum(0), found.sum(0), there.sum(0)
    return -((2 * both + 1) / torch.clip(there + found + 1, 1e-8)).mean()


def of_regions(scores, labels):
    """Shares of classes by themselves, and a target of their shape."""
    p, t = scores.sigmoid(), one_hot(scores, labels)
    both, found = (p * t).sum((2, 3)), p.sum(dim=(-2, -1), keepdim=True)
    return (both / (found[:, :, 0, 0] + t.sum((2, 3)) + 1)).mean()


LOSSES = (
    dice,
    by_one_hot,
    without_background_of_the_batch,
    squares_beside,
    with_cross_entropy,
    of_a_bool,
    of_regions,
)


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, CLASSES, 1)
    ).to(dtype)  # fmt: skip


def batch(labels_dtype=torch.int64, dtype=torch.float64):
    torch.manual_seed(1)
    x = torch.randn(3, 3, 20, 24, dtype=dtype)
    return x, torch.randint(0, CLASSES, (3, 1, 20, 24)).to(labels_dtype)


def step_of(model, loss, x, labels):
    found = model(x, labels) if loss is None else loss(model(x), labels)
    found.backward()
    return found.detach(), [each.grad for each in model.parameters()]


@pytest.mark.parametrize("limit", ["16MiB", "200KiB", "60KiB"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_dice_loss_is_eagers_under_each_limit(loss, limit):
    model, (x, labels) = network(), batch()
    expected, gradients = step_of(copy.deepcopy(model), loss, x, labels)
    under = ooc.with_loss(model, loss, limit)
    found, own = step_of(under, None, x, labels)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    for one, other in zip(own, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    "loss", [dice, by_one_hot, without_background_of_the_batch, with_cross_entropy]
)
@pytest.mark.parametrize("labels_dtype", [torch.int64, torch.float32, torch.uint8], ids=str)
def test_nothing_of_the_size_of_the_scores_is_computed_by_pytorch(loss, labels_dtype):
    under, (x, labels) = ooc.with_loss(network(), loss, "16MiB"), batch(labels_dtype)
    step_of(under, None, x, labels)
    plan = under.forward.plan
    assert plan.outside_bytes == 0
    assert "scatter" not in str(plan)
    names = [task.name for task in plan.tasks]
    assert sum("class_sums forward" in each for each in names) == 1  # it has all sums


def test_under_autocast_sums_are_made_of_scores_in_bfloat16():
    model, (x, labels) = network(torch.float32), batch(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        expected, gradients = step_of(copy.deepcopy(model), dice, x, labels)
        under = ooc.with_loss(model, dice, "16MiB")
        found, own = step_of(under, None, x, labels)
    assert "softmax" not in str(under.forward.plan)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=0)
    for one, other in zip(own, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.05 * float(other.abs().max()))


def test_a_label_on_the_host_that_is_no_class_is_an_error():
    under, (x, labels) = ooc.with_loss(network(), dice, "16MiB"), batch()
    labels[1, 0, 3, 4] = CLASSES
    with pytest.raises(IndexError, match=r"has a label 5, and the model 5 classes: .* 0 to 4$"):
        under(x, labels)


def test_sums_of_other_labels_than_those_of_the_product_are_left_to_pytorch():
    def crossed(scores, labels):
        p, t = scores.softmax(1), one_hot(scores, labels)
        others = one_hot(scores, (labels + 1) % CLASSES)
        both = (p * t).sum((2, 3))
        return (both / (p.sum((2, 3)) + others.sum((2, 3)))).mean()

    model, (x, labels) = network(), batch()
    expected, gradients = step_of(copy.deepcopy(model), crossed, x, labels)
    found, own = step_of(ooc.with_loss(model, crossed, "16MiB"), None, x, labels)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    for one, other in zip(own, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


def odd(name):
    """A loss whose sums look like those of a node, and are not; each was taken for one once."""

    def loss(scores, labels):
        p, n = scores.softmax(1), len(scores)
        t = one_hot(scores, labels)
        if name == "a slice from before the axis":
            p, t = p[:, -7:], t[:, -9:]
        elif name == "an average of rows":
            p = scores.mean(3, keepdim=True).softmax(1)
            row = labels[..., :1].long()
            t = scores.new_zeros(n, CLASSES, 20, 1).scatter_(1, row, 1)
        elif name == "labels of one image":
            t = one_hot(scores[:1], labels[:1])
        elif name == "zeros that are multiplied":
            t = torch.zeros_like(scores).scatter_(1, labels, 1, reduce="multiply")
        elif name == "a class that is cut off":
            t = nn.functional.one_hot(labels[:, 0] + 1, CLASSES + 1).permute(0, 3, 1, 2)
            t = t[:, :CLASSES].to(p.dtype)
        return (p * t).sum((2, 3)).mean() + p.sum((2, 3)).square().mean() + t.sum((2, 3)).mean()

    return loss


@pytest.mark.parametrize(
    "name",
    ["a slice from before the axis", "an average of rows", "labels of one image",
     "zeros that are multiplied", "a class that is cut off"],
)  # fmt: skip
def test_sums_that_are_not_those_of_a_node_are_eagers(name):
    model, (x, labels) = network(), batch()
    expected, gradients = step_of(copy.deepcopy(model), odd(name), x, labels)
    found, own = step_of(ooc.with_loss(model, odd(name), "16MiB"), None, x, labels)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    for one, other in zip(own, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


def test_labels_outside_of_fewer_classes_are_an_error_as_in_pytorch():
    def loss(scores, labels):
        t = nn.functional.one_hot(labels[:, 0], 3).permute(0, 3, 1, 2).to(scores.dtype)
        return (scores.softmax(1)[:, :3] * t).sum((2, 3)).mean()

    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        step_of(ooc.with_loss(network(), loss, "16MiB"), None, *batch())


def test_counts_that_a_sum_makes_are_whole():
    class Counts(nn.Module):
        def forward(self, x):
            return x.relu().sum((2, 3)).long()

    x = torch.zeros(1, 2, 7, 7, dtype=torch.float64)
    x[..., 3, 3] = 1
    assert ooc.infer(Counts().eval(), x, memory_limit="1MiB").tolist() == [[1, 1]]
