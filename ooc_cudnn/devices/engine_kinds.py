"""Kinds of convolutions, as engines are checked for wrong results: with a small problem of each.

Faults of engines that were seen (`devices.cuda.cudnn_engines`) hang on what is alike for many
problems: the direction, types and memory order; padding that differs on the two sides of an axis,
and whether that is the last one; groups, strides, dilations; whether channels come in eights, and
whether one is a multiple of 16 bytes. What does not matter, as far as is known, is how large a
problem is: so one small problem stands for all of a kind.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ooc_cudnn.devices.convolution_forms import KINDS
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    AnyConvolution,
    forward_of,
    replace_forward,
    result_dtype,
)
from ooc_cudnn.operations.core.ranges import Pair
from ooc_cudnn.tensor import DTYPES

#: Images of the small problems: engines were seen that are right for the first alone.
IMAGES = 2
#: Their sites along an axis, at least (fewer of three: a reference takes long for them), and along
#: the last one: an engine was wrong on rows of 29 elements and more.
SITES, SITES_OF_VOLUMES, LAST_SITES = 5, 3, 33
#: How many extents are tried to have channels of whole accesses, or none.
_EXTENTS = 9
_ACCESS_BYTES = 16
#: Channels that stand for others: of one, of few, of an odd number, in eights. In each of some
#: groups fewer.
_ONE, _FEW, _ODD, _EIGHTS = 1, 3, 19, 32
_IN_GROUPS = {_ONE: 1, _FEW: 3, _ODD: 9, _EIGHTS: 8}
_GROUPS = 4
#: Fewer channels than this are few.
_SEVERAL = 16


class CheckedKind(NamedTuple):
    """Facts alike for all convolutions that an engine is checked for at once.

    Attributes
    ----------
    function : str
        The name of the operation.
    precision, result : str
        The arithmetic ("tf32" for float32 that may use it), and the dtype of the result.
    layout : str
    axes : int
        Spatial ones.
    window : int
        1, 3 (of 2 and 3) or 5 (of more), the longest side.
    c_x, c_y, groups : int
        Channels of each group and groups that stand for those there are.
    strided, dilated : bool
        Along some axis.
    uneven : str
        Of which axes padding differs on both sides: "", "last", "others" or "all".
    whole : bool
        Whether a channel of x and of y is a multiple of 16 bytes; with channels last, where nothing
        hangs on it, it is always said to be.
    """

    function: str
    precision: str
    result: str
    layout: str
    axes: int
    window: int
    c_x: int
    c_y: int
    groups: int
    strided: bool
    dilated: bool
    uneven: str
    whole: bool

    @classmethod
    def of(cls, operation: AnyConvolution) -> CheckedKind:
        """Return the kind of a convolution or a gradient.

        Examples
        --------
        >>> wide = Convolution.of((64, 128, 56, 56), (256, 128, 3, 3), padding=((1, 0), (1, 1)))
        >>> print(CheckedKind.of(wide))
        convolution_forward, tf32 to float32, channels_first: window 3 on 2 axes; 32 to 32 \
