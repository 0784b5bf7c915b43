"""The pieces of a whole grid of splits, from a few pieces.

What a piece costs is linear in its size along each axis: seconds, as the model of computing has
them, and the bytes of each buffer. So a few pieces tell all of a grid: those whose sizes are nodes
on every axis, with lines between. Three things are no part of these lines, and have nodes or terms
of their own:

- rows that are whole have no halo;
- output channels are computed in multiples of `CHANNEL_STEP`;
- pieces of a sum begin, go on or complete it: that takes something for each part of the result,
  however much is summed.

The last wave of a convolution's tiles grows in steps, and is left to exact prices.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce

import numpy as np

from ooc_cudnn.operations.splittable import ALONE, AXES, Accumulation, Piece
from ooc_cudnn.pricing.axes import Axes
from ooc_cudnn.pricing.piece_costs import PieceCosts
from ooc_cudnn.pricing.pieces import Pieces, Values, product
from ooc_cudnn.pricing.request import Direction
from perfmodel import Split
from perfmodel.work import CHANNEL_STEP

Sizes = Mapping[str, Sequence[int]]
CHANNELS = ("c_y", "c_x")
BEGINS, GOES_ON, COMPLETES = (
    Accumulation(first=True, last=False),
    Accumulation(first=False, last=False),
    Accumulation(first=False, last=True),
)
#: What a piece takes beside blocks of memory.
SPENT = SECONDS, LAUNCHING = "seconds", "launching"


class Nodes:
    """The sizes of one axis at which pieces are looked at, and what others are made of.

    Attributes
    ----------
    sizes : list of int
    total, largest : array of (size, node)
        For each size of the grid: what all its ranges, and its largest one, have of each node.
    """

    def __init__(self, axes: Axes, axis: str, sizes: Sequence[int]) -> None:
        self.axes, self.axis = axes, axis
        whole = [size for size in sizes if axes.times(axis, size) == 1][:1]
        cut = [size for size in sizes if axes.times(axis, size) > 1]
        apart = whole if axis == "h_y" and cut else []
        inside = cut if apart else [*whole, *cut]
        chosen = {inside[0], inside[-1]}
        if axis in CHANNELS:
            # pieces of more than one group of channels have more regions of what lies across
            for most in (CHANNEL_STEP, axes.ranges(axis, 1).group):
                chosen.update([size for size in inside if size <= most][:1])
        # of sizes whose pieces are equally long, the first
        first = {self._length(size, looked_at(axes, axis, size)): size
                 for size in sorted(chosen, reverse=True)}  # fmt: skip
        known = np.array(sorted(first))
        self.sizes = [*(first[length] for length in sorted(first)), *apart]

        def shares(found: Sequence[int]) -> Values:
            """What ranges of some lengths have of each node: shares of the two beside them."""
            held, at = np.zeros((len(found), len(self.sizes))), np.arange(len(found))
            above = np.searchsorted(known[1:-1], found) + 1 if len(known) > 1 else 0
            below = np.maximum(above - 1, 0)
            step = np.maximum(known[above] - known[below], 1)
            held[at, above] = (found - known[below]) / step
            held[at, below] = 1.0 - held[at, above] if len(known) > 1 else 1.0
            return held

        self.largest = shares([self._length(size, 0) for size in sizes])
        self.total = np.zeros_like(self.largest)
        every = [
            (at, *e) for at, size in enumerate(sizes) for e in axes.lengths(axis, size).items()
        ]
        at, lengths, times = zip(*every, strict=True)
        np.add.at(self.total, list(at), np.array(times)[:, np.newaxis] * shares(lengths))
        if apart:
            is_whole = [axes.times(axis, size) == 1 for size in sizes]
            self.total[is_whole] = self.largest[is_whole] = np.eye(len(self.sizes))[-1]

    def _length(self, size: int, at: int) -> int:
        start, stop = self.axes.ranges(self.axis, size)[at]
        return stop - start


def looked_at(axes: Axes, axis: str, size: int) -> int:
    """The number of the range that is looked at: of rows one that no border clips, if it can be."""
    return axes.times(axis, size) // 2 if axis == "h_y" else 0


def spread(axes: Axes, costs: PieceCosts, sizes: Sizes) -> Pieces:
    """Spread what a few pieces take over all splits that are made of some sizes.

    Parameters
    ----------
    sizes : mapping from axis to sequence of int
        Largest first. The arrays have the axes n, c_y, h_y, c_x.
    """
    call, whole = axes.call, axes.call.extents

    def each(axis: str, of: Callable[[int], float]) -> Values:
        """What is known of each size of an axis, along that axis."""
        found = np.array([of(size) for size in sizes[axis]], float)
        return found.reshape([-1 if axis == other else 1 for other in AXES])

    def apart(way: Direction, name: str) -> Values:
        """What a byte takes longer: of several cut axes, the one with the narrowest rows tells."""
        found: Values = np.zeros((1,) * len(AXES))
        for axis in call.operands[name].axes - {"n"}:

            def slower(size: int, axis: str = axis) -> float:
                if axes.times(axis, size) == 1:
                    return 0.0
                return axes.apart_seconds_per_byte(way, name, axes.cut_once(axis, size))

            found = np.maximum(found, each(axis, slower))
        return found

    def read(name: str) -> Values:
        return each("h_y", lambda size: axes.read_bytes(name, axes.middle(size)))

    known = axes.along(each)
    taken = _pieces_of_all(axes, costs, sizes, known["counts"])
    seconds, launching = (np.maximum(taken.pop(name), 0.0) for name in SPENT)
    of_one = seconds / product(known["counts"].values())
    # with groups, channels may not be cut just as one likes
    allowed = [
        [call.is_legal(replace(whole, c_y=c_y, c_x=c_x)) for c_x in sizes["c_x"]]
        for c_y in sizes["c_y"]
    ]
    return Pieces(
        request=axes.request,
        **known,
        read_bytes={name: read(name) for name in call.loaded},
        apart={way: apart(*way) for way in axes.request.ways},
        seconds=seconds,
        first_seconds=of_one,
        last_seconds=of_one,
        launching=launching,
        blocks=taken,
        allowed=np.array(allowed)[np.newaxis, :, np.newaxis, :],
    )


def _pieces_of_all(
    axes: Axes, costs: PieceCosts, sizes: Sizes, counts: Mapping[str, Values]
) -> dict[str, Values]:
    """Seconds and launching of all pieces, and what the largest one holds, by name."""
    reduced = axes.call.reduced
    nodes = {axis: Nodes(axes, axis, sizes[axis]) for axis in AXES}
    in_one = product(counts[axis] for axis in reduced)
    summed = in_one > 1
    probes = _looked_at(axes, costs, nodes, ALONE, AXES)
    found = {name: _spread(name, values, nodes) for name, values in probes.items()}
    if summed.any():
        # What pieces of a sum take beside those that are alone: by the part of the result, once.
        kept = [axis for axis in AXES if axis not in reduced]
        alone, begins, goes_on, completes = (
            _looked_at(axes, costs, nodes, place, kept)
            for place in (ALONE, BEGINS, GOES_ON, COMPLETES)
        )
        for name in begins | goes_on | completes:
            nothing = np.zeros_like(alone[SECONDS])
            first, inner, last = (
                each.get(name, nothing) - alone.get(name, nothing)
                for each in (begins, goes_on, completes)
            )
            if not (first.any() or inner.any() or last.any()):
                continue
            of = partial(_spread, name, nodes={axis: nodes[axis] for axis in kept})
            if name in SPENT:
                more = in_one * of(inner) + of(first + last - 2 * inner)
            else:
                more = reduce(np.maximum, map(of, (first, inner, last)))
            found[name] = found.get(name, 0.0) + np.where(summed, more, 0.0)
    return found


def _looked_at(
    axes: Axes,
    costs: PieceCosts,
    nodes: Mapping[str, Nodes],
    place: Accumulation,
    on: Sequence[str],
) -> dict[str, Values]:
    """What pieces take, at all nodes of some axes, and at the largest one of the others."""
    known = [nodes[a].sizes if a in on else [max(nodes[a].sizes)] for a in AXES]
    every = list(itertools.product(*known))
    found: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * len(every))
    for at, chosen in enumerate(every):
        split = Split(**dict(zip(AXES, chosen, strict=True)))
        if axes.call.is_legal(split):
            n, c_y, rows, c_x = (axes.ranges(a, s) for a, s in zip(AXES, chosen, strict=True))
            row = looked_at(axes, "h_y", split.h_y)
            after = rows[row - 1] if row else None
            for sweep in range(axes.call.sweeps):
                cost = costs.of(Piece(n[0], c_y[0], rows[row], c_x[0], sweep, after), place)
                found[SECONDS][at] += cost.least_seconds
                found[LAUNCHING][at] += cost.launching
                for name, count in cost.blocks.items():
                    found[name][at] = max(found[name][at], count)
    return {name: np.reshape(each, [len(sizes) for sizes in known]) for name, each in found.items()}


def _spread(name: str, values: Values, nodes: Mapping[str, Nodes]) -> Values:
    """From the nodes of all axes to all sizes: of seconds all pieces, of memory the largest one.

    An axis along which nothing changes stays short.
    """
    for axis in AXES:
        short = values[:1]
        if axis not in nodes or (name not in SPENT and (values == short).all()):
            values = np.moveaxis(short, 0, -1)
        else:
            weights = nodes[axis].total if name in SPENT else nodes[axis].largest
            others = values.shape[1:]
            values = (values.reshape(len(values), -1).T @ weights.T).reshape(*others, -1)
    return values
