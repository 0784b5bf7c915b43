"""A process that is killed at each line of some files, one after the other."""

from __future__ import annotations

import os
import sys
import traceback
from itertools import count

from tests.support.sampling import EVERY

KILLED, FAILED = 9, 1


def killed_at_each_line(action, *files):
    """Fork a child for every line of `files` that `action` comes to, which dies there at once.

    In `make test` none dies at a line that an earlier one has died at.
    Nothing is cleared up then: no `finally`, no buffer that is flushed. Yields the number of each
    line before the next child is forked; the last child comes through, and its number is -1.

    Parameters
    ----------
    action : callable
        What the child does.
    *files : str
        How their paths end.
    """
    for at in count():
        child = os.fork()
        if child == 0:
            _die_at(at, files, action)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, KILLED), f"the child failed at line {at}; see its traceback"
        yield at if code else -1
        if not code:
            return


def _die_at(at, files, action):
    visited = set()

    def trace(frame, event, argument):
        if not frame.f_code.co_filename.endswith(files):
            return None
        if event == "line":
            line = len(visited) if EVERY else (frame.f_code.co_filename, frame.f_lineno)
            if line not in visited and len(visited) == at:
                os._exit(KILLED)
            visited.add(line)
        return trace

    try:
        sys.settrace(trace)
        action()
    except BaseException:
        traceback.print_exc()
        os._exit(FAILED)
    os._exit(0)
