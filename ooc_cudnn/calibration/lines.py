"""From samples to lines: each is fitted, or the best that is known stands in for it.

What else runs on a machine spoils some lines and leaves others alone. One that was spoilt is kept
from an earlier calibration that was not disturbed there; else the line that is known (of a shipped
machine, or of a disturbed calibration) is scaled to what was seen: one factor is told by timings
that several unknowns are not.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from ooc_cudnn.devices.base import Device
from perfmodel import (
    Fit,
    FitError,
    Line,
    MachineModel,
    Samples,
    fit_proportional,
    fit_samples,
    fit_scaled,
    shipped,
)
from perfmodel.linear import FEWEST_WORKS
from perfmodel.transfer import SLAB_BYTES

#: A line is spoilt if the timings of its typical sample lie further than this from their median:
#: disturbances that spread them so far make the fit about half as slow again. (Files are on disks
#: that others use.)
TOO_NOISY, TOO_NOISY_FILES = 0.25, 1.0
#: Qualities of a line that was spoilt: whether an earlier one is kept, or a known one scaled.
KEPT, SCALED = "kept_from_earlier", "scaled_from_known"
#: So many of the least sure lines are named.
NAMED = 3


def is_noisy(key: str, spread: float) -> bool:
    """Whether timings of a line lie too far from each other to fit it."""
    return spread > (TOO_NOISY_FILES if key.endswith("/disk") else TOO_NOISY)


class LineFitter:
    """Finds the lines of a device, each with its quality.

    Parameters
    ----------
    device : Device
    earlier : MachineModel, optional
        What was calibrated before.

    Attributes
    ----------
    quality : dict
        Of each line that was asked for, as `MachineModel` has it.
    """

    def __init__(self, device: Device, earlier: MachineModel | None) -> None:
        self.device, self.earlier = device, earlier
        self.shipped = shipped("host" if device.kind == "host" else "h200")
        self.quality: dict[str, dict[str, float]] = {}

    def line(self, key: str, samples: Samples, spread: float) -> tuple[Line, Samples]:
        """Return the line of samples whose timings vary so far, and what it was fitted to."""
        if not is_noisy(key, spread):
            try:
                fitted = self._fitted(key, samples)
            except FitError:  # seconds that fall as work grows: disturbed all the same
                pass
            else:
                self.quality[key] = {**fitted.quality(), "spread": spread}
                return fitted.line, samples
        kept = self._undisturbed_before(key)
        if kept is not None:
            assert self.earlier is not None
            self.quality[key] = {**self.earlier.quality[key], KEPT: 1.0}
            return kept, self.earlier.samples.get(key, samples)
        fitted = fit_scaled(samples, self._known(key))
        self.quality[key] = {**fitted.quality(), "spread": spread, SCALED: 1.0}
        return fitted.line, samples

    def _fitted(self, key: str, samples: Samples) -> Fit:
        filling = self._filling_slabs(key, samples)
        if filling and key.endswith("/disk"):
            # a few, and noisy: what a line through them starts with is chance
            return fit_proportional(filling)
        like = None if key.startswith("copy_") else self._known_compute(self.shipped, key)
        return fit_samples(filling or samples, like)

    def _filling_slabs(self, key: str, samples: Samples) -> Samples | None:
        """Of what is staged, the copies that fill slabs; None if there are too few.

        Smaller ones are late rather than slow, which `latency` tells.
        """
        staged = key.endswith(("/pageable", "/disk")) and self.device.kind != "host"
        large = [at for at, count in enumerate(samples.work) if count >= SLAB_BYTES]
        if not staged or len(large) < FEWEST_WORKS:
            return None
        work, seconds = ([held[at] for at in large] for held in (samples.work, samples.seconds))
        return Samples(tuple(work), tuple(seconds))

    def _undisturbed_before(self, key: str) -> Line | None:
        """The line of an earlier calibration, where that was not disturbed."""
        if self.earlier is None:
            return None
        quality = self.earlier.quality.get(key, {SCALED: 1.0})
        if SCALED in quality or is_noisy(key, quality.get("spread", 0.0)):
            return None
        return own_line(self.earlier, key)

    def _known(self, key: str) -> Line:
        """The nearest line that is known: of this machine if one is, else of a shipped one."""
        before = None if self.earlier is None else own_line(self.earlier, key)
        if before is not None:
            return before
        known = own_line(self.shipped, key)
        return known if known is not None else self._known_compute(self.shipped, key)

    @staticmethod
    def _known_compute(model: MachineModel, key: str) -> Line:
        return model.compute.lines[model.compute.nearest_key(key)]


def own_line(model: MachineModel, key: str) -> Line | None:
    """Return the line that a machine model has under a key, of a copy or of computing."""
    direction, _, placement = key.partition("/")
    if direction in ("copy_in", "copy_out"):
        copies: Mapping[str, Line] = getattr(model.transfer, direction)
        return copies.get(placement)
    return model.compute.lines.get(key)


def spoilt(model: MachineModel) -> dict[str, list[str]]:
    """Return the lines of a calibration that were spoilt: kept from an earlier one, or scaled."""
    return {
        kind: sorted(key for key, held in model.quality.items() if kind in held)
        for kind in (KEPT, SCALED)
    }


def how_sure(model: MachineModel) -> list[str]:
    """Say how far the lines of a calibration can be trusted, and what that means for plans.

    Examples
    --------
    >>> how_sure(shipped("host"))[0].startswith("how sure: half of the lines")
    True
    """
    held = {
        key: of for key, of in model.quality.items() if {"held_out_error", "spread"} <= of.keys()
    }
    if not held:
        return ["how sure: not known; this model does not say how well it was fitted"]
    # no sample was held out of a single one
    wrong = {
        key: max(of["spread"], of["held_out_error"] if of.get("samples", 2.0) > 1 else 0.0)
        for key, of in held.items()
    }
    single = sum(of.get("samples") == 1 for of in held.values())
    told = {key: share for key, share in wrong.items() if held[key].get("samples") != 1} or wrong
    least = sorted(told, key=lambda key: -told[key])[:NAMED]
    named = ", ".join(f"{key} ({told[key]:.0%})" for key in least)
    lines = [
        f"how sure: half of the lines are right within {statistics.median(told.values()):.0%}; "
        f"least sure are {named}"
    ]
    if single:
        lines.append(f"known lines, scaled to one measurement each: {single}")
    kept, scaled = spoilt(model).values()
    if not kept and not scaled:
        return [*lines, "nothing was disturbed: plans are as sure as these lines"]
    if kept:
        lines.append(f"disturbed, and kept from the earlier calibration: {_few(kept)}")
    if scaled:
        lines.append(f"disturbed, and known lines scaled to what was seen: {_few(scaled)}")
    meaning = "results are right in any case; "
    if scaled:
        worst = max(wrong[key] for key in scaled if key in wrong)
        meaning += (
            f"predicted seconds may be off by {worst:.0%} and more where such a line counts, and "
            "plans slower than the best. Calibrate again when the machine is quiet: lines that "
            "were measured well are kept"
        )
    else:
        meaning += "plans are as good as after the earlier calibration"
    return [*lines, meaning]


def _few(keys: list[str]) -> str:
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    return f"{len(keys)} of the lines ({', '.join(keys[:NAMED])}{more})"
