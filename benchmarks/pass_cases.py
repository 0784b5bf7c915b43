"""What `benchmarks.passes` measures: a launch of every kernel that `benchmarks.kernels` leaves out.

Each has one or two cases for each way that it works in, in two memory orders and two dtypes. What
is expected is computed by PyTorch in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.kernel_cases import Case, Laid, Tensors, softmax_gradient
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
#: Largest difference from what is expected, as a share of the largest element.
TOLERANCE = {"float32": 5e-6, "float16": 2e-3}
#: The layers' usual arguments.
RESPONSE, WIDE_RESPONSE, ALPHA, BETA, K, DROPPED, IGNORED = 5, 19, 1e-4, 0.75, 1.0, 0.5, -100
DOUBLE = "float64"

Expected = Callable[[Any, Tensors], Any]


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
        self, kernel: str, what: str, operation: Any, inputs: tuple[str, ...], output: str,
        tensors: Mapping[str, Laid], expected: Expected,
    ) -> Case:  # fmt: skip
        """A launch of a kernel, named by its file."""
        return Case(
            kernel, f"{kernel} {what} {self.order} {self.dtype}",
            Launch(operation, inputs, output), tensors,
            theirs=None, expected=expected, tolerance=TOLERANCE[self.dtype],
        )  # fmt: skip


def wide(vector: Any) -> Any:
    """A vector of channels in float64, to be broadcast over a map."""
    return vector.double()[:, None, None]


# Elements -----------------------------------------------------------------------------------------


def elements(at: Maker) -> Iterator[Case]:
    """Kernels that make each element of the elements in its place."""
    shape, dtype, x = at.shape, at.dtype, at.map()
    y = at.map("")
    relu = Pointwise(shape, dtype, dtype, "relu", has_shift=True)
    yield at.case(
        "pointwise", "bias and relu", relu, ("x", "", "b", ""), "y",
        {"x": x, "b": Laid((at.channels,), fill="random", dtype=dtype), "y": y},
        lambda torch, on: (on["x"].double() + wide(on["b"])).relu(),
    )  # fmt: skip
    yield at.case(
        "pointwise", "gelu", Pointwise(shape, dtype, dtype, "gelu"), ("x", "", "", ""), "y",
        {"x": x, "y": y}, lambda torch, on: torch.nn.functional.gelu(on["x"].double()),
    )  # fmt: skip
    yield at.case(
        "activation_backward", "relu", ActivationBackward(shape, "relu", 0.0, dtype),
        ("y", "dy", ""), "dx", {"y": x, "dy": x, "dx": y},
        lambda torch, on: on["dy"].double() * (on["y"] > 0),
    )  # fmt: skip
    yield at.case(
        "activation_backward", "swish", ActivationBackward(shape, "swish", 1.0, dtype),
        ("y", "dy", "x"), "dx", {"x": x, "y": at.map("swish"), "dy": x, "dx": y}, swish_gradient,
    )  # fmt: skip
    yield at.case(
        "op_tensor", "sum", OpTensor(shape, shape, dtype), ("a", "b"), "c",
        {"a": x, "b": x, "c": y}, lambda torch, on: on["a"].double() + on["b"].double(),
    )  # fmt: skip
    per_channel = (1, at.channels, 1, 1)
    yield at.case(
        "op_tensor", "product with a channel's number",
        OpTensor(shape, per_channel, dtype, "multiply"), ("a", "b"), "c",
        {"a": x, "b": Laid(per_channel, fill="random", dtype=dtype), "c": y},
        lambda torch, on: on["a"].double() * on["b"].double(),
    )  # fmt: skip
    vectors = ((at.channels,), (at.channels,))
    yield at.case(
        "cast_scale", "from uint8", CastScale(shape, "uint8", *vectors, dtype),
        ("x", "mean", "scale"), "y",
        {"x": at.map("bytes", dtype="uint8"), "mean": at.vector(), "scale": at.vector(), "y": y},
        lambda torch, on: (on["x"].double() - wide(on["mean"])) * wide(on["scale"]),
    )  # fmt: skip
    yield at.case(
        "dropout", "half", Dropout(shape, shape, (0,) * len(shape), DROPPED, False, dtype),
        ("x", "state"), "y", {"x": x, "state": Laid((2,), fill="seed", dtype="int64"), "y": y},
        dropped,
    )  # fmt: skip
    bits = at.map("bytes", mask_shape(shape), "uint8")
    yield at.case(
        "masks", "made", SlopeMask(shape, "relu", 0.0, dtype), ("x",), "mask",
        {"x": x, "mask": at.map("", mask_shape(shape), "uint8")},
        lambda torch, on: ((on["x"] > 0).unflatten(-1, (-1, 8)) * powers(torch, on)).sum(-1),
    )  # fmt: skip
    yield at.case(
        "masks", "gradient", MaskedGradient(shape, 0.0, dtype), ("mask", "dy"), "dx",
        {"mask": bits, "dy": x, "dx": y},
        lambda torch, on: on["dy"].double()
        * ((on["mask"][..., None] & powers(torch, on)) > 0).flatten(-2),
    )  # fmt: skip


def powers(torch: Any, on: Tensors) -> Any:
    """The bits of a byte, the lowest first."""
    return 2 ** torch.arange(8, device=on["mask"].device)


def swish_gradient(torch: Any, on: Tensors) -> Any:
    x = on["x"].double()
    share = torch.sigmoid(x)
    return on["dy"].double() * (share + x * share * (1 - share))


def dropped(torch: Any, on: Tensors) -> Any:
    """Half of the elements are left, twice as large: the rest is what the result says it is."""
    kept = on["y"] != 0
    fair = abs(float(kept.double().mean()) - DROPPED) < (0.01 if kept.numel() > 10**6 else 0.1)
    return torch.where(kept, on["x"].double() / (1 - DROPPED), 0) if fair else on["x"] * math.nan


# Channels, sites and images -----------------------------------------------------------------------


def channels(at: Maker) -> Iterator[Case]:
    """Kernels that reduce maps to their channels, and batch normalization."""
    shape, dtype, x, y, c = at.shape, at.dtype, at.map(), at.map(""), at.channels
    vector = at.vector
    yield at.case(
        "channel_argmax", "labels", ChannelArgmax(shape, dtype, "uint8"), ("x",), "y",
        {"x": x, "y": at.map("", (shape[0], 1, *shape[2:]), "uint8")},
        lambda torch, on: on["x"].contiguous().argmax(1, keepdim=True),
    )  # fmt: skip
    yield at.case(
        "channel_reduction", "sums", BroadcastSum(shape, (c,), dtype, ACCUMULATOR[dtype]), ("dy",),
        "db", {"dy": x, "db": vector("")}, lambda torch, on: over(on["dy"].double()),
    )  # fmt: skip
    yield at.case(
        "channel_reduction", "moments", Moments(shape, dtype), ("x",), "state",
        {"x": x, "state": Laid((3, c), dtype=DOUBLE)}, partial(moments, axes=(0, 2, 3)),
    )  # fmt: skip
    yield at.case(
        "channel_reduction", "sums of products", NormaliseSums(shape, dtype), ("x", "dy", "mean"),
        "sums", {"x": x, "dy": x, "mean": vector(), "sums": Laid((2, c), dtype=DOUBLE)},
        lambda torch, on: products(torch, on["dy"].double(), on),
    )  # fmt: skip
    operands = {"y": x, "dy": x, "dz": y}
    yield at.case(
        "gradient_sums", "of relu", GradientSums(shape, "relu", 0.0, dtype, DOUBLE),
        ("y", "dy", "", "dz", "", ""), "sums", operands | {"sums": Laid((c,), dtype=DOUBLE)},
        lambda torch, on: over(rectified(on)),
    )  # fmt: skip
    yield at.case(
        "gradient_sums", "of relu, with products",
        GradientSums(shape, "relu", 0.0, dtype, DOUBLE, products=True),
        ("y", "dy", "more", "dz", "x", "mean"), "sums",
        operands | {"more": x, "x": x, "mean": vector(), "sums": Laid((2, c), dtype=DOUBLE)},
        lambda torch, on: products(torch, rectified(on), on),
    )  # fmt: skip
    vectors = {name: vector("positive") for name in ("scale", "bias", "mean", "spread")}
    yield at.case(
        "normalise", "with relu", Normalise(shape, dtype, mode="relu"), ("x", *vectors), "y",
        {"x": x, **vectors, "y": y}, lambda torch, on: normalised(on).relu(),
    )  # fmt: skip
    yield at.case(
        "normalise", "with z and relu", Normalise(shape, dtype, mode="relu", has_addend=True),
        ("x", *vectors, "z"), "y", {"x": x, **vectors, "z": x, "y": y},
        lambda torch, on: (normalised(on) + on["z"].double()).relu(),
    )  # fmt: skip
    del vectors["bias"]
    yield at.case(
        "normalise", "gradient", NormaliseBackward(shape, dtype, at.sites),
        ("x", "dy", *vectors, "sums"), "dx",
        {"x": x, "dy": x, **vectors, "sums": Laid((2, c), fill="large", dtype=DOUBLE), "dx": y},
        lambda torch, on: normal_gradient(on, at.sites),
    )  # fmt: skip


def over(value: Any) -> Any:
    """Sums of channels."""
    return value.sum((0, 2, 3))


def rectified(on: Tensors) -> Any:
    """What the sums of a gradient before a ReLU are of; it is shown to be stored, too."""
    dy = on["dy"].double() + (on["more"].double() if "more" in on else 0)
    dz, stored = dy * (on["y"] > 0), on["dz"].double()
    tolerance = TOLERANCE[str(on["dz"].dtype).removeprefix("torch.")]
    is_right = bool(((dz - stored).abs() <= tolerance * dz.abs()).all())
    return stored if is_right else dz * math.nan


def products(torch: Any, dy: Any, on: Tensors) -> Any:
    return torch.stack([over(dy), over(dy * (on["x"].double() - wide(on["mean"])))])


def moments(torch: Any, on: Tensors, axes: tuple[int, ...]) -> Any:
    """Counts, means and sums of squared deviations."""
    x = on["x"].double()
    mean = x.mean(axes, keepdim=True)
    count = torch.full_like(mean, x.numel() // mean.numel())
    spread = (x - mean).square().sum(axes, keepdim=True)
    return torch.stack([count, mean, spread]).reshape(on["state"].shape)


def normalised(on: Tensors) -> Any:
    x = on["x"].double() - wide(on["mean"])
    return wide(on["scale"]) * x * wide(on["spread"]) + wide(on["bias"])


def normal_gradient(on: Tensors, count: int) -> Any:
    spread, (first, second) = wide(on["spread"]), (wide(row) for row in on["sums"])
    shares = first / count + (on["x"].double() - wide(on["mean"])) * spread * second / count
    return wide(on["scale"]) * spread * (on["dy"].double() - shares)


def sets(at: Maker) -> Iterator[Case]:
    """Statistics of a channel of an image, or of a site, and what is normalised by them."""
    shape, dtype, x, y = at.shape, at.dtype, at.map(), at.map("")
    n, c, *spatial = shape
    for by_site, what in ((False, "an image's channels"), (True, "sites")):
        unit = c if by_site else unit_of(shape)
        number = math.prod(spatial) if by_site else c
        axes = (1,) if by_site else (2, 3)
        kept = (n, 1, *spatial) if by_site else (n, c, 1, 1)
        known = Laid(kept, fill="positive", dtype=ACCUMULATOR[dtype])
        yield at.case(
            "set_statistics", f"moments of {what}", SetMoments(shape, dtype, unit, by_site),
            ("x", ""), "state", {"x": x, "state": Laid((3, n, number), dtype=DOUBLE)},
            partial(moments, axes=axes),
        )  # fmt: skip

        def sums(torch: Any, on: Tensors, axes: tuple[int, ...] = axes) -> Any:
            dy = on["dy"].double() * wide(on["scale"])
            hat = (on["x"].double() - on["mean"]) * on["inverse"].double()
            return torch.stack([dy.sum(axes), (dy * hat).sum(axes)]).reshape(on["sums"].shape)

        vectors = {"mean": known, "inverse": known, "scale": at.vector()}
        yield at.case(
            "set_statistics", f"sums of {what}",
            SetSums(shape, dtype, unit, by_site, statistics_shape=kept),
            ("x", "dy", *vectors, ""), "sums",
            {"x": x, "dy": x, **vectors, "sums": Laid((2, n, number), dtype=DOUBLE)}, sums,
        )  # fmt: skip
        yield at.case(
            "set_statistics", f"normalised by {what}", NormaliseSets(shape, dtype, by_site),
            ("x", "scale", "bias", "mean", "inverse"), "y",
            {"x": x, **vectors, "bias": at.vector(), "y": y},
            lambda torch, on: wide(on["scale"]) * (on["x"].double() - on["mean"]) * on["inverse"]
            + wide(on["bias"]),
        )  # fmt: skip
        count = math.prod(shape) // (n * number)

        def gradient(torch: Any, on: Tensors, count: int = count) -> Any:
            first, second = (row.reshape(on["mean"].shape) / count for row in on["sums"])
            inverse, dy = on["inverse"].double(), on["dy"].double() * wide(on["scale"])
            hat = (on["x"].double() - on["mean"]) * inverse
            return inverse * (dy - first - hat * second)

        yield at.case(
            "set_statistics", f"gradient by {what}",
            NormaliseSetsBackward(shape, dtype, count, by_site),
            ("x", "dy", "scale", "mean", "inverse", "sums"), "dx",
            {"x": x, "dy": x, **vectors, "dx": y,
             "sums": Laid((2, n, number), fill="random", dtype=DOUBLE)}, gradient,
        )  # fmt: skip

    def of_sites(torch: Any, on: Tensors) -> Any:
        dy = on["dy"].double() * wide(on["scale"])
        hat = (on["x"].double() - on["mean"]) * on["inverse"].double()
        shares = dy.mean(1, keepdim=True) + hat * (dy * hat).mean(1, keepdim=True)
        return on["inverse"] * (dy - shares)

    yield at.case(
        "set_statistics", "gradient of layer normalization", NormaliseSitesBackward(shape, dtype),
        ("x", "dy", "scale", "mean", "inverse"), "dx",
        {"x": x, "dy": x, **vectors, "dx": y}, of_sites,
    )  # fmt: skip


def softmaxes(at: Maker) -> Iterator[Case]:
    """Softmax over channels that lie one behind the other, over images, and losses of it."""
    shape, dtype, x, y = at.shape, at.dtype, at.map(), at.map("")
    n, c, *spatial = shape
    if at.order == "NCHW":
        yield at.case(
            "softmax_columns", "forward", Softmax(shape, "accurate", dtype), ("x",), "y",
            {"x": x, "y": y}, lambda torch, on: torch.softmax(on["x"].double(), 1),
        )  # fmt: skip
        yield at.case(
            "softmax_columns", "backward", SoftmaxBackward(shape, "accurate", dtype), ("y", "dy"),
            "dx", {"y": at.map("softmax"), "dy": x, "dx": y}, softmax_gradient,
        )  # fmt: skip
    images, every = (1, 2, 3), Laid((n, 2), dtype=DOUBLE)
    yield at.case(
        "image_softmax", "peaks", ImageMaximum(shape, dtype), ("x",), "state",
        {"x": x, "state": every}, peaks,
    )  # fmt: skip
    yield at.case(
        "image_softmax", "forward", ImageSoftmax(shape, "accurate", dtype), ("x", "state"), "y",
        {"x": x, "state": every._replace(fill="peaks"), "y": y},
        lambda torch, on: (on["x"].double() - on["state"][:, 0].reshape(-1, 1, 1, 1)).exp()
        / on["state"][:, 1].reshape(-1, 1, 1, 1),
    )  # fmt: skip
    one = Laid((n, 1), dtype=DOUBLE)
    yield at.case(
        "image_softmax", "sums", ImageProductSum(shape, "accurate", dtype), ("y", "dy"), "sums",
        {"y": x, "dy": x, "sums": one},
        lambda torch, on: (on["y"].double() * on["dy"].double()).sum(images)[:, None],
    )  # fmt: skip
    yield at.case(
        "image_softmax", "backward", ImageSoftmaxBackward(shape, "accurate", dtype),
        ("y", "dy", "sums"), "dx", {"y": x, "dy": x, "sums": one._replace(fill="random"), "dx": y},
        lambda torch, on: on["y"].double() * (on["dy"].double() - on["sums"][..., None, None]),
    )  # fmt: skip
    labels = Laid((n, *spatial), fill=f"below {c}", dtype="uint8")
    yield at.case(
        "losses", "cross entropy", CrossEntropy(shape, dtype, "uint8", 0.0, IGNORED),
        ("x", "labels", ""), "losses",
        {"x": x, "labels": labels, "losses": Laid((n, spatial[0]), dtype=DOUBLE)},
        lambda torch, on: torch.nn.functional.cross_entropy(
            on["x"].double(), on["labels"].long(), reduction="none"
        ).sum(-1),
    )  # fmt: skip
    dy = Laid((1,), fill="random", dtype=DOUBLE)

    def entropy_gradient(torch: Any, on: Tensors) -> Any:
        hot = torch.nn.functional.one_hot(on["labels"].long(), c).movedim(-1, 1)
        return on["dy"] * (torch.softmax(on["x"].double(), 1) - hot)

    yield at.case(
        "losses", "gradient of cross entropy",
        CrossEntropyBackward(shape, dtype, "uint8", 0.0, IGNORED, 1.0),
        ("x", "labels", "", "", "dy"), "dx", {"x": x, "labels": labels, "dy": dy, "dx": y},
        entropy_gradient,
    )  # fmt: skip
    yield at.case(
        "losses", "squared error", ElementLoss(shape, dtype, "squared"), ("x", "t", "", ""),
        "losses", {"x": x, "t": x, "losses": Laid((n, spatial[0]), dtype=DOUBLE)},
        lambda torch, on: (on["x"].double() - on["t"].double()).square().sum((1, 3)),
    )  # fmt: skip
    yield at.case(
        "losses", "gradient of the squared error", ElementLossBackward(shape, dtype, "squared"),
        ("x", "t", "", "", "dy"), "dx", {"x": x, "t": x, "dy": dy, "dx": y},
        lambda torch, on: 2 * on["dy"] * (on["x"].double() - on["t"].double()),
    )  # fmt: skip


def peaks(torch: Any, on: Tensors) -> Any:
    x = on["x"].double().flatten(1)
    return torch.stack([x.amax(1), (x - x.amax(1, keepdim=True)).exp().sum(1)], 1)


# Neighbours ---------------------------------------------------------------------------------------


def neighbours(at: Maker) -> Iterator[Case]:
    """Kernels whose elements are made of neighbours along the channels or along space."""
    shape, dtype, x, y = at.shape, at.dtype, at.map(), at.map("")
    narrow = "local_response_walk" if at.order == "NCHW" else "local_response_lanes"
    for kernel, size in ((narrow, RESPONSE), ("local_response_wide", WIDE_RESPONSE)):
        response = LocalResponse(shape, size, ALPHA, BETA, K, dtype)

        def response_of(torch: Any, value: Any, size: int = size) -> Any:
            return torch.nn.functional.local_response_norm(value, size, ALPHA, BETA, K)

        yield at.case(
            kernel, "forward", response, ("x",), "y", {"x": x, "y": y},
            partial(forward_of, response_of),
        )  # fmt: skip
        yield at.case(
            kernel, "backward", LocalResponseBackward(response), ("x", "dy"), "dx",
            {"x": x, "dy": x, "dx": y}, partial(gradient_of, response_of),
        )  # fmt: skip
    for window in (2, 3):
        pooling = Pooling.of(shape, window=window, stride=2, mode="max", dtype=dtype)
        sites = pooling.output_shape
        place = at.map("", sites, "uint8")
        yield at.case(
            "pooling_indices", f"{window}x{window}/2 forward", PoolingIndices(pooling), ("x", "y"),
            "index", {"x": x, "y": at.map("", sites), "index": place},
            partial(places, window=window),
        )  # fmt: skip
        yield at.case(
            "pooling_indices", f"{window}x{window}/2 backward",
            PoolingBackward(pooling, (0, shape[2]), indexed=True), ("index", "dy"), "dx",
            {"index": place._replace(fill=f"below {window * window}"), "dy": at.map(shape=sites),
             "dx": y}, partial(unpooled, window=window),
        )  # fmt: skip
    half = (*shape[:2], *(extent // 2 for extent in shape[2:]))
    ways: dict[str, tuple[str, Any, Callable[[Any, Any], Any]]] = {
        "doubled": (
            "interpolation", interpolation(half, scale_factor=2, mode="linear", dtype=dtype),
            lambda torch, v: torch.nn.functional.interpolate(v, scale_factor=2, mode="bilinear"),
        ),
        "nearest, doubled": (
            "gather", interpolation(half, scale_factor=2, dtype=dtype),
            lambda torch, v: torch.nn.functional.interpolate(v, scale_factor=2),
        ),
        "averages of 5 x 5": (
            "resampling", adaptive_pooling(shape, 5, mode="average", dtype=dtype),
            lambda torch, v: torch.nn.functional.adaptive_avg_pool2d(v, 5),
        ),
        "padded by 1": (
            "gather", describe_padding(shape, 1, dtype=dtype),
            lambda torch, v: torch.nn.functional.pad(v, (1,) * 4),
        ),
        "cropped by 1": (
            "gather", describe_padding(shape, -1, dtype=dtype), lambda torch, v: v[..., 1:-1, 1:-1],
        ),
    }  # fmt: skip
    for what, (kernel, operation, way) in ways.items():
        if kernel == "gather":
            kernel = "gather_nchw" if at.order == "NCHW" else "gather_nhwc"
        before, after = at.map(shape=operation.input_shape), at.map("", operation.output_shape)
        yield at.case(
            kernel, what, operation, ("x",), "y", {"x": before, "y": after},
            partial(forward_of, way),
        )  # fmt: skip
        parts = tuple((0, extent) for extent in operation.input_shape[2:])
        yield at.case(
            kernel, f"{what}, gradient", ResamplingBackward(operation, parts), ("dy",), "dx",
            {"dy": after._replace(fill="random"), "dx": before._replace(fill="")},
            partial(gradient_of, way),
        )  # fmt: skip


def forward_of(way: Callable[[Any, Any], Any], torch: Any, on: Tensors) -> Any:
    return way(torch, on["x"].double().contiguous())


def gradient_of(way: Callable[[Any, Any], Any], torch: Any, on: Tensors) -> Any:
    """By PyTorch's own gradient; of x, where it counts, else of anything of the shape of dx."""
    with torch.enable_grad():
        x = (on["x"] if "x" in on else torch.zeros_like(on["dx"])).double().contiguous()
        x.requires_grad_(True)
        (found,) = torch.autograd.grad(way(torch, x), x, on["dy"].double().contiguous())
    return found


