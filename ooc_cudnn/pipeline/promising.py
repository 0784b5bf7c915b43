"""Which splits are worth pricing: first those that keep channels whole, then all.

Channels that are cut make data come in more than once, or sums wait in memory. They are looked at
where the best split without that is slower than the machine has to be.
"""

from __future__ import annotations

import math

from ooc_cudnn.operations.splittable import AXES, Splittable
from ooc_cudnn.pipeline.estimates import Estimates
from ooc_cudnn.pipeline.grid import Grid
from ooc_cudnn.pipeline.piece_model import CHANNELS, Sizes
from ooc_cudnn.pipeline.request import Request
from perfmodel import Split
from perfmodel.search_guided import caution

#: Splits of each grid that may be priced.
KEPT = 8
#: Sizes of an axis that are looked at first where all axes are cut.
COARSE = 5
#: And then, between those beside the best.
FINE = 7
#: Where coarse sizes are so much slower than whole channels, no finer ones are looked at.
FAR = 1.25
#: Memory for so much of what flows by is not short.
ROOMY = 0.2
#: So much slower than the floor is as fast as can be.
NEAR_THE_FLOOR = 1.008

Promising = tuple[tuple[float, Split], ...]


def promising_splits(request: Request, layout: str, sizes: Sizes, limit_bytes: int) -> Promising:
    """The splits that are estimated to be fastest, best first, with their seconds."""
    found: dict[Split, float] = {}
    whole = {axis: sizes[axis][:1] if axis in CHANNELS else sizes[axis] for axis in AXES}
    as_fast_as_can_be = 0.0
    # What sums over its data before it can use the sum wants channels to be cut.
    if whole == sizes or (request.chain.sweeps == 1 and _parameters_fit(request, limit_bytes)):
        estimates = Estimates(Grid(request, layout, whole), limit_bytes)
        found |= _splits(estimates)
        if whole == sizes:
            return _ranked(found, request)
        as_fast_as_can_be = estimates.floor_seconds * NEAR_THE_FLOOR
        if _is_one_piece(found, request.chain):
            return _ranked(found, request)
    if min(found.values(), default=math.inf) > as_fast_as_can_be:
        coarse = {axis: _thinned(sizes[axis], COARSE) for axis in AXES}
        all_orders = Estimates(Grid(request, layout, coarse), limit_bytes)
        rough = _splits(all_orders)
        finer = _finer_may_save(rough, found, request, limit_bytes)
        found |= rough
        if finer and min(found.values()) > as_fast_as_can_be:
            best = min(rough, key=rough.__getitem__)
            around = {
                axis: _around(getattr(best, axis), sizes[axis], coarse[axis]) for axis in AXES
            }
            fine = Grid(request, layout, around, coarse)
            found |= _splits(Estimates(fine, limit_bytes, (all_orders.best_order,)))
    return _ranked(found, request)


def _parameters_fit(request: Request, limit_bytes: int) -> bool:
    """Whether there is room for those parameters that are whole unless channels are cut."""
    call = request.chain
    beside = set(call.operands) - set(call.streamed) - set(request.computed_on_in_place)
    whole = (name for name in beside if call.operands[name].axes <= set(CHANNELS))
    return sum(request.specs[name].nbytes for name in whole) <= limit_bytes


def _is_one_piece(found: dict[Split, float], call: Splittable) -> bool:
    """Whether the best split is no cut at all: then none of channels is faster."""
    fewest = min(found.values(), default=math.inf)
    return not _sums_over_data(call) and found.get(call.extents) == fewest


def _finer_may_save(
    rough: dict[Split, float], whole: dict[Split, float], request: Request, limit_bytes: int
) -> bool:
    """Whether finer cuts of channels than the coarse ones are worth a look.

    They save nothing where no cut is best and memory is not short.
    """
    fewest = min(whole.values(), default=math.inf)
    if not rough or min(rough.values()) >= FAR * fewest:
        return False
    short = limit_bytes <= ROOMY * request.floor.streamed_bytes
    best = min(rough, key=rough.__getitem__)
    return short or _sums_over_data(request.chain) or whole.get(best) != fewest


def _sums_over_data(call: Splittable) -> bool:
    """Whether images or rows are summed over."""
    return "n" in call.reduced or "h_y" in call.reduced


def _splits(estimates: Estimates) -> dict[Split, float]:
    return {split: seconds for seconds, split in estimates.best(KEPT)}


def _ranked(found: dict[Split, float], request: Request) -> Promising:
    whole = request.chain.extents
    splits = ((seconds, split) for split, seconds in found.items())
    return tuple(sorted(splits, key=lambda each: each[0] * caution(whole, each[1])))


def _thinned(sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Some of the sizes, evenly, the largest and the smallest among them."""
    if len(sizes) <= count:
        return sizes
    step = (len(sizes) - 1) / (count - 1)
    return tuple(sizes[round(at * step)] for at in range(count))


def _around(size: int, sizes: tuple[int, ...], coarse: tuple[int, ...]) -> tuple[int, ...]:
    """Some of the sizes from the next larger coarse one to the next smaller."""
    at = coarse.index(size)
    high, low = coarse[max(at - 1, 0)], coarse[min(at + 1, len(coarse) - 1)]
    return _thinned(tuple(each for each in sizes if low < each < high or each == size), FINE)
