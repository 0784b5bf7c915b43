"""The phases of batch normalisation, as calls of their own: what a network does between two layers.

Forward: the moments of z, what is made of them, and `Normalise`, which chains take (with other
operations of an element after it). Backward: the sums over dy, the gradients of scale and bias,
and dz. Statistics are those of the whole batch, so the moments, and the sums, stand between what
is before and what is after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ooc_cudnn.operations.core.call import (
    Operand,
    Piece,
    Read,
    Region,
    Rounding,
    Tile,
    random_range,
)
from ooc_cudnn.operations.core.launch_builder import Builder, BuiltCall
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.row_axis import per_channel
from ooc_cudnn.operations.normalization.batch_fused_gradient import (
    activation_slope,
    sums_of_a_channel,
)
from ooc_cudnn.operations.normalization.batch_launches import (
    AddStates,
    MergeMoments,
    NormaliseBackward,
    StateRow,
)
from ooc_cudnn.operations.normalization.channel_reduction import (
    SAVED,
    STATES,
    SUMS,
    OfStatistics,
    PerChannel,
    make_vectors,
)
from ooc_cudnn.operations.normalization.set_reduction import FoldImages
from ooc_cudnn.tensor import ACCUMULATOR
from perfmodel import Split
from perfmodel.cached import cached_property

VECTORS = frozenset({"c_y"})
#: With what is saved, what the result of a normalisation is made again of x with.
VECTORS_OF_Y = ("scale", "bias")


@dataclass(frozen=True)
class ChannelMomentsCall(PerChannel):
    """Moments (3, c), float64, from x: count, mean and M2 of each channel in all images."""

    shape: Shape
    dtype: str
    deterministic: bool = False

    inputs = ("x",)
    results = ("moments",)
    sweeps = 1
    loop_order = ("c_y", "c_x", "n", "h_y")

    def on_tile(self, tile: Tile) -> Self:
        return replace(self, shape=tile.shape)

    def build(self, build: Builder) -> None:
        """Merge the moments of a piece."""
        build.accumulating = False
        self.gather_moments(build)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Compute the expected results in two passes."""
        x = np.stack(self.images("x", piece, read))
        mean = x.mean()
        found = np.array([[x.size], [mean], [((x - mean) ** 2).sum()]])
        return {"moments": (found, np.array([[0], [np.abs(x).max()], [(x**2).sum()]]))}


@dataclass(frozen=True)
class ChannelSumsCall(PerChannel):
    """Sums (2, c), float64, from x, dy, saved mean and inverse deviation: of dy and of dy * xhat.

    They are the gradients of bias and scale, and with them dx is known element by element. With an
    activation after the normalisation, dy is that of its result, and takes its slope; scale and
    bias are read, too.
    """

    shape: Shape
    dtype: str
    deterministic: bool = False
    mode: str = "identity"
    coef: float = 0.0

    results = ("sums",)
    sweeps = 1
    loop_order = ("c_y", "c_x", "n", "h_y")

    def __post_init__(self) -> None:
        if self.deterministic and self.mode != "identity":
            raise ValueError("sums in a fixed order are not made through an activation")

    @cached_property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Operands: data, saved statistics, and scale and shift to recompute y."""
        return ("x", "dy", *SAVED, *(VECTORS_OF_Y if self.mode != "identity" else ()))

    def on_tile(self, tile: Tile) -> Self:
        return replace(self, shape=tile.shape)

    def build(self, build: Builder) -> None:
        """Add up the sums of a piece."""
        build.accumulating = False
        self.gather_sums(build, *SAVED, self.mode, self.coef)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Over all images of a channel."""
        x, dy = (np.stack(self.images(name, piece, read)) for name in ("x", "dy"))
        vectors = {n: float(read(n, (piece.c_y,))[0]) for n in self.inputs[2:]}
        size = np.abs(dy)
        if self.mode != "identity":
            dy, size = activation_slope(self, x, dy, vectors)
        return {"sums": sums_of_a_channel(x, dy, size, vectors)}


