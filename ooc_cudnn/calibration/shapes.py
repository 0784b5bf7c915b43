"""Problems of a calibration: usual convolutions and passes, drawn with a fixed seed.

The draw depends on nothing but the seed, so two calibrations of one machine measure the same.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.tensor import DTYPES, TensorSpec, packed_strides

DIRECTIONS = ("forward", "backward_data", "backward_filter")

CHANNELS = (3, 8, 16, 32, 32, 48, 64, 64, 64, 96, 128, 128, 128, 192, 256, 256, 384, 512, 512, 1024)
EXTENTS = (7, 14, 28, 32, 56, 64, 112, 128, 224, 256, 512, 1024, 2048)
WINDOWS, DEPTHWISE_WINDOWS = (1, 3, 3, 3, 3, 5, 7), (3, 3, 5, 7)
STRIDED, VOLUMES, GROUPED = 0.15, 0.1, 0.08
LARGEST_BATCH = 65535
#: What computes without tensor cores is slower: so much less of it takes as long.
SLOW_SHARE = {"float32": 0.2, "float64": 0.05}


@dataclass(frozen=True)
class Pool:
    """Sizes of the sampled computations."""

    #: Binary logarithms of the fewest and the most bytes of x and y.
    convolution_bytes: tuple[float, float]
    #: No convolution takes more, so that none takes long.
    most_flops: float
    #: Binary logarithms of the fewest and the most bytes of the tensor that a pass goes through.
    pass_bytes: tuple[float, float]
    #: Numbers of channels, the usual ones more often.
    channels: tuple[int, ...]


GPU_POOL = Pool((22.0, 28.5), 1e12, (22.5, 30.0), CHANNELS)
HOST_POOL = Pool((18.0, 21.5), 1e8, (17.0, 21.0), CHANNELS[:16])


def convolutions(
    seed: str, pool: Pool, dtype: str, *, allow_tf32: bool, count: int, depthwise: bool = False
) -> Iterator[Convolution]:
    """Draw so many convolutions, channels-first: the same seed draws the same ones.

    All of them `depthwise`, or none.
    """
    draw = random.Random(seed)
    slow = dtype == "float64" or (dtype == "float32" and not allow_tf32)
    most_flops = pool.most_flops * (SLOW_SHARE[dtype] if slow else 1.0)
    for part in range(count):
        candidate = None
        while candidate is None or candidate.work().flops > most_flops:
            most_bytes = 2 ** _between(draw, pool.convolution_bytes, part, count)
            drawn = _depthwise if depthwise else _convolution
            candidate = drawn(draw, pool, dtype, most_bytes, allow_tf32=allow_tf32)
        yield candidate


def _between(draw: random.Random, bounds: tuple[float, float], part: int, parts: int) -> float:
    """A number between the bounds, in one of their equal parts: so all sizes are there."""
    low, high = bounds
    return low + (high - low) * (part + draw.random()) / parts


def _convolution(
    draw: random.Random, pool: Pool, dtype: str, most_bytes: float, *, allow_tf32: bool
) -> Convolution | None:
    """One convolution of about so many bytes, or None where the draw makes no sense."""
    c_x, c_y, groups = draw.choice(pool.channels), draw.choice(pool.channels), 1
    if draw.random() < GROUPED:
        groups, c_y = draw.choice((2, 4, 32)), c_x
    window = draw.choice(WINDOWS)
    if c_x % groups or c_x == groups:
        return None
    return _sized(draw, (c_x, c_y, groups), window, dtype, most_bytes, allow_tf32=allow_tf32)


def _depthwise(
    draw: random.Random, pool: Pool, dtype: str, most_bytes: float, *, allow_tf32: bool
) -> Convolution | None:
    """The same of one whose channels are convolved each by itself."""
    c, window = draw.choice(pool.channels), draw.choice(DEPTHWISE_WINDOWS)
    return _sized(draw, (c, c, c), window, dtype, most_bytes, allow_tf32=allow_tf32)


def _sized(
    draw: random.Random, channels: tuple[int, int, int], window: int, dtype: str,
    most_bytes: float, *, allow_tf32: bool,
) -> Convolution | None:  # fmt: skip
    """A convolution of so many channels of x and of y, in so many groups."""
    c_x, c_y, groups = channels
    stride = 2 if draw.random() < STRIDED else 1
    extent = draw.choice(EXTENTS)
    sites = [extent, draw.choice((extent, 2 * extent, max(4, extent // 2)))]
    if draw.random() < VOLUMES:
        sites, window = [draw.choice((4, 8, 16, 32)), *(min(e, 256) for e in sites)], min(window, 3)
    if min(sites) < window:
        return None
    image_bytes = (c_x + c_y / stride ** len(sites)) * math.prod(sites) * DTYPES[dtype]
    n = round(most_bytes / image_bytes)
    if not 1 <= n <= LARGEST_BATCH:
        return None
    return Convolution.of(
        (n, c_x, *sites),
        (c_y, c_x // groups, *[window] * len(sites)),
        padding=window // 2,
        stride=stride,
        groups=groups,
        dtype=dtype,
        allow_tf32=allow_tf32,
    )


def passes(
    seed: str, pool: Pool, dtype: str, count: int
) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Draw so many calls of each function that is a pass: its name, arguments, memory order."""
    draw = random.Random(seed)
    for part in range(count):
        for function, arguments in _PASSES.items():
            layout = draw.choice(("channels_first", "channels_last"))
            elements = 2 ** _between(draw, pool.pass_bytes, part, count) / DTYPES[dtype]
            c, extent = draw.choice(pool.channels), draw.choice(EXTENTS[2:])
            extent = min(extent, max(7, math.isqrt(int(elements / c))))
            n = min(LARGEST_BATCH, max(1, round(elements / (c * extent * extent))))
            x = _spec((n, c, extent, extent), dtype, layout)
            yield function, arguments(draw, x), layout


