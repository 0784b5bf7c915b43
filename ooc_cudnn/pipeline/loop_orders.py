"""The legal orders of the loops over pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from ooc_cudnn.operations.splittable import SWEEP, Splittable

LoopOrder = tuple[str, ...]


def legal_orders(call: Splittable) -> tuple[LoopOrder, ...]:
    """Every order in which a call's loops may be nested, its own first.

    Sums are completed before the next ones start, so reduced axes are innermost; what stands
    outside of the loop over sweeps stays there.
    """
    order = call.loop_order
    at = order.index(SWEEP) if SWEEP in order else 0
    outside, inside = order[:at], order[at:]
    sweep, inside = inside[: SWEEP in order], inside[SWEEP in order :]
    found = (
        (*before, *sweep, *after)
        for before in _nestings(outside, call.reduced)
        for after in _nestings(inside, call.reduced)
    )
    return tuple(dict.fromkeys((order, *found)))


def different_orders(
    orders: Iterable[LoopOrder], counts: Mapping[str, int]
) -> tuple[LoopOrder, ...]:
    """Of some orders, those that go through the pieces differently: loops of one are no loops."""
    found: dict[LoopOrder, LoopOrder] = {}
    for order in orders:
        found.setdefault(tuple(axis for axis in order if counts[axis] > 1), order)
    return tuple(found.values())


def _nestings(axes: LoopOrder, reduced: tuple[str, ...]) -> Iterator[LoopOrder]:
    """Every order of some axes with the reduced ones innermost."""
    free = [axis for axis in axes if axis not in reduced]
    summed = [axis for axis in axes if axis in reduced]
    for outer, inner in itertools.product(
        itertools.permutations(free), itertools.permutations(summed)
    ):
        yield (*outer, *inner)