@dataclass(frozen=True)
class BatchNormalizationDataCall(OfStatistics):
    """dx from x, dy, scale, saved mean and inverse deviation, and the sums over the whole batch.

    With an activation after the normalisation dy is that of its result; the bias is read, too.
    `elements` are those that a channel has in the whole batch, where x is a block of it.
    """

    shape: Shape
    dtype: str
    mode: str = "identity"
    coef: float = 0.0
    elements: int = 0

    keeps_channels = True
    may_be_in_place = True
    results = ("dx",)
    reduced = ()

    @cached_property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """The maps, vectors and sums, and what y is made again with."""
        further = ("bias",) if self.mode != "identity" else ()
        return ("x", "dy", "scale", *SAVED, "sums", *further)

    def on_tile(self, tile: Tile) -> Self:
        return replace(self, shape=tile.shape)

    def build(self, build: Builder) -> None:
        """Make a piece of the gradient."""
        elements = self.elements or int(np.prod(self.shape)) // self.shape[1]
        shape = self.piece_shape(build.piece)
        operation = NormaliseBackward(shape, self.dtype, elements, self.mode, self.coef)
        order = build.buffers["x"].order
        self.make(build, operation, ("x", "dy"), self.inputs[2:], order)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Element by element."""
        arrays = {name: read(name, self.region(name, piece) or ()) for name in self.inputs}
        x, dy, sums = (arrays.pop(name) for name in ("x", "dy", "sums"))
        vectors = {name: per_channel(vector, x.ndim) for name, vector in arrays.items()}
        scale, mean, inverse = (vectors[name] for name in ("scale", *SAVED))
        count = self.elements or np.prod(self.shape) // self.shape[1]
        of_dy, of_products = (per_channel(v, x.ndim) for v in sums / count)
        size = np.abs(dy)
        if self.mode != "identity":
            dy, size = activation_slope(self, x, dy, vectors)
        value = scale * inverse * (dy - of_dy - (x - mean) * inverse * of_products)
        reach = (np.abs(x) + np.abs(mean)) * inverse * np.abs(of_products)
        return {"dx": (value, np.abs(scale * inverse) * (size + np.abs(of_dy) + reach))}


class _OfChannels(BuiltCall):
    """A call on a few numbers a channel: cut along these, if at all."""

    channels: int

    lead = ""
    reduced = ()

    @cached_property
    def extents(self) -> Split:
        return Split(n=1, c_y=self.channels, c_x=1, h_y=1)

    @property
    def row_axes(self) -> tuple[int, ...]:
        """There are no rows."""
        return (self.row_axis,)

    def region(self, name: str, piece: Piece) -> Region:
        """All there is of some channels."""
        outer = self.operands[name].shape[:-1]
        return (*((0, extent) for extent in outer), piece.c_y)

    def patch(self, random: np.random.Generator) -> Piece:
        """A few channels."""
        return self.whole_piece()._replace(c_y=random_range(random, self.channels, 4))

    def rounding(self) -> Rounding:
        """A few operations on each number."""
        return Rounding(1, self.dtype, 8)


@dataclass(frozen=True)
class MergePartsCall(_OfChannels):
    """A state (`STATES`) of all images, y, from those of parts of the batch, x0, x1, ..., in order.

    Parameters
    ----------
    kind : str
        "moments", which are merged, or "sums", which are added.
    parts : int
    """

    channels: int
    kind: str
    parts: int

    dtype = "float64"
    lead = "x0"
    results = ("y",)

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        state = Operand((STATES[self.kind], self.channels), "float64", VECTORS)
        return dict.fromkeys((*(f"x{part}" for part in range(self.parts)), "y"), state)

    def build(self, build: Builder) -> None:
        """One after the other."""
        shape = build.buffers["y"].shape
        merge = MergeMoments(shape[1]) if self.kind == "moments" else AddStates(shape)
        build.copy("x0", "y")
        for part in range(1, self.parts):
            build.launch(merge, ("y", f"x{part}"), "y")

    def scaling(self, result: str) -> tuple[float, float]:
        """There is none."""
        return 1.0, 0.0

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Compute by the definition: the moments all at once."""
        region = self.region("y", piece)
        parts = np.stack([read(f"x{part}", region) for part in range(self.parts)])
        if self.kind == "sums":
            return {"y": (parts.sum(axis=0), np.abs(parts).sum(axis=0))}
        count, mean, m2 = parts.transpose(1, 0, 2)
        merged = (count * mean).sum(axis=0) / count.sum(axis=0)
        spread = m2 + count * (mean - merged) ** 2
        value = np.stack([count.sum(axis=0), merged, spread.sum(axis=0)])
        size = np.stack([count.sum(axis=0), np.abs(mean).max(axis=0), spread.sum(axis=0)])
        return {"y": (value, size)}


