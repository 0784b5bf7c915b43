"""What changes and leaves every dictionary as it is: guards pass it over, and `Held` sees it.

Tensors in place, their shapes and whether they ask for gradients; classes of parts; what holds no
dictionary at all. The judge is PyTorch, after each change and after it is taken back.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import enum
import functools
import random
import types

import pytest
import torch
from torch import nn
from torch._dynamo import source
from torch.overrides import TorchFunctionMode

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.calls import calls_of
from ooc_cudnn.torch.capture.guards.extra_guards import Names, _Nothing, _value_of
from ooc_cudnn.torch.errors import UnsupportedModelError
from tests.support.torch_checks import close

pytestmark = pytest.mark.usefixtures("fewest_plans")

Pair = collections.namedtuple("Pair", "a b")
outside = nn.Conv2d(3, 3, 1).double()


class Kind(enum.Enum):
    ONE, TWO = 1, 2


class Slots:
    __slots__ = ("gain",)

    def __init__(self):
        self.gain = 2.0


class Base(nn.Module):
    gain, share, tensor = 1.5, 0.5, torch.tensor(2.0, dtype=torch.float64)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        return self.conv(x) * self.gain * self.share * self.tensor


class Part(Base):
    share = 0.25


class Trebled(Part):
    def forward(self, x):
        return super().forward(x) * 3


class Model(nn.Module):
    """Parts that hold nothing but dictionaries and tensors, and objects of other kinds."""

    def __init__(self):
        super().__init__()
        self.part, self.conv, self.act = Part(), nn.Conv2d(3, 3, 1), nn.LeakyReLU(0.1)
        self.unused, self.spare = nn.Linear(2, 2), torch.ones(2)
        self.table = {"w": torch.ones(1).double(), "deep": {"m": torch.ones(1).double(), "k": 1.0}}
        self.slots, self.kind, self.pair = Slots(), Kind.ONE, Pair(1.0, 2.0)
        self.deque, self.ordered = collections.deque([1.0]), collections.OrderedDict(a=1.0)
        self.tuple, self.list = (torch.ones(1).double(),), [torch.ones(1).double()]
        self.times = functools.partial(torch.mul, other=2.0)
        self.several = nn.ModuleDict({"a": nn.ReLU()})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(1))])

    def forward(self, x):
        y = self.act(self.part(x) + self.conv(x)) + outside(x)
        if any(each.requires_grad for each in self.unused.parameters()):
            y = y * 1.25
        y = y * self.unused.weight.shape[0] * self.spare.shape[0]
        y = y * self.table["w"] * self.table["deep"]["m"] * self.table["deep"]["k"]
        y = y * self.slots.gain * self.kind.value * self.pair.a * self.deque[0] * self.ordered["a"]
        y = self.times(y * self.tuple[0] * self.list[0])
        return (self.several["a"](y) + y) * self.scales[0]


def data(tensor, value):
    tensor.data = value.double()


CHANGES = {
    "a part is frozen": lambda m: m.part.requires_grad_(False),
    "a weight is frozen": lambda m: m.conv.weight.requires_grad_(False),
    "what is unused is frozen": lambda m: m.unused.requires_grad_(False),
    "a weight's data": lambda m: data(m.conv.weight, torch.ones(3, 3, 1, 1)),
    "an unused weight's data": lambda m: data(m.unused.weight, torch.ones(5, 2)),
    "an unused tensor is resized": lambda m: m.spare.resize_(7),
    "a tensor is put in another's place": lambda m: m.table["deep"]["m"].set_(
        torch.full((3, 1, 1), 2.0, dtype=torch.float64)
    ),
    "a tensor in a dict asks for a gradient": lambda m: m.table["w"].requires_grad_(),
    "a tensor in a dict in place": lambda m: m.table["w"].fill_(3),
    "a tensor in a dict is replaced": lambda m: m.table.update(w=torch.full((1,), 4.0).double()),
    "a number in a dict within": lambda m: m.table["deep"].update(k=9.0),
    "a tensor in a tuple asks for a gradient": lambda m: m.tuple[0].requires_grad_(),
    "a tensor in a list asks for a gradient": lambda m: m.list[0].requires_grad_(),
    "a tensor in a tuple in place": lambda m: m.tuple[0].fill_(6),
    "a part becomes of a class": lambda m: setattr(m.part, "__class__", Trebled),
    "an activation becomes of a class": lambda m: setattr(m.act, "__class__", nn.Sigmoid),
    "an attribute over that of the class": lambda m: setattr(m.part, "gain", 8.0),
    "a slot": lambda m: setattr(m.slots, "gain", 5.0),
    "another kind": lambda m: setattr(m, "kind", Kind.TWO),
    "another pair": lambda m: setattr(m, "pair", Pair(4.0, 2.0)),
    "an element of a deque": lambda m: m.deque.__setitem__(0, 6.0),
    "an element in order": lambda m: m.ordered.update(a=6.0),
    "a keyword of a partial function": lambda m: m.times.keywords.update(other=5.0),
    "a part in a ModuleDict": lambda m: m.several.__setitem__("a", nn.Sigmoid()),
    "a parameter in a list is frozen": lambda m: m.scales[0].requires_grad_(False),
    "by vars": lambda m: vars(m.act).__setitem__("negative_slope", 0.7),
    "by _parameters": lambda m: m.part.conv._parameters.__setitem__(
        "weight", nn.Parameter(torch.ones(3, 3, 3, 3).double())
    ),
}  # fmt: skip
OF_ALL = {
    "an attribute in front of a base's": (Part, "gain", 3.0),
    "a base's attribute": (Base, "gain", 3.0),
    "a base's tensor": (Base, "tensor", torch.tensor(5.0, dtype=torch.float64)),
    "an attribute of a class": (Part, "share", 0.7),
}


@pytest.fixture
def both():
    """PyTorch's model, and one under a limit; what is outside of them is as it was afterwards."""
    models = []
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        for _ in range(2):
            torch.manual_seed(0)
            models.append(Model().double())
        ooc.limit(models[1], "4MiB")
        yield models
    outside.requires_grad_(True)