channels; padding of the others uneven; channels of whole 16 bytes
        """
        forward = forward_of(operation)
        groups, (c_y, c_x, *window) = forward.groups, forward.w_shape
        uneven = [before != after for before, after in forward.padding]
        is_depthwise = groups > 1 and c_x == 1
        c_x, c_y = _channels(c_x), _channels(c_y // groups)
        if groups > 1:
            c_x, c_y = _IN_GROUPS[c_x], _IN_GROUPS[c_y]
            groups = _channels(groups) if is_depthwise else _GROUPS
        longest = max(window)
        return cls(
            operation.name,
            forward.precision,
            result_dtype(operation),
            forward.layout,
            len(window),
            1 if longest == 1 else 3 if longest <= 3 else 5,
            c_x,
            c_y,
            groups,
            max(forward.stride) > 1,
            max(forward.dilation) > 1,
            ("all" if any(uneven[:-1]) else "last") if uneven[-1] else "others" * any(uneven),
            forward.layout != "channels_first" or _is_whole(forward),
        )

    def __str__(self) -> str:
        return "".join(self._words())

    def _words(self) -> Iterator[str]:
        yield f"{self.function}, {self.precision} to {self.result}, {self.layout}: "
        yield f"window {self.window} on {self.axes} axes; {self.c_x} to {self.c_y} channels"
        if self.groups > 1:
            yield f" in each of {self.groups} groups"
        if self.strided:
            yield "; stride"
        if self.dilated:
            yield "; dilation"
        if self.uneven:
            axes = {"last": "the last axis", "others": "the others", "all": "all axes"}
            yield f"; padding of {axes[self.uneven]} uneven"
        if self.layout == "channels_first":
            yield f"; channels of {'whole' if self.whole else 'parts of'} 16 bytes"


def _channels(count: int) -> int:
    """The channels that stand for so many."""
    if count == 1:
        return _ONE
    if count % 8 == 0:
        return _EIGHTS
    return _FEW if count < _SEVERAL else _ODD


def _is_whole(forward: Convolution) -> bool:
    """True if a channel of x, and one of y, is a multiple of 16 bytes."""
    return not any(
        math.prod(shape[2:]) * DTYPES[forward.dtype] % _ACCESS_BYTES
        for shape in (forward.x_shape, forward.output_shape)
    )


@lru_cache(maxsize=256)
def problems(kind: CheckedKind) -> tuple[AnyConvolution, ...]:
    """Return the small problems of a kind: two where padding is uneven, the one way and the other.

    Examples
    --------
    >>> wide = Convolution.of((64, 128, 56, 56), (256, 128, 3, 3), padding=((1, 0), (1, 1)))
    >>> for small in problems(CheckedKind.of(wide)):
    ...     print(small.x_shape, small.w_shape, small.padding)
    (2, 32, 6, 36) (32, 32, 3, 3) ((1, 0), (1, 1))
    (2, 32, 6, 36) (32, 32, 3, 3) ((0, 1), (1, 1))
    """
    return tuple(_problem(kind, padding) for padding in _paddings(kind))


def _paddings(kind: CheckedKind) -> list[tuple[Pair, ...]]:
    pad = (kind.window - 1) * (2 if kind.dilated else 1) // 2
    last, others = kind.uneven in ("last", "all"), kind.uneven in ("others", "all")
    uneven = [*[others] * (kind.axes - 1), last]
    ways = ((pad, 0), (0, pad)) if kind.uneven and pad else ((pad, pad),)
    return [tuple(way if each else (pad, pad) for each in uneven) for way in ways]


def _problem(kind: CheckedKind, padding: tuple[Pair, ...]) -> AnyConvolution:
    """The smallest problem whose channels are of whole accesses, or not, as the kind says.

    Of whole ones, if need be, where there is no other.
    """
    step, dilation = 2 if kind.strided else 1, 2 if kind.dilated else 1
    window = [kind.window] * kind.axes
    sites = [SITES_OF_VOLUMES if kind.axes == 3 else SITES] * (kind.axes - 1)
    least = [
        max((each - 1) * step + (kind.window - 1) * dilation + 1 - sum(pair), 1)
        for each, pair in zip([*sites, LAST_SITES], padding, strict=True)
    ]
    candidates = []
    # the last two axes are enough to have any multiple
    for more in itertools.product(range(_EXTENTS), repeat=min(kind.axes, 2)):
        extents = [*least[: -len(more)], *map(sum, zip(least[-len(more) :], more, strict=True))]
        forward = Convolution.of(
            (IMAGES, kind.c_x * kind.groups, *extents),
            (kind.c_y * kind.groups, kind.c_x, *window),
            padding=padding,
            stride=step,
            dilation=dilation,
            groups=kind.groups,
            dtype="float32" if kind.precision == "tf32" else kind.precision,
            allow_tf32=kind.precision == "tf32",
        )
        candidates.append(forward)
        if _is_whole(forward) == kind.whole:
            candidates = [forward]
            break
    forward = replace(candidates[0], layout=kind.layout)
    return KINDS[kind.function](forward, kind.result)


def small_like(operation: AnyConvolution, images: int, sites: int) -> AnyConvolution:
    """Return an operation of so many images and sites at most, with all else as it is.

    Examples
    --------
    >>> made = small_like(Convolution.of((64, 8, 224, 9), (16, 8, 3, 3), stride=2), 2, 14)
    >>> made.x_shape, made.output_shape
    ((2, 8, 29, 9), (2, 16, 14, 4))
    """
    forward = forward_of(operation)
    extents = [
        min(extent, max((k - 1) * d + 1 + (sites - 1) * s - before - after, 1))
        for extent, k, d, s, (before, after) in zip(
            forward.x_shape[2:], forward.window, forward.dilation, forward.stride, forward.padding,
            strict=True,
        )
    ]  # fmt: skip
    shape = (min(forward.x_shape[0], images), forward.x_shape[1], *extents)
    return replace_forward(operation, replace(forward, x_shape=shape))
