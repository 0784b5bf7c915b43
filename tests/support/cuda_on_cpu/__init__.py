"""CUDA kernels run on the CPU, so that their arithmetic and their indices are tested with no card.

`module()` stands in for CuPy, as far as `ooc_cudnn.devices.kernels` and its tests ask for it. Its
`RawModule` has g++ compile an instance of a kernel (`compiling.py`), with `cuda_on_cpu.h` in place
of CUDA's headers, and `threads.cpp` runs its threads: each until it must wait for others, then the
next. A launch fails with an AssertionError that says the thread and, where it can, the line, if

- it reads or writes outside of the arrays (`memory.py` keeps them between forbidden pages),
- it accesses memory in packs wider than their alignment, indexes an array of known size beyond its
  bounds, or overflows a signed integer,
- its threads wait for each other in different places, or for some that have ended,
- its parameters are not as large as what the host passes for them, or its block, grid or shared
  memory is larger than a card allows,
- the result depends on the order in which threads and blocks run: it runs twice, forwards and
  backwards. So a missing `__syncthreads` is found, but not where it matters within a warp only.

Shared memory begins as NaN in each block, and local variables as nonsense. What is not seen: the
speed, dynamic shared memory (no kernel here has any), races that neither order shows, PTX (where
`__CUDA_ARCH__` is not defined a kernel has plain C++ instead), and the card's own rounding:
`__expf` is the exact `expf`, and subnormal numbers are kept.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from tests.support.cuda_on_cpu.compiling import compiler
from tests.support.cuda_on_cpu.kernel import Kernel
from tests.support.cuda_on_cpu.memory import Array, empty

#: The number of the "device": no card has it, so that no compiled kernel is taken for a card's.
DEVICE = -1


class RawModule:
    """One source with its instances."""

    def __init__(self, *, code, options, name_expressions):
        self.code, self.options = code, options

    def get_function(self, expression):
        return SimpleNamespace(kernel=Kernel(self.code, self.options, expression))


class Stream:
    """All work is done at once."""

    ptr = 0

    def __init__(self, non_blocking=False):
        pass

    def wait_event(self, event):
        pass

    def record(self):
        pass

    def synchronize(self):
        pass


def filled(shape, value, dtype=np.float64):
    array = empty(shape, dtype)
    array[...] = value
    return array


def asarray(values):
    if isinstance(values, Array):
        return values
    values = np.asarray(values)
    return filled(values.shape, values, values.dtype)


def asnumpy(values):
    return np.array(values, subok=False)


def module():
    """What stands in for the module `cupy`."""
    runtime = SimpleNamespace(
        getDevice=lambda: DEVICE,
        memGetInfo=lambda: (0, 0),  # no room for what is larger than 2**31
    )
    return SimpleNamespace(
        RawModule=RawModule,
        asarray=asarray,
        asnumpy=asnumpy,
        cuda=SimpleNamespace(Stream=Stream, get_current_stream=Stream, runtime=runtime),
        empty=empty,
        full=filled,
        ndarray=(),  # no array is one of its own
    )


__all__ = ["compiler", "module"]
