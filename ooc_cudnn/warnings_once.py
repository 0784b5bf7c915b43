"""Warnings of the library: they point at the user's line, and come once."""

from __future__ import annotations

import sys
import warnings

from ooc_cudnn import fork_safety

#: What stands between a user's line and the library's, and is not the user's.
_NOT_THE_USERS = ("ooc_cudnn", "perfmodel", "contextlib", "functools", "torch")

_told: set[str] = set()
_lock = fork_safety.lock()


def warn(message: str) -> None:
    """Warn at the line that called the library, however deep in it this is."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _NOT_THE_USERS:
            break
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)


def warn_once(message: str) -> None:
    """Warn, once a process for each message."""
    with _lock:
        if message in _told:
            return
        _told.add(message)
    warn(message)


def forget_warnings() -> None:
    """Warn of everything again; for tests."""
    with _lock:
        _told.clear()
