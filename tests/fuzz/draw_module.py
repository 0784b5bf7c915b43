"""From a seed to a program: the source of a `torch.nn.Module`, and of what a user does with it.

Each line is run as it is drawn, on small tensors, so that shapes are known and what PyTorch itself
refuses is drawn again. The program is plain text: what it finds is repeated without this library's
tests.
"""

from __future__ import annotations

import textwrap
import warnings
from dataclasses import dataclass

import torch
from torch import nn

from tests.fuzz.stream import Stream

#: How each program begins. What a judge replaces is in the second paragraph.
HEADER = '''\
import collections
import contextlib
import functools
import math
import types

import torch
import torch.nn.functional as F
from torch import nn

STORED = DTYPE = torch.{dtype}
LOW, AUTOCAST, VARIED = torch.{low}, True, None


def varied(x):
    """The same numbers; for a judge each moved a little, to see how much that matters."""
    if VARIED is None or not x.is_floating_point():
        return x
    share, seed = VARIED
    random = torch.Generator().manual_seed(seed + x.numel())
    return (x * (1 + share * torch.randn(x.shape, generator=random, dtype=torch.float64))).to(x)


def data(seed, *shape, scale=1.0):
    """Numbers of the model's dtype, the same wherever they are drawn."""
    random = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=random, dtype=torch.float64) * scale
    return varied(drawn.to(STORED).to(DTYPE))


def ready(model):
    """The model with parameters that are all random, in its dtype."""
    torch.manual_seed(0)
    with torch.no_grad():
        for at, parameter in enumerate(model.parameters()):
            parameter.copy_(varied(parameter + 0.2 * data(at, *parameter.shape).float()))
    return model.to(STORED).to(DTYPE)


def set_where(where, key, value):
    where[key] = value


def halved(module, before, after):
    """A hook of backward."""
    return tuple(None if g is None else g * 0.5 for g in before)
'''
#: Values beyond this, or of more elements, are results, and nothing more is made of them.
HOT, LARGEST = 64.0, 3000
DTYPES = {"float32": 6, "float64": 4, "bfloat16": 1, "float16": 1}


class SkipError(Exception):
    """What was drawn does not apply to what there is."""


