"""Rearranged values, whose elements are only moved: their axes split, permuted and joined."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ooc_cudnn.torch.tracing.graph import Operation, Value
from ooc_cudnn.torch.tracing.image_axes import RESHAPES
from ooc_cudnn.torch.tracing.permutations import PERMUTES, permutation

_SAME = frozenset({"alias", "clone", "contiguous"})
_SHUFFLES = frozenset({"channel_shuffle", "pixel_shuffle", "pixel_unshuffle"})
#: What changes the type of elements as well, or alone.
CASTS = frozenset({"to", "_to_copy"})
#: What is followed here, of one value, and what joins parts of one.
FOLLOWED = RESHAPES | _SAME | PERMUTES | _SHUFFLES | CASTS | {"squeeze", "unsqueeze"}
JOINED = frozenset({"slice", "cat", "concat"})

Shape = tuple[int, ...]
#: Copies that a rearrangement may take.
MOST_LAUNCHES = 64


class Rearrangement(NamedTuple):
    """Axes made of others.

    Attributes
    ----------
    factors : tuple of tuple of int
        Of each axis of the source, outermost first.
    parts : tuple of tuple of int
        Of each axis of the result, the factors that it is made of, counted through the source.
    types : tuple of str
        The dtypes that each element is cast to on the way, one after the other.
    """

    factors: tuple[Shape, ...]
    parts: tuple[Shape, ...]
    types: tuple[str, ...] = ()

    @property
    def axis_of_images(self) -> int | None:
        """The axis of a result that images are on, perhaps outermost; None where there is none."""
        return next((at for at, part in enumerate(self.parts) if part[:1] == (0,)), None)

    @property
    def launches(self) -> int:
        """Copies that it takes at the most: one has six axes, and the longest are together.

        Neighbours that stay so are one axis: of one axis before and after, or of sites.
        """
        sizes = list[int]()
        last_factor, last_axis, last_before = -2, 0, 0
        factors = [(size, axis) for axis, each in enumerate(self.factors) for size in each]
        for axis, part in enumerate(self.parts):
            for at in part:
                size, before = factors[at]
                stays = _are_together(last_axis, axis) and _are_together(last_before, before)
                if at == last_factor + 1 and stays:
                    sizes[-1] *= size
                else:
                    sizes.append(size)
                last_factor, last_axis, last_before = at, axis, before
        return math.prod(sorted(sizes)[:-6])


def _are_together(one: int, other: int) -> bool:
    """True if two axes of a map are one, or sites: these lie in their order in any memory order."""
    return one == other or min(one, other) >= 2


class _Factor:
    """A part of an axis; two of them where it had to be split."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.halves: tuple[_Factor, ...] = ()

    def whole(self) -> list[_Factor]:
        """Itself, or what it was split into."""
        return [each for half in self.halves for each in half.whole()] if self.halves else [self]

    def split(self, outer: int) -> list[_Factor]:
        self.halves = _Factor(outer), _Factor(self.size // outer)
        return list(self.halves)


_Axes = list[list[_Factor]]


class _Part(NamedTuple):
    """Some elements of the source: its axes, and places on factors that are in none of them.

    `types` are what they were cast to.
    """

    axes: _Axes
    places: tuple[tuple[_Factor, int], ...] = ()
    types: tuple[str, ...] = ()


def rearrangement(
    operations: Iterable[Operation], shape: Shape, axes: Sequence[int]
) -> Rearrangement | None:
    """Follow operations, in order, from a value to what the last of them makes.

    Parameters
    ----------
    shape : tuple of int
        Of the tensor that holds the first value.
    axes : sequence of int
        Of each axis of that value the tensor's.

    Returns
    -------
    Rearrangement or None
        From the tensor to the last value; None where there is none.
    """
    source = [[_Factor(extent)] for extent in shape]
    first = part = _Part([source[axis] for axis in axes])
    made = dict[Value, _Part]()
    for operation in operations:
        (result,) = operation.results
        reads = [made.get(read, first) for read in operation.reads]
        followed = None if result is None else _after(operation, reads, result)
        if result is None or followed is None:
            return None
        made[result] = part = followed
    if part.places:
        return None
    (images, *_) = source[0][0].whole()
    held, left = (
        [[each for one in axis for each in one.whole() if each.size != 1] for axis in of]
        for of in (source, part.axes)
    )
    if images.size == 1:  # as other axes of one element it is nowhere else
        held[0].insert(0, images)
        left[0].insert(0, images)
    numbers = {id(each): at for at, each in enumerate(each for axis in held for each in axis)}
    parts = tuple(tuple(numbers[id(each)] for each in axis) for axis in left)
    factors = tuple(tuple(each.size for each in axis) for axis in held)
    return Rearrangement(factors, parts, part.types)


def _after(operation: Operation, reads: Sequence[_Part], result: Value) -> _Part | None:
    """Apply an operation to the parts."""
    name, told, shape = operation.name, operation.arguments, result.shape
    if name in ("cat", "concat"):
        return _interleaved(reads, told.get("dim", 0) % len(shape))
    part, *_ = reads
    if name == "slice":
        return _every_so_many(part, told)
    if name in CASTS:
        return part._replace(types=(*part.types, str(result.dtype).removeprefix("torch.")))
    if name in _SAME:
        return part
    if name in PERMUTES:
        axes: _Axes | None = [part.axes[each] for each in permutation(operation, len(part.axes))]
    elif name in _SHUFFLES:
        axes = _shuffled(operation, part.axes, shape)
    elif name in FOLLOWED and told.get("dtype") is None:
        axes = _reshaped(part.axes, shape)
    else:
        axes = None
    return None if axes is None else part._replace(axes=axes)


def _every_so_many(part: _Part, told: Mapping[str, Any]) -> _Part | None:
    """Every second element of an axis, say, from one of the first on: a place on a factor."""
    axis = told["dim"] % len(part.axes)
    factors = [each for one in part.axes[axis] for each in one.whole()]
    extent, step = math.prod(each.size for each in factors), told["step"]
    if told["start"] in (None, 0) and (told["end"] is None or told["end"] >= extent) and step == 1:
        return part
    start = told["start"] or 0
    last = factors[-1] if factors else None
    if last is None or extent % step or not 0 <= start < step or (told["end"] or extent) < extent:
        return None
    if last.size != step:
        if last.size % step:
            return None
        *_, last = last.split(last.size // step)
    left = [each for one in part.axes[axis] for each in one.whole() if each is not last]
    axes = [left if at == axis else each for at, each in enumerate(part.axes)]
    return part._replace(axes=axes, places=(*part.places, (last, start)))


def _interleaved(parts: Sequence[_Part], axis: int) -> _Part | None:
    """Parts that are all places on some factors, in order: those are outermost on an axis then."""
    wholes = [[[each for one in axis for each in one.whole()] for axis in p.axes] for p in parts]
    places = [{id(factor): at for factor, at in part.places} for part in parts]
    factors = {id(factor): factor for factor, _ in parts[0].places}
    if any(whole != wholes[0] for whole in wholes) or any(p.keys() != {*factors} for p in places):
        return None
    if len({part.types for part in parts}) > 1:  # some are rounded, and others are not
        return None
    for order in itertools.permutations(factors):
        every = itertools.product(*(range(factors[each].size) for each in order))
        if [tuple(at[each] for each in order) for at in places] == [*every]:
            axes = list(parts[0].axes)
            axes[axis] = [*(factors[each] for each in order), *axes[axis]]
            return _Part(axes, types=parts[0].types)
    return None


def _shuffled(operation: Operation, value: _Axes, shape: Shape) -> _Axes | None:
    """A shuffle is a reshape, a permutation and a reshape."""
    name, told = operation.name, operation.arguments
    (*lead, channels), sites = shape[:-2], shape[-2:]
    if name == "channel_shuffle":
        images, channels, *rest = shape
        groups = told["groups"]
        split = _reshaped(value, (images, groups, channels // groups, *rest))
        return split and _reshaped([split[0], split[2], split[1], *split[3:]], shape)
    at = len(lead)
    if name == "pixel_shuffle":
        by = told["upscale_factor"]
        split = _reshaped(value, (*lead, channels, by, by, *(each // by for each in sites)))
        order = (*range(at + 1), at + 3, at + 1, at + 4, at + 2)
    else:
        by = told["downscale_factor"]
        split = _reshaped(value, (*lead, channels // by**2, sites[0], by, sites[1], by))
        order = (*range(at + 1), at + 2, at + 4, at + 1, at + 3)
    return split and _reshaped([split[each] for each in order], shape)


def _reshaped(value: _Axes, shape: Shape) -> _Axes | None:
    """The same factors, in order, as axes of a shape; split where they are larger."""
    left = [each for axis in value for one in axis for each in one.whole() if each.size != 1]
    if math.prod(shape) != math.prod(each.size for each in left):
        return None
    made: _Axes = []
    for extent in shape:
        axis: list[_Factor] = []
        while extent > 1:
            first = left.pop(0)
            if first.size > extent and first.size % extent == 0:
                first, rest = first.split(extent)
                left.insert(0, rest)
            if extent % first.size:
                return None
            axis.append(first)
            extent //= first.size
        made.append(axis)
    return made
