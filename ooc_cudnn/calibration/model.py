"""From everything that was measured to a machine model.

What else runs on a machine spoils some lines and leaves others alone. One that was spoilt is kept
from an earlier calibration that was not disturbed there; else the line that is known (of a shipped
machine, or of a disturbed calibration) is scaled to what was seen: one factor is told by timings
that several unknowns are not.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np

from ooc_cudnn.calibration.calls import latency_line
from ooc_cudnn.calibration.compute import with_stand_ins
from ooc_cudnn.calibration.copies import PAIRS, large_pieces
from ooc_cudnn.calibration.session import DIRECTIONS, Measured, Session, rounded
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.machines import shipped_for
from ooc_cudnn.devices.measuring import Timing
from perfmodel import (
    ComputeModel,
    Fit,
    FitError,
    Line,
    MachineModel,
    Samples,
    Slowdown,
    TransferModel,
    fit_samples,
    fit_scaled,
    shipped,
)
from perfmodel.fitting import FEWEST_WORKS
from perfmodel.machine import SECONDS
from perfmodel.staging import SLAB_BYTES, STAGED_BYTES

Found = Mapping[str, Measured]

#: A line is spoilt if the timings of its typical sample lie further than this from their median:
#: disturbances that spread them so far make the fit about half as slow again. (Files are on disks
#: that others use.)
TOO_NOISY, TOO_NOISY_FILES = 0.25, 1.0
#: Qualities of a line that was spoilt: whether an earlier one is kept, or a known one scaled.
KEPT, SCALED = "kept_from_earlier", "scaled_from_known"
#: What the keys of lines start with.
KINDS = ("copy_in", "copy_out", "convolution", "pointwise")


def is_line(key: str) -> bool:
    """Whether samples of this key are those of a line."""
    return key.partition("/")[0] in KINDS


def is_noisy(key: str, spread: float) -> bool:
    """Whether timings of a line lie too far from each other to fit it."""
    return spread > (TOO_NOISY_FILES if key.endswith("/disk") else TOO_NOISY)


def fit_model(session: Session, found: Found, earlier: MachineModel | None) -> MachineModel:
    """Fit the model of the session's device to what was measured, by the keys of its records.

    `earlier` is what was calibrated before.
    """
    device, fitter = session.device, LineFitter(session.device, earlier)
    lines, samples = dict[str, Line](), dict[str, Samples]()
    for key in filter(is_line, found):
        lines[key], samples[key] = fitter.line(key, found[key].samples(), found[key].spread)
    copies: dict[str, dict[str, Line]] = {way: {} for way in DIRECTIONS}
    for key in [key for key in lines if key.startswith(DIRECTIONS)]:
        way, placement = key.split("/")
        line = lines.pop(key)
        if KEPT not in fitter.quality[key]:
            rows = "pinned" if placement == "pinned" else f"{way}/pageable"
            each = rounded(_figure(found, f"rows/{rows}"))
            line = replace(line, terms={"rows": each} if each else {})
        copies[way][placement] = line
    identity = dict(device.identity())
    identity.setdefault("device_bytes", str(device.free_bytes() + device.arena.held_bytes))
    latency = latencies(found, copies)
    slowdowns = _slowdowns(found, large_pieces(session))
    launching = {of: rounded(_of_host(held), 4) for of, held in _under("launching/", found)}
    return MachineModel(
        name=identity.get("gpu", device.name),
        identity=identity,
        transfer=TransferModel(copies["copy_in"], copies["copy_out"], slowdowns, latency),
        compute=ComputeModel(
            with_stand_ins(device, fitter.completed(lines, samples)),
            launching=with_stand_ins(device, launching),
        ),
        calibrated=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        **{name: rounded(_of_host(found[name])) for name in SECONDS if name in found},
        losses={of: rounded(held.seconds[0], 3) for of, held in _under("losses/", found)},
        quality=_quality(found) | fitter.quality,
        samples=samples | {f"duplex/{of}": held.samples() for of, held in _under("duplex/", found)},
        facts=session.facts,
    )


def _under(start: str, found: Found) -> list[tuple[str, Measured]]:
    """What was measured under keys that start so, and the rest of the key."""
    return [(key.removeprefix(start), found[key]) for key in found if key.startswith(start)]


def _of_host(held: Measured) -> float:
    return Timing.of_host(held.seconds).seconds


def _figure(found: Found, key: str) -> float:
    """The median of what was measured of one figure; 0 where nothing was."""
    return statistics.median(found[key].seconds) if key in found else 0.0


def _slowdowns(found: Found, large: Collection[float]) -> dict[str, Slowdown]:
    """How much slower large copies of each pair are at once than alone."""
    slowdowns = {}
    for pair in PAIRS:
        factors = {}
        for way, placement in zip(DIRECTIONS, pair.split("/"), strict=True):
            alone = found[f"{way}/{placement}"].by_work()
            both = found[f"duplex/{pair}/{way}"].by_work()
            ratios = [both[size] / alone[size] for size in both if size in large]
            factors[way] = rounded(max(1.0, statistics.median(ratios)))
        slowdowns[pair] = Slowdown(**factors)
    return slowdowns


def latencies(found: Found, copies: Mapping[str, Mapping[str, Line]]) -> dict[str, Line]:
    """What staged copies are late by; others delay those of files as they do plain memory's.

    Of single copies of files that is what their line does not say. Of larger ones it is lost in the
    noise of files: they take 10 ms, and are late by 1.
    """
    lines = dict[str, Line]()
    others = {"others": rounded(_figure(found, "others"), 4)} if "others" in found else {}
    for way in DIRECTIONS:
        if (key := f"latency/{way}/pageable") in found:
            lines[f"{way}/pageable"] = latency_line(found[key].by_work(), others)
        if (key := f"alone/{way}/disk") in found:
            alone = found[key].by_work().items()
            late = {
                size: max(seconds - copies[way]["disk"].seconds(size), 0.0)
                for size, seconds in alone
                if size <= STAGED_BYTES
            }
            if late:
                lines[f"{way}/disk"] = latency_line(late, others)
    return lines


def _quality(found: Found) -> dict[str, dict[str, float]]:
    """How far apart the timings lie of what is no line."""
    quality = {}
    for pair in PAIRS:
        both = [found[f"duplex/{pair}/{way}"] for way in DIRECTIONS]
        spread = Measured([*both[0], *both[1]]).spread
        quality[f"duplex/{pair}"] = {"spread": spread, "samples": float(len(both[0]))}
    for key in found:
        if key in SECONDS or key.startswith("losses/"):
            seconds = found[key].seconds
            middle = _of_host(found[key])
            apart = (max(seconds) - min(seconds)) / 2 / middle if middle else 0.0
            quality[key] = {"spread": max(found[key].spread, apart)}
    return quality


class LineFitter:
    """Finds the lines of a device, which may have been calibrated before; each with its quality."""

    def __init__(self, device: Device, earlier: MachineModel | None) -> None:
        self.device, self.earlier = device, earlier
        self.shipped = shipped(shipped_for(device))
        #: Of each line that was asked for, as `MachineModel` has it.
        self.quality: dict[str, dict[str, float]] = {}

    def line(self, key: str, samples: Samples, spread: float) -> tuple[Line, Samples]:
        """Return the line of samples whose timings vary so far, and what it was fitted to."""
        known = self._shipped(key)
        with suppress(FitError):  # seconds that fall as work grows: disturbed all the same
            if not is_noisy(key, spread):
                fitted = self._fitted(key, samples, known)
                self.quality[key] = {**fitted.quality(), "spread": spread}
                return fitted.line, samples
        before = self.earlier
        if before is not None and key in before.lines:
            known, quality = before.lines[key], before.quality.get(key, {SCALED: 1.0})
            if SCALED not in quality and not is_noisy(key, quality.get("spread", 0.0)):
                self.quality[key] = {**quality, KEPT: 1.0}
                return known, before.samples.get(key, samples)
        fitted = fit_scaled(samples, known)
        self.quality[key] = {**fitted.quality(), "spread": spread, SCALED: 1.0}
        return fitted.line, samples

    def _shipped(self, key: str) -> Line:
        """The nearest line of a shipped machine."""
        lines, compute = self.shipped.lines, self.shipped.compute
        return lines[key] if key in lines else lines[compute.nearest_key(key)]

    def _fitted(self, key: str, samples: Samples, known: Line) -> Fit:
        if not key.startswith("copy_"):
            return fit_samples(samples, known)
        large = np.array(samples.work) >= SLAB_BYTES
        staged = key.endswith(("/pageable", "/disk")) and self.device.kind != "host"
        if not staged or np.sum(large) < FEWEST_WORKS:
            return fit_samples(samples)
        # copies that do not fill slabs are late rather than slow, which `latency` tells; and what
        # a line through those of files, a few and noisy, starts with is chance
        filling, origin = samples.chosen(large), Line(1.0, 0.0)
        return fit_scaled(filling, origin) if key.endswith("/disk") else fit_samples(filling)

    def completed(
        self, lines: Mapping[str, Line], samples: Mapping[str, Samples]
    ) -> dict[str, Line]:
        """Add the lines of computing that were not measured.

        They are as far from the shipped ones as the nearest is that was measured.
        """
        known = self.shipped.compute.lines
        both = ComputeModel({key: line for key, line in lines.items() if key in known})
        found = dict(lines)
        for key in sorted(known.keys() - lines.keys()):
            near = both.nearest_key(key)
            ratios = samples[near].predicted(lines[near]) / samples[near].predicted(known[near])
            found[key] = known[key].scaled(float(np.median(ratios)))
        return found
