"""One thread for NumPy's matrix products while the host device computes.

OpenBLAS's threads wait for each other by spinning. Beside the device's own threads, on few cores,
each wait then takes until the next turn of the scheduler: measured on two cores, products of 1.5 ms
took up to 140 ms, and a whole convolution 27 times as long as with one thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np

from ooc_cudnn import fork_safety

#: OpenBLAS's names for get and set, as NumPy's wheels, conda and Linux distributions build it.
_SYMBOLS = tuple(
    (f"{prefix}openblas_get_num_threads{suffix}", f"{prefix}openblas_set_num_threads{suffix}")
    for prefix in ("scipy_", "")
    for suffix in ("64_", "")
)

_lock = fork_safety.lock()
_users = 0
_before = 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Let matrix products run on the calling thread alone; for the process, until all have left.

    Without OpenBLAS behind NumPy this does nothing.
    """
    global _users, _before
    functions = _functions()
    if functions is None:
        yield
        return
    get, set_ = functions
    with _lock:
        if _users == 0:
            _before = get()
            if _before > 1:
                set_(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _before > 1:
                set_(_before)


def _forget_users() -> None:
    """Reset a forked child: who used one thread is the parent's."""
    global _users
    functions = _functions() if _users else None
    if functions is not None and _before > 1:
        functions[1](_before)
    _users = 0


fork_safety.run_in_child(_forget_users)


@cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """OpenBLAS's getter and setter, found through NumPy's own library."""
    try:
        library = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    except (AttributeError, OSError):
        return None
    for getter, setter in _SYMBOLS:
        try:
            get, set_ = getattr(library, getter), getattr(library, setter)
        except AttributeError:
            continue
        get.restype, get.argtypes = ctypes.c_int, ()
        set_.restype, set_.argtypes = None, (ctypes.c_int,)
        return get, set_
    return None
