"""What `benchmarks.passes` measures: a launch of every kernel that `benchmarks.kernels` leaves out.

Each has one or two cases for each way that it works in, in two memory orders and two dtypes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.kernel_cases import Case, Laid, with_relatives
from ooc_cudnn.operations.core.launch import Launch
from ooc_cudnn.operations.core.pointwise import Pointwise
from ooc_cudnn.operations.elementwise.activation_bitmask import (
    MaskedGradient,
    SlopeMask,
    mask_shape,
)
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationBackward
from ooc_cudnn.operations.elementwise.binary import OpTensor
from ooc_cudnn.operations.elementwise.broadcast_reduction import BroadcastSum
from ooc_cudnn.operations.elementwise.cast_scale import CastScale
from ooc_cudnn.operations.elementwise.dropout import Dropout
from ooc_cudnn.operations.elementwise.gradient_reductions import GradientSums
from ooc_cudnn.operations.losses.launches import (
    ClassSums,
    ClassSumsBackward,
    CrossEntropy,
    CrossEntropyBackward,
    ElementLoss,
    ElementLossBackward,
)
from ooc_cudnn.operations.normalization.batch_launches import (
    Moments,
    Normalise,
    NormaliseBackward,
    NormaliseSums,
)
from ooc_cudnn.operations.normalization.local_response import LocalResponse, LocalResponseBackward
from ooc_cudnn.operations.normalization.set_reduction import (
    NormaliseSets,
    NormaliseSetsBackward,
    NormaliseSitesBackward,
    SetMoments,
    SetSums,
    unit_of,
)
from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.operations.pooling.gradient import PoolingBackward
from ooc_cudnn.operations.pooling.indices import PoolingIndices
from ooc_cudnn.operations.resampling.arguments import (
    adaptive_pooling,
    describe_padding,
    interpolation,
)
from ooc_cudnn.operations.resampling.gradient import ResamplingBackward
from ooc_cudnn.operations.softmax.channel_argmax import ChannelArgmax
from ooc_cudnn.operations.softmax.channels import (
    ImageMaximum,
    ImageProductSum,
    ImageSoftmax,
    ImageSoftmaxBackward,
    Softmax,
    SoftmaxBackward,
)
from ooc_cudnn.tensor import ACCUMULATOR

#: A map of 64 channels, in float32 205 MB: larger than any cache.
SHAPE = (64, 64, 112, 112)
#: Odd extents, so that ragged packs are in it.
QUICK_SHAPE = (3, 6, 7, 8)
ORDERS, TYPES = ("NCHW", "NHWC"), ("float32", "float16")
#: Largest difference from the host device's numbers, as a share of the largest element.
TOLERANCE = {"float32": 5e-6, "float16": 2e-3}
#: The layers' usual arguments.
RESPONSE, WIDE_RESPONSE, ALPHA, BETA, K, DROPPED, IGNORED = 5, 19, 1e-4, 0.75, 1.0, 0.5, -100
DOUBLE = "float64"


@dataclass(frozen=True)
class Maker:
    """Makes cases on maps of one shape, memory order and dtype."""

    shape: tuple[int, ...]
    order: str
    dtype: str

    @property
    def channels(self) -> int:
        """Of a map."""
        return self.shape[1]

    @property
    def sites(self) -> int:
        """Elements of a channel, in all images."""
        return math.prod(self.shape) // self.channels

    def map(self, fill: str = "random", shape: tuple[int, ...] = (), dtype: str = "") -> Laid:
        """A tensor in the order at hand."""
        return Laid(shape or self.shape, self.order, fill, dtype or self.dtype)

    def vector(self, fill: str = "random") -> Laid:
        """A number for each channel, in the arithmetic type."""
        return Laid((self.channels,), fill=fill, dtype=ACCUMULATOR[self.dtype])

    def case(
        self, kernel: str, what: str, operation: Any, inputs: Mapping[str, Laid | None],
        **output: Laid,
    ) -> Case:  # fmt: skip
        """A launch of a kernel, named by its file; inputs that are None are absent."""
        names = tuple("" if laid is None else name for name, laid in inputs.items())
        (written,) = output
        tensors = {name: laid for name, laid in inputs.items() if laid is not None}
        return Case(
            kernel, f"{kernel} {what} {self.order} {self.dtype}",
            Launch(operation, names, written), {**tensors, **output},
            tolerance=TOLERANCE[self.dtype],
        )  # fmt: skip


# Elements -----------------------------------------------------------------------------------------


def elements(at: Maker) -> Iterator[Case]:
    """Kernels that make each element of the elements in its place."""
    shape, dtype, x, y = at.shape, at.dtype, at.map(), at.map("")
    bias = Laid((at.channels,), fill="random", dtype=dtype)
    yield at.case(
        "pointwise", "bias and relu", Pointwise(shape, dtype, dtype, "relu", has_shift=True),
        {"x": x, "addend": None, "b": bias, "old": None}, y=y,
    )  # fmt: skip
    yield at.case(
        "pointwise", "gelu", Pointwise(shape, dtype, dtype, "gelu"),
        {"x": x, "addend": None, "b": None, "old": None}, y=y,
    )  # fmt: skip
    yield at.case(
        "activation_backward", "relu", ActivationBackward(shape, "relu", 0.0, dtype),
        {"y": x, "dy": x, "x": None}, dx=y,
    )  # fmt: skip
    yield at.case(
        "activation_backward", "swish", ActivationBackward(shape, "swish", 1.0, dtype),
        {"y": at.map("swish"), "dy": x, "x": x}, dx=y,
    )  # fmt: skip
    yield at.case("op_tensor", "sum", OpTensor(shape, shape, dtype), {"a": x, "b": x}, c=y)
    per_channel = (1, at.channels, 1, 1)
    yield at.case(
        "op_tensor", "product with a channel's number",
        OpTensor(shape, per_channel, dtype, "multiply"),
        {"a": x, "b": Laid(per_channel, fill="random", dtype=dtype)}, c=y,
    )  # fmt: skip
    vectors = ((at.channels,), (at.channels,))
    yield at.case(
        "cast_scale", "from uint8", CastScale(shape, "uint8", *vectors, dtype),
        {"x": at.map("bytes", dtype="uint8"), "mean": at.vector(), "scale": at.vector()}, y=y,
    )  # fmt: skip
    yield at.case(
        "dropout", "half", Dropout(shape, shape, (0,) * len(shape), DROPPED, False, dtype),
        {"x": x, "state": Laid((2,), fill="seed", dtype="int64")}, y=y,
    )  # fmt: skip
    bits = mask_shape(shape)
    yield at.case(
        "masks", "made", SlopeMask(shape, "relu", 0.0, dtype), {"x": x},
        mask=at.map("", bits, "uint8"),
    )  # fmt: skip
    yield at.case(
        "masks", "gradient", MaskedGradient(shape, 0.0, dtype),
        {"mask": at.map("bytes", bits, "uint8"), "dy": x}, dx=y,
    )  # fmt: skip


# Channels, sites and images -----------------------------------------------------------------------


def channels(at: Maker) -> Iterator[Case]:
    """Kernels that reduce maps to their channels, and batch normalization."""
    shape, dtype, x, y, c = at.shape, at.dtype, at.map(), at.map(""), at.channels
    vector = at.vector
    yield at.case(
        "channel_argmax", "labels", ChannelArgmax(shape, dtype, "uint8"), {"x": x},
        y=at.map("", (shape[0], 1, *shape[2:]), "uint8"),
    )  # fmt: skip
    yield at.case(
        "channel_reduction", "sums", BroadcastSum(shape, (c,), dtype, ACCUMULATOR[dtype]),
        {"dy": x}, db=vector(""),
    )  # fmt: skip
    yield at.case(
        "channel_reduction", "moments", Moments(shape, dtype), {"x": x},
        state=Laid((3, c), dtype=DOUBLE),
    )  # fmt: skip
    yield at.case(
        "channel_reduction", "sums of products", NormaliseSums(shape, dtype),
        {"x": x, "dy": x, "mean": vector()}, sums=Laid((2, c), dtype=DOUBLE),
    )  # fmt: skip
    yield at.case(
        "gradient_sums", "of relu", GradientSums(shape, "relu", 0.0, dtype, DOUBLE),
        {"y": x, "dy": x, "more": None, "dz": y, "x": None, "mean": None},
        sums=Laid((c,), dtype=DOUBLE),
    )  # fmt: skip
    yield at.case(
        "gradient_sums", "of relu, with products",
        GradientSums(shape, "relu", 0.0, dtype, DOUBLE, products=True),
        {"y": x, "dy": x, "more": x, "dz": y, "x": x, "mean": vector()},
        sums=Laid((2, c), dtype=DOUBLE),
    )  # fmt: skip
    vectors = {name: vector("positive") for name in ("scale", "bias", "mean", "spread")}
    yield at.case(
        "normalise", "with relu", Normalise(shape, dtype, mode="relu"), {"x": x, **vectors}, y=y
    )
    yield at.case(
        "normalise", "with z and relu", Normalise(shape, dtype, mode="relu", has_addend=True),
        {"x": x, **vectors, "z": x}, y=y,
    )  # fmt: skip
    del vectors["bias"]
    yield at.case(
        "normalise", "gradient", NormaliseBackward(shape, dtype, at.sites),
        {"x": x, "dy": x, **vectors, "sums": Laid((2, c), fill="large", dtype=DOUBLE)}, dx=y,
    )  # fmt: skip


def sets(at: Maker) -> Iterator[Case]:
    """Statistics of a channel of an image, or of a site, and what is normalised by them."""
    shape, dtype, x, y = at.shape, at.dtype, at.map(), at.map("")
    n, c, *spatial = shape
    for by_site, what in ((False, "an image's channels"), (True, "sites")):
        unit = c if by_site else unit_of(shape)
        number = math.prod(spatial) if by_site else c
        kept = (n, 1, *spatial) if by_site else (n, c, 1, 1)
        known = Laid(kept, fill="positive", dtype=ACCUMULATOR[dtype])
        scale, statistics = at.vector(), {"mean": known, "inverse": known}
        yield at.case(
            "set_statistics", f"moments of {what}", SetMoments(shape, dtype, unit, by_site),
            {"x": x, "y": None}, state=Laid((3, n, number), dtype=DOUBLE),
        )  # fmt: skip
        yield at.case(
            "set_statistics", f"sums of {what}",
            SetSums(shape, dtype, unit, by_site, statistics_shape=kept),
            {"x": x, "dy": x, **statistics, "scale": scale, "y": None},
            sums=Laid((2, n, number), dtype=DOUBLE),
        )  # fmt: skip
        yield at.case(
            "set_statistics", f"normalised by {what}", NormaliseSets(shape, dtype, by_site),
            {"x": x, "scale": scale, "bias": at.vector(), **statistics}, y=y,
        )  # fmt: skip
        yield at.case(
            "set_statistics", f"gradient by {what}",
            NormaliseSetsBackward(shape, dtype, math.prod(shape) // (n * number), by_site),
            {"x": x, "dy": x, "scale": scale, **statistics,
             "sums": Laid((2, n, number), fill="random", dtype=DOUBLE)}, dx=y,
        )  # fmt: skip
    yield at.case(
        "set_statistics", "gradient of layer normalization", NormaliseSitesBackward(shape, dtype),
        {"x": x, "dy": x, "scale": scale, **statistics}, dx=y,
    )  # fmt: skip


def softmaxes(at: Maker) -> Iterator[Case]:
    """Softmax over channels that lie one behind the other, over images, and losses of it."""
    shape, dtype, x, y = at.shape, at.dtype, at.map(), at.map("")
    n, c, *spatial = shape
    if at.order == "NCHW":
        yield at.case(
            "softmax_columns", "forward", Softmax(shape, "accurate", dtype), {"x": x}, y=y
        )
        yield at.case(
            "softmax_columns", "backward", SoftmaxBackward(shape, "accurate", dtype),
            {"y": at.map("softmax"), "dy": x}, dx=y,
        )  # fmt: skip
    every, one = Laid((n, 2), dtype=DOUBLE), Laid((n, 1), dtype=DOUBLE)
    yield at.case("image_softmax", "peaks", ImageMaximum(shape, dtype), {"x": x}, state=every)
    yield at.case(
        "image_softmax", "forward", ImageSoftmax(shape, "accurate", dtype),
        {"x": x, "state": every._replace(fill="peaks")}, y=y,
    )  # fmt: skip
    yield at.case(
        "image_softmax", "sums", ImageProductSum(shape, "accurate", dtype), {"y": x, "dy": x},
        sums=one,
    )  # fmt: skip
    yield at.case(
        "image_softmax", "backward", ImageSoftmaxBackward(shape, "accurate", dtype),
        {"y": x, "dy": x, "sums": one._replace(fill="random")}, dx=y,
    )  # fmt: skip
    labels = Laid((n, *spatial), fill=f"below {c}", dtype="uint8")
    losses = Laid((n, spatial[0]), dtype=DOUBLE)
    dy = Laid((1,), fill="random", dtype=DOUBLE)
    yield at.case(
        "losses", "cross entropy", CrossEntropy(shape, dtype, "uint8", 0.0, IGNORED),
        {"x": x, "labels": labels, "weights": None}, losses=losses,
    )  # fmt: skip
    yield at.case(
        "losses", "gradient of cross entropy",
        CrossEntropyBackward(shape, dtype, "uint8", 0.0, IGNORED, 1.0),
        {"x": x, "labels": labels, "weights": None, "total": None, "dy": dy}, dx=y,
    )  # fmt: skip
    labels = Laid((n, 1, *spatial), fill=f"below {c}", dtype="uint8")
    yield at.case(
        "losses", "class sums", ClassSums(shape, dtype, "uint8"),
        {"x": x, "labels": labels}, sums=Laid((n, spatial[0], 3 * c), dtype=DOUBLE),
    )  # fmt: skip
    yield at.case(
        "losses", "gradient of class sums", ClassSumsBackward(shape, dtype, "uint8"),
        {
            "x": x, "labels": labels,
            "dy": Laid((n, 3 * c), fill="random", dtype=ACCUMULATOR[dtype]),
        },
        dx=y,
    )  # fmt: skip
    yield at.case(
        "losses", "squared error", ElementLoss(shape, dtype, "squared"),
        {"x": x, "t": x, "weight": None, "positive": None}, losses=losses,
    )  # fmt: skip
    yield at.case(
        "losses", "gradient of the squared error", ElementLossBackward(shape, dtype, "squared"),
        {"x": x, "t": x, "weight": None, "positive": None, "dy": dy}, dx=y,
    )  # fmt: skip


# Neighbours ---------------------------------------------------------------------------------------


def neighbours(at: Maker) -> Iterator[Case]:
    """Kernels whose elements are made of neighbours along the channels or along space."""
    shape, dtype, x, y = at.shape, at.dtype, at.map(), at.map("")
    narrow = "local_response_walk" if at.order == "NCHW" else "local_response_lanes"
    for kernel, size in ((narrow, RESPONSE), ("local_response_wide", WIDE_RESPONSE)):
        response = LocalResponse(shape, size, ALPHA, BETA, K, dtype)
        yield at.case(kernel, "forward", response, {"x": x}, y=y)
        yield at.case(kernel, "backward", LocalResponseBackward(response), {"x": x, "dy": x}, dx=y)
    for window in (2, 3):
        pooling = Pooling.of(shape, window=window, stride=2, mode="max", dtype=dtype)
        sites = pooling.output_shape
        place = at.map("", sites, "uint8")
        yield at.case(
            "pooling_indices", f"{window}x{window}/2 forward", PoolingIndices(pooling),
            {"x": x, "y": at.map("", sites)}, index=place,
        )  # fmt: skip
        yield at.case(
            "pooling_indices", f"{window}x{window}/2 backward",
            PoolingBackward(pooling, (0, shape[2]), indexed=True),
            {"index": place._replace(fill=f"below {window * window}"), "dy": at.map(shape=sites)},
            dx=y,
        )  # fmt: skip
    half = (*shape[:2], *(extent // 2 for extent in shape[2:]))
    gather = "gather_nchw" if at.order == "NCHW" else "gather_nhwc"
    for kernel, what, operation in (
        ("interpolation", "doubled",
         interpolation(half, scale_factor=2, mode="linear", dtype=dtype)),
        (gather, "nearest, doubled", interpolation(half, scale_factor=2, dtype=dtype)),
        ("resampling", "averages of 5 x 5",
         adaptive_pooling(shape, 5, mode="average", dtype=dtype)),
        (gather, "padded by 1", describe_padding(shape, 1, dtype=dtype)),
        (gather, "cropped by 1", describe_padding(shape, -1, dtype=dtype)),
    ):  # fmt: skip
        before, after = operation.input_shape, operation.output_shape
        yield at.case(kernel, what, operation, {"x": at.map(shape=before)}, y=at.map("", after))
        parts = tuple((0, extent) for extent in before[2:])
        yield at.case(
            kernel, f"{what}, gradient", ResamplingBackward(operation, parts),
            {"dy": at.map(shape=after)}, dx=at.map("", before),
        )  # fmt: skip


def cases(*, quick: bool) -> tuple[Case, ...]:
    """One kernel after the other, of all orders and dtypes."""
    small = _on(QUICK_SHAPE)
    return small if quick else tuple(with_relatives(_on(SHAPE), small))


def _on(shape: tuple[int, ...]) -> tuple[Case, ...]:
    """On maps of a shape."""
    makers = [Maker(shape, order, dtype) for order, dtype in itertools.product(ORDERS, TYPES)]
    return tuple(
        case
        for group in (elements, channels, sets, softmaxes, neighbours)
        for cases_of in itertools.zip_longest(*(group(at) for at in makers))
        for case in cases_of
        if case is not None
    )
