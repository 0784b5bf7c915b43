"""Whatever forward reads may change between two calls: the next one is as if it were the first.

The judge is PyTorch. Changed is everything that can be reached from `vars` of the model and its
parts, one thing at a time; and what lies outside: globals, closures, defaults, classes.
"""

from __future__ import annotations

import copy
import dataclasses
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.errors import UnsupportedModelError
from tests.fuzz.compare_modules import INTERNAL, Judge, Seen
from tests.support import sampling

pytestmark = pytest.mark.usefixtures("fewest_plans")

LIMIT = 2**20
GLOBAL = {"gain": 1.5}
gain_of_module = 1.25


@dataclasses.dataclass
class Config:
    gain: float = 0.5
    name: str = "tanh"
    deep: tuple = (1, {"a": 2.0})


def doubled(x):
    return x * 2


class Part(nn.Module):
    """Reads numbers, objects, containers and tensors that are attributes."""

    share = 0.25

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.gain, self.flag, self.word, self.nothing = 1.5, True, "relu", None
        self.numbers, self.table = [1.0, 2], {"a": 0.5, "b": [3.0]}
        self.space = types.SimpleNamespace(gain=2.0, deep=types.SimpleNamespace(bias=0.5))
        self.config, self.pair, self.kinds = Config(), (1.0, 2.0), {1, 2}
        self.act, self.made = F.relu, doubled
        self.constant = torch.full((1,), 0.5)
        self.register_buffer("shift", torch.full((4, 1, 1), 0.25))

    def forward(self, x):
        y = self.act(self.conv(x)) * self.gain + self.shift
        y = y + x if self.flag else y - x
        y = getattr(torch, self.word)(y) * self.numbers[0] + self.numbers[-1]
        y = y * self.table["a"] - self.table["b"][0] + len(self.numbers) + len(self.table)
        y = y * self.space.gain + self.space.deep.bias + len(self.kinds)
        y = getattr(torch, self.config.name)(y * self.config.gain) + self.config.deep[1]["a"]
        y = self.made(y) * self.constant * self.pair[1] * self.share
        return y if self.nothing is None else y * self.nothing


def closed_over(cell):
    return lambda x: x * cell["gain"]


class Net(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.LeakyReLU(0.1)
        self.parts = nn.ModuleList([Part()])
        self.drop = nn.Dropout(0.0)
        self.pool = nn.AvgPool2d(2)
        self.group = nn.GroupNorm(2, 4)
        self.closed = closed_over(cell)

    def helper(self, x, gain=2.0):
        return x * gain

    def forward(self, x):
        x = self.act(self.norm(self.stem(x)))
        for part in self.parts:
            x = part(x)
        x = self.group(self.pool(self.drop(x)))
        return self.helper(self.closed(x)) * GLOBAL["gain"] * gain_of_module


def made():
    """A model, and the cell that its closure reads."""
    torch.manual_seed(0)
    cell = {"gain": 1.5}
    model = Net(cell)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double(), cell


def seen(model):
    """What a step sees: outputs, gradients, buffers, attributes."""
    random = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, 7, 6, generator=random, dtype=torch.float64)
    x = x.to(model.stem.weight.dtype).requires_grad_()
    found = Seen()
    for parameter in model.parameters():
        parameter.grad = None
    y = model(x)
    if y.requires_grad:
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    found.add("y", y)
    found.add("x.grad", x.grad)
    found.add_model(model)
    return found


def differences(expected, found):
    """Computed in float64, and compared as float32 would be: what rounding does is far below."""
    return Judge(expected, torch.float32, lambda: expected, list).differences(found)


def check(change):
    """Change a limited model and PyTorch's after a first call of each; compare the second calls.

    A change that PyTorch does not take is none. A refusal is told before anything has run.
    """
    (eager, cell), (limited, other_cell) = made(), made()
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        ooc.limit(limited, LIMIT)
        first = seen(eager)
        assert differences(first, seen(limited)) == []
        for each, its_cell in ((eager, cell), (limited, other_cell)):
            torch.manual_seed(0)
            change(each, its_cell)
        try:
            expected = seen(eager)
        except Exception as error:
            pytest.skip(f"PyTorch does not take it: {error}")
        try:
            found = seen(limited)
        except UnsupportedModelError:
            return
        assert differences(expected, found) == []
        if not sampling.EVERY:
            return
        fresh, fresh_cell = made()
        seen(fresh)
        torch.manual_seed(0)
        change(fresh, fresh_cell)
        assert differences(expected, seen(ooc.limit(fresh, LIMIT))) == []


