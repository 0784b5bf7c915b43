"""What the door does on a card, as far as it shows without one."""

import weakref
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.devices import get_device
from ooc_cudnn.network import network
from ooc_cudnn.network.lowering.device_gradients import GradientBlock
from ooc_cudnn.network.runtime import lazy_step
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.torch.autograd import function
from ooc_cudnn.torch.autograd.tensor_refs import TensorRefs
from ooc_cudnn.torch.cards import InPyTorchsPool, InTensors, empty_there
from ooc_cudnn.torch.runtime import ready_model

HERE = torch.device("cpu")


def test_memory_of_pytorch_is_its_until_it_is_let_go_of(monkeypatch):
    memory = InPyTorchsPool(1000, HERE)
    assert (memory.nbytes, memory.pointer) == (1000, memory._tensor.data_ptr())

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(MemoryError, match="CUDA out of memory"):
        InPyTorchsPool(1000, HERE)


def test_results_lie_as_their_spec_says():
    spec = TensorSpec((2, 3, 4, 5), "float64", "device", (60, 1, 15, 3))
    made = empty_there(spec, HERE)
    assert (made.shape, made.stride(), made.dtype) == (spec.shape, spec.strides, torch.float64)


def test_several_results_lie_in_one_tensor():
    memory = InTensors(HERE)
    specs = {
        "a": TensorSpec((5,), "float32", "device"),
        "b": TensorSpec((2, 3, 4, 5), "float64", "device", (60, 1, 15, 3)),
    }
    gradients = GradientBlock(specs)
    block = memory.block(gradients.nbytes)
    made = gradients.arrays(block, memory.in_block)
    views = gradients.views(block.pointer)
    for name, spec in specs.items():
        assert (made[name].shape, made[name].stride()) == (spec.shape, spec.strides)
        assert made[name].data_ptr() == views[name].pointer
        assert made[name].untyped_storage().data_ptr() == block.pointer
        made[name].fill_(ord(name))
    assert gradients.views(block.pointer) is views
    del block
    assert {name: float(each.mean()) for name, each in made.items()} == {"a": 97.0, "b": 98.0}


def test_gradients_that_lie_in_one_tensor_are_copied():
    """Both terms of a sum have that of the sum; their owners may change them in place."""
    net = ooc_cudnn.Network()
    x, t = (net.input(name, (2, 3, 4, 4), gradient=True) for name in ("x", "t"))
    step = net.pausing_step(net.convolution(net.add(x, t), 2, window=1, name="conv"))
    with ooc_cudnn.settings(device="host", machine="host"):
        shared = step.forward(**{each.name: np.ones(each.shape, "f4") for each in (x, t)}).shared
    assert shared == {"x", "t"}
    given = torch.arange(24.0)
    for name, is_copied in (("x", True), ("conv.w", False)):
        found = function._apart(name, given, HERE, shared)
        assert torch.equal(found, given)
        assert (found.data_ptr() != given.data_ptr()) is is_copied
    assert function._apart("x", None, HERE, shared) is None


def test_a_tensor_is_looked_at_again_where_it_has_moved():
    device, wrapping = get_device("host"), TensorRefs()
    weight = nn.Parameter(torch.randn(4, 3, 3, 3))
    first = wrapping("w", weight, device)
    again = wrapping("w", weight, device)
    assert again.spec is first.spec
    assert again.pointer == weight.data_ptr()
    weight.data = torch.randn(4, 3, 3, 3).contiguous(memory_format=torch.channels_last)
    moved = wrapping("w", weight, device)
    assert moved.pointer == weight.data_ptr()
    assert moved.spec.order == "channels_last"
    assert (moved.array == weight.detach().numpy()).all()
    gone = weakref.ref(weight)
    del weight, first, again, moved
    assert gone() is None  # what is known of it keeps no memory alive


def test_a_capture_makes_the_phases_of_one_output_once(monkeypatch):
    made, training_step = [], network.training_step

    def counted(*asked, **how):
        made.append(training_step(*asked, **how))
        return made[-1]

    monkeypatch.setattr(network, "training_step", counted)
    ooc.plan(nn.Conv2d(3, 4, 3), (2, 3, 8, 8), memory_limit="1MiB", machine="host")
    looked_at, planned = made
    assert looked_at.seeds == planned.seeds != {}
    assert looked_at.gradients == planned.gradients


def test_phases_are_made_once(monkeypatch):
    """On a card a call has settings of its own: phases made outside of them took 40 ms a step."""

    @contextmanager
    def at(_device):
        with ooc_cudnn.settings(plan_cache=False):
            yield

    for module in (ready_model, function):
        monkeypatch.setattr(module, "at", at)
    made = []
    make = lazy_step.LazyStep._step.fget
    monkeypatch.setattr(
        lazy_step.LazyStep, "_step", property(lambda self: made.append(make(self)) or made[-1])
    )
    model = ooc.limit(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), "1MiB")
    with ooc_cudnn.settings(device="host", machine="host", plan_cache=True):
        for _ in range(3):
            model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert len({id(each) for each in made}) == 1
