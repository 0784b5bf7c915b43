"""`verify`: recompute random patches of an output on the host in float64, and compare.

No result depends on trusting cuDNN blindly: it has been slow or wrong beyond 2**31 elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.errors import VerificationError
from ooc_cudnn.operations.activation import Activation
from ooc_cudnn.operations.chain import Chain, Piece, Region
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.pipeline.execute import Source, region_of
from ooc_cudnn.tensor import numpy_dtype

#: Rows of a patch; all of its columns and up to `PATCH_CHANNELS` channels are compared.
PATCH_ROWS = 2
PATCH_CHANNELS = 4

#: Relative rounding error of one product or sum, by arithmetic.
UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "tf32": 2.0**-11, "float32": 2.0**-24,
                 "float64": 2.0**-53}  # fmt: skip


class Verification:
    """Patches chosen, and the old output read, before a run; compared after it."""

    def __init__(
        self,
        function: str,
        chain: Chain,
        sources: Mapping[str, Source],
        device: Device,
        patches: int,
    ) -> None:
        self.function, self.chain, self.sources, self.device = function, chain, sources, device
        random = np.random.default_rng()
        self.pieces = [self._random_piece(random) for _ in range(patches)]
        self.old = [
            self._read("y", chain.region("y", piece)) if chain.beta else None
            for piece in self.pieces
        ]

    def _random_piece(self, random: np.random.Generator) -> Piece:
        whole, chain = self.chain.extents, self.chain
        n = int(random.integers(whole.n))
        row = int(random.integers(whole.h_y))
        rows = (row, min(row + PATCH_ROWS, whole.h_y))
        channels = (0, whole.c_y)
        if chain.channels_may_be_cut:
            first = int(random.integers(whole.c_y))
            group = (
                whole.c_y // chain.convolution.groups
                if chain.convolution is not None
                else whole.c_y
            )
            end = min((first // group + 1) * group, first + PATCH_CHANNELS)
            channels = (first, end)
        return Piece((n, n + 1), channels, rows, (0, whole.c_x))

    def _read(self, name: str, region: Region) -> np.ndarray[Any, Any]:
        """Return a region of an operand as a float64 array."""
        found = region_of(self.sources[name], region)
        if not isinstance(found, DeviceView):
            return found.astype(np.float64)
        if 0 in found.shape:
            return np.empty(found.shape)
        array = np.empty(found.shape, numpy_dtype(found.dtype))
        run = self.device.start(overlap=False, staged=True, timed=False)
        run.submit(
            "copy_out",
            (),
            lambda stream: self.device.copy_out(array, found, stream),
            signals=True,
        )
        run.finish(wait=True)
        return array.astype(np.float64)

    @np.errstate(all="ignore")  # infinity and NaN are compared, too
    def check(self) -> None:
        """Compare every patch.

        Raises
        ------
        VerificationError
            At the first element that differs by more than rounding allows.
        """
        for piece, old in zip(self.pieces, self.old, strict=True):
            region = self.chain.region("y", piece)
            expected, magnitude = self._expected(piece)
            if old is not None:
                expected = expected + self.chain.beta * old
                magnitude = magnitude + np.abs(self.chain.beta * old)
            actual = self._read("y", region)
            tolerance = self._tolerance() * magnitude + 1e-30
            error = np.abs(actual - expected)
            # NaN and infinity must appear where they are expected, and nowhere else.
            same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
            wrong = ~(same | (error <= tolerance))
            if wrong.any():
                at = tuple(int(i) for i in np.argwhere(wrong)[0])
                raise VerificationError(
                    function=self.function,
                    region=tuple(
                        (low + i, low + i + 1) for (low, _), i in zip(region, at, strict=True)
                    ),
                    expected=float(expected[at]),
                    actual=float(actual[at]),
                    error=float(error[at]),
                    tolerance=float(tolerance[at]),
                )

    def _expected(self, piece: Piece) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The patch in float64, and the size its sums would have without cancellation."""
        chain = self.chain
        value = self._read("x", chain.region("x", piece))
        size = np.abs(value)
        rows = chain.rows(piece.h_y)
        for index, operation in enumerate(chain.operations):
            parameters = [
                self._read(name, chain.region(name, piece)) for name in chain.parameter_names[index]
            ]
            if isinstance(operation, Convolution) and chain.convolution is not None:
                step: Any = operation.on_channels(1, piece.c_y, piece.c_x, rows[index])
            else:
                step = operation.on_piece(1, rows[index])
            if isinstance(operation, Activation):
                value = step.reference(value)
                # What the activation enlarges errors by; the other modes' slope is about 1.
                slope = abs(operation.coef) if operation.mode in ("elu", "leaky_relu") else 1.0
                size = np.maximum(max(1.0, slope) * size, np.abs(value))
            else:
                value = step.reference(value, *parameters)
                size = step.reference(size, *(np.abs(p) for p in parameters))
        return chain.alpha * value, abs(chain.alpha) * size

    def _tolerance(self) -> float:
        """Error that rounding explains, as a share of the sums' size.

        A sum of k products in arithmetic of unit roundoff u errs by at most about k * u; in
        practice by its square root, of which a generous multiple is allowed.
        """
        terms, roundoff = 1, UNIT_ROUNDOFF[self.chain.dtype]
        for operation in self.chain.operations:
            if isinstance(operation, Convolution):
                terms = max(terms, math.prod(operation.w_shape[1:]))
                roundoff = max(roundoff, UNIT_ROUNDOFF[operation.precision])
        return 8.0 * roundoff * len(self.chain.operations) * max(1.0, math.sqrt(terms) / 8)
