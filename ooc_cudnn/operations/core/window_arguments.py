"""Checks of users' arguments of windows: sizes and strides, padding, groups."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

from ooc_cudnn.operations.core.ranges import Pair

#: Of a window, stride, dilation or padding on one axis: sums of two are 32-bit integers, too.
MOST_SIZE = 2**30 - 1
#: So much padding is always taken; more of it only where x and the window are as large.
MOST_PADDING = 2**16 - 1


def per_axis(value: Any, axes: int, *, name: str, least: int) -> tuple[int, ...]:
    """Normalise ``stride``, ``dilation`` or ``window``: an int, or one int per spatial axis.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, its value and the rule.
    """
    values: tuple[Any, ...] = (value,) * axes if is_int(value) else tuple(_sequence(value, name))
    if len(values) != axes or not all(is_int(item) for item in values):
        raise ValueError(
            f"{name} must be an int or one int per spatial axis ({axes}), not {value!r}"
        )
    if any(item < least for item in values):
        raise ValueError(f"{name} must be at least {least}, not {value!r}")
    if any(item > MOST_SIZE for item in values):
        raise ValueError(f"{name} must be at most {MOST_SIZE}, not {value!r}")
    return tuple(int(item) for item in values)


def padding_pairs(value: Any, axes: int, *, name: str = "padding") -> tuple[Pair, ...]:
    """Normalise ``padding``: an int, one per spatial axis, or a (before, after) pair per axis.

    >>> padding_pairs(1, 2)
    ((1, 1), (1, 1))
    >>> padding_pairs([(0, 1), 2], 2)
    ((0, 1), (2, 2))
    """
    pairs = signed_pairs(value, axes, name=name)
    for pair in pairs:
        if min(pair) < 0:
            raise ValueError(f"{name} must not be negative, not {value!r}")
    return pairs


def signed_pairs(value: Any, axes: int, *, name: str = "padding") -> tuple[Pair, ...]:
    """Read pairs as `padding_pairs` does, where negative ones crop.

    >>> signed_pairs([(0, -1), 2], 2)
    ((0, -1), (2, 2))
    """
    values = (value,) * axes if is_int(value) else tuple(_sequence(value, name))
    rule = (
        f"{name} must be an int, one per spatial axis ({axes}), or a (before, after) pair per axis"
    )
    if len(values) != axes:
        raise ValueError(f"{rule}, not {value!r}")
    pairs = []
    for item in values:
        pair = (item, item) if is_int(item) else tuple(_sequence(item, name))
        if len(pair) != 2 or not all(is_int(side) for side in pair):
            raise ValueError(f"{rule}, not {value!r}")
        if max(map(abs, pair)) > MOST_SIZE:
            raise ValueError(f"{name} must be at most {MOST_SIZE}, not {value!r}")
        pairs.append((int(pair[0]), int(pair[1])))
    return tuple(pairs)


def check_padding(
    padding: tuple[Pair, ...], extents: tuple[int, ...], reaches: tuple[int, ...]
) -> None:
    """Refuse padding of which nearly all windows would see nothing else.

    Parameters
    ----------
    extents, reaches : tuple of int
        Of x and of the window, dilation included, on each axis.

    Raises
    ------
    ValueError
        Naming the argument, its value and the rule.
    """
    for pair, extent, reach in zip(padding, extents, reaches, strict=True):
        most = max(MOST_PADDING, extent + reach)
        if max(pair) > most:
            raise ValueError(
                f"padding must be at most {most} on an axis where x has {extent} and the window "
                f"reaches over {reach} (at most both together, or {MOST_PADDING}), not {max(pair)}"
            )


def convolution_geometry(
    axes: int, padding: Any, stride: Any, dilation: Any, groups: Any
) -> tuple[tuple[Pair, ...], tuple[int, ...], tuple[int, ...], int]:
    """Normalise what a convolution takes besides its arrays, on so many spatial axes."""
    if not is_int(groups):
        raise TypeError(f"groups must be an int, not {groups!r}")
    if groups < 1:
        raise ValueError(f"groups must be at least 1, not {groups!r}")
    return (
        padding_pairs(padding, axes),
        per_axis(stride, axes, name="stride", least=1),
        per_axis(dilation, axes, name="dilation", least=1),
        int(groups),
    )


def is_int(value: object) -> bool:
    """True if `value` is an integer (NumPy's too), and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _sequence(value: Any, name: str) -> Sequence[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        tolist = getattr(value, "tolist", None)
        if callable(tolist) and isinstance(sizes := tolist(), list):  # a NumPy array of sizes
            return sizes
        raise TypeError(f"{name} must be an int or a sequence of ints, not {value!r}")
    return value
