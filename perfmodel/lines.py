"""The lines of a machine that something else may use meanwhile.

That spoils some lines and leaves others alone. One that was spoilt is kept from an earlier
calibration that was not disturbed there; else the line that is known (of a shipped machine, or of a
disturbed calibration) is scaled to what was seen: one factor is told by timings that several
unknowns are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from .compute import ComputeModel
from .fitting import FEWEST_WORKS, Fit, FitError, fit_samples, fit_scaled
from .linear import NO_FEATURES, Line
from .machine import MachineModel
from .record import rounded
from .samples import Samples
from .staging import SLAB_BYTES

TOO_NOISY, TOO_NOISY_FILES = 0.25, 1.0
"""A line is spoilt if the timings of its typical sample lie further than this from their median:
disturbances that spread them so far make the fit about half as slow again. (Files are on disks that
others use.)"""

KEPT, SCALED = "kept_from_earlier", "scaled_from_known"
"""Qualities of a line that was spoilt: whether an earlier one is kept, or a known one scaled."""


def is_noisy(key: str, spread: float) -> bool:
    """Return whether timings of a line lie too far from each other to fit it."""
    return spread > (TOO_NOISY_FILES if key.endswith("/disk") else TOO_NOISY)


def latency_line(late: Mapping[float, float], terms: Mapping[str, float] = NO_FEATURES) -> Line:
    """Return the line through what the smallest and the largest copy are late by: seconds by bytes.

    It does not fall: where the large one is late by less, both are by the mean.

    Examples
    --------
    >>> latency_line({1e6: 1e-3, 5e6: 3e-3})
    Line(alpha=5e-10, beta=0.0005, terms={})
    """
    items = sorted(late.items())
    (small, least), (large, most) = items[0], items[-1]
    if most <= least:
        return Line(0.0, rounded((least + most) / 2, 4), terms)
    alpha = (most - least) / (large - small)
    return Line(rounded(alpha, 4), rounded(max(most - alpha * large, 0.0), 4), terms)


class LineFitter:
    """Finds the lines of a machine from samples, each with its quality.

    Parameters
    ----------
    known : MachineModel
        Of a machine like this one.
    earlier : MachineModel, optional
        What was fitted on this machine before.
    through_slabs : bool
        Whether copies of plain memory and of files are staged through slabs.
    """

    def __init__(
        self, known: MachineModel, earlier: MachineModel | None, *, through_slabs: bool
    ) -> None:
        self.known, self.earlier, self.through_slabs = known, earlier, through_slabs
        #: Of each line that was asked for, as `MachineModel` has it.
        self.quality: dict[str, dict[str, float]] = {}

    def line(self, key: str, samples: Samples, spread: float) -> tuple[Line, Samples]:
        """Return the line of samples whose timings vary so far, and what it was fitted to."""
        known = self._known(key)
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

    def _known(self, key: str) -> Line:
        """The nearest line of the known machine."""
        lines, compute = self.known.lines, self.known.compute
        return lines[key] if key in lines else lines[compute.nearest_key(key)]

    def _fitted(self, key: str, samples: Samples, known: Line) -> Fit:
        if not key.startswith("copy_"):
            return fit_samples(samples, known)
        large = np.array(samples.work) >= SLAB_BYTES
        staged = key.endswith(("/pageable", "/disk")) and self.through_slabs
        if not staged or np.sum(large) < FEWEST_WORKS:
            return fit_samples(samples)
        # copies that do not fill slabs are late rather than slow, which `latency` tells; and what
        # a line through those of files, a few and noisy, starts with is chance
        filling, origin = samples.chosen(large), Line(1.0, 0.0)
        return fit_scaled(filling, origin) if key.endswith("/disk") else fit_samples(filling)

    def completed(
        self, lines: Mapping[str, Line], samples: Mapping[str, Samples]
    ) -> dict[str, Line]:
        """Return lines of computing with those of the known machine that were not measured.

        These are as far from what is known as the nearest is that was measured.
        """
        known = self.known.compute.lines
        both = ComputeModel({key: line for key, line in lines.items() if key in known})
        all_lines = dict(lines)
        for key in sorted(known.keys() - lines.keys()):
            near = both.nearest_key(key)
            ratios = samples[near].predicted(lines[near]) / samples[near].predicted(known[near])
            all_lines[key] = known[key].scaled(float(np.median(ratios)))
        return all_lines
