"""Blocks of interpolation, which are those of the whole image to the last weight.

Where a value lies between its neighbours PyTorch finds from its place in the image, and rounds that
place: in float32 weights are off by what that rounding is, more the larger the image. A block
must be off by the same. Two ways:

- By a power of two places are exact, and so they are when all are counted from another origin:
  PyTorch's own operation on the block's rows.
- Else the weights of an axis are read off PyTorch's own operation, run on the whole axis of an
  image one element wide that shows where each value comes from; the block is made with these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ooc_cudnn.operations.external.tiles import Span, WholeImagesError
from ooc_cudnn.torch.lowering.block_rules import MadePart, Wanted, block_rule, lead_of, only
from ooc_cudnn.torch.tracing.graph import Operation


class Kind(NamedTuple):
    """A kind of interpolation.

    Attributes
    ----------
    taps : int
        Neighbours that a value is made of, along an axis.
    centred : bool
        Whether places are those of the middles of elements.
    grows : bool
        Whether it is of more neighbours where the image gets smaller.
    """

    taps: int
    centred: bool = True
    grows: bool = False


KINDS = {
    **{f"upsample_nearest{axes}d": Kind(1, centred=False) for axes in (1, 2, 3)},
    **{f"_upsample_nearest_exact{axes}d": Kind(1) for axes in (1, 2, 3)},
    **dict.fromkeys(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"), Kind(2)),
    "upsample_bicubic2d": Kind(4),
    "_upsample_bilinear2d_aa": Kind(2, grows=True),
    "_upsample_bicubic2d_aa": Kind(4, grows=True),
}
#: Of larger images the halves of float32's elements are no numbers of their own.
MOST = 2**22
#: Places that are nearer to an element than this are looked up; of longer axes the error is more.
SURE = 1 / 4


class Scaled(NamedTuple):
    """An axis that is interpolated.

    Attributes
    ----------
    extent, made : int
        Of x, and of the result.
    factor : float, optional
        By which it gets longer, where that was given; else it follows from the two.
    corners : bool
        Whether the first and the last element stay where they are.
    """

    extent: int
    made: int
    factor: float | None
    corners: bool

    @property
    def step(self) -> float:
        """Elements of x from one value to the next."""
        if self.corners:
            return (self.extent - 1) / (self.made - 1) if self.made > 1 else 0.0
        return 1 / self.factor if self.factor else self.extent / self.made

    @property
    def is_exact(self) -> bool:
        """True if all places are numbers of every type."""
        fits = max(self.extent, self.made) <= MOST
        return not self.corners and math.frexp(self.step)[0] == 0.5 and fits

    @property
    def leaves(self) -> bool:
        """True if values come from behind the last element: both a size and a factor were given."""
        return not self.corners and self.made * self.step > self.extent + 2.0**-10

    def place(self, at: int, *, centred: bool) -> float:
        """Return where in x a value comes from."""
        return self.step * (at + 0.5) - 0.5 if centred and not self.corners else self.step * at


@block_rule(*KINDS)
def interpolated(operation: Operation, wanted: Wanted) -> MadePart:
    """Interpolation along the last axes."""
    kind, spans, x = KINDS[operation.name], only(wanted), lead_of(operation).shape
    axes = len(x) - 2
    scaled = _axes(operation, axes)
    spatial = spans[2:]
    if any(axis.leaves for axis, span in zip(scaled, spatial, strict=True) if span.cut):
        raise WholeImagesError(f"{operation.said} beyond the image")
    if all(axis.is_exact for axis, span in zip(scaled, spatial, strict=True) if span.cut):
        return _by_itself(operation, kind, wanted, scaled)
    if kind.grows:
        raise WholeImagesError(f"{operation.said} with weights of any number of neighbours")
    lead, along = list(spans[:2]), []
    for axis, span in zip(scaled, spatial, strict=True):
        if _doubt(axis) >= SURE:
            raise WholeImagesError(f"{operation.said} of {axis.extent} elements")
        first = math.floor(axis.place(span.start, centred=kind.centred)) - kind.taps // 2 - 1
        last = math.floor(axis.place(span.stop - 1, centred=kind.centred)) + kind.taps // 2 + 2
        read = Span(max(0, min(first, axis.extent - 1)), max(1, min(last, axis.extent)), span.cut)
        read = read if span.cut else Span(0, axis.extent)
        lead.append(read)
        along.append(AxisRows(axis, (span.start, span.stop), read.start))
    interpolation = Interpolated(operation.name, kind, tuple(along))
    return MadePart((tuple(lead),), (spans,), function=interpolation)


def _axes(operation: Operation, axes: int) -> tuple[Scaled, ...]:
    """The scaling along each axis."""
    told, x = operation.arguments, lead_of(operation).shape
    (result,) = operation.results
    assert result is not None
    names = ("scales_d", "scales_h", "scales_w")[3 - axes :] if axes > 1 else ("scales",)
    factors: Sequence[float | None] = told.get("scale_factors") or [
        told.get(name) for name in names
    ]
    corners = bool(told.get("align_corners"))
    return tuple(
        Scaled(extent, count, factor, corners)
        for extent, count, factor in zip(x[2:], result.shape[2:], factors, strict=True)
    )


def _operation(name: str) -> Any:
    return getattr(torch.ops.aten, name).default


def _by_itself(
    operation: Operation, kind: Kind, wanted: Wanted, scaled: Sequence[Scaled]
) -> MadePart:
    """PyTorch's operation on the rows that a block sees, and some more."""
    spans = only(wanted)
    lead, makes = list(spans[:2]), list(spans[:2])
    sizes, factors = [], []
    for axis, span in zip(scaled, spans[2:], strict=True):
        if not span.cut:
            read, result, factor = Span(0, axis.extent), Span(0, axis.made), axis.factor
        else:
            read, result = _exact(axis, span, kind)
            factor = 1 / axis.step
        lead.append(read)
        makes.append(result)
        sizes.append(result.stop - result.start)
        factors.append(factor)
    if kind.grows and sizes[-1] == 1 and spans[-1].cut:
        # PyTorch 2.13 smooths the rows of a result one element wide wrongly on the host
        sizes[-1] += 1
        makes[-1] = makes[-1]._replace(stop=makes[-1].stop + 1)
    corners = (scaled[0].corners,) if "nearest" not in operation.name else ()
    # PyTorch copies an image whose size stays, and takes the nearest rows of one of twice the size
    # without a look at the factor: where it is another one, a row more is made
    for dim, (axis, span) in enumerate(zip(scaled, spans[2:], strict=True), 2):
        rows = lead[dim].stop - lead[dim].start
        of_itself = [step for step in (1, 1 / 2) if span.cut and axis.step != step]
        while any(sizes[dim - 2] * step == rows for step in of_itself):
            sizes[dim - 2] += 1
            makes[dim] = makes[dim]._replace(stop=makes[dim].stop + 1)
    made_by = ByItself(operation.name, tuple(sizes), corners, tuple(factors))
    return MadePart((tuple(lead),), (tuple(makes),), function=made_by)


