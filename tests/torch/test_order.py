"""Outputs lie as PyTorch's do, whichever memory order a step is computed in."""

import pytest
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.runtime.ready_model import ReadyModel
from tests.support.torch_checks import check
from tests.support.torch_models import residual

LAST = {3: (0, 2, 1), 4: (0, 2, 3, 1)}


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("with_gradients", [True, False])
def test_outputs_can_be_viewed(axes, with_gradients, monkeypatch):
    """A step that computes with channels last hands its outputs over so."""
    run = ReadyModel._run

    def with_channels_last(self, *arguments):
        found, *others = run(self, *arguments)
        last = LAST[axes + 2]
        back = [last.index(axis) for axis in range(len(last))]
        laid = {name: y.permute(last).contiguous().permute(back) for name, y in found.items()}
        return laid, *others

    monkeypatch.setattr(ReadyModel, "_run", with_channels_last)
    model = getattr(nn, f"Conv{axes}d")(3, 4, 3)
    x = torch.randn(2, 3, *[9] * axes)
    expected = model(x)
    ooc.limit(model, "1MiB")
    with ooc_cudnn.settings(device="host", machine="host"), torch.set_grad_enabled(with_gradients):
        y = model(x)
    assert y.stride() == expected.stride()
    assert torch.allclose(y.view(-1), expected.view(-1), atol=1e-5)
    assert y.requires_grad == with_gradients


@pytest.mark.every_case
def test_a_model_with_channels_last_is_the_same_under_a_limit(fewest_plans):
    torch.manual_seed(0)
    how = {"dtype": torch.float64, "memory_format": torch.channels_last}
    check(residual().to(**how), torch.randn(4, 3, 16, 16).to(**how), shares=(1 / 4,))
