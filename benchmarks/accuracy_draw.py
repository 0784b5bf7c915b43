"""One call drawn at random, as data: a pure function of seed, index and scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from benchmarks.accuracy_sketches import SKETCHES, Generator, Shape, Shapes, Sketch, pick
from ooc_cudnn.tensor import ACCUMULATOR, DTYPES, ORDERS

MIB, GIB = 2**20, 2**30
LARGEST_BATCH = 65536
#: Sketches that are drawn until one meets the scale.
ATTEMPTS = 1000
#: Rows between the images of an operand that is a slice of a taller tensor.
ROWS_APART = 3
#: Functions of one result that take a beta of 0 or 1; add_tensor's has another meaning.
SCALED = frozenset(
    {"convolution_forward", "convolution_backward_data", "activation_forward", "pooling_forward"}
)


@dataclass(frozen=True)
class Scale:
    """How large calls are: bytes of all operands, of those in files; arithmetic by dtype."""

    smallest_bytes: int
    largest_bytes: int
    largest_file_bytes: int
    flops: Mapping[str, float]


def flops_by_kind(tf32: float, half: float, strict: float, double: float) -> dict[str, float]:
    kinds = {"tf32": tf32, "float32": strict, "float64": double}
    return kinds | {"float16": half, "bfloat16": half}


SCALES = {
    "cuda": Scale(64 * MIB, 3 * GIB, 512 * MIB, flops_by_kind(2e13, 4e13, 1e13, 5e12)),
    "host": Scale(4 * MIB, 64 * MIB, 32 * MIB, flops_by_kind(1.5e10, 1e10, 1.5e10, 8e9)),
    "tiny": Scale(32 * 2**10, 512 * 2**10, 512 * 2**10, flops_by_kind(1e8, 1e8, 1e8, 1e8)),
}


@dataclass(frozen=True)
class Operand:
    """An array of a call. `order` may also be "rows_apart": rows of a taller tensor.

    `fill` is what it holds: any numbers ("data"), "filters" of a fitting size, "positive" ones, x
    "pooled", or "result" for what is written.
    """

    name: str
    shape: Shape
    dtype: str
    placement: str
    order: str
    fill: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype]


@dataclass(frozen=True)
class Drawn:
    """A call: what it computes, on what, from where to where, under which memory limit.

    `memory_share` is the limit over the bytes of all operands.
    """

    seed: int
    index: int
    function: str
    operands: tuple[Operand, ...]
    arguments: Mapping[str, Any]
    operations: tuple[tuple[str, Mapping[str, Any]], ...]
    allow_tf32: bool
    memory_share: float
    flops: float

    @property
    def nbytes(self) -> int:
        return sum(operand.nbytes for operand in self.operands)

    @property
    def memory_limit(self) -> int:
        return max(int(self.nbytes * self.memory_share), 4096)

    @property
    def placement_class(self) -> str:
        """The slowest placement among the large operands; "device" where nothing is copied."""
        large = {o.placement for o in self.operands if 16 * o.nbytes >= self.nbytes}
        return next(p for p in ("disk", "pageable", "pinned", "device") if p in large)

    def __str__(self) -> str:
        arrays = ", ".join(
            f"{o.name} {'x'.join(map(str, o.shape))} {o.placement}"
            + ("" if o.order == "channels_first" else f" {o.order}")
            for o in self.operands
            if 64 * o.nbytes >= self.nbytes
        )
        dtype = self.operands[0].dtype
        dtype += " tf32" * (self.allow_tf32 and dtype == "float32")
        what = "-".join(kind for kind, _ in self.operations) or self.arguments or ""
        return f"#{self.index} {self.function} {what} {dtype} of {arrays}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Drawn:
        known = dict(data)
        known["operands"] = tuple(
            Operand(**{**operand, "shape": tuple(operand["shape"])}) for operand in data["operands"]
        )
        known["operations"] = tuple((kind, options) for kind, options in data["operations"])
        return cls(**known)


def draw(seed: int, index: int, scale: Scale) -> Drawn:
    """Draw a call. Each run of as many indices as there are functions holds every function once."""
    names = tuple(SKETCHES)
    turn, place = divmod(index, len(names))
    function = names[np.random.default_rng((seed, turn)).permutation(len(names))[place]]
    rng = np.random.default_rng((seed, turn, place, 1))
    return replace(draw_of(rng, function, scale), seed=seed, index=index)


def draw_of(rng: Generator, function: str, scale: Scale) -> Drawn:
    dtype, tf32 = arithmetic(rng)
    for _ in range(ATTEMPTS):
        sketch = SKETCHES[function](Shapes(rng))
        placements = placements_of(rng)
        n = _batch(rng, sketch, dtype, tf32, scale, on_disk="disk" in placements)
        if n:
            return completed(rng, function, sketch, n, (dtype, tf32), placements)
    raise ValueError(f"no {function} of this scale in {ATTEMPTS} attempts: {scale}")


def completed(
    rng: Generator,
    function: str,
    sketch: Sketch,
    n: int,
    kind: tuple[str, bool],
    placements: tuple[str, ...],
) -> Drawn:
    """Draw what a sketch of so many images leaves open."""
    arguments = dict(sketch.arguments)
    if function in SCALED and rng.random() < 0.15:
        arguments["beta"] = 1.0
    return Drawn(
        seed=0,
        index=0,
        function=function,
        operands=_operands(rng, sketch, n, kind[0], placements),
        arguments=arguments,
        operations=tuple(sketch.operations),
        allow_tf32=kind[1],
        memory_share=_memory_share(rng, placements),
        flops=sketch.flops * n,
    )


def arithmetic(rng: Generator) -> tuple[str, bool]:
    """(dtype, whether TF32 is allowed)."""
    kinds = (("float32", True), ("float32", True), ("float32", False), ("float16", True))
    return pick(rng, (*kinds, ("bfloat16", True), ("float64", True)))


def placements_of(rng: Generator) -> tuple[str, ...]:
    """Where large operands may be: each gets one of these."""
    return pick(
        rng,
        (
            *[("pinned",)] * 7,
            *[("pageable",)] * 3,
            ("device",),
            *[("device", "pinned")] * 3,
            *[("device", "pinned", "pageable")] * 3,
            ("disk", "pinned"),
            ("disk", "pageable"),
        ),
    )


def _memory_share(rng: Generator, placements: tuple[str, ...]) -> float:
    if placements == ("device",) or rng.random() < 0.2:
        return 4.0  # all operands fit beside what is computed on the way
    return round(math.exp(rng.uniform(math.log(0.03), math.log(0.8))), 4)


def _batch(
    rng: Generator, sketch: Sketch, dtype: str, tf32: bool, scale: Scale, *, on_disk: bool
) -> int:
    """Draw n so that the call has the bytes and the arithmetic of the scale; 0 if none does."""
    shapes = [*sketch.data.values(), *sketch.results.values()]
    if any(extent < 1 for shape in shapes for extent in shape):
        return 0
    image = sum(math.prod(shape) for shape in shapes) * DTYPES[dtype]
    small = sum(math.prod(s) for s in (*sketch.vectors.values(), *sketch.sums.values())) * 8
    largest = scale.largest_file_bytes if on_disk else scale.largest_bytes
    target = math.exp(rng.uniform(math.log(scale.smallest_bytes), math.log(largest)))
    flops = scale.flops["tf32" if dtype == "float32" and tf32 else dtype]
    if len(next(iter(shapes))) != 3:
        flops /= 8  # series and volumes have slower kernels
    affordable = flops / sketch.flops if sketch.flops else math.inf
    n = int(min(target // image, affordable, LARGEST_BATCH))
    fits = small <= n * image and n * image >= scale.smallest_bytes
    return n if fits else 0


def _operands(
    rng: Generator, sketch: Sketch, n: int, dtype: str, placements: tuple[str, ...]
) -> tuple[Operand, ...]:
    """Give every operand a placement and a memory order."""
    usual = ORDERS[int(rng.random() < 0.3)]
    apart, mixed = rng.random() < 0.1, rng.random() < 0.1
    wide, operands = ACCUMULATOR[dtype], []

    def add(name: str, shape: Shape, fill: str, *, small: bool) -> None:
        kind = wide if name in sketch.wide else dtype
        if not small:
            order = pick(rng, ORDERS) if mixed else usual
            if apart and order == "channels_first":
                order = "rows_apart"
            operands.append(Operand(name, (n, *shape), kind, pick(rng, placements), order, fill))
            return
        order = usual if len(shape) > 2 else "channels_first"
        where = pick(rng, ("device", "device", "device", "pinned", "pageable"))
        operands.append(Operand(name, shape, kind, where, order, fill))

    for name, shape in sketch.data.items():
        add(name, shape, sketch.fills.get(name, "data"), small=False)
    for name, shape in sketch.vectors.items():
        add(name, shape, sketch.fills.get(name, "data"), small=True)
    for name, shape in sketch.results.items():
        add(name, shape, "result", small=False)
    for name, shape in sketch.sums.items():
        add(name, shape, "result", small=True)
    return tuple(operands)
