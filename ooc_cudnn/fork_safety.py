"""Locks that a forked child finds free: a fork copies no threads that would give them back.

A forked child has the memory of its parent and one of its threads. A lock that another thread held
at that moment is held for good there, so those of this library begin anew in the child. Threads
begin anew where they are made: `ooc_cudnn.devices.helpers`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any


def run_in_child(action: Callable[[], object]) -> None:
    """Have something done in every forked child, before all else."""
    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(after_in_child=action)


def lock() -> threading.Lock:
    """Return a lock of a module, which a forked child finds free."""
    made: Any = threading.Lock()
    run_in_child(made._at_fork_reinit)
    return made


def recursive_lock() -> Any:
    """Return a lock of a module that its holder may take again, which a forked child finds free."""
    made: Any = threading.RLock()
    run_in_child(made._at_fork_reinit)
    return made