def results(model):
    x = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tensors = [model.table["w"], model.tuple[0], model.list[0], *outside.parameters()]
    for each in (*model.parameters(), *tensors):
        each.grad = None
    y = model(x)
    if y.requires_grad:
        y.square().sum().backward()
    return [y.detach(), *(each.grad for each in (*model.parameters(), *tensors))]


def compare(both, what):
    expected, found = (results(each) for each in both)
    for at, (one, other) in enumerate(zip(found, expected, strict=True)):
        close(one, other, f"{what}: number {at}", tolerance=1e-10)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(both, name):
    compare(both, "before")
    for model in both:
        CHANGES[name](model)
    compare(both, name)
    compare(both, f"{name}, again")


@pytest.mark.parametrize("name", OF_ALL)
def test_a_change_of_a_class_is_seen(both, name, monkeypatch):
    compare(both, "before")
    monkeypatch.setattr(*OF_ALL[name])
    compare(both, name)
    monkeypatch.undo()
    compare(both, "taken back")


def test_a_module_outside_of_the_model_is_seen(both):
    compare(both, "before")
    outside.requires_grad_(False)
    compare(both, "frozen")


def test_two_states_that_take_turns_are_captured_once_each(both):
    """As the two networks of a GAN do: each is frozen while the other one is trained."""
    for _ in range(3):
        for frozen in (True, False):
            for model in both:
                model.part.requires_grad_(not frozen)
            compare(both, f"frozen: {frozen}")
    assert len(calls_of(both[1])) == 2


def test_what_is_replaced_in_each_step_is_captured_once(both):
    """A state that forward reads, such as that of a recurrence, is another tensor in each call."""
    for step in range(4):
        for model in both:
            model.table["deep"]["m"] = torch.full((1,), float(step), dtype=torch.float64)
            model.spare = torch.ones(2)
        compare(both, f"step {step}")
    assert len(calls_of(both[1])) == 1


class EasyDict(dict):
    """Keys that are attributes, too."""

    def __init__(self, **keys):
        for name, value in keys.items():
            setattr(self, name, value)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        super().__setitem__(name, value)


class AttrDict(dict):
    def __init__(self, **keys):
        super().__init__(keys)
        self.__dict__ = self


class Level(enum.IntEnum):
    LOW = 1


class Odd(nn.Module):
    """Reads what versions of dictionaries tell nothing of."""

    def __init__(self):
        super().__init__()
        self.conv, self.seen, self.level = nn.Conv2d(3, 3, 1), [], Level.LOW
        self.easy, self.other = EasyDict(deep=EasyDict(gain=1.0)), AttrDict(deep=AttrDict(gain=1.0))
        self.log, self.hidden = self.seen.append, [nn.Tanh()]

    def forward(self, x):
        if torch.__version__ < "2.13":  # TorchDynamo does not follow a method of a list, kept apart
            self.seen.append(x.shape[0])
        else:
            self.log(x.shape[0])
        y = self.conv(x) * self.easy.deep.gain * self.other.deep.gain * self.level.scale
        y = y * 2 if getattr(self.conv.weight, "is_doubled", False) else y
        return self.hidden[0](y) * len(self.seen)


ODD = {
    "a key that is an attribute": lambda m: setattr(m.easy.deep, "gain", 3.0),
    "an attribute that is a key": lambda m: setattr(m.other.deep, "gain", 3.0),
    "an attribute of a parameter": lambda m: setattr(m.conv.weight, "is_doubled", True),
    "an attribute of a number": lambda m: setattr(Level.LOW, "scale", 5.0),
    "a module elsewhere": lambda m: setattr(m.hidden[0], "__class__", nn.Sigmoid),
    "nothing": lambda m: None,
}


