"""Operands of drawn calls, carved from a few blocks of memory that are allocated once.

Page-locking costs half a second a GiB, so every call is given parts of the same blocks: one of each
placement that is read, one that is written. What is read holds 16-bit words that are numbers of
modest size in every dtype, so no call needs it filled anew.
"""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

import ooc_cudnn
from benchmarks.accuracy_draw import ROWS_APART, Drawn, Operand, Scale
from ooc_cudnn import operations
from ooc_cudnn.devices import get_device
from ooc_cudnn.tensor import DTYPES, numpy_dtype

ALIGNMENT = 4096
#: Of the largest call, what a block holds: rows apart take more room, and so does alignment.
BLOCK_SHARE = 1.5
#: Elements of a result that are looked at, about.
SAMPLES = 4096
Array = Any


def words(count: int) -> np.ndarray[Any, Any]:
    """Random 16-bit words 0b?01111??????????: whatever the dtype, numbers of at most 2.

    They are in [1, 2) as float16, at least 2**-7 as bfloat16 and float32, 2**-63 as float64, of
    either sign; none is infinite, denormal or no number.
    """
    drawn = np.random.default_rng(0).integers(0, 2**11, count, np.uint16)
    return ((drawn & 0x3FF) | 0x3C00 | (drawn & 0x400) << 5).astype(np.uint16)


