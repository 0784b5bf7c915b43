"""Rules of operations that move elements and compute nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from ooc_cudnn.torch.lowering.lower import (
    GraphLowering,
    LoweredValue,
    UnsupportedPatternError,
    rule,
)
from ooc_cudnn.torch.tracing.permutations import PERMUTES, permutation


@rule("cat", "concat")
def concatenate(to: GraphLowering, tensors: Sequence[Any], dim: int) -> LoweredValue:
    if not all(isinstance(each, LoweredValue) for each in tensors):
        raise UnsupportedPatternError("of what does not read the inputs first")
    axes = tensors[0].axes
    if any(each.axes != axes for each in tensors) or axes[dim] == 0:
        raise UnsupportedPatternError(f"along axis {dim} of {tensors[0].shape}, that of images")
    parts = [each.tensor for each in tensors]
    return LoweredValue(to.net.concatenate(parts, axis=axes[dim], name=to.name("cat")), axes)


@rule("broadcast_tensors")
def broadcast(to: GraphLowering, tensors: Sequence[Any]) -> tuple[LoweredValue, ...]:
    shapes = {tuple(each.shape) for each in tensors}
    if len(shapes) > 1 or not all(isinstance(each, LoweredValue) for each in tensors):
        raise UnsupportedPatternError(f"of several shapes, {sorted(shapes)}")
    return tuple(tensors)


@rule(*PERMUTES)
def permute(to: GraphLowering, self: Any, **told: Any) -> LoweredValue:
    if not isinstance(self, LoweredValue):
        raise UnsupportedPatternError("it does not read the inputs first")
    assert to.operation is not None
    order = permutation(to.operation, len(self.axes))
    return LoweredValue(self.tensor, tuple(self.axes[each] for each in order))


@rule("flatten")
def flatten(to: GraphLowering, self: Any, start_dim: int, end_dim: int) -> LoweredValue:
    count = len(self.shape)
    first, last = start_dim % count, end_dim % count
    shape = self.shape
    return _reshaped(
        to, self, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])
    )


@rule("reshape", "view")
def reshape(
    to: GraphLowering,
    self: Any,
    shape: Sequence[int] | None = None,
    size: Sequence[int] | None = None,
) -> LoweredValue:
    wanted = list(size if shape is None else shape)  # type: ignore[arg-type]
    if -1 in wanted:
        at = wanted.index(-1)
        wanted[at] = math.prod(self.shape) // max(-math.prod(wanted), 1)
    return _reshaped(to, self, tuple(wanted))


@rule("squeeze")
def squeeze(to: GraphLowering, self: Any, dim: Any = None) -> LoweredValue:
    count = len(self.shape)
    dims = range(count) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {each % count for each in dims}
    shape = tuple(e for at, e in enumerate(self.shape) if not (at in gone and e == 1))
    return _reshaped(to, self, shape)


@rule("unsqueeze")
def unsqueeze(to: GraphLowering, self: Any, dim: int) -> LoweredValue:
    shape = list(self.shape)
    shape.insert(dim % (len(shape) + 1), 1)
    return _reshaped(to, self, tuple(shape))


def _reshaped(to: GraphLowering, x: Any, shape: tuple[int, ...]) -> LoweredValue:
    """The same elements in another shape: all of an image on one axis, or other axes of 1."""
    if not isinstance(x, LoweredValue):
        raise UnsupportedPatternError("it does not read the inputs first")
    if shape == x.shape:
        return x
    source = to.inputs.get(x.tensor.name)
    ones = [extent for extent in shape if extent > 1] == [e for e in x.shape if e > 1]
    if x.is_plain and source is not None and ones and 1 <= len(shape) <= 5:
        return LoweredValue.of(to.given(source.value, shape))
    if x.is_plain and len(shape) == 2 and shape[0] == x.shape[0]:
        return LoweredValue.of(to.net.flatten(x.tensor, name=to.name("flatten")))
    raise UnsupportedPatternError(
        f"from {x.shape} to {shape}: an image is flattened, or nothing changes"
    )


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def nearest(to: GraphLowering, input: Any, output_size: Any, scale_factors: Any) -> LoweredValue:
    return _interpolated(to, input, output_size, scale_factors, "nearest", False)


@rule("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def linear(
    to: GraphLowering, input: Any, output_size: Any, align_corners: bool, scale_factors: Any
) -> LoweredValue:
    return _interpolated(to, input, output_size, scale_factors, "linear", align_corners)


def _interpolated(
    to: GraphLowering, x: Any, size: Any, factors: Any, mode: str, align_corners: bool
) -> LoweredValue:
    return LoweredValue.of(
        to.net.interpolation(
            to.plain(x, least=3),
            None if size is None else tuple(size),
            scale_factor=None if factors is None else tuple(factors),
            mode=mode,
            align_corners=bool(align_corners),
            name=to.name(),
        )
    )


@rule("pad", "constant_pad_nd")
def pad(
    to: GraphLowering,
    self: Any,
    pad: Sequence[int],
    mode: str = "constant",
    value: float | None = 0,
) -> LoweredValue:
    if isinstance(self, LoweredValue) and not any(pad):
        return self
    x = to.plain(self, least=3)
    if len(pad) > 2 * (len(x.shape) - 2):
        raise UnsupportedPatternError(f"{list(pad)} of {self.shape}: spatial axes are padded")
    if mode == "circular":
        return _wrapped(to, self, pad)
    if mode != "constant":
        raise UnsupportedPatternError(f"mode {mode}")
    pairs = [(0, 0)] * (len(x.shape) - 2)
    for axis in range(len(pad) // 2):
        pairs[-1 - axis] = (pad[2 * axis], pad[2 * axis + 1])
    return LoweredValue.of(to.net.pad(x, pairs, value=float(value or 0), name=to.name("pad")))


def _wrapped(to: GraphLowering, x: Any, pad: Sequence[int]) -> LoweredValue:
    """x between slices of its other end, axis by axis."""
    to.plain(x, least=3)
    if min(pad) < 0 or not to.training:
        raise UnsupportedPatternError("circular in inference, where a block would read all")
    for axis, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = len(x.axes) - 1 - axis
        extent = x.shape[dim]
        first = [_sliced(to, x, dim, extent - before, extent)] if before else []
        last = [_sliced(to, x, dim, 0, after)] if after else []
        x = concatenate(to, [*first, x, *last], dim) if before or after else x
    return x


@rule("roll")
def roll(
    to: GraphLowering, self: Any, shifts: Sequence[int], dims: Sequence[int] = ()
) -> LoweredValue:
    if not isinstance(self, LoweredValue):
        raise UnsupportedPatternError("it does not read the inputs first")
    if not dims:
        raise UnsupportedPatternError("of all elements as one row")
    if not to.training:
        raise UnsupportedPatternError("in inference, where a block would read all")
    by: dict[int, int] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        by[self.axes[dim]] = by.get(self.axes[dim], 0) + shift
    if 0 in by:
        raise UnsupportedPatternError("of images")
    made = to.net.roll(self.tensor, [*by.values()], [*by], name=to.name("roll"))
    return LoweredValue(made, self.axes)


@rule("slice")
def part(
    to: GraphLowering, self: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> LoweredValue:
    if not isinstance(self, LoweredValue):
        raise UnsupportedPatternError("it does not read the inputs first")
    first, last, _ = slice(start, end).indices(self.shape[dim])  # out of range is cut off
    if step != 1:
        raise UnsupportedPatternError(f"every {step}th of axis {dim}")
    return _sliced(to, self, dim, first, last)


@rule("narrow")
def narrow(to: GraphLowering, self: Any, dim: int, start: Any, length: int) -> LoweredValue:
    if not isinstance(self, LoweredValue) or not isinstance(start, int):
        raise UnsupportedPatternError("it does not read the inputs first")
    start %= self.shape[dim] or 1
    return _sliced(to, self, dim, start, start + length)


@rule("chunk", "unsafe_chunk")
def chunk(to: GraphLowering, self: Any, chunks: int, dim: int = 0) -> tuple[LoweredValue, ...]:
    return split(to, self, -(-self.shape[dim] // chunks), dim=dim)


@rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes")
def split(
    to: GraphLowering,
    self: Any,
    split_size: Any = None,
    split_sizes: Any = None,
    dim: int = 0,
) -> tuple[LoweredValue, ...]:
    if not isinstance(self, LoweredValue):
        raise UnsupportedPatternError("it does not read the inputs first")
    sizes = split_size if split_sizes is None else split_sizes
    extent = self.shape[dim]
    if isinstance(sizes, int):
        ends = [min(start + sizes, extent) for start in range(0, extent, sizes)]
    else:
        ends = list(itertools.accumulate(sizes))
    pairs = zip([0, *ends], ends, strict=False)
    return tuple(_sliced(to, self, dim, start, stop) for start, stop in pairs)


@rule("glu")
def gated(to: GraphLowering, self: Any, dim: int) -> LoweredValue:
    halves = chunk(to, self, 2, dim)
    gate = to.net.activation(halves[1].tensor, "sigmoid", name=to.name("gate"))
    return LoweredValue(to.net.multiply(halves[0].tensor, gate, name=to.name()), self.axes)


def _sliced(to: GraphLowering, x: LoweredValue, dim: int, start: int, stop: int) -> LoweredValue:
    """A view of some channels, or of some rows along a spatial axis."""
    if (start, stop) == (0, x.shape[dim]):
        return x
    axis = x.axes[dim]
    if axis == 0 or start >= stop:
        raise UnsupportedPatternError(
            f"[{start}:{stop}] of axis {dim}: there are parts of channels and of spatial axes"
        )
    if axis == 1:
        tensor = to.net.channel_slice(x.tensor, start, stop, name=to.name("part"))
        return LoweredValue(tensor, x.axes)
    spatial = x.tensor.shape[2:]
    starts, sizes = [0] * len(spatial), list(spatial)
    starts[axis - 2], sizes[axis - 2] = start, stop - start
    return LoweredValue(to.net.crop(x.tensor, starts, sizes, name=to.name("crop")), x.axes)
