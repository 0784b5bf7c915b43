"""The loops over the pieces of a call: in which order they follow, and where sums are complete."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ooc_cudnn.call_planner.loop_orders import runs_down
from ooc_cudnn.operations.core.call import AXES, SWEEP, Accumulation, Piece, TiledCall
from perfmodel import Split


def pieces(
    call: TiledCall, split: Split, loop_order: tuple[str, ...]
) -> Iterator[tuple[Piece, Accumulation]]:
    """Every piece of a split in loop order, with its place in the sum over the reduced axes."""
    axes = call.ranges(split)
    counts = {axis: len(axes[axis]) for axis in AXES} | {SWEEP: call.sweeps}
    reduced = [axis for axis in call.reduced if counts[axis] > 1]
    down = runs_down(loop_order, counts)
    for indices in itertools.product(*(range(counts[axis]) for axis in loop_order)):
        position = dict(zip(loop_order, indices, strict=True))
        h_y = position["h_y"]
        yield (
            Piece(
                axes["n"][position["n"]],
                axes["c_y"][position["c_y"]],
                axes["h_y"][h_y],
                axes["c_x"][position["c_x"]],
                position.get(SWEEP, 0),
                axes["h_y"][h_y - 1] if down and h_y else None,
            ),
            Accumulation(
                first=all(position[axis] == 0 for axis in reduced),
                last=all(position[axis] == counts[axis] - 1 for axis in reduced),
            ),
        )


def check_order(call: TiledCall, split: Split, loop_order: tuple[str, ...]) -> None:
    """Refuse to cut an axis that is summed over, and another one inside of it.

    Raises
    ------
    ValueError
    """
    axes = call.ranges(split)
    cut = [axis for axis in loop_order if axis == SWEEP or len(axes[axis]) > 1]
    summed = [axis in call.reduced for axis in cut]
    if summed != sorted(summed):
        raise ValueError(
            f"{' and '.join(call.reduced)} must be the innermost loops where they are cut, since "
            f"they are summed over; the order is {loop_order}"
        )
