"""Which layout each operation of a chain is computed in: Li et al.'s rule, and the cheapest path.

Li et al. (SC 2016) choose by two thresholds, which one profiling of a card tells: CHWN for few
channels or many images, else NCHW. The modern choice needs no rule: an operation in a layout is a
node, which takes its measured seconds, bringing a tensor from one layout into another is an edge,
and the cheapest sequence of layouts over a whole chain is a shortest path.

Nothing here knows what a layout is: whatever has seconds has a name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple


class Step(NamedTuple):
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

    def only(self, layouts: Collection[str]) -> Step:
        """The same without other layouts."""
        found = {layout: took for layout, took in self.seconds.items() if layout in layouts}
        return self._replace(seconds=found)


class Path(NamedTuple):
    """A layout for each step, and the seconds of all of it."""

    layouts: tuple[str, ...]
    seconds: float


def seconds_of(steps: Iterable[Step], layouts: Iterable[str], arrives: str) -> float:
    """Seconds of a chain in these layouts, its operand in `arrives`; infinite if it cannot be."""
    total, before = 0.0, arrives
    for step, layout in zip(steps, layouts, strict=True):
        total += step.after(before, layout)
        before = layout
    return total


def cheapest(steps: Iterable[Step], arrives: str) -> Path:
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
    >>> first, second = Step("conv1", {"NHWC": 9.0, "CHWN": 4.0}, both), Step(
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


def uniform_seconds(steps: Sequence[Step], arrives: str) -> dict[str, float]:
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


# Li et al.'s rule --------------------------------------------------------------------------------


class LayoutProfile(NamedTuple):
    """Seconds of one convolution of so many images and input channels, in two layouts."""

    images: int
    channels: int
    chwn: float
    nchw: float


class Rule(NamedTuple):
    """CHWN where there are fewer channels than Ct or at least Nt images, else NCHW (section IV.A).

    The paper found (32, 128) on a GTX Titan Black and (128, 64) on a Titan X.

    Examples
    --------
    >>> rule = Rule(channels=32, images=128)
    >>> rule.layout(images=64, channels=3), rule.layout(images=64, channels=96)
    ('CHWN', 'NCHW')
    """

    channels: float
    images: float

    def layout(self, *, images: int, channels: int) -> str:
        """The layout of a convolution; pooling is always in CHWN."""
        return "CHWN" if channels < self.channels or images >= self.images else "NCHW"


def fit_rule(profile: Iterable[LayoutProfile]) -> Rule:
    """Return the rule by which the convolutions of a profile lose least against the better layout.

    A loss is a ratio of seconds, so that small convolutions count as much as large ones. A
    threshold that nothing reaches is 0 channels, or infinitely many images.

    Examples
    --------
    >>> fit_rule([LayoutProfile(64, 3, 1.0, 2.0), LayoutProfile(64, 96, 2.0, 1.0),
    ...             LayoutProfile(128, 96, 1.0, 2.0)])
    Rule(channels=96, images=128)
    """
    points = list(profile)
    few = [0, *sorted({point.channels for point in points}), math.inf]
    many = [math.inf, *sorted({point.images for point in points}, reverse=True)]

    def lost(rule: Rule) -> float:
        total = 0.0
        for point in points:
            layout = rule.layout(images=point.images, channels=point.channels)
            taken = point.chwn if layout == "CHWN" else point.nchw
            total += math.log(taken / min(point.chwn, point.nchw))
        return total

    return min((Rule(c, n) for c in few for n in many), key=lost)