def _exact(axis: Scaled, span: Span, kind: Kind) -> tuple[Span, Span]:
    """The rows that a block sees, from one where values begin anew, and the values from there."""
    reach = math.ceil(kind.taps / 2 * max(1.0, axis.step if kind.grows else 1.0)) + 1
    low = math.floor(axis.place(span.start, centred=kind.centred)) - reach
    high = math.floor(axis.place(span.stop - 1, centred=kind.centred)) + reach + 1
    every = max(1, round(axis.step))
    start = max(0, low) // every * every
    stop = min(axis.extent, high)
    first = round(start / axis.step)
    return Span(start, stop, cut=True), Span(first, span.stop, cut=True)


@dataclass(frozen=True)
class ByItself:
    """PyTorch's interpolation to a size, by factors that do not follow from that."""

    name: str
    sizes: tuple[int, ...]
    corners: tuple[bool, ...]
    factors: tuple[float | None, ...]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Interpolate the rows of a block."""
        made: torch.Tensor = _operation(self.name)(x, self.sizes, *self.corners, *self.factors)
        return made


def _doubt(axis: Scaled) -> float:
    """Largest error in float32 of the places that PyTorch finds."""
    return 2.0**-21 * (max(axis.extent, axis.made * axis.step) + 1)


class AxisRows(NamedTuple):
    """Values that are made along an axis, and where the rows begin that they are made of."""

    axis: Scaled
    made: tuple[int, int]
    start: int


@dataclass(frozen=True)
class Interpolated:
    """Interpolation of a block by the weights of the whole image."""

    name: str
    kind: Kind
    along: tuple[AxisRows, ...]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Interpolate the rows of a block."""
        wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
        for at, each in enumerate(self.along, 2):
            wide = self._made_along(wide, at, each)
        return wide.to(x.dtype)

    def _made_along(self, x: torch.Tensor, dim: int, along: AxisRows) -> torch.Tensor:
        weights, first = self._weights(x, dim, along)
        extent, y = along.axis.extent, None
        shape = [-1 if axis == dim else 1 for axis in range(len(x.shape))]
        for tap in range(self.kind.taps):
            row = first + tap
            here = torch.gather(weights, 0, (row % len(weights))[None])[0]
            here = torch.where((row >= 0) & (row < extent), here, 0).reshape(shape)
            rows = (row.clamp(0, extent - 1) - along.start).clamp(0, x.shape[dim] - 1)
            part = x.index_select(dim, rows)
            y = part.mul_(here) if y is None else y.addcmul_(part, here)
        assert y is not None
        return y

    def _weights(
        self, x: torch.Tensor, dim: int, along: AxisRows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights of rows for each value, by their rest, and the first row that it is made of.

        Rows of one rest are channels: what comes of a channel is the weight of its one row nearby.
        A place that is about that of a row may lie before it or behind, as it was rounded.
        """
        axis, (start, stop) = along.axis, along.made
        taps = self.kind.taps
        rests = taps + 2
        numbers = torch.arange(axis.extent, device=x.device)
        shown = (numbers % rests == torch.arange(rests, device=x.device)[:, None]).to(x.dtype)
        size = [axis.made if each == dim else 1 for each in range(2, len(x.shape))]
        shape = [axis.extent if each == dim else 1 for each in range(2, len(x.shape))]
        factors = [axis.factor if each == dim else None for each in range(2, len(x.shape))]
        corners = (axis.corners,) if "nearest" not in self.name else ()
        response = _operation(self.name)(shown.reshape(1, rests, *shape), size, *corners, *factors)
        weights = response.reshape(rests, axis.made)[:, start:stop]
        values = torch.arange(start, stop, device=x.device, dtype=torch.float64)
        if self.kind.centred and not axis.corners:
            places = (values + 0.5) * axis.step - 0.5
        else:
            places = values * axis.step
        if taps == 1 and self.kind.centred:  # the middle of a value lies within the row
            places = places + 0.5
        if taps == 2:
            places = places.clamp(min=0)
        nearest = places.round()
        doubtful = (places - nearest).abs() < _doubt(axis)
        before = torch.where(doubtful, nearest - 1, places.floor()).to(torch.int64)
        reach = (taps - 1) // 2
        lowest = torch.gather(weights, 0, ((before - reach) % rests)[None])[0]
        inside = (lowest != 0) & (before - reach >= 0)
        before = torch.where(doubtful & ~inside, before + 1, before)
        return weights, before - reach
