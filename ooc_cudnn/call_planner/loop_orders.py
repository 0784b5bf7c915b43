"""The legal orders of the loops over pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from ooc_cudnn.operations.core.call import AXES, SWEEP, TiledCall

LoopOrder = tuple[str, ...]


def legal_orders(call: TiledCall) -> tuple[LoopOrder, ...]:
    """The orders in which a call's loops may be nested, its own first.

    Sums are completed before the next ones start, so reduced axes are innermost; what stands
    outside of the loop over sweeps stays there. Axes on which the same operands depend, n and h_y
    for most, come in the call's own order: the other way round moves as many bytes.
    """
    order = call.loop_order
    index = order.index(SWEEP) if SWEEP in order else 0
    outside, inside = order[:index], order[index:]
    sweep, inside = inside[: SWEEP in order], inside[SWEEP in order :]
    orders = [
        (*before, *sweep, *after)
        for before in _nestings(outside, call.reduced)
        for after in _nestings(inside, call.reduced)
    ]
    positions = {axis: at for at, axis in enumerate(order)}
    for one, other in itertools.combinations(AXES, 2):
        if _alike(call, one, other):
            first, second = sorted((one, other), key=positions.__getitem__)
            orders = [each for each in orders if each.index(first) < each.index(second)]
    return tuple(dict.fromkeys((order, *orders)))


def _alike(call: TiledCall, one: str, other: str) -> bool:
    """True if the same operands depend on two axes."""
    return all((one in found.axes) == (other in found.axes) for found in call.operands.values())


def different_orders(
    orders: Iterable[LoopOrder], counts: Mapping[str, int]
) -> tuple[LoopOrder, ...]:
    """Select orders that go through the pieces differently: loops of one are no loops."""
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


def runs_down(order: tuple[str, ...], counts: Mapping[str, int]) -> bool:
    """True if pieces follow each other down the rows: no loop inside that one but the sum over cX.

    >>> runs_down(("n", "c_y", "h_y", "c_x"), {"n": 4, "c_y": 1, "h_y": 4, "c_x": 2})
    True
    >>> runs_down(("h_y", "n", "c_y", "c_x"), {"n": 4, "c_y": 1, "h_y": 4, "c_x": 1})
    False
    """
    inside = order[order.index("h_y") + 1 :]
    return all(counts[axis] == 1 for axis in inside if axis != "c_x")
