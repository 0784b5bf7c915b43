"""Calls to be planned: drawn at random from a seed, of every function that can be planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc_cudnn import operations
from ooc_cudnn.functions.plan import plan_request
from ooc_cudnn.pricing.request import Request
from ooc_cudnn.tensor import TensorSpec

PLENTY = 2**60


@dataclass(frozen=True)
class Sizes:
    """n images of c_x channels, height x width; c_y channels out of a window, in groups."""

    n: int
    c_x: int
    c_y: int
    height: int
    width: int
    window: int
    groups: int
    dtype: str
    placement: str


def drawn_sizes(random: np.random.Generator, *, small: bool = False) -> Sizes:
    """Sizes of all magnitudes: many images or one, few channels or many, tall or flat."""

    def between(low: float, high: float) -> int:
        return round(float(np.exp(random.uniform(np.log(low), np.log(high)))))

    groups = int(random.choice([1, 1, 1, 2, 4]))
    most = 8 if small else 1024
    pixels = between(1, 12 if small else 2048)
    return Sizes(
        n=between(1, 8 if small else 512),
        c_x=groups * between(1, most / groups),
        c_y=groups * between(1, most / groups),
        height=pixels,
        width=max(1, between(pixels / 2, pixels * 2)),
        window=int(random.choice([1, 3, 3, 5])),
        groups=groups,
        dtype=str(random.choice(["float32", "float32", "float16"])),
        placement=str(random.choice(["pinned", "pinned", "pageable"])),
    )


def arguments(function: str, sizes: Sizes) -> dict[str, Any]:
    """The arguments of a call of these sizes."""
    made: Callable[..., dict[str, Any]] = _MAKERS[function]
    return made(sizes)


def request(function: str, share: float, machine: str, **given: Any) -> Request:
    """What is to be planned under a share of the data, as the planner sees it."""
    made = plan_request(function, machine=machine, memory_limit=PLENTY, **given)
    data = sum(spec.nbytes for spec in made.specs.values())
    return replace(made, memory_limit=max(1, int(share * data)))


def problems(
    functions: tuple[str, ...], count: int, seed: int, machine: str, *, small: bool = False
) -> Iterator[tuple[str, float, Request]]:
    """So many calls of each function: (function, share of the data that is the limit, request)."""
    for at, function in enumerate(functions):
        random = np.random.default_rng((seed, at))
        for _ in range(count):
            share = float(np.exp(random.uniform(np.log(0.005), 0.0)))
            given = arguments(function, drawn_sizes(random, small=small))
            yield function, share, request(function, share, machine, **given)


def _spec(on: Sizes, *shape: int, placement: str = "") -> TensorSpec:
    return TensorSpec(shape, on.dtype, placement or on.placement)


def _x(on: Sizes) -> TensorSpec:
    return _spec(on, on.n, on.c_x, on.height, on.width)


def _y(on: Sizes) -> TensorSpec:
    return _spec(on, on.n, on.c_y, on.height, on.width)


def _w(on: Sizes) -> TensorSpec:
    return _spec(on, on.c_y, on.c_x // on.groups, on.window, on.window)


def _geometry(on: Sizes) -> dict[str, Any]:
    return {"padding": on.window // 2, "groups": on.groups}


def _vector(on: Sizes, channels: int) -> TensorSpec:
    return TensorSpec((channels,), "float32", "device")


def _bias(on: Sizes) -> TensorSpec:
    return _spec(on, on.c_y, placement="device")


def _pooled(on: Sizes) -> TensorSpec:
    half = [(extent + 1) // 2 for extent in (on.height, on.width)]
    return _spec(on, on.n, on.c_x, *half)


def _pooling(on: Sizes) -> dict[str, Any]:
    """Windows of 2 whose padding makes up for odd extents."""
    padding = tuple((0, extent % 2) for extent in (on.height, on.width))
    return {"window": 2, "stride": 2, "padding": padding}


def _chain(on: Sizes) -> dict[str, Any]:
    w = _spec(on, on.c_y, on.c_x, on.window, on.window)
    again = _spec(on, on.c_y, on.c_y, on.window, on.window)
    padding = on.window // 2
    return {
        "x": _x(on),
        "operations": [
            operations.Convolution(w, padding=padding),
            operations.AddTensor(_bias(on)),
            operations.Activation("relu"),
            operations.Convolution(again, padding=padding),
        ],
    }


_MAKERS: dict[str, Callable[[Sizes], dict[str, Any]]] = {
    "convolution_forward": lambda on: {"x": _x(on), "w": _w(on), **_geometry(on)},
    "convolution_backward_data": lambda on: {"w": _w(on), "dy": _y(on), **_geometry(on)},
    "convolution_backward_filter": lambda on: {
        "x": _x(on), "dy": _y(on), "filter_shape": _w(on).shape, **_geometry(on)
    },
    "convolution_backward_bias": lambda on: {"dy": _y(on)},
    "add_tensor": lambda on: {"b": _bias(on), "y": _y(on)},
    "activation_forward": lambda on: {"x": _x(on)},
    "activation_backward": lambda on: {"y": _x(on), "dy": _x(on)},
    "pooling_forward": lambda on: {"x": _x(on), **_pooling(on)},
    "pooling_backward": lambda on: {
        "y": _pooled(on), "dy": _pooled(on), "x": _x(on), **_pooling(on)
    },
    "softmax_forward": lambda on: {"x": _x(on), "mode": "instance"},
    "softmax_backward": lambda on: {"y": _x(on), "dy": _x(on)},
    "batch_normalization_forward_training": lambda on: {
        "x": _x(on), "scale": _vector(on, on.c_x), "bias": _vector(on, on.c_x)
    },
    "batch_normalization_forward_inference": lambda on: {
        "x": _x(on),
        **{name: _vector(on, on.c_x) for name in ("scale", "bias", "mean", "variance")},
    },
    "batch_normalization_backward": lambda on: {
        "x": _x(on),
        "dy": _x(on),
        **{
            name: _vector(on, on.c_x)
            for name in ("scale", "saved_mean", "saved_inverse_variance")
        },
    },
    "convolution_add_activation_forward": lambda on: {
        "x": _x(on), "w": _w(on), "b": _bias(on), **_geometry(on)
    },
    "convolution_add_activation_pooling_forward": lambda on: {
        "x": _x(on), "w": _w(on), "b": _bias(on), **_geometry(on), "window": 1
    },
    "convolution_add_activation_backward": lambda on: {
        "x": _x(on), "w": _w(on), "y": _y(on), "dy": _y(on), **_geometry(on)
    },
    "chain_forward": _chain,
}  # fmt: skip
