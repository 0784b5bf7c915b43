"""Interpolated costs of a whole grid of tilings.

What a piece costs is linear in its size along each axis: seconds, as the model of computing has
them, and the bytes of each buffer. So a few pieces tell all of a grid: those whose sizes are nodes
on every axis, with lines between. Four things are no part of these lines, and have nodes or terms
of their own:

- rows that are whole have no halo;
- output channels are computed in multiples of `CHANNEL_STEP`;
- where engines of several sizes were measured, each stands for the batches that are nearest to it;
- pieces of a sum begin, go on or complete it: that takes something for each part of the result,
  however much is summed.

The last wave of a convolution's tiles grows in steps, and is left to exact prices.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ooc_cudnn.call_planner.axes import Axes
from ooc_cudnn.call_planner.piece_costs import PieceCosts
from ooc_cudnn.call_planner.pieces import Pieces, Values, product
from ooc_cudnn.call_planner.request import Direction
from ooc_cudnn.operations.core.call import ALONE, AXES, Accumulation, Piece
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


class Nodes(NamedTuple):
    """The sizes of one axis at which pieces are looked at, and what others are made of.

    Attributes
    ----------
    sizes : list of int
    total, largest : array of (size, node)
        For each size of the grid: what all its ranges, and its largest one, have of each node.
    """

    sizes: list[int]
    total: Values
    largest: Values


def choose_nodes(axes: Axes, axis: str, sizes: Sequence[int]) -> Nodes:
    """The nodes of an axis: its ends, and where lines bend."""
    chosen = {sizes[0], sizes[-1]}
    if axis == "h_y":
        chosen.update([size for size in sizes if axes.times(axis, size) > 1][:1])
    if axis == "n" and axes.request.machine.compute.bends:
        chosen.update(sizes)
    if axis in CHANNELS:
        # pieces of more than one group of channels have more regions of what lies across
        for most in (CHANNEL_STEP, axes.ranges(axis, 1).group):
            chosen.update([size for size in sizes if size <= most][:1])

    def length(size: int, at: int) -> int:
        start, stop = axes.ranges(axis, size)[at]
        return stop - start

    # of sizes whose pieces are equally long, the first
    first = {length(size, sampled_range(axes, axis, size)): size
             for size in sorted(chosen, reverse=True)}  # fmt: skip
    known = sorted(first)

    def shares(lengths: Sequence[int]) -> Values:
        """Return the shares that ranges of some lengths have of the two nodes beside them."""
        return np.array([np.interp(lengths, known, one) for one in np.eye(len(known))]).T

    largest = shares([length(size, 0) for size in sizes])
    every = [(at, *e) for at, size in enumerate(sizes) for e in axes.lengths(axis, size).items()]
    indices, lengths, times = zip(*every, strict=True)
    total = np.zeros_like(largest)
    np.add.at(total, list(indices), np.array(times)[:, np.newaxis] * shares(lengths))
    return Nodes([first[each] for each in known], total, largest)


def sampled_range(axes: Axes, axis: str, size: int) -> int:
    """The number of the range that is looked at: of rows one that no border clips, if it can be."""
    return axes.times(axis, size) // 2 if axis == "h_y" else 0


def interpolate_pieces(axes: Axes, costs: PieceCosts, sizes: Sizes) -> Pieces:
    """Spread what a few pieces take over all splits that are made of some sizes.

    Parameters
    ----------
    sizes : mapping from axis to sequence of int
        Largest first. The arrays have the axes n, c_y, h_y, c_x.
    """
    call, whole = axes.call, axes.call.extents

    def tabulate(axis: str, of: Callable[[int], float]) -> Values:
        """Return what is known of each size of an axis, along that axis."""
        found = np.array([of(size) for size in sizes[axis]], float)
        return found.reshape([-1 if axis == other else 1 for other in AXES])

    def apart(way: Direction, name: str) -> Values:
        """Seconds that a byte takes longer, by the cut axis with the narrowest rows."""
        penalty: Values = np.zeros((1,) * len(AXES))
        for axis in call.operands[name].axes - {"n"}:

            def slower(size: int, axis: str = axis) -> float:
                if axes.times(axis, size) == 1:
                    return 0.0
                return axes.apart_seconds_per_byte(way, name, axes.cut_once(axis, size))

            penalty = np.maximum(penalty, tabulate(axis, slower))
        return penalty

    def read(name: str) -> Values:
        return tabulate("h_y", lambda size: axes.read_bytes(name, axes.middle(size)))

    known, lengths = axes.along(tabulate), {axis: tabulate(axis, float) for axis in AXES}
    taken = _interpolate(axes, costs, sizes)
    for name, more in _accumulation_costs(axes, costs, known["counts"], lengths).items():
        taken[name] = taken.get(name, 0.0) + more
    seconds, launching = (np.maximum(taken.pop(name), 0.0) for name in SPENT)
    of_one = seconds / product(known["counts"].values())

    def allowed(*channels: Sequence[int]) -> NDArray[np.bool_]:
        pairs = itertools.product(*channels)
        found = [call.is_legal(replace(whole, c_y=c_y, c_x=c_x)) for c_y, c_x in pairs]
        return np.reshape(found, (1, len(channels[0]), 1, len(channels[1])))

    # with groups, channels may not be cut just as one likes
    ends = allowed((whole.c_y, 1), (whole.c_x, 1))
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
        allowed=True if ends.all() else allowed(sizes["c_y"], sizes["c_x"]),
    )


def _interpolate(axes: Axes, costs: PieceCosts, sizes: Sizes) -> dict[str, Values]:
    """Seconds and launching of all pieces, and what the largest one holds, as if none was summed.

    An axis along which memory stays the same stays short.
    """
    nodes = [choose_nodes(axes, axis, sizes[axis]) for axis in AXES]
    every = itertools.product(*(each.sizes for each in nodes))
    splits = [Split(**dict(zip(AXES, chosen, strict=True))) for chosen in every]
    samples = _sample(axes, costs, splits, ALONE)
    for name, values in samples.items():
        values = values.reshape([len(each.sizes) for each in nodes])
        for grid in nodes:
            if name not in SPENT and (values == values[:1]).all():
                values = np.moveaxis(values[:1], 0, -1)
            else:
                weights, others = grid.total if name in SPENT else grid.largest, values.shape[1:]
                values = (values.reshape(len(values), -1).T @ weights.T).reshape(*others, -1)
        samples[name] = values
    return samples


def _accumulation_costs(
    axes: Axes, costs: PieceCosts, counts: Mapping[str, Values], lengths: Mapping[str, Values]
) -> dict[str, Values]:
    """Costs that sums add to pieces: a line in the elements of the result."""
    kept = [axis for axis in AXES if axis not in axes.call.reduced]
    parts, elements = (product(of[axis] for axis in kept) for of in (counts, lengths))
    in_one = product(counts[axis] for axis in axes.call.reduced)
    if not np.any(in_one > 1):
        return {}
    whole = math.prod(getattr(axes.call.extents, axis) for axis in kept)
    large = Split(**{axis: int(np.max(lengths[axis])) for axis in AXES})
    ends = large, replace(large, **dict.fromkeys(kept, 1))
    alone, *places = (
        _sample(axes, costs, ends, place) for place in (ALONE, BEGINS, GOES_ON, COMPLETES)
    )
    extras = {}
    for name in dict.fromkeys(itertools.chain(*places)):
        beside = [place[name] - alone[name] for place in places]
        if not np.any(beside):
            continue
        slopes = [(most - least) / max(np.max(elements) - 1.0, 1.0) for most, least in beside]
        lines = [(most - slope * np.max(elements), slope)
                 for (most, _), slope in zip(beside, slopes, strict=True)]  # fmt: skip
        if name in SPENT:
            first, inner, last = (at * parts + slope * whole for at, slope in lines)
            more = in_one * inner + (first + last - 2 * inner)
        else:
            more = np.maximum.reduce([at + slope * elements for at, slope in lines])
        extras[name] = np.where(in_one > 1, more, 0.0)
    return extras


def _sample(
    axes: Axes, costs: PieceCosts, splits: Sequence[Split], place: Accumulation
) -> defaultdict[str, Values]:
    """Costs of pieces, one of each split, in all sweeps."""
    values: defaultdict[str, Values] = defaultdict(lambda: np.zeros(len(splits)))
    for index, split in enumerate(splits):
        if axes.call.is_legal(split):
            n, c_y, rows, c_x = (axes.ranges(axis, getattr(split, axis)) for axis in AXES)
            row = sampled_range(axes, "h_y", split.h_y)
            after = rows[row - 1] if row else None
            for sweep in range(axes.call.sweeps):
                cost = costs.of(Piece(n[0], c_y[0], rows[row], c_x[0], sweep, after), place)
                values[SECONDS][index] += cost.even_seconds
                values[LAUNCHING][index] += cost.launching
                for name, count in cost.blocks.items():
                    values[name][index] = max(values[name][index], count)
    return values
