"""One calibration: its bench, the host memory that copies go through, and what was measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.measuring import Bench, HostMemory, Timing
from perfmodel import Samples
from perfmodel.linear import NO_FEATURES

DIRECTIONS = ("copy_in", "copy_out")


#: A part of a calibration: it records what it measures.
Group = Callable[[], None]


class Sample(NamedTuple):
    """One timing, of so much work; a figure is one of 1."""

    work: float
    timing: Timing
    features: Mapping[str, float] = NO_FEATURES


class Measured(list[Sample]):
    """What was measured under one key: the samples of a line, or one figure several times."""

    @property
    def spread(self) -> float:
        """How far the timings of a typical sample varied."""
        return statistics.median(sample.timing.spread for sample in self)

    @property
    def seconds(self) -> list[float]:
        """Of each sample."""
        return [sample.timing.seconds for sample in self]

    def by_work(self) -> dict[float, float]:
        """The median of each amount of work, in rising order."""
        found: defaultdict[float, list[float]] = defaultdict(list)
        for work, timing, _ in self:
            found[work].append(timing.seconds)
        return {work: statistics.median(found[work]) for work in sorted(found)}

    def samples(self) -> Samples:
        """In columns, as the model keeps them."""
        works, _, features = zip(*self, strict=True)
        names = sorted(set().union(*features))
        columns = {name: tuple(held.get(name, 0.0) for held in features) for name in names}
        return Samples(works, tuple(map(rounded, self.seconds)), columns)


class Session:
    """What the measurements of one calibration share, which may have to be quick."""

    def __init__(self, bench: Bench, *, quick: bool) -> None:
        self.bench, self.device, self.quick = bench, bench.device, quick
        self.on_host = bench.device.kind == "host"
        #: Whether little memory is used: on the host, and where it has to be quick.
        self.little = quick or self.on_host
        #: Host memory by placement and direction, once `link.host_memory` has allocated it.
        self.hosts: dict[str, dict[str, HostMemory]] = {}
        #: What the current group has measured, by key. The keys of lines are those of the model;
        #: others name the figure: "duplex/pinned/pinned/copy_in", "latency/copy_in/pageable".
        self.measured: defaultdict[str, Measured] = defaultdict(Measured)
        #: What predicts nothing, as `MachineModel` has it.
        self.facts: dict[str, float] = {}

    def record(
        self, key: str, work: float, timing: Timing, features: Mapping[str, float] = NO_FEATURES
    ) -> None:
        """Keep a sample."""
        self.measured[key].append(Sample(work, timing, features))

    def record_all(self, timings: Mapping[str, Timing], under: str = "") -> None:
        """Keep a figure of each."""
        for name, timing in timings.items():
            self.record(f"{under}{name}", 1.0, timing)

    def taken_by(self, group: Group) -> dict[str, Measured]:
        """Make the measurements of a group; return what they told."""
        self.measured = defaultdict(Measured)
        group()
        return self.measured


def make_bench(device: Device, limit: int, *, quick: bool) -> Bench:
    """Return a bench that repeats as often as a calibration of this device should."""
    if quick:
        return Bench(device, limit, batches=3, batch_seconds=0.01)
    return Bench(device, limit, batches=5, batch_seconds=0.01 if device.kind == "host" else 0.03)


def rounded(value: float, digits: int = 5) -> float:
    """So many digits: files stay short, and no timing is truer."""
    return float(f"{value:.{digits}g}")
