"""From a seed to a case: what is called, where everything lies, under which settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tests.fuzz import (
    draw_chain,
    draw_chain_backward,
    draw_convolution,
    draw_elementwise,
    draw_normalization,
    draw_pooling,
)
from tests.fuzz.faults import FAULTS
from tests.fuzz.layouts import Layout, draw_layout
from tests.fuzz.operands import PLACEMENTS
from tests.fuzz.stream import Stream

DRAWING = (
    draw_convolution, draw_elementwise, draw_pooling, draw_normalization, draw_chain,
    draw_chain_backward,
)  # fmt: skip
#: Each public function, and a chain of them, with what draws a problem for it.
DRAWERS = {drawer.__name__: drawer for module in DRAWING for drawer in module.DRAWERS}


@dataclass(frozen=True)
class Case:
    """One call. Everything but the problem and its numbers can be replaced by something simpler.

    Attributes
    ----------
    places, layouts : dict
        Of every operand, and of every result in `given`.
    given : tuple of str
        The results that are handed over as `out`.
    room : float or None
        From 0, the least limit that works, to 1, that and as much as all data; None is ample.
    special : bool
        Whether some numbers are infinite or NaN.
    again, profiled : bool
        Whether it is called twice, and under `profile`.
    fault : str
        What makes the call one that must be refused; one of `faults.FAULTS`.
    """

    seed: int
    device: str
    function: str
    places: dict[str, str]
    layouts: dict[str, Layout]
    given: tuple[str, ...] = ()
    alpha: float = 1.0
    beta: float = 0.0
    room: float | None = None
    special: bool = False
    settings: dict = field(default_factory=dict)
    again: bool = False
    profiled: bool = False
    fault: str = ""

    @cached_property
    def problem(self):
        """Drawn anew: it is the same whatever else is replaced."""
        return DRAWERS[self.function](Stream(self.seed, "problem"))

    def values(self):
        """The operands' numbers, by name."""
        random, special = Stream(self.seed, "values"), Stream(self.seed, "special")
        values = {}
        for name, tensor in self.problem.tensors.items():
            if tensor.kind != "derived":
                values[name] = self.varied(name, tensor.draw(random.numbers()))
        if self.special:
            plain = [n for n, t in self.problem.tensors.items() if t.kind in ("normal", "few")]
            for name in special.sample(plain, min(len(plain), special.choice((1, 1, 2)))):
                values[name] = self.varied(name, sprinkled(values[name], special))
        with np.errstate(all="ignore"):
            return values | self.problem.derive(values)

    def varied(self, name, values):
        """The same along axes that are broadcast."""
        return self.layouts[name].varied(values) if name in self.layouts else values

    def old(self):
        """What the results that are given hold before: NaN where that must not be read."""
        random, made = Stream(self.seed, "old").numbers(), {}
        for name, (shape, dtype) in self.problem.results.items():
            numbers = random.standard_normal(shape)
            if name in self.given:
                used = self.beta and name in self.problem.scaled
                from tests.support.function_cases import DTYPES

                made[name] = (numbers if used else numbers * np.nan).astype(DTYPES[dtype])
        return made

    def __str__(self):
        problem, said = self.problem, []
        shapes = " ".join(f"{n}{list(t.shape)}" for n, t in problem.tensors.items())
        said.append(f"{self.function} {problem.dtype} {shapes}")
        said += [f"{name}={value}" for name, value in problem.options.items()]
        if problem.words:
            said.append(problem.words)
        if problem.has_scaling and (self.alpha, self.beta) != (1, 0):
            said.append(f"alpha={self.alpha} beta={self.beta}")
        for name, place in self.places.items():
            role = "out " if name in self.given else ""
            laid = self.layouts[name]
            said.append(f"{role}{name}: {place}" + ("" if str(laid) == "packed" else f" ({laid})"))
        said.append("ample room" if self.room is None else f"room {self.room:g}")
        said += [f"{name}={value}" for name, value in self.settings.items()]
        if self.fault:
            said.append(f"must be refused: {self.fault}")
        said += [word for word in ("special", "again", "profiled") if getattr(self, word)]
        return ", ".join(said)


def draw_case(seed, device, *, functions=None, special=True):
    """The case of a seed; `functions` and `special` narrow what is drawn.

    On a card, convolutions get no infinities and NaN: there these lie as cuDNN's engines have them,
    of which some skip zeros of padding, some multiply more of them, and some spread NaN.
    """
    names = sorted(functions or DRAWERS)
    function = Stream(seed, "function").choice(names)
    problem = DRAWERS[function](Stream(seed, "problem"))
    memory, numbers, chosen = (Stream(seed, what) for what in ("memory", "scaling", "settings"))
    given = tuple(name for name in problem.results if memory.chance(0.6))
    if not problem.may_give_out:
        given = ()
    alpha = numbers.choice((1.0, 1.0, 1.0, 0.5, -1.5, 0.01))
    beta = numbers.choice((0.0, 0.0, 0.0, 0.0, 1.0, -0.5))
    if problem.needs_out or (beta and problem.has_scaling):
        given = tuple(problem.results)
    if not problem.has_scaling:
        alpha, beta = 1.0, 0.0
    shapes = {n: t.shape for n, t in problem.tensors.items() if n not in problem.hidden}
    shapes |= {name: problem.results[name][0] for name in given}
    plain = memory.chance(0.25)  # everything alike, as a user of one framework has it
    place = memory.weighted(PLACEMENTS[device])
    places, layouts = {}, {}
    for name, shape in shapes.items():
        is_input = name in problem.tensors and name not in problem.updated
        constant = is_input and problem.tensors[name].kind != "derived"
        where, laid = (
            memory.weighted(PLACEMENTS[device]),
            draw_layout(memory, shape, may_broadcast=constant),
        )
        places[name] = place if plain else where
        if places[name] == "torch negative" and not (
            is_input and problem.tensors[name].dtype in ("float32", "float64")
        ):
            places[name] = "torch"  # PyTorch has no such halves, and the library writes to none
        layouts[name] = Layout.packed(len(shape)) if plain else laid
    settings = {}
    if chosen.chance(0.5):
        settings["allow_tf32"] = False
    if chosen.chance(0.25):
        settings["deterministic"] = True
    if chosen.chance(0.15):
        settings["overlap"] = False
    if chosen.chance(0.1):
        settings["verify"] = chosen.choice((1, 2))
    if chosen.chance(0.1):
        settings["machine"] = None  # launches are tried, with what was calibrated
    fault, refuses = chosen.choice(sorted(FAULTS)), chosen.chance(0.03) and problem.may_give_out
    room = chosen.choice((None, None, 0.0, chosen.random(), chosen.random() ** 3))
    return Case(
        seed, device, function, places, layouts, given, alpha, beta,
        None if room is None else round(room, 3),
        numbers.chance(0.2) and special and not (device == "cuda" and problem.uses_tf32), settings,
        again=chosen.chance(0.25) and problem.most_calls == 1, profiled=chosen.chance(0.3),
        fault=fault if refuses else "",
    )  # fmt: skip


def sprinkled(values, stream):
    """The same values, a few of them infinite or NaN."""
    made = values.copy()
    for _ in range(stream.choice((1, 1, 2, 4))):
        at = tuple(stream.randrange(extent) for extent in made.shape)
        made[at] = stream.choice((np.nan, np.inf, np.inf, -np.inf))
    return made
