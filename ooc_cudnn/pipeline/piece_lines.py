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
    probes : mapping from extent to Probe
        Pieces of some sizes, largest first.
    base : Probe
        The largest piece.
    launch_seconds : float
        What a piece of any size takes.

    Attributes
    ----------
    share, covered, work : array
        For each size, over the axis' largest piece: the extent of its largest piece, that of all
        its pieces, and the seconds of all its pieces without those of launching.
    """

    def __init__(
        self,
        lengths: Lengths,
        whole: float,
        extent: int,
        probes: Mapping[float, Probe],
        base: Probe,
        launch_seconds: float,
    ) -> None:
        counts, first, last = lengths
        self.share: Values = first / whole
        self.covered = np.full(len(first), extent / whole)
        beside = base.seconds - launch_seconds
        found = list(probes.values())
        # Ratios to the largest piece, by row: of seconds, and of each block.
        ratios = np.array([
            [(probe.seconds - launch_seconds) / beside if beside > 0 else 1.0 for probe in found],
            *(
                [probe.memory.get(name, 0) / (count or 1) for probe in found]
                for name, count in base.memory.items()
            ),
        ])  # fmt: skip
        between = _Between(list(probes), ratios)
        of_first = between(first)
        of_last = of_first[0] if (last == first).all() else between.first_row(last)
        self.work: Values = np.maximum((counts - 1.0) * of_first[0] + of_last, 0.0)
        self._names, self._memory = tuple(base.memory), of_first[1:]

    def memory(self, names: tuple[str, ...]) -> Values:
        """Bytes of blocks for each size, by row, over those of the largest piece."""
        if names == self._names:
            return self._memory
        known = dict(zip(self._names, self._memory, strict=True))
        return np.array([known.get(name, self.share) for name in names])


class _Between:
    """Ratios, by row, between the sizes looked at; beyond, as the first and the last line go on.

    Parameters
    ----------
    levels : list of float
        The sizes, largest first.
    ratios : array
        Of each size, a column.
    """

    def __init__(self, levels: list[float], ratios: Values) -> None:
        self.levels, self.ratios = np.array(levels[::-1]), ratios[:, ::-1]

    def __call__(self, sizes: Values) -> Values:
        found: Values = self._of(self.ratios, sizes)
        return found

    def first_row(self, sizes: Values) -> Values:
        """Those of the first row alone."""
        found: Values = self._of(self.ratios[:1], sizes)[0]
        return found

    def _of(self, known: Values, sizes: Values) -> Any:
        levels = self.levels
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
