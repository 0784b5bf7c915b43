"""Strided tensors as few axes as possible: pure integer arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class MergedAxes(NamedTuple):
    """Axes of size 2 or more, outermost first, and the innermost one (of size 1 at least)."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]  # of each operand, in elements
    inner: int
    inner_strides: tuple[int, ...]


def merged_axes(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> MergedAxes:
    """Order axes as the first operand has them in memory, and merge what every operand can merge.

    >>> merged_axes((2, 3, 4, 5), [(60, 20, 5, 1), (60, 20, 5, 1)])
    MergedAxes(sizes=(), strides=((), ()), inner=120, inner_strides=(1, 1))
    >>> merged_axes((2, 3, 4, 5), [(60, 20, 5, 1), (0, 1, 0, 0)])
    MergedAxes(sizes=(2, 3), strides=((60, 20), (0, 1)), inner=20, inner_strides=(1, 0))
    >>> merged_axes((1, 1), [(1, 1)])
    MergedAxes(sizes=(), strides=((),), inner=1, inner_strides=(1,))
    """
    axes = [
        (size, tuple(steps))
        for size, *steps in zip(shape, *strides, strict=True)
        if size != 1
    ]  # fmt: skip
    axes.sort(key=lambda axis: axis[1], reverse=True)
    merged: list[tuple[int, tuple[int, ...]]] = []
    for size, steps in axes:
        if merged and merged[-1][1] == tuple(size * step for step in steps):
            merged[-1] = (merged[-1][0] * size, steps)
        else:
            merged.append((size, steps))
    inner, inner_strides = merged.pop() if merged else (1, (1,) * len(strides))
    return MergedAxes(
        tuple(size for size, _ in merged),
        tuple(tuple(steps[operand] for _, steps in merged) for operand in range(len(strides))),
        inner,
        inner_strides,
    )
