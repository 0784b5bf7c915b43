"""Calls to be planned: of every function, on the layers of networks and on shapes drawn at random.

Each is a pure function of its index. Half are on the layers of VGG-16, of ResNet-50 and of networks
of volumes, with batches of one to thousands; the others have shapes as `accuracy_sketches` draws
them. Placements, dtypes and memory orders are those of `accuracy_draw`; limits go from a hundredth
of the data to more than all of it, and now and then are the least with which a call runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from benchmarks.accuracy_chains import LAYERS
from benchmarks.accuracy_draw import (
    GIB,
    MIB,
    Drawn,
    Scale,
    arithmetic,
    completed,
    draw_of,
    flops_by_kind,
    placements_of,
)
from benchmarks.accuracy_plans import planned_for
from benchmarks.accuracy_sketches import SKETCHES, Shape, Shapes, windowed
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.functions.call.plan import PlannedCall

MACHINE, SEED = "h200", 19
#: Problems of each function whose shapes are drawn, and how large these are: no arithmetic is done.
DRAWN = 20
SCALE = Scale(MIB, 64 * GIB, 16 * GIB, flops_by_kind(*[math.inf] * 4))
BATCHES = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 4096)
#: Limits over the bytes of all operands; and how many in a hundred are the least that will do.
SHARES, LEAST = (0.01, 1.5), 0.1


@dataclass(frozen=True)
class Layer:
    """A convolution of x (c, spatial...), padded by half its window."""

    x: Shape
    c_y: int
    window: int
    stride: int = 1


def _vgg() -> Iterator[Layer]:
    c_x, extent = 3, 224
    for c_y in LAYERS:
        if c_y:
            yield Layer((c_x, extent, extent), c_y, 3)
            c_x = c_y
        else:
            extent //= 2


VGG = tuple(_vgg())
RESNET = (
    Layer((3, 224, 224), 64, 7, 2),
    Layer((64, 56, 56), 64, 1),
    Layer((64, 56, 56), 64, 3),
    Layer((64, 56, 56), 256, 1),
    Layer((256, 56, 56), 128, 1),
    Layer((256, 56, 56), 512, 1, 2),
    Layer((128, 56, 56), 128, 3, 2),
    Layer((512, 28, 28), 256, 1),
    Layer((256, 28, 28), 256, 3, 2),
    Layer((256, 14, 14), 1024, 1),
    Layer((1024, 14, 14), 2048, 1, 2),
    Layer((512, 14, 14), 512, 3, 2),
    Layer((512, 7, 7), 2048, 1),
)
VOLUMES = (
    Layer((3, 16, 112, 112), 64, 3),
    Layer((64, 16, 56, 56), 128, 3),
    Layer((256, 8, 28, 28), 256, 3),
    Layer((512, 4, 14, 14), 512, 3),
    Layer((1, 256, 256, 256), 32, 3),
    Layer((32, 128, 128, 128), 64, 3, 2),
    Layer((3, 64, 224, 224), 64, 7, 2),
    Layer((128, 32, 32, 32), 128, 1),
)


class OfLayer(Shapes):
    """The shapes of a layer, where sketches ask for any."""

    def __init__(self, rng: np.random.Generator, layer: Layer) -> None:
        super().__init__(rng)
        self.layer = layer

    def image(self) -> Shape:
        return self.layer.x

    def convolution(self, c_x: int, extents: Shape) -> tuple[dict[str, Any], Shape, Shape]:
        window, stride, c_y = self.layer.window, self.layer.stride, self.layer.c_y
        geometry = {"padding": window // 2, "stride": stride, "dilation": 1, "groups": 1}
        y = (c_y, *windowed(extents, window, window // 2, stride))
        return geometry, (c_y, c_x, *[window] * len(extents)), y


@cache
def problems() -> tuple[tuple[str, Layer | None], ...]:
    """Every problem as (function, its layer), mixed; what convolves meets each layer twice."""
    all_problems: list[tuple[str, Layer | None]] = []
    for function in SKETCHES:
        convolves = "convolution" in function and "bias" not in function
        times = 2 if convolves or function == "chain_forward" else 1
        all_problems += [(function, layer) for layer in (*VGG, *RESNET, *VOLUMES) * times]
        all_problems += [(function, None)] * DRAWN
    order = np.random.default_rng(SEED).permutation(len(all_problems))
    return tuple(all_problems[at] for at in order)


def problem(index: int) -> Drawn:
    function, layer = problems()[index]
    rng = np.random.default_rng((SEED, index))
    if layer is None:
        drawn = draw_of(rng, function, SCALE)
    else:
        kind, where = arithmetic(rng), placements_of(rng)
        sketch = SKETCHES[function](OfLayer(rng, layer))
        drawn = completed(rng, function, sketch, int(rng.choice(BATCHES)), kind, where)
    share = math.exp(rng.uniform(*map(math.log, SHARES)))
    share = 0.0 if rng.random() < LEAST else round(share, 4)
    return replace(drawn, seed=SEED, index=index, memory_share=share)


def network_of(index: int) -> str:
    layer = problems()[index][1]
    networks = {"VGG": VGG, "ResNet": RESNET, "volumes": VOLUMES}
    return next((name for name, layers in networks.items() if layer in layers), "drawn")


def feasible(drawn: Drawn) -> tuple[PlannedCall, int] | None:
    """The plan of a call and its limit, raised to the least that will do; None if none will."""
    limit = drawn.memory_limit
    while True:
        try:
            return planned_for(drawn, MACHINE, limit), limit
        except PlanInfeasibleError as error:
            if error.smallest_bytes is None or error.smallest_bytes <= limit:
                return None
            limit = error.smallest_bytes
