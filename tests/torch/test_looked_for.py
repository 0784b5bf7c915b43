"""Names that forward looks for in vain, and finds in a later call: TorchDynamo guards no miss."""

import contextlib
import copy
import types

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.calls import calls_of
from tests.support.torch_checks import close

pytestmark = pytest.mark.usefixtures("fewest_plans")


class Gains:
    """An object of the user's."""


class WithDefault(Gains):
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return 1.0


class Looking(nn.Module):
    """A convolution, times what a function finds."""

    def __init__(self, look):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.part, self.look = nn.Conv2d(3, 4, 1), nn.Identity(), look
        self.object, self.space, self.default = Gains(), types.SimpleNamespace(), WithDefault()
        self.table, self.parts, self.pair = {}, nn.ModuleDict(), ([1.0],)

    def forward(self, x):
        return self.conv(x) * self.look(self)


def caught(find, error):
    def look(model):
        with contextlib.suppress(error):
            return find(model)
        return 1.0

    return look


def set_gain(at):
    return lambda model: setattr(at(model), "gain", 3.0)


def image():
    return torch.linspace(-1, 1, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4)


LOOKUPS = {
    "an attribute of the model": (
        caught(lambda m: m.gain, AttributeError), set_gain(lambda m: m)),
    "an attribute of a part": (
        caught(lambda m: m.part.gain, AttributeError), set_gain(lambda m: m.part)),
    "its dictionary": (
        lambda m: m.__dict__.get("gain", 1.0), set_gain(lambda m: m)),
    "that of an object": (
        lambda m: 3.0 if "gain" in m.object.__dict__ else 1.0, set_gain(lambda m: m.object)),
    "an object's attributes by default": (
        lambda m: m.default.gain, set_gain(lambda m: m.default)),
    "a namespace": (
        lambda m: 1.0 + len(vars(m.space)), set_gain(lambda m: m.space)),
    "a key": (
        caught(lambda m: m.table["gain"], KeyError), lambda m: m.table.update(gain=3.0)),
    "a part": (
        caught(lambda m: 2.0 if m.parts["gain"] is not None else 0.0, KeyError),
        lambda m: m.parts.update({"gain": nn.ReLU()})),
    "a buffer": (
        caught(lambda m: m.gain, AttributeError),
        lambda m: m.register_buffer("gain", torch.tensor(3.0))),
    "a list within a tuple": (
        lambda m: m.pair[0][0], lambda m: m.pair[0].__setitem__(0, 3.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKUPS)
def test_what_is_there_in_a_later_call_is_found(name):
    if name == "a namespace" and torch.__version__ < "2.13":
        pytest.skip("TorchDynamo does not follow len(vars(...)), and says so")
    look, change = LOOKUPS[name]
    eager = Looking(look)
    limited = ooc.limit(Looking(look), "1MiB")
    for model in (eager, limited):
        before = model(image())
        change(model)
        assert not torch.equal(model(image()), before)
    for _ in range(2):
        close(limited(image()), eager(image()), "output")


def test_what_forward_sets_itself_is_found_in_the_next_call():
    def counted(model):
        try:
            model.count += 1
        except AttributeError:
            model.count = 1
        return model.count

    eager = Looking(counted)
    limited = ooc.limit(Looking(counted), "1MiB")
    for times in range(1, 5):
        close(limited(image()), eager(image()), "output")
        assert limited.count == eager.count == times


def test_what_forward_leaves_and_never_looks_for_is_captured_once():
    def left(model):
        model.last = model.conv.weight.sum()
        return 2.0

    limited = ooc.limit(Looking(left), "1MiB")
    eager = copy.deepcopy(limited)
    ooc.release(eager)
    for _ in range(3):
        close(limited(image()), eager(image()), "output")
    assert len(calls_of(limited)) == 1
