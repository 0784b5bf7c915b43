"""The pieces of a whole grid of splits, from a few pieces.

What a piece costs is linear in its size along each axis: seconds, as the model of computing has
them, and the bytes of each buffer. So a few pieces tell all of a grid: those whose sizes are nodes
on every axis, with lines between. Three things are no part of these lines, and have nodes or terms
of their own:

- rows that are whole have no halo;
- output channels are computed in multiples of `CHANNEL_STEP`;
- pieces of a sum begin, go on or complete it: that takes something for each part of the result,
  however much is summed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ooc_cudnn.operations.splittable import ALONE, AXES, Accumulation, Piece
from ooc_cudnn.pricing.axes import Axes
from ooc_cudnn.pricing.classes import read_bytes
from ooc_cudnn.pricing.piece_costs import PieceCosts
from ooc_cudnn.pricing.pieces import (
    BYTES,
    ELEMENTS,
    Pieces,
    Values,
    along_axes,
    product,
    small_enough,
)
from ooc_cudnn.pricing.request import Direction
from perfmodel import Split
from perfmodel.work import CHANNEL_STEP

Sizes = Mapping[str, Sequence[int]]
#: What a piece takes by name, by the numbers of its nodes.
Taken = dict[tuple[int, ...], dict[str, float]]
CHANNELS = ("c_y", "c_x")
BEGINS, GOES_ON, COMPLETES = (
    Accumulation(first=True, last=False),
    Accumulation(first=False, last=False),
    Accumulation(first=False, last=True),
)
#: The first entries of what a piece takes; the others are blocks of memory.
SECONDS, LAUNCHING = "seconds", "launching"


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
        cut = [size for size in sizes if axes.times(axis, size) > 1]
        whole = [size for size in sizes if axes.times(axis, size) == 1][:1]
        self.apart = axis == "h_y" and bool(whole) and bool(cut)
        inside = cut if self.apart else [*whole, *cut]
        ends = [inside[0], inside[-1]] if inside else []
        if axis in CHANNELS:
            ends += [size for size in inside if size <= CHANNEL_STEP][:1]
            ends += self._whole_groups(inside)
        chosen = sorted(set(ends))
        self.lengths = [self._length(size, looked_at(axes, axis, size)) for size in chosen]
        keep = [at for at, each in enumerate(self.lengths) if each not in self.lengths[:at]]
        self.lengths = [self.lengths[at] for at in keep]
        self.sizes = [chosen[at] for at in keep] + (whole if self.apart else [])
        self.total = np.array([self._of_all(size) for size in sizes])
        self.largest = np.array([self._of(self._length(size, 0), size) for size in sizes])

    def _whole_groups(self, sizes: Sequence[int]) -> list[int]:
        """The largest channels of one group, where there are several: others differ from these."""
        other = "c_x" if self.axis == "c_y" else "c_y"
        call, whole = self.axes.call, self.axes.call.extents
        for size in sizes:
            if call.is_legal(_split(whole, {self.axis: size, other: 1})):
                return [size]
        return []

    def _length(self, size: int, at: int) -> int:
        start, stop = self.axes.ranges(self.axis, size)[at]
        return stop - start

    def _of_all(self, size: int) -> Values:
        lengths = self.axes.lengths(self.axis, size)
        return sum(
            (times * self._of(length, size) for length, times in lengths.items()),
            np.zeros(len(self.sizes)),
        )

    def _of(self, length: int, size: int) -> Values:
        """What a range has of each node: shares of the two nodes beside it."""
        found, known = np.zeros(len(self.sizes)), self.lengths
        if self.apart and self.axes.times(self.axis, size) == 1:
            found[-1] = 1.0
        elif len(known) == 1:
            found[0] = 1.0
        else:
            above = min(max(int(np.searchsorted(known, length)), 1), len(known) - 1)
            share = (length - known[above - 1]) / (known[above] - known[above - 1])
            found[above - 1 : above + 1] = 1.0 - share, share
        return found


def looked_at(axes: Axes, axis: str, size: int) -> int:
    """The number of the range that is looked at: of rows one that no border clips, if it can be."""
    return axes.times(axis, size) // 2 if axis == "h_y" else 0


def _split(whole: Split, sizes: Mapping[str, int]) -> Split:
    found = {axis: sizes.get(axis, getattr(whole, axis)) for axis in AXES}
    return Split(**found)


class _Probes:
    """Pieces looked at on the nodes of all axes.

    Attributes
    ----------
    names : list of str
        Of what a piece takes, in the order of the arrays.
    """

    def __init__(self, axes: Axes, costs: PieceCosts, nodes: Mapping[str, Nodes]) -> None:
        self.axes, self.costs, self.nodes, self.call = axes, costs, nodes, axes.call
        self.names = [SECONDS, LAUNCHING, ELEMENTS, BYTES, *self.call.operands]

    def of(self, place: Accumulation, on: Sequence[str]) -> Taken:
        """What pieces take: at all nodes of some axes, and at the largest one of the others."""
        numbers = [self.numbers(axis, on) for axis in AXES]
        found: Taken = {}
        for at in itertools.product(*numbers):
            sizes = {axis: self.nodes[axis].sizes[i] for axis, i in zip(AXES, at, strict=True)}
            if self.call.is_legal(_split(self.call.extents, sizes)):
                found[at] = self._taken(sizes, place)
                self.names += [name for name in found[at] if name not in self.names]
        return found

    def numbers(self, axis: str, on: Sequence[str]) -> list[int]:
        """The nodes of an axis that are looked at."""
        sizes = self.nodes[axis].sizes
        return list(range(len(sizes))) if axis in on else [sizes.index(max(sizes))]

    def _taken(self, sizes: Mapping[str, int], place: Accumulation) -> dict[str, float]:
        n, c_y, rows, c_x = (self.axes.ranges(axis, sizes[axis]) for axis in AXES)
        at = looked_at(self.axes, "h_y", sizes["h_y"])
        after = rows[at - 1] if at else None
        taken: dict[str, float] = {SECONDS: 0.0, LAUNCHING: 0.0, ELEMENTS: 0.0, BYTES: 0.0}
        for sweep in range(self.call.sweeps):
            cost = self.costs.of(Piece(n[0], c_y[0], rows[at], c_x[0], sweep, after), place)
            taken[SECONDS] += cost.seconds
            taken[LAUNCHING] += cost.launching
            held = {**cost.blocks, ELEMENTS: cost.largest_elements, BYTES: cost.largest_bytes}
            for name, count in held.items():
                taken[name] = max(taken.get(name, 0.0), count)
        return taken

    def tensor(self, taken: Taken, on: Sequence[str]) -> Values:
        """What pieces take, as an array of (what, nodes of each axis)."""
        numbers = [self.numbers(axis, on) for axis in AXES]
        found = np.zeros((len(self.names), *map(len, numbers)))
        for place in itertools.product(*(range(len(each)) for each in numbers)):
            at = tuple(each[i] for each, i in zip(numbers, place, strict=True))
            if at in taken:
                where: Any = slice(None), *place
                found[where] = [taken[at].get(name, 0.0) for name in self.names]
        return found


def spread(axes: Axes, costs: PieceCosts, sizes: Sizes) -> Pieces:
    """Spread what a few pieces take over all splits that are made of some sizes.

    Parameters
    ----------
    sizes : mapping from axis to sequence of int
        Largest first. The arrays have the axes n, c_y, h_y, c_x.
    """
    call = axes.call
    grid = {
        axis: np.array(sizes[axis]).reshape([-1 if axis == each else 1 for each in AXES])
        for axis in AXES
    }
    known = along_axes(axes, grid)
    names, seconds, blocks = _pieces_of_all(axes, costs, sizes, known["counts"])
    held = dict(zip(names[2:], blocks, strict=True))
    spent, number = np.maximum(seconds[0], 0.0), product(known["counts"].values())
    read = {
        name: np.array([read_bytes(axes, name, axes.middle(size)) for size in sizes["h_y"]])
        for name in call.loaded
    }
    return Pieces(
        **known,
        read_bytes={name: each.reshape(grid["h_y"].shape) for name, each in read.items()},
        apart={(way, name): _apart(axes, way, name, sizes) for way, name in axes.request.ways},
        seconds=spent,
        first_seconds=spent / number,
        last_seconds=spent / number,
        launching=np.maximum(seconds[1], 0.0),
        blocks=held,
        legal=small_enough(axes, grid["n"], held) & _legal(axes, sizes),
    )


def _pieces_of_all(
    axes: Axes, costs: PieceCosts, sizes: Sizes, counts: Mapping[str, Values]
) -> tuple[list[str], Values, Values]:
    """What a piece takes by name; seconds and launching of all pieces, bytes of the largest one."""
    reduced = axes.call.reduced
    nodes = {axis: Nodes(axes, axis, sizes[axis]) for axis in AXES}
    probes = _Probes(axes, costs, nodes)
    alone, kept = probes.of(ALONE, AXES), [axis for axis in AXES if axis not in reduced]
    summed = product(counts[axis] for axis in reduced) > 1
    in_sums = [probes.of(place, kept) for place in (BEGINS, GOES_ON, COMPLETES) if summed.any()]
    base = probes.tensor(alone, AXES)
    seconds = _spread(base[:2], [nodes[axis].total for axis in AXES])
    blocks = _spread(base[2:], [nodes[axis].largest for axis in AXES])
    if in_sums:
        # What pieces of a sum take beside those that are alone: by the part of the result, once.
        begins, goes_on, completes = (
            probes.tensor(each, kept) - probes.tensor(alone, kept) for each in in_sums
        )
        once = {axis: np.ones((len(sizes[axis]), 1)) for axis in reduced}
        total = [nodes[axis].total if axis in kept else once[axis] for axis in AXES]
        most = [nodes[axis].largest if axis in kept else once[axis] for axis in AXES]
        in_one = product(counts[axis] for axis in reduced)
        more = in_one * _spread(goes_on[:2], total)
        more = more + _spread((begins + completes - 2 * goes_on)[:2], total)
        seconds = seconds + np.where(summed, more, 0.0)
        largest = np.maximum.reduce([_spread(e[2:], most) for e in (begins, goes_on, completes)])
        blocks = blocks + np.where(summed, largest, 0.0)
    return probes.names, seconds, blocks


def _spread(values: Values, weights: Sequence[Values]) -> Values:
    """From the nodes of all axes to all sizes."""
    for weight in weights:
        values = np.tensordot(values, weight, axes=([1], [1]))
    return values


def _legal(axes: Axes, sizes: Sizes) -> NDArray[np.bool_]:
    """Whether channels may be cut so: with groups they may not just as one likes."""
    whole = axes.call.extents
    table = [
        [axes.call.is_legal(_split(whole, {"c_y": c_y, "c_x": c_x})) for c_x in sizes["c_x"]]
        for c_y in sizes["c_y"]
    ]
    return np.array(table)[np.newaxis, :, np.newaxis, :]


def _apart(axes: Axes, way: Direction, name: str, sizes: Sizes) -> Values:
    """What a byte takes longer: of several cut axes, the one with the narrowest rows tells."""
    slower: Values = np.zeros((1,) * len(AXES))
    for at, axis in enumerate(AXES):
        if axis in axes.call.operands[name].axes - {"n"}:
            each = np.array(
                [
                    axes.apart_seconds_per_byte(way, name, None, axis, size)
                    if axes.times(axis, size) > 1
                    else 0.0
                    for size in sizes[axis]
                ]
            )
            slower = np.maximum(slower, each.reshape([-1 if i == at else 1 for i in range(4)]))
    return slower
