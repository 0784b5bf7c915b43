"""The memory of the card that is not there: arrays between pages that nobody may touch."""

from __future__ import annotations

import math
import weakref

import numpy as np

from tests.support.cuda_on_cpu.compiling import threads

#: CuPy's alignment. What is left behind an array until the end of its page is checked.
ALIGNMENT_BYTES = 512
PAGE_BYTES = 4096
#: On either side, since a wrong stride goes far.
MARGIN_BYTES = 16 << 20
UNUSED = 0xFF  # NaN, to whoever reads it

_allocations: weakref.WeakSet[Allocation] = weakref.WeakSet()


class Allocation:
    """So many bytes, as near to the end of their last page as their alignment lets them."""

    def __init__(self, nbytes: int) -> None:
        self.mapped_bytes = max(1, math.ceil(nbytes / PAGE_BYTES)) * PAGE_BYTES
        self.start = threads().cuda_on_cpu_map(self.mapped_bytes, MARGIN_BYTES)
        if self.start is None:
            raise MemoryError(f"{nbytes} bytes")
        weakref.finalize(
            self, threads().cuda_on_cpu_unmap, self.start, self.mapped_bytes, MARGIN_BYTES
        )
        self.begin = (self.mapped_bytes - nbytes) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        self.end = self.begin + nbytes
        self.bytes()[:] = UNUSED
        _allocations.add(self)

    @property
    def __array_interface__(self) -> dict:
        return {
            "version": 3,
            "shape": (self.mapped_bytes,),
            "typestr": "|u1",
            "data": (self.start, False),
        }

    def bytes(self) -> np.ndarray:
        """All that is mapped."""
        return np.asarray(self)

    def check(self) -> None:
        """What lies around the array is as it was."""
        mapped = self.bytes()
        around = np.concatenate([mapped[: self.begin], mapped[self.end :]])
        assert (around == UNUSED).all(), "wrote past the end of an array, or before it"


class Array(np.ndarray):
    """An array of the "device"."""

    @property
    def data(self):
        """Where it begins, as CuPy tells it."""
        return Pointer(self.ctypes.data)


class Pointer:
    """An address."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def empty(shape, dtype=np.float64) -> Array:
    """An array whose contents are NaN, or all bits."""
    dtype = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    allocation = Allocation(math.prod(shape) * dtype.itemsize)
    content = allocation.bytes()[allocation.begin : allocation.end]
    return content.view(dtype).reshape(shape).view(Array)


class Contents:
    """What all arrays hold at one time."""

    def __init__(self) -> None:
        self.allocations = list(_allocations)
        self.bytes = [allocation.bytes().copy() for allocation in self.allocations]

    def put_back(self) -> None:
        """Make it so again."""
        for allocation, content in zip(self.allocations, self.bytes, strict=True):
            allocation.bytes()[:] = content

    def check(self) -> None:
        """Nothing was written outside of the arrays."""
        for allocation in self.allocations:
            allocation.check()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contents) and all(
            np.array_equal(mine, theirs)
            for mine, theirs in zip(self.bytes, other.bytes, strict=True)
        )

    __hash__ = None