def other(value):
    """Another value of the same kind; None where there is none."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 2 + 0.5
    if isinstance(value, str):
        return {"relu": "sin", "tanh": "sigmoid", "zeros": "circular"}.get(value)
    if isinstance(value, torch.Tensor):
        return value * 2 + 1
    if value is None:
        return 3.0
    if value is F.relu:
        return torch.tanh
    if value is doubled:
        return torch.neg
    if isinstance(value, tuple) and all(type(each) in (int, float) for each in value):
        return tuple(each + 1 for each in value)
    if isinstance(value, set):
        return {*value, 17}
    return None


def reached(where, path=(), seen_before=None):
    """The paths of everything in what a user's attributes hold: keys, attributes, indices."""
    seen_before = set() if seen_before is None else seen_before
    if id(where) in seen_before:
        return
    seen_before.add(id(where))
    for step, value in entries(where):
        if other(value) is not None and not isinstance(where, tuple):  # tuples stay
            yield (*path, step)
        if holds(value):
            yield from reached(value, (*path, step), seen_before)


def holds(value):
    return isinstance(value, nn.Module | list | dict | types.SimpleNamespace | tuple) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    )


def entries(where):
    """The steps from something to what it holds, and that."""
    if isinstance(where, nn.Module):
        own = vars(where).items()
        found = {k: v for k, v in own if k not in INTERNAL or k == "training"}
        return [*found.items(), *where._buffers.items(), *where._modules.items()]
    if isinstance(where, dict):
        return list(where.items())
    if isinstance(where, list | tuple):
        return list(enumerate(where))
    return list(vars(where).items())


def follow(where, step):
    if isinstance(where, dict | list | tuple):
        return where[step]
    return getattr(where, step)


def put(where, step, value):
    if isinstance(where, dict | list):
        where[step] = value
    else:
        setattr(where, step, value)


def one_of_each_kind(paths, model):
    """Of attributes of the same name on parts of the same class the first."""
    found = {}
    for path in paths:
        where = model
        for step in path[:-1]:
            where = follow(where, step)
        kind = type(where) if isinstance(where, nn.Module) else path[:-1]
        found.setdefault((kind, path[-1]), path)
    return list(found.values())


#: All but the share of what dropout drops, which is drawn.
PATHS = [path for path in reached(made()[0]) if path != ("drop", "p")]
if not sampling.EVERY:
    PATHS = one_of_each_kind(PATHS, made()[0])
ALL_PATHS, PATHS = PATHS, PATHS[:: sampling.number(2, of=1)]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_what_vars_reach_is_changed(path):
    def change(model, cell):
        where = model
        for step in path[:-1]:
            where = follow(where, step)
        put(where, path[-1], other(follow(where, path[-1])))

    check(change)


def test_all_kinds_of_things_are_reached():
    """Numbers, strings, lists, dicts, objects, tensors, functions, within one another."""
    assert len(ALL_PATHS) > 50
    said = {".".join(map(str, path)) for path in ALL_PATHS}
    assert {
        "parts.0.gain", "parts.0.flag", "parts.0.word", "parts.0.nothing", "parts.0.numbers.0",
        "parts.0.table.b.0", "parts.0.space.deep.bias", "parts.0.config.gain", "norm.eps",
        "parts.0.config.deep.1.a", "parts.0.constant", "parts.0.act", "norm.running_mean",
        "parts.0.shift", "act.negative_slope", "norm.training", "stem.padding",
        "norm.momentum",
    } <= said  # fmt: skip


def halved(module, given, output):
    return output * 0.5


class Doubled(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) * 2


