"""`calibrate`: measures a device, and fits the machine model that plans are made with.

What is measured is what a call does: copies of pieces by placement, both directions of the link at
once, convolutions and elementwise passes by arithmetic and memory order. `perfmodel.fit` finds the
lines; nothing is stored before all of them are found.
"""

from __future__ import annotations

import datetime
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ooc_cudnn.calibration.compute import ComputeMeasurements
from ooc_cudnn.calibration.lines import KEPT, LineFitter, how_sure, is_noisy, spoilt
from ooc_cudnn.calibration.link import PAIRS, LinkMeasurements
from ooc_cudnn.calibration.losses import measured_losses
from ooc_cudnn.calibration.rows import LARGE_BYTES, RowMeasurements
from ooc_cudnn.calibration.steps import host_seconds
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.machines import calibrated_before, machine_for, machine_path
from ooc_cudnn.devices.measuring import Bench, Group, Timing, make_bench, undisturbed
from ooc_cudnn.functions.prepared import forget_calls
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.progress import reporter
from ooc_cudnn.settings import current
from ooc_cudnn.settings_table import Progress
from ooc_cudnn.telling import warn
from perfmodel import (
    ComputeModel,
    Line,
    MachineModel,
    Samples,
    Slowdown,
    TransferModel,
)
from perfmodel.linear import NO_FEATURES

__all__ = ["calibrate", "machine_for"]

#: After so many groups of launches, what the host takes is measured once more.
OFTEN = 10


def calibrate(
    device: Device | str | None = None, save: bool = True, quick: bool = False
) -> MachineModel:
    """Measure a device and fit its machine model.

    Parameters
    ----------
    device : str or Device, optional
        "cuda", "cuda:1", "host"; that of the settings when left out.
    save : bool
        Keep the model under the user's cache directory, where plans find it from now on.
    quick : bool
        Fewer and shorter measurements: about 5 seconds, and larger errors.

    Returns
    -------
    MachineModel
        `quality` says of each line the median error on its samples, on samples held out of the
        fit, and how far timings varied from batch to batch.

    Raises
    ------
    DeviceOutOfMemoryError
        If the memory limit leaves no room to measure.
    OSError
        If no temporary file can be written.

    Notes
    -----
    Source: sections 4.1 and 4.2 of the ooc_cuDNN paper. The file is written at the very end, so an
    interrupted calibration leaves the last one in place.

    What else uses the machine spoils measurements. Parts that were disturbed are measured once
    more, and the quieter time counts. A line that is still spoilt is kept from an earlier
    calibration of this machine; without one, the line of a shipped machine is scaled to what was
    seen. A warning says which, how sure the model is, and what that means for plans.
    """
    settings = current()
    if device is None or isinstance(device, str):
        device = get_device(device or settings.device)
    with device.arena.lock:
        limit = limit_bytes(device, settings.memory_limit)
        bench = make_bench(device, limit, quick=quick)
        device.release_caches()
        calibration = _Calibration(bench, quick=quick, earlier=calibrated_before(device))
        try:
            model = calibration.model(settings.progress)
        finally:
            device.arena.release()
    if save:
        model.save(machine_path(device.identity()))
        forget_calls()
    if any(spoilt(model).values()):
        warn(f"something else used the machine: {'. '.join(how_sure(model))}.")
    return model


class _Measured:
    """What was measured for one line."""

    def __init__(self) -> None:
        self.work: list[float] = []
        self.timings: list[Timing] = []
        self.features: list[Mapping[str, float]] = []

    def add(self, other: _Measured) -> None:
        """Add what another group measured."""
        self.work += other.work
        self.timings += other.timings
        self.features += other.features

    @property
    def spread(self) -> float:
        """How far the timings of a typical sample varied."""
        return statistics.median(timing.spread for timing in self.timings)

    def samples(self) -> Samples:
        """In columns, as the model keeps them."""
        names = sorted(set().union(*self.features))
        return Samples(
            tuple(self.work),
            tuple(float(f"{timing.seconds:.5g}") for timing in self.timings),
            {name: tuple(held.get(name, 0.0) for held in self.features) for name in names},
        )


