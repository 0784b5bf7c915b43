"""`verify`: recompute random patches of an output on the host in float64, and compare.

No result depends on trusting cuDNN blindly: it has been slow or wrong beyond 2**31 elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ooc_cudnn.devices.base import Device, open_run
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.errors import VerificationError
from ooc_cudnn.operations.core.call import Piece, Read, Region, TiledCall
from ooc_cudnn.pipeline.views import Source, region_of
from ooc_cudnn.tensor import SMALLEST_STEP, UNIT_ROUNDOFF, numpy_dtype


class Verification:
    """Patches chosen, and the old results read, before a run; compared after it."""

    def __init__(
        self,
        function: str,
        call: TiledCall,
        sources: Mapping[str, Source],
        device: Device,
        patches: int,
    ) -> None:
        self.function, self.call, self.sources, self.device = function, call, sources, device
        random = np.random.default_rng()
        self.pieces = [call.patch(random) for _ in range(patches)]
        self.old = [self._old(piece) for piece in self.pieces]

    def _old(self, piece: Piece) -> dict[str, np.ndarray[Any, Any]]:
        """Contents, before the run, of the results that are read."""
        return {
            name: self._read(name, region)
            for name in self.call.results
            if name in self.call.loaded and (region := self._region(name, piece)) is not None
        }

    def _region(self, name: str, piece: Piece) -> Region | None:
        """Region of a patch in a result, in whichever sweep that is written."""
        sweeps = (piece._replace(sweep=sweep) for sweep in reversed(range(self.call.sweeps)))
        return next(filter(None, (self.call.region(name, each) for each in sweeps)), None)

    def _read(self, name: str, region: Region) -> np.ndarray[Any, Any]:
        """Return a region of an operand as a float64 array."""
        source = region_of(self.sources[name], region)
        if not isinstance(source, DeviceView):
            return source.astype(np.float64)
        if 0 in source.shape:
            return np.empty(source.shape)
        array = np.empty(source.shape, numpy_dtype(source.dtype))
        with open_run(self.device, overlap=False, staged=True, timed=False) as run:
            run.submit(
                "copy_out",
                (),
                lambda stream: self.device.copy_out(array, source, stream),
                signals=True,
            )
            run.finish(wait=True)
        return array.astype(np.float64)

    @np.errstate(all="ignore")  # infinity and NaN are compared, too
    def check(self) -> None:
        """Compare every patch of every result.

        Raises
        ------
        VerificationError
            At the first element that differs by more than rounding allows.
        """
        for piece, old in zip(self.pieces, self.old, strict=True):
            for name, (expected, sizes) in self.call.expected(piece, self._before(old)).items():
                region = self._region(name, piece)
                if region is not None:
                    self._compare(name, region, expected, sizes, old.get(name))

    def _before(self, old: Mapping[str, np.ndarray[Any, Any]]) -> Read:
        """Read operands; results as they were before the run."""
        return lambda name, region: old[name] if name in old else self._read(name, region)

    def _compare(
        self,
        name: str,
        region: Region,
        expected: np.ndarray[Any, Any],
        sizes: np.ndarray[Any, Any],
        old: np.ndarray[Any, Any] | None,
    ) -> None:
        alpha, beta = self.call.scaling(name)
        expected, sizes = alpha * expected, abs(alpha) * sizes
        if beta and old is not None:
            expected, sizes = expected + beta * old, sizes + np.abs(beta * old)
        actual = self._read(name, region)
        tolerance = self._tolerance() * sizes + SMALLEST_STEP.get(self.call.dtype, 1e-30)
        error = np.abs(actual - expected)
        # NaN and infinity must appear where they are expected, and nowhere else.
        same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        # What is too large for the result's type is infinite there.
        farthest = expected + np.copysign(tolerance, expected)
        rounded = farthest.astype(numpy_dtype(self.call.operands[name].dtype)).astype(np.float64)
        same |= np.isinf(actual) & (actual == rounded)
        wrong = ~(same | (error <= tolerance))
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise VerificationError(
                function=self.function,
                region=tuple(
                    (low + i, low + i + 1) for (low, _), i in zip(region, index, strict=True)
                ),
                expected=float(expected[index]),
                actual=float(actual[index]),
                error=float(error[index]),
                tolerance=float(tolerance[index]),
            )

    def _tolerance(self) -> float:
        """Error that rounding explains, as a share of the sums' size."""
        terms, arithmetic, operations = self.call.rounding()
        return operations * rounding_share(terms, self.call.dtype, arithmetic)


def rounding_share(terms: float, dtype: str, arithmetic: str) -> float:
    """Return the error that rounding explains, as a share of the size of a sum of products.

    A sum of k products in arithmetic of unit roundoff u errs by at most about k * u; in practice by
    its square root, of which a generous multiple is allowed.
    """
    roundoff = max(UNIT_ROUNDOFF[dtype], UNIT_ROUNDOFF[arithmetic])
    return 8.0 * roundoff * max(1.0, math.sqrt(terms) / 8)
