"""Engines of a PyTorch model's convolutions, measured."""

import pytest
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.functions.tune.tune import NothingToTuneError
from ooc_cudnn.operations.convolution.gradients import forward_of
from tests.support.fake_cudnn import FakeEngine
from tests.support.tuned import KIB, engines_maker

SHAPE = (4, 3, 8, 8)


@pytest.fixture
def make(monkeypatch, tmp_path):
    return engines_maker(monkeypatch, tmp_path)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1))


def test_calls_are_planned_by_what_was_measured(make):
    """Forward and both gradients; results are those of a model that was not tuned."""
    make(FakeEngine(100, 3e-7), FakeEngine(101, 1e-7, KIB))
    x, limited = torch.randn(SHAPE), ooc.limit(model(), "512KiB")
    with ooc_cudnn.settings(allow_tf32=False):
        y = limited(x)
        y.sum().backward()
        before, gradients = limited.forward.plan, [p.grad.clone() for p in limited.parameters()]
        told = []
        found = ooc.tune(limited, SHAPE, tell=told.append)
        assert told == found
        kinds = {(type(each.operation).__name__, forward_of(each.operation).w_shape[0])
                 for each in found}  # fmt: skip
        assert kinds == {
            ("Convolution", 4), ("Convolution", 8), ("ConvolutionBackwardData", 8),
            ("ConvolutionBackwardFilter", 4), ("ConvolutionBackwardFilter", 8),
        }  # fmt: skip
        limited.zero_grad(set_to_none=True)
        again = limited(x)
        again.sum().backward()
        assert limited.forward.plan.compute_seconds < before.compute_seconds
        assert ooc.tune(limited, SHAPE) == []
    torch.testing.assert_close(again, y, rtol=1e-5, atol=1e-6)
    for each, expected in zip(limited.parameters(), gradients, strict=True):
        torch.testing.assert_close(each.grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.every_case
def test_forward_alone(make):
    make(FakeEngine(100, 3e-7), FakeEngine(101, 1e-7, KIB))
    with ooc_cudnn.settings(allow_tf32=False):
        found = ooc.tune(model(), torch.empty(SHAPE), memory_limit="512KiB", with_gradients=False)
    assert {type(each.operation).__name__ for each in found} == {"Convolution"}


def test_what_cannot_be_tuned_is_said():
    with ooc_cudnn.settings(device="host", machine="host"):
        with pytest.raises(NothingToTuneError, match="one way to compute a convolution"):
            ooc.tune(model(), SHAPE)
        with pytest.raises(TypeError, match=r"as in tune\(model"):
            ooc.tune(model())
        with pytest.raises(TypeError, match="model must be a torch"):
            ooc.tune(len, SHAPE)


def test_on_a_cudnn_that_nobody_searched_forward_and_backward_have_right_engines(make):
    """A step that pauses between its halves: the block is not to be written over then."""
    x = torch.randn(SHAPE)
    eager = model()
    eager(x).square().sum().backward()
    wrong, right = FakeEngine(100, 1e-8, error=0.1), FakeEngine(101, 2e-8)
    make(wrong, right, version=92800)
    limited = ooc.limit(model(), "512KiB")
    with ooc_cudnn.settings(allow_tf32=False):
        with pytest.warns(UserWarning, match="engine eng100 of cuDNN .* computes wrong results"):
            limited(x).square().sum().backward()
        launched = wrong.launched
        limited(x)
    assert wrong.launched == launched
    for each, expected in zip(limited.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(each.grad, expected.grad, rtol=1e-4, atol=1e-4)