class _Calibration:
    """The measurements of one calibration, in the order in which they are made."""

    def __init__(self, bench: Bench, *, quick: bool, earlier: MachineModel | None = None) -> None:
        self.bench, self.device = bench, bench.device
        self.fitter = LineFitter(self.device, earlier)
        #: What each group measured, by the keys of lines.
        self.parts: list[tuple[Group, defaultdict[str, _Measured]]] = []
        self.quality: dict[str, dict[str, float]] = {}
        self.facts: dict[str, float] = {}
        self.host: dict[str, float] = {}
        self.issuing: defaultdict[str, list[float]] = defaultdict(list)
        self.losses: dict[str, float] = {}
        self.quick = quick
        self.link = LinkMeasurements(bench, self.record, quick=quick)
        self.apart = RowMeasurements(bench, quick=quick)
        self.compute = ComputeMeasurements(bench, self.record, quick=quick)

    def record(
        self, key: str, work: float, timing: Timing, features: Mapping[str, float] = NO_FEATURES
    ) -> None:
        """Keep a sample of a line."""
        found = self.parts[-1][1][key]
        found.work.append(work)
        found.timings.append(timing)
        found.features.append(features)

    def measure(self, progress: Progress) -> None:
        """Make all measurements, and tell how far they are by the time they should take."""
        # What a disturbed host takes longer for is measured several times, far from each other.
        host = (
            Group("issuing steps", 0.3, self.steps),
            Group("staging", 0.3 if self.quick else 1.0, self.apart.staging),
        )
        again = () if self.quick else host
        groups = [*again, *self.link.groups(), *self.apart.groups(), *again]
        for place, group in enumerate(self.compute.groups(), 1):
            # a host is slow for seconds at a time
            groups += [group, *again[:1]] if place % OFTEN == 0 else [group]
        groups += host
        groups.append(Group("computing beside copies", 0.8 if self.quick else 3.0, self.beside))
        seconds = sum(group.seconds for group in groups)
        done, began = 0.0, time.perf_counter()
        with reporter(progress, total=100, label="calibrate", predicted_seconds=seconds) as report:
            self.references()  # warms up
            first = self.references()
            for group in groups:
                self.parts.append((group, self.measured_by(group)))
                done += group.seconds
                report.update(round(100 * done / seconds))
            self.measure_disturbed_again()
            self.link.close()
            self.apart.close()
            for name, after in self.references().items():
                self.facts[f"drift_of_{name}_share"] = after / first[name] - 1.0
        self.facts["calibration_seconds"] = round(time.perf_counter() - began, 1)

    def measured_by(self, group: Group) -> defaultdict[str, _Measured]:
        """Make the measurements of a group; return what it told of lines."""
        self.parts.append((group, defaultdict(_Measured)))
        group.measure()
        return self.parts.pop()[1]

    def measure_disturbed_again(self) -> None:
        """Measure what was disturbed once more; of each line the quieter time counts.

        What both directions lose to each other is told beside copies one way: where one such pair
        was disturbed, or what it is compared with, all of them are measured again.
        """
        quality, slowdowns = dict(self.link.quality), dict(self.link.slowdowns)
        samples = dict(self.link.samples)
        disturbed = [
            any(is_noisy(key, part.spread) for key, part in found.items())
            for _, found in self.parts
        ]
        of_pairs = [group.label in PAIRS for group, _ in self.parts]
        noisy_pairs = any(is_noisy(name, held["spread"]) for name, held in quality.items())
        if noisy_pairs or any(map(all, zip(disturbed, of_pairs, strict=True))):
            disturbed = [was or of for was, of in zip(disturbed, of_pairs, strict=True)]
        for (group, found), was in zip(list(self.parts), disturbed, strict=True):
            for key, part in (self.measured_by(group) if was else {}).items():
                if key not in found or part.spread < found[key].spread:
                    found[key] = part
        for name, before in quality.items():
            now = self.link.quality[name]["spread"]
            if is_noisy(name, now) and before["spread"] < now:
                pair = name.removeprefix("duplex/")
                self.link.quality[name], self.link.slowdowns[pair] = before, slowdowns[pair]
                self.link.samples |= {k: v for k, v in samples.items() if k.startswith(f"{name}/")}

    @property
    def measured(self) -> dict[str, _Measured]:
        """What was measured for each line, by all groups."""
        joined: defaultdict[str, _Measured] = defaultdict(_Measured)
        for _, found in self.parts:
            for key, part in found.items():
                joined[key].add(part)
        return joined

    def steps(self) -> None:
        """Measure how long the host takes to issue a step; disturbances only add."""
        for name, timing in host_seconds(self.bench).items():
            self.issuing[name].append(timing.seconds)
            found = self.issuing[name]
            seconds = undisturbed(found)
            self.host[name] = float(f"{seconds:.5g}")
            apart = (max(found) - min(found)) / 2 / seconds if seconds else 0.0
            self.quality[name] = {"spread": max(timing.spread, apart)}

    def beside(self) -> None:
        """Measure what computing loses to what runs beside it."""
        for name, timing in measured_losses(self.bench, quick=self.quick).items():
            self.losses[name] = float(f"{timing.seconds:.3g}")
            self.quality[f"losses/{name}"] = {"spread": timing.spread}

    def references(self) -> dict[str, float]:
        """Seconds of a copy and of a launch, which are the same while no clock drifts."""
        found = {"copy_in": self.link.reference(), "compute": self.compute.reference()}
        return {name: seconds for name, seconds in found.items() if seconds}

    def model(self, progress: Progress) -> MachineModel:
        """Measure everything, and fit it."""
        self.measure(progress)
        samples, lines = dict[str, Samples](), dict[str, Line]()
        for key, found in self.measured.items():
            lines[key], samples[key] = self.fitter.line(key, found.samples(), found.spread)
        copies: dict[str, dict[str, Line]] = {"copy_in": {}, "copy_out": {}}
        for key in [key for key in lines if key.startswith("copy_")]:
            direction, placement = key.split("/")
            line = lines.pop(key)
            if KEPT not in self.fitter.quality[key]:
                further = self.apart.terms[key]
                terms = {name: float(f"{rate:.5g}") for name, rate in further.items() if rate}
                line = replace(line, terms=terms)
            copies[direction][placement] = line
        identity = dict(self.device.identity())
        identity.setdefault(
            "device_bytes", str(self.device.free_bytes() + self.device.arena.held_bytes)
        )
        slowdowns = self.as_in_calls(copies)
        return MachineModel(
            name=identity.get("gpu", self.device.name),
            identity=identity,
            transfer=TransferModel(
                copies["copy_in"],
                copies["copy_out"],
                slowdowns,
                self.latency(copies),
            ),
            compute=ComputeModel(
                self.compute.with_stand_ins(self.completed(lines, samples)),
                launching=self.compute.with_stand_ins(self.launching()),
            ),
            call_seconds=self.host.get("call_seconds", 0.0),
            launch_seconds=self.host.get("launch_seconds", 0.0),
            step_seconds=self.host.get("step_seconds", 0.0),
            staged_step_seconds=self.host.get("staged_step_seconds", 0.0),
            operand_seconds=self.host.get("operand_seconds", 0.0),
            losses=self.losses,
            calibrated=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            quality=self.quality | self.fitter.quality | self.link.quality,
            samples=samples | self.link.samples,
            facts=self.facts | self.link.facts,
        )

    def as_in_calls(self, copies: Mapping[str, dict[str, Line]]) -> dict[str, Slowdown]:
        """Make plain memory's lines and slowdown no faster than whole calls are; return slowdowns.

        Both ways at once, no less time than the slower of copies alone and of a call is taken.
        """
        found, paces = dict(self.link.slowdowns), self.apart.paces
        if not paces:
            return found
        known, nbytes = found.get("pageable/pageable", Slowdown()), float(LARGE_BYTES)
        factors = {}
        for way, lines in copies.items():
            line = lines["pageable"]
            both = max(getattr(known, way) * line.seconds(nbytes), paces["both"])
            alpha = max(line.alpha, (paces[way] - line.beta) / nbytes)
            lines["pageable"] = replace(line, alpha=float(f"{alpha:.5g}"))
            factors[way] = max(float(f"{both / lines['pageable'].seconds(nbytes):.5g}"), 1.0)
        found["pageable/pageable"] = Slowdown(**factors)
        return found

    def latency(self, copies: Mapping[str, Mapping[str, Line]]) -> dict[str, Line]:
        """What staged copies are late by; others delay those of files as they do plain memory's."""
        found = dict(self.apart.latency)
        for way, lines in copies.items():
            late = self.link.files.latency(way, lines["disk"]) if "disk" in lines else None
            if late is not None:
                plain = found.get(f"{way}/pageable")
                found[f"{way}/disk"] = replace(late, terms=plain.terms if plain else {})
        return found

    def launching(self) -> dict[str, float]:
        """Seconds of the host to launch what each line stands for."""
        return {
            key: float(f"{undisturbed(found):.4g}") for key, found in self.compute.launching.items()
        }

    def completed(
        self, lines: Mapping[str, Line], samples: Mapping[str, Samples]
    ) -> dict[str, Line]:
        """Add the lines that were not measured: as far from the shipped ones as the nearest is."""
        known = self.fitter.shipped.compute.lines
        both = ComputeModel({key: line for key, line in lines.items() if key in known})
        found = dict(lines)
        for key in known.keys() - lines.keys():
            near = both.nearest_key(key)
            held = samples[near]
            factor = float(np.median(held.predicted(lines[near]) / held.predicted(known[near])))
            found[key] = known[key].scaled(factor)
        return found
