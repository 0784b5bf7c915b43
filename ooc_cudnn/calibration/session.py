"""One calibration: its benches, the host memory that copies go through, and what was measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.measuring import Bench, HostMemory, Timing
from perfmodel import Samples
from perfmodel.linear import NO_FEATURES
from perfmodel.record import rounded

DIRECTIONS = ("copy_in", "copy_out")

#: A part of a calibration: it records what it measures.
Group = Callable[[], None]


class Sample(NamedTuple):
    """One timing, of so much work; a figure is one of 1."""

    work: float
    timing: Timing
    features: Mapping[str, float] = NO_FEATURES


class Measurement(list[Sample]):
    """Measurements under one key: the samples of a line, or one figure several times."""

    @property
    def spread(self) -> float:
        """Spread of the timings of a typical sample."""
        return statistics.median(sample.timing.spread for sample in self)

    @property
    def seconds(self) -> list[float]:
        """Seconds of each sample."""
        return [sample.timing.seconds for sample in self]

    def by_work(self) -> dict[float, float]:
        """The median of each amount of work, in rising order."""
        found: defaultdict[float, list[float]] = defaultdict(list)
        for work, timing, _ in self:
            found[work].append(timing.seconds)
        return {work: statistics.median(found[work]) for work in sorted(found)}

    def samples(self) -> Samples:
        """Samples in columns, as the model keeps them."""
        works, _, features = zip(*self, strict=True)
        names = sorted(set().union(*features))
        columns = {name: tuple(held.get(name, 0.0) for held in features) for name in names}
        return Samples(works, tuple(map(rounded, self.seconds)), columns)


class Session:
    """State that the measurements of one calibration share, which may have to be quick."""

    def __init__(self, device: Device, limit_bytes: int, *, quick: bool) -> None:
        self.device, self.quick, self.on_host = device, quick, device.kind == "host"
        #: Whether little memory is used: on the host, and where it has to be quick.
        self.little = quick or self.on_host
        seconds = 0.01 if self.little else 0.03
        self.bench = Bench(device, limit_bytes, batches=3 if quick else 5, batch_seconds=seconds)
        #: Host memory by placement and direction, once `link.host_memory` has allocated it.
        self.hosts: dict[str, dict[str, HostMemory]] = {}
        #: What the current group has measured, by key. The keys of lines are those of the model;
        #: others name the figure: "duplex/pinned/pinned/copy_in", "latency/copy_in/pageable".
        self.measured: defaultdict[str, Measurement] = defaultdict(Measurement)
        #: What predicts nothing, as `MachineModel` has it.
        self.facts: dict[str, float] = {}

    def record(
        self, key: str, timing: Timing, work: float = 1.0,
        features: Mapping[str, float] = NO_FEATURES,
    ) -> None:  # fmt: skip
        """Keep a sample, or a figure."""
        self.measured[key].append(Sample(work, timing, features))

    def taken_by(self, group: Group) -> dict[str, Measurement]:
        """Make the measurements of a group; return what they told."""
        self.measured = defaultdict(Measurement)
        group()
        return self.measured
