"""What goes on is said of everything that a user of PyTorch calls and may wait for."""

import io

import numpy as np
import pytest
import torch

import ooc_cudnn
import ooc_cudnn.torch as ooc
from tests.support.told import Terminal, labels_told

pytestmark = pytest.mark.usefixtures("few_plans")

SHAPE = (2, 3, 16, 16)


def model():
    layers = (torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3))
    return torch.nn.Sequential(*layers)


def train():
    limited = ooc.limit(model(), "48KiB")
    limited(torch.ones(SHAPE)).sum().backward()


def infer():
    ooc.infer(model().eval(), np.ones((1, 3, 64, 64), "f4"), memory_limit="48KiB")


CALLS = {
    "limit": (train, {
        "loading TorchDynamo", "capturing Sequential", "planning training_step",
        "training_step forward, first run", "training_step backward, first run",
    }),
    "plan": (
        lambda: ooc.plan(model(), SHAPE, memory_limit="48KiB"),
        {"capturing Sequential", "planning training_step"},
    ),
    "plan_infer": (
        lambda: ooc.plan_infer(model().eval(), (1, 3, 64, 64), memory_limit="48KiB"),
        {"capturing Sequential", "planning in blocks", "planning forward"},
    ),
    "infer": (infer, {"capturing Sequential", "planning in blocks", "making blocks"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_it_is_said(name, monkeypatch):
    told = labels_told(monkeypatch)
    call, labels = CALLS[name]
    with ooc_cudnn.settings(progress="auto", plan_cache=False):
        call()
    assert labels <= set(told)


@pytest.mark.parametrize(("stream", "setting"), [(io.StringIO, "auto"), (Terminal, False)])
@pytest.mark.parametrize("name", CALLS)
def test_it_is_not_said_to_nobody(name, stream, setting, monkeypatch):
    written = stream()
    told = labels_told(monkeypatch, written)
    with ooc_cudnn.settings(progress=setting, plan_cache=False):
        CALLS[name][0]()
    assert told == []
    assert written.getvalue() == ""
