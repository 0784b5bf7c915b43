"""A kernel that runs on the CPU, called as CuPy's are."""

from __future__ import annotations

import ctypes
import itertools
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.cuda_on_cpu import compiling
from tests.support.cuda_on_cpu.memory import Contents

MOST_THREADS = 1024
MOST_BLOCKS = (2**31 - 1, 65535, 65535)
MOST_SHARED_BYTES = 48 << 10

_one_at_a_time = threading.Lock()


class Kernel:
    """An instance of a kernel."""

    def __init__(self, code: str, options: tuple[str, ...], expression: str) -> None:
        self.expression = expression
        self.path: Path = compiling.kernel_library(code, options, expression)
        self.run = compiling.threads().cuda_on_cpu_launch
        library = ctypes.CDLL(str(self.path))
        self.thread = ctypes.cast(library.cuda_on_cpu_thread, ctypes.c_void_p)
        ends = itertools.takewhile(
            lambda nbytes: nbytes >= 0, map(library.cuda_on_cpu_parameter_bytes, itertools.count())
        )
        self.parameter_bytes = list(ends)
        shared = compiling.threads().cuda_on_cpu_shared_bytes(self.thread)
        assert 0 <= shared <= MOST_SHARED_BYTES, f"{expression}: {shared} bytes of shared memory"

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], *, stream: Any
    ) -> None:
        """Run it forwards, then backwards on the same memory: that must not make a difference."""
        grid, block = three(grid), three(block)
        assert 0 < math.prod(block) <= MOST_THREADS, f"{self.expression}: block {block}"
        assert all(0 < n <= most for n, most in zip(grid, MOST_BLOCKS, strict=True)), (
            f"{self.expression}: grid {grid}"
        )
        values = [as_bytes(argument) for argument in arguments]
        sizes = [len(value) for value in values]
        assert sizes == self.parameter_bytes, (
            f"{self.expression} takes parameters of {self.parameter_bytes} bytes, given {sizes}"
        )
        with _one_at_a_time:
            before = Contents()
            self._launch(grid, block, values, backwards=False)
            forwards = Contents()
            before.put_back()
            self._launch(grid, block, values, backwards=True)
            backwards = Contents()
            backwards.check()
        assert forwards == backwards, (
            f"{self.expression}: the result depends on the order of threads or blocks. "
            "Is a __syncthreads missing?"
        )

    def _launch(
        self, grid: tuple[int, ...], block: tuple[int, ...], values: list[bytes], *, backwards: bool
    ) -> None:
        buffers = [ctypes.create_string_buffer(value, len(value)) for value in values]
        pointers = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
        message = ctypes.create_string_buffer(512)
        instruction = ctypes.c_size_t(0)
        numbers = ctypes.c_uint * 3
        failed = self.run(
            self.thread, pointers, numbers(*grid), numbers(*block), int(backwards),
            message, ctypes.c_size_t(len(message)), ctypes.byref(instruction),
        )  # fmt: skip
        if failed:
            where = instruction.value and compiling.line_of(self.path, instruction.value)
            raise AssertionError(f"{self.expression}: {message.value.decode()} {where or ''}")


def three(numbers: Sequence[int]) -> tuple[int, ...]:
    """As many sizes as a grid has."""
    return (*map(int, numbers), 1, 1)[:3]


def as_bytes(argument: Any) -> bytes:
    """What CuPy hands to a kernel: Python's numbers are 64 bits wide, NumPy's keep their width."""
    if isinstance(argument, bool):
        return np.bool_(argument).tobytes()
    if isinstance(argument, int):
        return argument.to_bytes(8, "little", signed=argument < 2**63)
    if isinstance(argument, float):
        return np.float64(argument).tobytes()
    assert isinstance(argument, np.generic | np.ndarray), f"an argument {argument!r}"
    return argument.tobytes()