class Block:
    """Memory of one placement, handed out from its start; every call starts anew."""

    def __init__(self, raw: Array) -> None:
        self.raw, self.taken = raw, 0

    def take(self, nbytes: int) -> Array:
        start = self.taken
        self.taken = start + -(-nbytes // ALIGNMENT) * ALIGNMENT
        if start + nbytes > self.raw.nbytes:
            raise MemoryError(f"{nbytes} more bytes than a block of {self.raw.nbytes} has left")
        return self.raw[start : start + nbytes]


class Blocks:
    """All memory of a run: what calls read and what they write, by placement."""

    def __init__(self, device_name: str, scale: Scale, folder: Path) -> None:
        self.device, self.folder = get_device(device_name), folder
        self.pattern = words(2**20)
        nbytes = int(scale.largest_bytes * BLOCK_SHARE)
        self.read = {name: Block(self._raw(name, nbytes)) for name in PLACES}
        self.written = {name: Block(self._raw(name, nbytes)) for name in PLACES}
        for block in self.read.values():
            self.fill(block.raw)

    def _raw(self, placement: str, nbytes: int) -> Array:
        """Allocate bytes and touch each; none are counted against the memory limit of a call."""
        if placement == "pinned":
            raw = self.device.allocate_pinned(nbytes)
        elif placement == "pageable":
            raw = np.empty(nbytes, np.uint8)
        elif self.device.kind == "cuda":
            import cupy

            raw = cupy.empty(nbytes, np.uint8)
        else:
            from ooc_cudnn.devices.host.device import HostAllocation

            raw = self.device.as_array(HostAllocation(nbytes), (nbytes,), "uint8")
        raw[...] = 0
        return raw

    def fill(self, raw: Array) -> None:
        """Fill bytes with the words of the pattern."""
        pattern = self.beside(raw, self.pattern.view(np.uint8))
        for start in range(0, raw.nbytes, pattern.nbytes):
            part = raw[start : start + pattern.nbytes]
            part[...] = pattern[: part.nbytes]

    @staticmethod
    def beside(raw: Array, array: np.ndarray[Any, Any]) -> Array:
        """Return an array where `raw` is: itself, or a copy on the card."""
        if isinstance(raw, np.ndarray):
            return array
        import cupy

        return cupy.asarray(array)

    def release(self) -> None:
        """Take back what the last call was given."""
        for block in (*self.read.values(), *self.written.values()):
            block.taken = 0
        for path in self.folder.iterdir():
            path.unlink()


PLACES = ("device", "pinned", "pageable")


class Bound:
    """A drawn call on operands of its own: it can be planned, run and looked at.

    Files are mapped anew ahead of each run (`prepare`): what is read is not in the page cache then,
    what is written is a new file, which is what calibration measures.
    """

    def __init__(self, drawn: Drawn, blocks: Blocks) -> None:
        self.drawn, self.blocks = drawn, blocks
        blocks.release()
        self.arrays: dict[str, Array] = {}
        self.mapped: dict[str, mmap.mmap] = {}
        for operand in drawn.operands:
            if operand.placement == "disk":
                self._write_file(operand)
            else:
                self.arrays[operand.name] = self._carved(operand)
        self.prepare()
        if any(operand.fill == "pooled" for operand in drawn.operands):
            # the gradient of a maximum goes where x is y
            ooc_cudnn.pooling_forward(self.arrays["x"], **drawn.arguments, out=self.arrays["y"])

    def _carved(self, operand: Operand) -> Array:
        source = self.blocks.read if operand.fill == "data" else self.blocks.written
        raw = source[operand.placement].take(stored_bytes(operand))
        if operand.fill == "result" and self.drawn.arguments.get("beta"):
            self.blocks.fill(raw)
        if operand.fill in ("filters", "positive"):
            stored = np.zeros(raw.nbytes, np.uint8)
            shaped(stored, operand)[...] = _values(operand)
            raw[...] = self.blocks.beside(raw, stored)
        return shaped(raw, operand)

    # Files -------------------------------------------------------------------------------------

    def _path(self, operand: Operand) -> Path:
        return self.blocks.folder / f"{operand.name.replace('/', ' ')}.bin"

    def _write_file(self, operand: Operand) -> None:
        raw = np.memmap(self._path(operand), np.uint8, "w+", shape=(stored_bytes(operand),))
        self.blocks.fill(raw)
        raw.flush()

    def prepare(self) -> None:
        """Map the files, as they are met by a program that has not used them yet."""
        for operand in self.drawn.operands:
            if operand.placement != "disk":
                continue
            if (mapped := self.mapped.pop(operand.name, None)) is not None:
                mapped.madvise(mmap.MADV_DONTNEED)  # pages in use would stay in the page cache
            path, nbytes = self._path(operand), stored_bytes(operand)
            if operand.fill == "result" and not self.drawn.arguments.get("beta"):
                path.unlink(missing_ok=True)
                raw = np.memmap(path, np.uint8, "w+", shape=(nbytes,))
            else:
                with open(path, "rb+") as file:
                    os.fsync(file.fileno())
                    if hasattr(os, "posix_fadvise"):
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                raw = np.memmap(path, np.uint8, "r+", shape=(nbytes,))
            self.mapped[operand.name] = raw.base
            self.arrays[operand.name] = shaped(raw, operand)

    # The call ----------------------------------------------------------------------------------

    @property
    def results(self) -> dict[str, Array]:
        return {o.name: self.arrays[o.name] for o in self.drawn.operands if o.fill == "result"}

    def arguments(self) -> dict[str, Any]:
        """The arguments of the public function, by name, `out` among them."""
        results = tuple(self.results.values())
        chained = f"{OPERATIONS}["
        operands = {
            o.name: self.arrays[o.name]
            for o in self.drawn.operands
            if o.fill != "result" and not o.name.startswith(chained)
        }
        if self.drawn.operations:
            operands[OPERATIONS] = [
                getattr(operations, kind)(**options, **self._parameters(f"{chained}{at}]."))
                for at, (kind, options) in enumerate(self.drawn.operations)
            ]
        out = results if len(results) > 1 else results[0]
        return {**operands, **self.drawn.arguments, "out": out}

    def _parameters(self, prefix: str) -> dict[str, Array]:
        return {
            name.removeprefix(prefix): array
            for name, array in self.arrays.items()
            if name.startswith(prefix)
        }

    def __call__(self) -> Any:
        return getattr(ooc_cudnn, self.drawn.function)(**self.arguments())

    # Looking at results ------------------------------------------------------------------------

    def poison(self) -> None:
        """Put NaN where `look` will look, unless the call adds to what is there."""
        if not self.drawn.arguments.get("beta"):
            for array in self.results.values():
                words = _on_card_as_words(array)
                value = math.nan if words is array else BFLOAT16_NAN
                words[_sample(array.shape)] = value

    def look(self) -> dict[str, Any]:
        """Say of a sample of every result whether it is numbers, and whether they vary.

        A sum over millions of sites may be more than a half type holds: infinity is a number here.
        """
        numbers, varies = True, True
        for array in self.results.values():
            sample = _on_card_as_words(array)[_sample(array.shape)]
            stored = np.asarray(sample if isinstance(sample, np.ndarray) else sample.get())
            values = stored.view(array.dtype).astype(np.float64)
            numbers &= not np.isnan(values).any()
            varies &= values.size < 16 or bool(values.min() != values.max())
        # the softmax of a single channel is 1
        may_be_constant = self.drawn.function.startswith("softmax")
        ok = numbers and (varies or may_be_constant)
        return {"ok": ok, "numbers": numbers, "varies": varies}


OPERATIONS = "operations"
BFLOAT16_NAN = 0x7FC0


def stored_shape(operand: Operand) -> tuple[int, ...]:
    """The tensor that an operand lies in: itself, or one of more rows."""
    if operand.order != "rows_apart":
        return operand.shape
    n, c, rows, *inner = operand.shape
    return (n, c, rows + ROWS_APART, *inner)


def stored_bytes(operand: Operand) -> int:
    """Bytes of the memory that an operand lies in: its own, and rows that it leaves out."""
    return math.prod(stored_shape(operand)) * DTYPES[operand.dtype]


def shaped(raw: Array, operand: Operand) -> Array:
    """View bytes as an operand in its memory order."""
    flat, shape = raw.view(numpy_dtype(operand.dtype)), operand.shape
    if operand.order == "rows_apart":
        return flat.reshape(stored_shape(operand))[:, :, : shape[2]]
    if operand.order == "channels_last":
        last = len(shape) - 1
        stored = flat.reshape(shape[0], *shape[2:], shape[1])
        return stored.transpose(0, last, *range(1, last))
    return flat.reshape(shape)


def _values(operand: Operand) -> np.ndarray[Any, Any]:
    """Random numbers: positive ones, or filters whose sums of products stay near 1."""
    rng, count = np.random.default_rng(1), min(math.prod(operand.shape), 2**18)
    if operand.fill == "positive":
        values = rng.uniform(0.5, 1.5, count)
    else:
        values = rng.standard_normal(count) / math.sqrt(math.prod(operand.shape[1:]))
    return np.resize(values.astype(numpy_dtype(operand.dtype)), operand.shape)


def _on_card_as_words(array: Array) -> Array:
    """An array, or the words of one that the card's own arithmetic may not know."""
    on_card = not isinstance(array, np.ndarray)
    return array.view(np.uint16) if on_card and array.dtype.name == "bfloat16" else array


def _sample(shape: tuple[int, ...]) -> tuple[slice, ...]:
    """A grid of about `SAMPLES` elements."""
    each = SAMPLES ** (1 / len(shape))
    return tuple(slice(None, None, max(1, math.ceil(extent / each))) for extent in shape)
