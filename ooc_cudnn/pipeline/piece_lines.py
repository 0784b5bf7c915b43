"""Pieces that are cut along one axis alone: what those of many sizes cost, from a few of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooc_cudnn.pipeline.cuts import Lengths, Values
from ooc_cudnn.pipeline.piece_costs import Probe


class Uncut:
    """The line along an axis that is whole in all pieces: of one size, that of the largest."""

    share = covered = work = np.ones(1)

    def memory(self, names: tuple[str, ...]) -> Values:
        """Bytes of blocks, by row, over those of the largest piece."""
        return self.share[np.newaxis]


UNCUT = Uncut()


class Line:
    """Pieces that are cut along one axis alone.

    Parameters
    ----------
    lengths : Lengths
        Of pieces of each size.
    whole : float
        The length of the largest piece.
    extent : int
        Of the axis.
    ratios : Ratios
        Of pieces of some sizes.

    Attributes
    ----------
    share, covered, work : array
        For each size, over the axis' largest piece: the extent of its largest piece, that of all
        its pieces, and the seconds of all its pieces without those of launching.
    """

    def __init__(self, lengths: Lengths, whole: float, extent: int, ratios: Ratios) -> None:
        counts, first, last = lengths
        self.share: Values = first / whole
        self.covered = np.full(len(first), extent / whole)
        of_first = ratios(first)
        of_last = of_first[0] if (last == first).all() else ratios.of_seconds(last)
        self.work: Values = np.maximum((counts - 1.0) * of_first[0] + of_last, 0.0)
        self._names, self._memory = ratios.names, of_first[1:]

    def memory(self, names: tuple[str, ...]) -> Values:
        """Bytes of blocks for each size, by row, over those of the largest piece."""
        if names == self._names:
            return self._memory
        known = dict(zip(self._names, self._memory, strict=True))
        return np.array([known.get(name, self.share) for name in names])


class Ratios:
    """What pieces of some sizes on one axis take, over the largest: seconds, and each block.

    Between the sizes looked at by the line through both; beyond, as the first and the last go on.

    Parameters
    ----------
    probes : mapping from length to Probe
        Pieces of some sizes, largest first.
    base : Probe
        The largest piece.
    launch_seconds : float
        What a piece of any size takes, which is no part of the ratios.
    """

    def __init__(self, probes: Mapping[float, Probe], base: Probe, launch_seconds: float) -> None:
        beside = base.seconds - launch_seconds
        found = list(probes.values())[::-1]
        self._levels, self.names = np.array(list(probes)[::-1]), tuple(base.memory)
        self._rows = np.array([
            [(probe.seconds - launch_seconds) / beside if beside > 0 else 1.0 for probe in found],
            *(
                [probe.memory.get(name, 0) / (count or 1) for probe in found]
                for name, count in base.memory.items()
            ),
        ])  # fmt: skip

    def __call__(self, sizes: Values) -> Values:
        """Ratios of pieces of these sizes: of seconds in the first row, then of each block."""
        found: Values = self._of(self._rows, sizes)
        return found

    def of_seconds(self, sizes: Values) -> Values:
        """The first row alone."""
        found: Values = self._of(self._rows[:1], sizes)[0]
        return found

    def _of(self, known: Values, sizes: Values) -> Any:
        levels = self._levels
        if len(levels) == 1:
            return np.repeat(known, len(sizes), axis=1)
        if len(levels) == 2:
            low, high = known[:, :1], known[:, 1:]
            return low + (high - low) * ((sizes - levels[0]) / (levels[1] - levels[0]))
        above = np.searchsorted(levels[1:-1], sizes, side="right") + 1
        below = above - 1
        along = (sizes - levels[below]) / (levels[above] - levels[below])
        return known[:, below] + (known[:, above] - known[:, below]) * along


def outer(vectors: Sequence[Values]) -> Values:
    """The products of the values of all axes: n, c_y, h_y, c_x."""
    n, c_y, h_y, c_x = vectors
    rows = h_y[..., None, None, :, None] * c_x[..., None, None, None, :]
    found: Values = n[..., :, None, None, None] * c_y[..., None, :, None, None] * rows
    return found
