"""From samples to lines: each is fitted, or the best that is known stands in for it.

What else runs on a machine spoils some lines and leaves others alone. One that was spoilt is kept
from an earlier calibration that was not disturbed there; else the line that is known (of a shipped
machine, or of a disturbed calibration) is scaled to what was seen: one factor is told by timings
that several unknowns are not.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.machines import shipped_for
from perfmodel import (
    ComputeModel,
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
from perfmodel.fitting import FEWEST_WORKS
from perfmodel.staging import SLAB_BYTES

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


class LineFitter:
    """Finds the lines of a device, which may have been calibrated before; each with its quality."""

    def __init__(self, device: Device, earlier: MachineModel | None) -> None:
        self.device, self.earlier = device, earlier
        self.shipped = shipped(shipped_for(device))
        #: Of each line that was asked for, as `MachineModel` has it.
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
        before = self.earlier
        if before is not None and key in before.lines:
            quality = before.quality.get(key, {SCALED: 1.0})
            if SCALED not in quality and not is_noisy(key, quality.get("spread", 0.0)):
                self.quality[key] = {**quality, KEPT: 1.0}
                return before.lines[key], before.samples.get(key, samples)
        fitted = fit_scaled(samples, self._known(key))
        self.quality[key] = {**fitted.quality(), "spread": spread, SCALED: 1.0}
        return fitted.line, samples

    def _fitted(self, key: str, samples: Samples) -> Fit:
        if not key.startswith("copy_"):
            return fit_samples(samples, self._shipped_compute(key))
        large = np.array(samples.work) >= SLAB_BYTES
        staged = key.endswith(("/pageable", "/disk")) and self.device.kind != "host"
        if not staged or np.sum(large) < FEWEST_WORKS:
            return fit_samples(samples)
        # copies that do not fill slabs are late rather than slow, which `latency` tells; and what
        # a line through those of files, a few and noisy, starts with is chance
        filling = samples.chosen(large)
        return fit_proportional(filling) if key.endswith("/disk") else fit_samples(filling)

    def _known(self, key: str) -> Line:
        """The nearest line that is known: of this machine if one is, else of a shipped one."""
        for model in (self.earlier, self.shipped):
            if model is not None and key in model.lines:
                return model.lines[key]
        return self._shipped_compute(key)

    def _shipped_compute(self, key: str) -> Line:
        compute = self.shipped.compute
        return compute.lines[compute.nearest_key(key)]

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