def places(torch: Any, on: Tensors, window: int) -> Any:
    """Of each maximum in its window; the result is shown to hold y, too."""
    x = on["x"].double().contiguous()
    y, index = torch.nn.functional.max_pool2d(x, window, 2, return_indices=True)
    if not torch.equal(y, on["y"].double()):
        return index * math.nan
    height, width = (torch.arange(e, device=x.device) * 2 for e in y.shape[2:])
    row, column = index // x.shape[3] - height[:, None], index % x.shape[3] - width
    return row * window + column


def unpooled(torch: Any, on: Tensors, window: int) -> Any:
    index, dy = on["index"].long().contiguous(), on["dy"].double().contiguous()
    dx = torch.zeros(on["dx"].shape, dtype=dy.dtype, device=dy.device)
    rows, columns = dy.shape[2:]
    for place in range(window * window):
        row, column = divmod(place, window)
        seen = dx[:, :, row : row + 2 * rows - 1 : 2, column : column + 2 * columns - 1 : 2]
        seen += torch.where(index == place, dy, 0)
    return dx


def cases(*, quick: bool) -> tuple[Case, ...]:
    """One kernel after the other, of all orders and dtypes."""
    makers = [
        Maker(QUICK_SHAPE if quick else SHAPE, order, dtype)
        for order, dtype in itertools.product(ORDERS, TYPES)
    ]
    all_cases = [
        case
        for group in (elements, channels, sets, softmaxes, neighbours)
        for cases_of in itertools.zip_longest(*(group(at) for at in makers))
        for case in cases_of
        if case is not None
    ]
    return tuple(all_cases)
