"""The layout of each operation of a chain: the cheapest path.

An operation in a layout is a node, which takes its measured seconds, bringing a tensor from one
layout into another is an edge, and the cheapest sequence of layouts over a whole chain is a
shortest path.

Nothing here knows what a layout is: whatever has seconds has a name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class LayoutNode(NamedTuple):
    """One operation of a chain.

    `seconds` are those of computing it, in each layout that it can be computed in; `entering` those
    of bringing what it reads from one layout into another. A result that must be left in a layout
    is a last step, of that layout alone and of no seconds.
    """

    name: str
    seconds: Mapping[str, float]
    entering: Mapping[tuple[str, str], float]

    def after(self, before: str, layout: str) -> float:
        """Seconds of the step in a layout, where its operand lies in the one `before`."""
        moved = 0.0 if before == layout else self.entering.get((before, layout), math.inf)
        return moved + self.seconds.get(layout, math.inf)


class Path(NamedTuple):
    """A layout for each step, and the seconds of all of it."""

    layouts: tuple[str, ...]
    seconds: float


def seconds_of(steps: Iterable[LayoutNode], layouts: Iterable[str], arrives: str) -> float:
    """Seconds of a chain in these layouts, its operand in `arrives`; infinite if it cannot be."""
    total, before = 0.0, arrives
    for step, layout in zip(steps, layouts, strict=True):
        total += step.after(before, layout)
        before = layout
    return total


def cheapest(steps: Iterable[LayoutNode], arrives: str) -> Path:
    """Return the cheapest sequence of layouts: the shortest path from `arrives` through all steps.

    Of sequences that take as long, the one that keeps its layout longest.

    Raises
    ------
    ValueError
        If there is no way through.

    Examples
    --------
    A first convolution that is faster in CHWN; the next one takes what it made in NHWC:

    >>> both = {("NHWC", "CHWN"): 1.0, ("CHWN", "NHWC"): 2.0}
    >>> first, second = LayoutNode("conv1", {"NHWC": 9.0, "CHWN": 4.0}, both), LayoutNode(
    ...     "conv2", {"NHWC": 3.0, "CHWN": 8.0}, both)
    >>> cheapest([first, second], "NHWC")
    Path(layouts=('CHWN', 'NHWC'), seconds=10.0)
    """
    best = {arrives: Path((), 0.0)}
    for step in steps:
        # staying comes first: of equals, `min` takes it
        best = {
            layout: min(
                (
                    Path((*path.layouts, layout), path.seconds + step.after(before, layout))
                    for before, path in sorted(best.items(), key=lambda each: each[0] != layout)
                ),
                key=lambda path: path.seconds,
            )
            for layout in step.seconds
        }
        if not any(math.isfinite(path.seconds) for path in best.values()):
            raise ValueError(f"no layout leads to {step.name}")
    return min(best.values(), key=lambda path: path.seconds)


def uniform_seconds(steps: Sequence[LayoutNode], arrives: str) -> dict[str, float]:
    """Seconds of the chain in one layout throughout, of each in which all steps can be computed.

    But for last steps that leave the result where it must lie.
    """
    free = [step for step in steps if len(step.seconds) > 1]
    layouts = set.intersection(*(set(step.seconds) for step in free)) if free else set()
    return {
        layout: seconds_of(
            steps, [layout if layout in step.seconds else min(step.seconds) for step in steps],
            arrives,
        )
        for layout in sorted(layouts)
    }  # fmt: skip
