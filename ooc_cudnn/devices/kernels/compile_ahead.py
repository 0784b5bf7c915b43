"""Compilation ahead: what launches would compile one by one is compiled side by side before.

A first step of a network launches dozens of kernels that no process has compiled, each for half a
second, and engines of cuDNN that are compiled at run time. So its actions are first run without
launching anything: kernels are collected by their names, engines as what builds them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial

from ooc_cudnn import interrupts
from ooc_cudnn.activity import activity
from ooc_cudnn.devices.kernels import compiling
from ooc_cudnn.settings import current

#: Threads that compile, at most.
MOST_COMPILERS = 16


@dataclass
class Collected:
    """Sources that launches would compile.

    Attributes
    ----------
    kernels : dict
        By source and expression, the bytes of the struct that a kernel takes first.
    engines : dict
        By what tells them apart, functions that build engines: one thread calls them all.
    """

    kernels: dict[tuple[str, str], int] = field(default_factory=dict)
    engines: dict[Hashable, Callable[[], object]] = field(default_factory=dict)


class _OfThread(threading.local):
    collected: Collected | None = None


_of_thread = _OfThread()


def collected() -> Collected | None:
    """Return where this thread's launches put what they would compile; None where they run."""
    return _of_thread.collected


@contextmanager
def collect() -> Iterator[Collected]:
    """Have this thread launch nothing meanwhile; what it would compile is collected."""
    before, made = _of_thread.collected, Collected()
    _of_thread.collected = made
    try:
        yield made
    finally:
        _of_thread.collected = before


def compile_collected(made: Collected, use: Callable[[], None]) -> None:
    """Compile what was collected and is not compiled yet, by several threads.

    Parameters
    ----------
    made : Collected
    use : callable
        Makes the device current on a thread.
    """
    device = compiling.current_device()
    jobs: list[Callable[[], object]] = [
        partial(compiling.function, device, source, expression, nbytes)
        for (source, expression), nbytes in made.kernels.items()
        if not compiling.is_compiled(device, source, expression)
    ]
    if made.engines:
        jobs.insert(0, lambda: [build() for build in made.engines.values()])
    if len(jobs) < 2:
        return  # the launch does that as fast
    with (
        activity(f"compiling {len(jobs)} kernels", current().progress),
        ThreadPoolExecutor(min(MOST_COMPILERS, os.cpu_count() or 1), initializer=use) as pool,
    ):
        futures = [pool.submit(copy_context().run, job) for job in jobs]
        try:
            for future in as_completed(futures):
                future.result()
                interrupts.hear()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
