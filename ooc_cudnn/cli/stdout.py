"""Standard output is for what was asked: libraries' own lines go to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STDOUT, STDERR = 1, 2


@contextmanager
def keep_stdout_clean() -> Iterator[None]:
    """Send what is written to the process's standard output to standard error for a while.

    HiGHS (SciPy 1.17) prints a line of its own where it corrects a solution, whatever it is asked
    for; in the middle of JSON that would be no JSON.
    """
    sys.stdout.flush()
    try:
        original = os.dup(STDOUT)
    except OSError:  # it is closed: nothing can be written there
        yield
        return
    try:
        os.dup2(STDERR, STDOUT)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(original, STDOUT)
        os.close(original)
