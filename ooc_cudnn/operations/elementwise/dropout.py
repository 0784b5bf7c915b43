"""Dropout: elements, or whole channels of an image, that random numbers made of their index drop.

Philox makes the numbers: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2,
3" (2011), in the form 4x32-10. The counter is the index of the element in the whole tensor, in the
order n, c, spatial, whatever the order of memory. So an element is kept or dropped alike however
the tensor is cut, and backward makes the numbers again rather than keep them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.core.call import Operand, Piece, Read, Region, Rounding
from ooc_cudnn.operations.core.elementwise import OneShape
from ooc_cudnn.operations.core.launch import Launchable
from ooc_cudnn.operations.core.launch_builder import Builder, BuiltCall
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.pointwise_call import PointwiseCall
from ooc_cudnn.operations.core.single_op import CUT
from ooc_cudnn.tensor import packed_strides
from perfmodel import Split, Work, pass_work
from perfmodel.cached import cached_property

#: Of Philox4x32: what each round multiplies by, and what it adds to the key.
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LOW = np.uint64(0xFFFFFFFF)

#: Seed and offset: below 2**53, so that they fit a float64, in which `verify` reads them.
STATE = Operand((2,), "int64", frozenset())


def philox(counter: tuple[Array, ...], key: tuple[int, int]) -> tuple[Array, ...]:
    """Philox4x32-10: four words of 32 bits for each counter of four words; uint64 arrays of words.

    >>> words = philox((np.zeros(1, "u8"),) * 4, (0, 0))
    >>> [f"{int(word[0]):08x}" for word in words]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    a, b, c, d = counter
    shift = np.uint64(32)
    for turn in range(ROUNDS):
        keys = ((k + turn * step) & 0xFFFFFFFF for k, step in zip(key, KEY_STEPS, strict=True))
        one, two = a * np.uint64(MULTIPLIERS[0]), c * np.uint64(MULTIPLIERS[1])
        first, second = map(np.uint64, keys)
        a, b, c, d = (two >> shift) ^ b ^ first, two & LOW, (one >> shift) ^ d ^ second, one & LOW
    return a, b, c, d


def random_words(starts: Array, length: int, seed: int, offset: int) -> Array:
    """Words of 32 bits of the `length` indices from each start, on a new last axis.

    Each index has one of the four words of the counter (index // 4, offset).
    """
    blocks = starts[..., None] // 4 + np.arange((length + 6) // 4)
    low = blocks.astype(np.uint64)
    other = np.full(low.shape, offset, np.uint64)
    shift = np.uint64(32)
    counter = (low & LOW, low >> shift, other & LOW, other >> shift)
    words = np.stack(philox(counter, (seed & 0xFFFFFFFF, seed >> 32)), axis=-1)
    positions = starts[..., None] % 4 + np.arange(length)
    return np.take_along_axis(words.reshape(*starts.shape, -1), positions, axis=-1)


@dataclass(frozen=True)
class Dropout(OneShape):
    """y = x / (1 - p) where kept, else x * 0, from (x, state); state is (seed, offset).

    It is its own gradient: dx of dy, by the same state. NaN times 0 is NaN: it is not hidden.

    Parameters
    ----------
    shape : tuple of int
        Of x and y.
    whole, first : tuple of int
        The shape of the tensor that they are a piece of, and where in it the piece begins.
    p : float
        The probability that an element is dropped, or with `per_channel` a channel of an image.

    Source: cudnnDropoutForward, cudnnDropoutBackward.
    """

    shape: Shape
    whole: Shape
    first: Shape
    p: float
    per_channel: bool
    dtype: str

    name = "dropout"

    @property
    def threshold(self) -> int:
        """Words from here on keep their element."""
        return round(self.p * 2**32)

    @property
    def scale(self) -> float:
        """Factor of kept elements."""
        return 1 / (1 - self.p) if self.p < 1 else 0.0

    @property
    def index_strides(self) -> Shape:
        """Strides of an element's index, or its channel's, along each axis."""
        if self.per_channel:
            return (self.whole[1], 1, *[0] * (len(self.whole) - 2))
        return packed_strides(self.whole)

    @property
    def first_index(self) -> int:
        """The index of the first element."""
        return sum(at * step for at, step in zip(self.first, self.index_strides, strict=True))

    def work(self) -> Work:
        """A read and a write."""
        return self.passes("", 2, problem="dropout")

    def factors(self, box: tuple[slice, ...], state: Array) -> Array:
        """Return the factors of a box's elements, to be broadcast to it."""
        last = 1 if self.per_channel else len(box) - 1
        starts = np.full((), self.first_index, np.int64)
        for axis, (part, step) in enumerate(zip(box, self.index_strides, strict=True)):
            if axis < last:
                starts = starts[..., None] + np.arange(part.start, part.stop) * step
        starts = starts + box[last].start
        seed, offset = (int(word) for word in state)
        length = box[last].stop - box[last].start
        kept = random_words(starts, length, seed, offset) >= self.threshold
        return (kept * self.scale).reshape(*kept.shape, *[1] * (len(box) - 1 - last))

    def reference(self, *inputs: Array) -> Array:
        x, state = inputs
        box = tuple(slice(0, extent) for extent in self.shape)
        return x.astype(np.float64) * self.factors(box, state)


@dataclass(frozen=True)
class DropoutCall(PointwiseCall):
    """y from x and state; backward dx of dy by the same call."""

    shape: Shape
    p: float
    dtype: str
    per_channel: bool = False

    takes = ("x", "state")

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        data = Operand(self.shape, self.dtype, CUT)
        return {"x": data, "state": STATE, "y": data}

    def region(self, name: str, piece: Piece) -> Region:
        return ((0, 2),) if name == "state" else super().region(name, piece)

    def launch_key(self, piece: Piece) -> Hashable:
        """Key of a piece's launches, its position among it: numbers are made of that."""
        return super().launch_key(piece), piece.n[0], piece.c_y[0], piece.h_y[0]

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> Dropout:
        first = tuple(start for start, _ in self.region("x", piece))
        return Dropout(
            self.piece_shape(piece), self.shape, first, self.p, self.per_channel, result_dtype
        )

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        value = operation.reference(*inputs)  # type: ignore[attr-defined]
        return value, np.abs(value)


@dataclass(frozen=True)
class Advance:
    """The next offset, from (state,), in place."""

    name = "advance"
    output_shape: Shape = (2,)

    def work(self) -> Work:
        """A number."""
        return pass_work("pointwise/float64", device_bytes=16.0, elements=1)


@dataclass(frozen=True)
class AdvanceCall(BuiltCall):
    """(seed, offset) becomes (seed, offset + 1), in place: other numbers in the next step."""

    dtype: str = "int64"

    lead = "state"
    results = ("state",)
    loaded = ("state",)
    reduced = ()
    operands = {"state": STATE}  # noqa: RUF012  # nobody changes it
    extents = Split(n=1, c_y=1, c_x=1, h_y=1)

    def region(self, name: str, piece: Piece) -> Region:
        return ((0, 2),)

    def scaling(self, result: str) -> tuple[float, float]:
        return 1.0, 0.0

    def build(self, build: Builder) -> None:
        build.launch(Advance(), ("state",), "state")

    def patch(self, random: np.random.Generator) -> Piece:
        return self.whole_piece()

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        old = read("state", ((0, 2),))
        return {"state": (old + np.array([0.0, 1.0]), np.abs(old))}

    def rounding(self) -> Rounding:
        return Rounding(1, "float64")