def _spec(shape: Shape, dtype: str, order: str) -> TensorSpec:
    return TensorSpec(shape, dtype, "pinned", packed_strides(shape, order))


def _vector(x: TensorSpec) -> TensorSpec:
    """A parameter of each channel."""
    return TensorSpec(x.shape[1:2], "float64" if x.dtype == "float64" else "float32", "pinned")


def _pooling(draw: random.Random, x: TensorSpec) -> dict[str, Any]:
    window, stride = draw.choice(((2, 2), (2, 2), (3, 2), (3, 1), (5, 2)))
    mode = draw.choice(("max", "average_include_padding", "average_exclude_padding"))
    return {"x": x, "window": window, "stride": stride, "mode": mode}


def _pooling_backward(draw: random.Random, x: TensorSpec) -> dict[str, Any]:
    found = _pooling(draw, x)
    sites = ((extent - found["window"]) // found["stride"] + 1 for extent in x.shape[2:])
    y = _spec((*x.shape[:2], *sites), x.dtype, x.order or "channels_first")
    return {**found, "y": y, "dy": y}


#: Functions that are passes over device memory, and their arguments on a tensor like x.
_PASSES: Mapping[str, Callable[[random.Random, TensorSpec], Mapping[str, Any]]] = {
    "activation_forward": lambda draw, x: {
        "x": x, "mode": draw.choice(("relu", "sigmoid", "tanh", "gelu")),
    },
    "activation_backward": lambda draw, x: {
        "y": x, "dy": x, "x": x, "mode": draw.choice(("relu", "sigmoid", "gelu")),
    },
    "add_tensor": lambda draw, x: {
        "b": TensorSpec((1, x.shape[1], 1, 1), x.dtype, "pinned"), "y": x,
    },
    "convolution_backward_bias": lambda draw, x: {"dy": x},
    "pooling_forward": _pooling,
    "pooling_backward": _pooling_backward,
    "softmax_forward": lambda draw, x: {"x": x},
    "softmax_backward": lambda draw, x: {"y": x, "dy": x},
    "batch_normalization_forward_inference": lambda draw, x: {
        "x": x, **dict.fromkeys(("scale", "bias", "mean", "variance"), _vector(x)),
    },
    "batch_normalization_forward_training": lambda draw, x: {
        "x": x, "scale": _vector(x), "bias": _vector(x),
    },
    "batch_normalization_backward": lambda draw, x: {"x": x, "dy": x, "scale": _vector(x)},
}  # fmt: skip