@dataclass(frozen=True)
class ChannelVectorsCall(_OfChannels):
    """Vectors (c,) from moments: what is saved for others, or running averages, which are updated.

    Parameters
    ----------
    dtype : str
        Of the data: that of the vectors is its type of sums.
    running : bool
        Whether it is the running mean and variance that are made, by `factor`; else the saved mean
        and inverse deviation, by `epsilon`.
    """

    channels: int
    dtype: str
    running: bool = False
    epsilon: float = 0.0
    factor: float = 0.0

    lead = "moments"

    @cached_property
    def results(self) -> tuple[str, ...]:  # type: ignore[override]
        """Both running averages, or both that are saved."""
        return ("running_mean", "running_variance") if self.running else SAVED

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        vector = Operand((self.channels,), ACCUMULATOR[self.dtype], VECTORS)
        moments = Operand((STATES["moments"], self.channels), "float64", VECTORS)
        return {"moments": moments, **dict.fromkeys(self.results, vector)}

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        """The moments, and what is updated."""
        return tuple(self.operands) if self.running else ("moments",)

    def scaling(self, result: str) -> tuple[float, float]:
        """There is none."""
        return 1.0, 0.0

    def build(self, build: Builder) -> None:
        """Make each of them."""
        kinds = self.results if self.running else ("mean", "inverse_deviation")
        made = dict(zip(self.results, kinds, strict=True))
        make_vectors(build, "moments", made, epsilon=self.epsilon, factor=self.factor)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Compute by the definition."""
        count, mean, m2 = read("moments", self.region("moments", piece))
        if not self.running:
            vectors = (mean, 1 / np.sqrt(m2 / count + self.epsilon))
            return {name: (v, np.abs(v)) for name, v in zip(SAVED, vectors, strict=True)}
        results = {}
        for name, new in zip(self.results, (mean, m2 / np.maximum(1, count - 1)), strict=True):
            old = read(name, self.region(name, piece))
            results[name] = ((1 - self.factor) * old + self.factor * new, np.abs(old) + np.abs(new))
        return results


@dataclass(frozen=True)
class ParameterGradientsCall(_OfChannels):
    """dscale and dbias from the sums that a gradient of a normalisation leaves.

    Parameters
    ----------
    dtype : str
        Of the data: that of the gradients is its type of sums.
    images : int
        Of how many images sums are kept apart: these are added up, in their order. 0 where `sums`
        are those of all images.
    """

    channels: int
    dtype: str
    images: int = 0

    results = ("dscale", "dbias")

    @property
    def lead(self) -> str:  # type: ignore[override]
        """The sums, or those of dy * xhat."""
        return self.sources[0]

    @property
    def sources(self) -> tuple[str, ...]:
        """The sums of all images, or those of dy * xhat and of dy of each."""
        return SUMS if self.images else ("sums",)

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        source = Operand((self.images or STATES["sums"], self.channels), "float64", VECTORS)
        vector = Operand((self.channels,), ACCUMULATOR[self.dtype], VECTORS)
        return {**dict.fromkeys(self.sources, source), **dict.fromkeys(self.results, vector)}

    def build(self, build: Builder) -> None:
        """Add up images, if need be, and round."""
        (channels,) = build.buffers["dscale"].shape
        for index, name in ((1, "dscale"), (0, "dbias")):
            state, row = "sums", index
            if self.images:
                state, row = build.scratch(f"{name} of all", (1, channels), "float64"), 0
                fold = FoldImages(1, self.images, channels)
                build.launch(fold, (self.sources[1 - index], ""), state)
            dtype = build.product_dtype(name)
            operation = StateRow((channels,), row, dtype)
            build.make(operation, (state,), name, "channels_first", done=(state,))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Sums over images."""
        sums = [read(name, self.region(name, piece)) for name in self.sources]
        rows = sums if self.images else [sums[0][1:], sums[0][:1]]
        return {
            name: (of.sum(axis=0), np.abs(of).sum(axis=0))
            for name, of in zip(self.results, rows, strict=True)
        }