#: What PyTorch and Python say of lines that are not to be.
REFUSALS = (
    SkipError, RuntimeError, ValueError, TypeError, IndexError, AttributeError, AssertionError,
    ArithmeticError, KeyError, NameError,
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A drawn program.

    Attributes
    ----------
    source : str
        Python: ``make()`` returns the model, ``use(model)`` calls it, and returns what it saw.
    limit : str or int
        "least", or bytes; where these are too few, the least that would do.
    words : tuple of str
        The names of what was drawn.
    """

    seed: int
    source: str
    limit: str | int
    words: tuple[str, ...] = ()

    @property
    def function(self):
        """What a record counts it as."""
        return "module"

    def __str__(self):
        return f"module under {self.limit}: {', '.join(self.words)}\n{self.source}"


class Names:
    """Fresh names, and what all parts of a program share."""

    def __init__(self, seed, attempt):
        self.stream = Stream(seed, f"module {attempt}")
        stream = self.stream
        self.dtype = stream.weighted(DTYPES)
        self.low = stream.choice(("bfloat16", "float16"))
        self.axes = stream.choice((1, 2, 2, 2, 3))
        #: What is discontinuous is not drawn together with dtypes of few bits.
        self.sharp = self.dtype in ("float32", "float64") and stream.chance(0.5)
        self.top, self.words, self.counts = [], [], {}
        self.space = {"__name__": "drawn"}
        exec(HEADER.format(dtype=self.dtype, low=self.low), self.space)
        self.torch_dtype = getattr(torch, self.dtype)

    def fresh(self, kind):
        self.counts[kind] = self.counts.get(kind, -1) + 1
        return f"{kind}{self.counts[kind]}"


class Drawing:
    """One class of a program while it is drawn."""

    def __init__(self, names, name="Net", depth=0):
        self.names, self.name, self.depth = names, name, depth
        self.stream, self.axes, self.space = names.stream, names.axes, names.space
        self.live = nn.Module()
        self.init, self.body = [], []
        #: Names of tensors that more may be made of, and those that may only be results.
        self.values, self.ends = [], []
        #: Attributes that are layers, with the shape that each has taken.
        self.layers = []
        self.arguments = []

    def tensor(self, name):
        return self.space[name]

    def argument(self, text, name, tensor):
        """Give forward another argument."""
        self.arguments.append(text)
        self.space[name] = tensor
        self.values.append(name)

    def pick(self, fits=lambda x: x.is_floating_point()):
        """The name of a value that fits, the last ones more often."""
        names = [name for name in self.values if fits(self.tensor(name))]
        if not names:
            raise SkipError
        return names[-1] if self.stream.chance(0.5) else self.stream.choice(names)

    def pick_map(self, least=1):
        """A value of images, channels and one to three axes of at least so many pixels."""
        return self.pick(
            lambda x: x.is_floating_point() and x.dim() == self.axes + 2
            and x.numel() and min(x.shape[2:]) >= least
        )  # fmt: skip

    def pick_like(self, name):
        """A value of the same shape: another, where there is one."""
        shape, dtype = self.tensor(name).shape, self.tensor(name).dtype
        alike = [
            other for other in self.values
            if other != name and self.tensor(other).shape == shape
            and self.tensor(other).dtype == dtype
        ]  # fmt: skip
        return self.stream.choice(alike) if alike else name

    def layer(self, text, kind="layer"):
        """Write a submodule or another attribute of the model; its name, as forward says it."""
        name = f"self.{self.names.fresh(kind)}"
        self.set_up(f"{name} = {text}")
        return name

    def set_up(self, *lines):
        """Write lines of ``__init__``."""
        self.space["self"] = self.live
        for line in lines:
            exec(line, self.space)
            self.init.append(line)
        self.live.to(self.names.torch_dtype)

    def write(self, *lines, new=(), end=False):
        """Write lines of forward, of which `new` are names of results."""
        self.space["self"] = self.live
        for line in lines:
            exec(line, self.space)
        self.body += lines
        for name in new:
            made = self.tensor(name)
            if not isinstance(made, torch.Tensor) or made.numel() > LARGEST:
                raise SkipError
            calm = bool(made.detach().double().abs().max() <= HOT) if made.numel() else False
            (self.values if calm and not end else self.ends).append(name)

    def assign(self, text, *, end=False):
        """Write a new value; its name."""
        name = self.names.fresh("v")
        self.write(f"{name} = {text}", new=(name,), end=end)
        return name

    def above(self, text):
        """Write lines of the file before the class."""
        exec(text, self.space)
        self.names.top.append(text)

    def sharp(self):
        if not self.names.sharp:
            raise SkipError

    def smooth(self):
        """Dtypes of few bits come now: nothing discontinuous."""
        if self.names.sharp:
            raise SkipError

    def step(self, steps):
        """Draw one of `steps` (functions and their weights) and write it, if it applies."""
        drawn = self.stream.weighted(steps)
        kept = [list(each) for each in (self.init, self.body, self.values, self.ends, self.layers)]
        top, words = list(self.names.top), list(self.names.words)
        try:
            drawn(self)
        except REFUSALS:
            self.init, self.body, self.values, self.ends, self.layers = kept
            self.names.top[:], self.names.words[:] = top, words
            return False
        self.names.words.append(drawn.__name__)
        return True

    def text(self, returned):
        """The class."""
        init = ["super().__init__()", *self.init]
        body = [*self.body, f"return {returned}"]
        arguments = ", ".join(["self", *self.arguments])
        return (
            f"class {self.name}(nn.Module):\n    def __init__(self):\n"
            + "".join(textwrap.indent(line, " " * 8) + "\n" for line in init)
            + f"\n    def forward({arguments}):\n"
            + "".join(textwrap.indent(line, " " * 8) + "\n" for line in body)
        )


def draw_module(seed):
    """The program of a seed: the first of its attempts that PyTorch itself runs."""
    from tests.fuzz.module_uses import program_text

    limits = Stream(seed, "limit")
    limit = limits.choice(("least", int(2 ** limits.uniform(10, 15)), 2**17, 2**24))
    for attempt in range(200):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                names = Names(seed, attempt)
                source = program_text(names)
                space = {"__name__": "drawn"}
                exec(source, space)
                space["use"](space["make"]())
        except REFUSALS:
            continue
        return Program(seed, source, limit, tuple(dict.fromkeys(names.words)))
    raise RuntimeError(f"nothing that runs was drawn of seed {seed}")