@pytest.mark.parametrize("name", ODD)
def test_what_versions_of_dictionaries_do_not_tell_is_looked_at(name):
    torch.manual_seed(0)
    eager, x = Odd(), torch.randn(2, 3, 4, 4)
    limited = Odd()
    limited.load_state_dict(eager.state_dict())
    Level.LOW.scale = 2.0
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        ooc.limit(limited, "4MiB")
        for model in (eager, limited):
            model(x), model(x)
            ODD[name](model)
        for _ in range(2):
            close(limited(x), eager(x), name, tolerance=1e-5)
        assert limited.seen == eager.seen


def test_pythons_random_numbers_are_drawn_once_where_a_capture_does_not_hold():
    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.spare = nn.Conv2d(3, 3, 1), nn.Linear(2, 2)

        def forward(self, x):
            return self.conv(x) * random.uniform(0.5, 1.5)

    torch.manual_seed(0)
    models, x, found = [Drawing()], torch.randn(2, 3, 4, 4), []
    models.append(ooc.limit(copy.deepcopy(models[0]), "4MiB"))
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        for model in models:
            random.seed(0)
            outputs = [model(x), model(x)]
            model.spare.requires_grad_(False)
            found.append([*outputs, model(x), model(x), torch.tensor(random.random())])
    for one, other in zip(*found, strict=True):
        close(one, other, "drawn", tolerance=1e-5)


@pytest.mark.parametrize("use", ["range", "keys"])
def test_a_number_that_dynamo_follows_as_a_constant_alone_may_change(use):
    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Conv2d(3, 3, 1) for _ in range(4)])
            self.places, self.of = range(1), types.MappingProxyType({1: "sin", 2: "cos", 3: "tanh"})

        def forward(self, x):
            if use == "keys":
                return getattr(torch, self.of[len(self.places)])(self.blocks[0](x))
            return sum(self.blocks[at](x) for at in self.places)

    torch.manual_seed(0)
    eager, x = Growing(), torch.randn(1, 3, 4, 4)
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        limited = ooc.limit(Growing(), "4MiB")
        limited.load_state_dict(eager.state_dict())
        for count in (1, 2, 3, 2, 1):
            for model in (eager, limited):
                model.places = range(count)
            close(limited(x), eager(x), f"{count}", tolerance=1e-6)


class Doubling(TorchFunctionMode):
    """Doubles what torch.arange makes."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        return made * 2 if function is torch.arange else made


class Making(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.drop = nn.Conv2d(3, 3, 1), nn.Dropout(0.0)

    def forward(self, x):
        return self.drop(self.conv(x)) * torch.arange(3.0, dtype=x.dtype).reshape(3, 1, 1)


def test_a_mode_of_functions_is_seen():
    torch.manual_seed(0)
    eager, x = Making().double(), torch.ones(2, 3, 4, 4, dtype=torch.float64)
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        limited = ooc.limit(copy.deepcopy(eager), "4MiB")
        for mode in (contextlib.nullcontext(), Doubling(), torch.device("cpu"), Doubling()):
            with mode:
                if isinstance(mode, Doubling) and torch.__version__ < "2.13":
                    with pytest.raises(UnsupportedModelError, match="within a Doubling"):
                        limited(x)
                    continue
                ours, pytorchs = limited(x), eager(x)
            close(ours, pytorchs, "output")


def test_a_default_device_is_for_what_forward_makes():
    limited, x = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Dropout(0.5)), torch.ones(2, 3, 4, 4)
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        ooc.limit(limited, "4MiB")
        with torch.device("meta"):  # a seed that is drawn there has no number
            limited(x).sum().backward()
    assert limited[0].weight.grad.isfinite().all()


def test_names_of_a_file_are_compared_without_those_of_torchdynamo():
    file = types.ModuleType("theirs")
    names = Names([(file, ())])
    assert names.are_as_they_were()
    vars(file)["__import_torch"] = torch
    assert names.are_as_they_were()
    del vars(file)["__import_torch"]
    file.gain = 2.0  # there are as many in all
    assert not names.are_as_they_were()
    del file.gain
    assert names.are_as_they_were()


def test_a_source_has_the_value_of_its_name():
    x = types.SimpleNamespace(parts={"a": [1.0, 2.0]})
    x.parts[0] = x
    scope, found = {"L": {"x": x}}, {}
    parts = source.AttrSource(source.LocalSource("x"), "parts")
    a = source.DictGetItemSource(parts, "a")
    for each in (source.GetItemSource(a, 1), a, source.DictGetItemSource(parts, 0)):
        assert _value_of(each, scope, found) is eval(each.name, scope)
    missing = source.AttrSource(a, "missing")
    for each in (missing, source.AttrSource(missing, "behind"), source.GetItemSource(a, 2)):
        assert _value_of(each, scope, found) is _Nothing
