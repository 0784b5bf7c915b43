"""Engines: the ways in which a device can run one launch, and what measuring them told.

cuDNN has dozens of engines for a convolution, and no heuristic knows which is fastest. What was
measured of a launch is a short table: seconds and workspace of each engine that is worth having,
the fastest first, each later one slower and with less workspace. So a plan may trade workspace
against the size of its pieces.

What is known of one size serves the others of its kind, nearest first: their ranks change slowly.
A launch that there is one way to run, a pass over memory, has a table of one nameless entry.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

from ooc_cudnn.operations.convolution.gradients import (
    AnyConvolution,
    forward_of,
    in_memory_order,
    result_dtype,
)
from ooc_cudnn.tensor import ORDERS
from perfmodel import MachineModel, Work
from perfmodel.compute import Tried
from perfmodel.record import Record, Table, number, rounded, text, whole

#: What the name of an algorithm ends in, where its engine was measured.
MEASURED = " (measured)"
#: And where it is one without tensor cores for want of workspace: cuDNN would choose one with them.
NO_TENSOR_CORES = ", no tensor cores"
#: And where it leaves most of the card idle for want of workspace: cuDNN would split the sum.
NOT_SPLIT = ", not split"
#: An engine that takes more workspace is to save this share of the seconds.
WORTH_WORKSPACE = 0.02
#: Of engines, as they are asked for.
FORMS = ("", "widened", "padded", "unfolded", "heuristics")
#: Numbers of engines and choices of knobs are 64-bit integers in cuDNN.
LARGEST = 2**63 - 1


class EngineFailedError(RuntimeError):
    """An engine did not run what it was built for."""


@dataclass(frozen=True)
class Engine(Record):
    """One of cuDNN's engines, as it is asked for.

    Parameters
    ----------
    number : int
        It means something for one direction, and one version of cuDNN.
    knobs : mapping from str to int
        How it is set, by the names of cuDNN's kinds of knobs; empty for its own defaults.
    form : str
        "widened" where it computes the inputs converted to float32, "padded" with channels of
        zeros beside theirs, "unfolded" with the columns under a window as channels; "heuristics"
        where it is whatever cuDNN's heuristics choose (`HEURISTICS`); else empty.
    """

    number: int
    knobs: Mapping[str, int] = field(default_factory=dict)
    form: str = ""

    optional = ("knobs", "form")

    def __post_init__(self) -> None:
        lowest = -LARGEST - 1
        knobs = {text("knob", name): whole(name, at, lowest) for name, at in self.knobs.items()}
        if max([whole("number", self.number), *knobs.values()]) > LARGEST:
            raise ValueError(f"{self.number} or one of {knobs} is more than {LARGEST}")
        object.__setattr__(self, "knobs", Table(knobs))
        if self.form not in FORMS:
            raise ValueError(f"form is {self.form!r}; it must be one of {FORMS}")


#: What the heuristics choose, whichever it is. It stands for an engine that cuDNN does not run when
#: it is asked for by its number: a knob may have no name.
HEURISTICS = Engine(0, form="heuristics")


@dataclass(frozen=True)
class Option(Record):
    """One way to run a launch, as it was measured.

    Parameters
    ----------
    seconds : float
    workspace_bytes : int
    engine : Engine
    name : str
        As the device calls it; empty where there is one way only.
    error : float or None
        The largest error against float64 that was found in a small problem of the same kind, as a
        share of the largest result. None where it was not checked: what the heuristics choose,
        where there was no engine that could be.
    is_right_uneven : bool
        Whether it is right where padding is more on one side of an axis than on the other, too.
    """

    seconds: float
    workspace_bytes: int = 0
    engine: Engine = field(default_factory=lambda: Engine(0))
    name: str = ""
    error: float | None = None
    is_right_uneven: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", rounded(number("seconds", self.seconds)))
        if self.error is not None:
            object.__setattr__(self, "error", rounded(number("error", self.error)))
        whole("workspace_bytes", self.workspace_bytes)
        if not isinstance(self.is_right_uneven, bool):
            raise TypeError(
                f"is_right_uneven is {self.is_right_uneven!r}; it must be true or false"
            )


def front(options: Iterable[Option]) -> tuple[Option, ...]:
    """Return those that no other one is better than, the fastest first.

    Examples
    --------
    >>> made = [Option(2.0, 0), Option(1.0, 2**20), Option(1.99, 2**10), Option(1.5, 2**21)]
    >>> [(each.seconds, each.workspace_bytes) for each in front(made)]
    [(1.0, 1048576), (2.0, 0)]
    """
    kept: list[Option] = []
    for option in sorted(options, key=lambda each: (each.workspace_bytes, each.seconds)):
        if not kept or option.seconds < kept[-1].seconds * (1.0 - WORTH_WORKSPACE):
            kept.append(option)
    return tuple(reversed(kept))


class Kind(NamedTuple):
    """Facts alike for all sizes of a convolution: `Work.kind`, and the settings."""

    work: str
    result_dtype: str
    deterministic: bool

    @classmethod
    def of(cls, operation: AnyConvolution) -> Kind:
        """The kind of a convolution or a gradient."""
        deterministic = forward_of(operation).deterministic
        return cls(operation.work().kind, result_dtype(operation), deterministic)


@dataclass(frozen=True)
class Measurement:
    """Measurement of one launch.

    Parameters
    ----------
    work : Work
    options : tuple of Option
        As `front` has them.
    operation : AnyConvolution, optional
        What was launched, where engines were chosen from.
    launching : float, optional
        Seconds of the host to launch it by the first of them, where that is known.
    is_complete : bool
        Whether every engine was tried; a call stops where its time for it is spent.
    is_stored : bool
        Whether an earlier process measured it.
    """

    work: Work
    options: tuple[Option, ...]
    operation: AnyConvolution | None = None
    launching: float | None = None
    is_complete: bool = True
    is_stored: bool = False

    @property
    def is_deterministic(self) -> bool:
        """True if it is of a call under `deterministic`, whose plans do not depend on timings."""
        return self.operation is not None and forward_of(self.operation).deterministic


_versions = itertools.count()
#: The size (`Work.sized`) and the kind of what was measured.
_Key = tuple[str, Kind | None]


def _key(measured: Measurement) -> _Key:
    operation = measured.operation
    return measured.work.sized, Kind.of(operation) if operation is not None else None


class Tables:
    """Measurements on a device, of this process or an earlier one.

    `version` changes with what is known of engines; no other table ever has the same. One thread
    adds at a time, while others read: they go through what was there when they began.
    """

    def __init__(self, stored: Iterable[Measurement] = ()) -> None:
        self._known: dict[_Key, Measurement] = {}
        self._unstored = set[_Key]()
        #: Engines that failed, for operations of any size.
        self.dropped = list[tuple[AnyConvolution, Engine]]()
        self._by_kind: dict[Kind, dict[str, Measurement]] = {}
        self.version = next(_versions)
        #: Models that were corrected, by `sparing`, with what they were before.
        self._corrected: dict[tuple[int, bool], tuple[MachineModel, MachineModel]] = {}
        for measured in stored:
            self.add(replace(measured, is_stored=True))
        self._unstored.clear()

    def __iter__(self) -> Iterator[Measurement]:
        return iter(tuple(self._known.values()))

    def add(self, measured: Measurement) -> None:
        """Take what was measured; it replaces what was known of the same launch."""
        key = _key(measured)
        size, kind = key
        self._known[key] = measured
        self._unstored.add(key)
        if kind is not None:
            self._by_kind.setdefault(kind, {})[size] = measured
            self.version = next(_versions)
        self._corrected = {}  # who corrects by what was known before keeps that to itself

    def unstored(self) -> Iterator[Measurement]:
        """Entries that are not as they were read from a file."""
        known = tuple(self._known.copy().items())  # others add while pairs are made
        return (measured for key, measured in known if key in self._unstored)

    def add_unless_worse(self, measured: Measurement) -> None:
        """The same, but what tried every engine stays where this one did not."""
        known = self._known.get(_key(measured))
        if known is None or measured.is_complete or not known.is_complete:
            self.add(measured)

    def drop(self, operation: AnyConvolution, engine: Engine) -> None:
        """Forget an engine that failed, for all sizes of a kind."""
        self.dropped.append((operation, engine))
        for measured in tuple(self._by_kind.get(Kind.of(operation), {}).values()):
            options = tuple(each for each in measured.options if each.engine != engine)
            if options != measured.options:
                self.add(replace(measured, options=options))

    def forget_plans(self) -> None:
        """Have plans made anew that hang on these tables: engines were barred."""
        self.version = next(_versions)

    def nearest(self, operation: AnyConvolution) -> Measurement | None:
        """Return what was measured of the nearest size of the same kind; None if none was."""
        having = self.sizes(operation)
        return operation.work().nearest(having, attrgetter("work")) if having else None

    def sizes(self, operation: AnyConvolution) -> list[Measurement]:
        """Return what was measured of a convolution's kind and may be run: each size once."""
        of_kind = self._by_kind.get(Kind.of(operation), {}) if self._by_kind else {}
        return [each for each in tuple(of_kind.values()) if each.options]  # all may have failed

    def options(self, operation: AnyConvolution, sparing: int = 0) -> tuple[Option, ...]:
        """Return the engines to run a convolution with, by the nearest size that was measured.

        Without the `sparing` ones that take most workspace, if there are others.
        """
        nearest = self.nearest(operation)
        if nearest is None:
            return ()
        options = nearest.options[_place(nearest, sparing) :]
        if forward_of(operation).is_even:
            return options
        return tuple(option for option in options if option.is_right_uneven)

    def knows(self, work: Work) -> bool:
        """True if a launch of this very work was measured, for calls that may depend on it."""
        return any(each.work.sized == work.sized for each in self._counting())

    def knows_kind(self, work: Work) -> bool:
        """True if such a launch of any size was."""
        return any(each.work.kind == work.kind for each in self._counting())

    def levels(self, works: Iterable[Work]) -> int:
        """Most engines that one of these launches may choose from."""
        kinds = {work.kind for work in works}
        of_them = (len(each.options) for each in self._counting() if each.work.kind in kinds)
        return max(of_them, default=0)

    def corrected(
        self, machine: MachineModel, sparing: int = 0, *, alike: bool = False
    ) -> MachineModel:
        """Return a machine's model with the measured seconds in place of its lines'.

        What was measured of one size corrects those that are nearest to it (`Work.distance`): of a
        few images transforms of filters may be most of it, and small images have other engines.
        Those of the fastest engines, without the `sparing` ones that take most workspace. In a
        memory order in which a problem was not measured it is no faster than in the other one.
        Others of its family are no faster than what this process measured, unless all processes
        are to plan `alike`.
        """
        corrected, key = self._corrected, (sparing, alike)
        before, after = corrected.get(key, (None, None))
        if after is None or before is not machine:
            after = self._with_factors(machine, sparing, alike=alike)
            corrected[key] = machine, after
        return after

    def _with_factors(self, machine: MachineModel, sparing: int, *, alike: bool) -> MachineModel:
        families: dict[str, float] = {}
        launching: dict[str, float] = {}
        tried: dict[str, Tried] = {}
        elsewhere: dict[str, Tried] = {}
        # in one order, whichever they were measured in: the largest of a kind tells of launching
        for measured in sorted(self._counting(), key=lambda each: _amount(each.work)):
            work = measured.work
            if not measured.options:
                continue
            seconds = measured.options[_place(measured, sparing)].seconds
            factor = seconds / machine.compute.seconds(work)
            if not measured.is_stored and not alike:
                # Cut along channels it is another problem, and no faster than this until tried.
                families[work.family] = max(1.0, families.get(work.family, 1.0), factor)
            tried[work.sized] = work, factor
            for twin in _in_other_orders(measured.operation):
                slower = max(1.0, seconds / machine.compute.seconds(twin))
                elsewhere[twin.sized] = twin, slower
            if measured.launching is not None:
                # nor does it take less to launch
                most = max(measured.launching, launching.get(work.family, 0.0))
                launching[work.family] = most
                launching[work.kind] = measured.launching
        if not tried:
            return machine
        kinds = {work.kind for work, _ in tried.values()}
        guessed = [each for each in elsewhere.values() if each[0].kind not in kinds]
        sizes = [*tried.values(), *guessed]
        return replace(machine, compute=machine.compute.corrected(families, launching, sizes))

    def _counting(self) -> Iterator[Measurement]:
        return (each for each in self if not each.is_deterministic)


def _in_other_orders(operation: AnyConvolution | None) -> Iterator[Work]:
    """The work of the same problem in other memory orders, where engines were chosen from."""
    if operation is not None:
        own = forward_of(operation).layout
        yield from (in_memory_order(operation, order).work() for order in ORDERS if order != own)


def _amount(work: Work) -> tuple[float, str]:
    return work.amount, work.sized


def _place(measured: Measurement, sparing: int) -> int:
    return max(0, min(sparing, len(measured.options) - 1))
