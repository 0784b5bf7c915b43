"""One calibration: its bench, the host memory that copies go through, and what was measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.measuring import Bench, HostMemory, Timing
from perfmodel import Samples
from perfmodel.linear import NO_FEATURES

DIRECTIONS = ("copy_in", "copy_out")


#: A part of a calibration: it records what it measures.
Group = Callable[[], None]


@dataclass
class Measured:
    """What was measured under one key: the samples of a line, or one figure several times."""

    work: list[float] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    features: list[Mapping[str, float]] = field(default_factory=list)

    def add(self, other: Measured) -> None:
        """Add what another group measured."""
        self.work += other.work
        self.timings += other.timings
        self.features += other.features

    @property
    def spread(self) -> float:
        """How far the timings of a typical sample varied."""
        return statistics.median(timing.spread for timing in self.timings)

    @property
    def seconds(self) -> list[float]:
        """Of each sample."""
        return [timing.seconds for timing in self.timings]

    def by_work(self) -> dict[float, float]:
        """The median of each amount of work, in rising order."""
        found: defaultdict[float, list[float]] = defaultdict(list)
        for work, seconds in zip(self.work, self.seconds, strict=True):
            found[work].append(seconds)
        return {work: statistics.median(found[work]) for work in sorted(found)}

    def samples(self) -> Samples:
        """In columns, as the model keeps them."""
        names = sorted(set().union(*self.features))
        return Samples(
            tuple(self.work),
            tuple(rounded(seconds) for seconds in self.seconds),
            {name: tuple(held.get(name, 0.0) for held in self.features) for name in names},
        )


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
        found = self.measured[key]
        found.work.append(work)
        found.timings.append(timing)
        found.features.append(features)

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