CHANGES = {
    "a number is appended": lambda m, c: m.parts[0].numbers.append(7.0),
    "a key is added": lambda m, c: m.parts[0].table.update(z=1.0),
    "a closure's cell": lambda m, c: c.update(gain=3.0),
    "a part is replaced": lambda m, c: setattr(m, "act", nn.Tanh()),
    "a part becomes another class": lambda m, c: setattr(m.stem, "__class__", Doubled),
    "a part is added to a list": lambda m, c: m.parts.append(copy.deepcopy(m.parts[0])),
    "a part is taken off a list": lambda m, c: m.parts.__delitem__(0),
    "parts change places": lambda m, c: (setattr(m, "pool", m.act), setattr(m, "act", nn.SiLU())),
    "a parameter is replaced": lambda m, c: setattr(
        m.stem, "weight", nn.Parameter(torch.ones_like(m.stem.weight))
    ),
    "a parameter's data": lambda m, c: setattr(m.stem.weight, "data", m.stem.weight.data * 2),
    "a parameter's data in place": lambda m, c: m.stem.weight.data.mul_(2),
    "a bias is added": lambda m, c: setattr(m.stem, "bias", nn.Parameter(torch.ones(4))),
    "a bias is taken away": lambda m, c: setattr(m.parts[0].conv, "bias", None),
    "a weight is shared": lambda m, c: setattr(m.group, "weight", m.norm.weight),
    "a weight of another width": lambda m, c: setattr(
        m.stem, "weight", nn.Parameter(torch.ones(4, 3, 1, 1))
    ),
    "a part is frozen": lambda m, c: m.stem.requires_grad_(False),
    "all is frozen": lambda m, c: m.requires_grad_(False),
    "an affine is taken away": lambda m, c: (
        setattr(m.group, "weight", None), setattr(m.group, "bias", None)
    ),
    "the model is evaluated": lambda m, c: m.eval(),
    "a part is evaluated": lambda m, c: m.norm.eval(),
    "a buffer is replaced": lambda m, c: setattr(m.norm, "running_mean", torch.ones(4)),
    "statistics are not tracked": lambda m, c: (
        setattr(m.norm, "running_mean", None), setattr(m.norm, "running_var", None)
    ),
    "a tensor attribute asks for a gradient": lambda m, c: m.parts[0].constant.requires_grad_(),
    "a tensor attribute of another shape": lambda m, c: setattr(
        m.parts[0], "constant", torch.ones(4, 1, 1)
    ),
    "a tensor attribute in place": lambda m, c: m.parts[0].constant.fill_(5),
    "a forward hook": lambda m, c: m.stem.register_forward_hook(halved),
    "a forward hook of the model": lambda m, c: m.register_forward_hook(halved),
    "a forward hook of an inner part": lambda m, c: m.parts[0].register_forward_hook(halved),
    "a pre-hook": lambda m, c: m.norm.register_forward_pre_hook(lambda mod, given: (given[0] * 2,)),
    "a backward hook": lambda m, c: m.norm.register_full_backward_hook(
        lambda mod, before, after: (before[0] * 2,)
    ),
    "a backward pre-hook": lambda m, c: m.norm.register_full_backward_pre_hook(
        lambda mod, after: (after[0] * 2,)
    ),
    "a hook of a parameter": lambda m, c: m.stem.weight.register_hook(lambda g: g * 3),
    "a method of the model": lambda m, c: setattr(m, "helper", lambda x: x * 5),
    "a forward of a part": lambda m, c: setattr(m.act, "forward", torch.sin),
    "weight norm": lambda m, c: nn.utils.parametrizations.weight_norm(m.stem),
    "a state is loaded": lambda m, c: m.load_state_dict(
        {n: v * 2 if v.is_floating_point() else v for n, v in m.state_dict().items()}
    ),
    "statistics are reset": lambda m, c: m.norm.reset_running_stats(),
    "an unused part": lambda m, c: setattr(m, "unused", nn.Linear(2, 2)),
    "an unused parameter": lambda m, c: m.register_parameter("spare", nn.Parameter(torch.ones(2))),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name):
    check(CHANGES[name])


OUTSIDE = {
    "a global number": (f"{__name__}", "gain_of_module", 4.0),
    "a class's attribute": (Part, "share", 3.0),
    "a class's method": (Net, "helper", lambda self, x: x * 7),
    "a default of a method": (Net.helper, "__defaults__", (9.0,)),
    "a class's forward": (nn.LeakyReLU, "forward", lambda self, x: x.tanh()),
    "a function of PyTorch's": (torch, "tanh", torch.sin),
}


@pytest.mark.parametrize("name", [*OUTSIDE, "a global dict"])
def test_a_change_outside_of_the_model_is_seen(name, monkeypatch):
    """Each model makes its first call before anything is changed."""
    (eager, _), (limited, _) = made(), made()
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        ooc.limit(limited, LIMIT)
        seen(eager), seen(limited)
        if name == "a global dict":
            monkeypatch.setitem(GLOBAL, "gain", 3.0)
        elif isinstance(OUTSIDE[name][0], str):
            monkeypatch.setitem(globals(), *OUTSIDE[name][1:])
        else:
            monkeypatch.setattr(*OUTSIDE[name])
        expected = seen(eager)
        try:
            found = seen(limited)
        except UnsupportedModelError:
            return
        assert differences(expected, found) == []


def test_a_hook_is_put_on_and_taken_off_again():
    (eager, _), (limited, _) = made(), made()
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        ooc.limit(limited, LIMIT)
        for _ in range(2):
            handles = []
            for on in (True, False):
                for model in (eager, limited):
                    if on:
                        handles.append(model.parts[0].conv.register_forward_hook(halved))
                    else:
                        handles.pop().remove()
                expected = seen(eager)
                found = seen(limited)
                assert differences(expected, found) == []


def test_many_changes_one_after_another():
    """More of them than anybody keeps captures for; each is seen, and those before come back."""
    (eager, _), (limited, _) = made(), made()
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        ooc.limit(limited, LIMIT)
        for gain in [*range(12), 0, 5, 11]:
            for model in (eager, limited):
                model.parts[0].gain = float(gain)
            expected = seen(eager)
            assert differences(expected, seen(limited)) == []
