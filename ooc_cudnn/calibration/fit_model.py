"""Fit the cost model's coefficients to what calibration measured."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Collection, Mapping
from dataclasses import replace

from ooc_cudnn.calibration.compute import add_stand_ins
from ooc_cudnn.calibration.copies import PAIRS, large_pieces
from ooc_cudnn.calibration.session import DIRECTIONS, Measurement, Session
from ooc_cudnn.devices.machines import shipped_for
from ooc_cudnn.devices.measuring import Timing
from perfmodel import (
    ComputeModel,
    Line,
    LineFitter,
    MachineModel,
    Samples,
    Slowdown,
    TransferModel,
    shipped,
)
from perfmodel.lines import KEPT, latency_line
from perfmodel.machine import SECONDS
from perfmodel.record import rounded
from perfmodel.staging import STAGED_BYTES

Found = Mapping[str, Measurement]

#: What the keys of lines start with.
KINDS = ("copy_in", "copy_out", "convolution", "pointwise")


def is_line(key: str) -> bool:
    """True if samples of this key are those of a line."""
    return key.partition("/")[0] in KINDS


def fit_model(session: Session, found: Found, earlier: MachineModel | None) -> MachineModel:
    """Fit the model of the session's device to what was measured, by the keys of its records.

    `earlier` is what was calibrated before.
    """
    device = session.device
    known = shipped(shipped_for(device))
    fitter = LineFitter(known, earlier, through_slabs=not session.on_host)
    lines, samples = dict[str, Line](), dict[str, Samples]()
    for key in filter(is_line, found):
        lines[key], samples[key] = fitter.line(key, found[key].samples(), found[key].spread)
    copies: dict[str, dict[str, Line]] = {way: {} for way in DIRECTIONS}
    for key in [key for key in lines if key.startswith(DIRECTIONS)]:
        way, placement = key.split("/")
        line = lines.pop(key)
        if KEPT not in fitter.quality[key]:
            rows = "pinned" if placement == "pinned" else f"{way}/pageable"
            row_seconds = rounded(_figure(found, f"rows/{rows}"))
            line = replace(line, terms={"rows": row_seconds} if row_seconds else {})
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
            add_stand_ins(device, fitter.completed(lines, samples)),
            launching=add_stand_ins(device, launching),
        ),
        calibrated=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        **{name: rounded(_of_host(found[name])) for name in SECONDS if name in found},
        losses={of: rounded(held.seconds[0], 3) for of, held in _under("losses/", found)},
        quality=_quality(found) | fitter.quality,
        samples=samples | {f"duplex/{of}": held.samples() for of, held in _under("duplex/", found)},
        facts=session.facts,
    )


def _under(start: str, found: Found) -> list[tuple[str, Measurement]]:
    """Measurements under keys that start so, each after the rest of its key."""
    return [(key.removeprefix(start), found[key]) for key in found if key.startswith(start)]


def _of_host(held: Measurement) -> float:
    return Timing.of_host(held.seconds).seconds


def _figure(found: Found, key: str) -> float:
    """The median of what was measured of one figure; 0 where nothing was."""
    return statistics.median(found[key].seconds) if key in found else 0.0


def _slowdowns(measurements: Found, large: Collection[float]) -> dict[str, Slowdown]:
    """Factors by which large copies of each pair are slower at once than alone."""
    slowdowns = {}
    for pair in PAIRS:
        factors = {}
        for way, placement in zip(DIRECTIONS, pair.split("/"), strict=True):
            alone = measurements[f"{way}/{placement}"].by_work()
            both = measurements[f"duplex/{pair}/{way}"].by_work()
            ratios = [both[size] / alone[size] for size in both if size in large]
            factors[way] = rounded(max(1.0, statistics.median(ratios)))
        slowdowns[pair] = Slowdown(**factors)
    return slowdowns


def latencies(found: Found, copies: Mapping[str, Mapping[str, Line]]) -> dict[str, Line]:
    """Return the latencies of staged copies; others delay those of files as those of plain memory.

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


def _quality(measurements: Found) -> dict[str, dict[str, float]]:
    """Spread of the timings of what is no line."""
    quality = {}
    for pair in PAIRS:
        both = [measurements[f"duplex/{pair}/{way}"] for way in DIRECTIONS]
        spread = Measurement([*both[0], *both[1]]).spread
        quality[f"duplex/{pair}"] = {"spread": spread, "samples": float(len(both[0]))}
    for key in measurements:
        if key in SECONDS or key.startswith("losses/"):
            seconds = measurements[key].seconds
            middle = _of_host(measurements[key])
            apart = (max(seconds) - min(seconds)) / 2 / middle if middle else 0.0
            quality[key] = {"spread": max(measurements[key].spread, apart)}
    return quality
