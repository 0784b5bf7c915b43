"""The points at which Python may run a signal's handler, one by one: Ctrl-C at each of them.

Handlers run between two steps of the interpreter: where a function begins, where a loop goes round,
after a call. Tracing visits each of these steps of the main thread, so Ctrl-C can be pressed at the
k-th of them, for every k, where chance would find a narrow window once in a million runs.
"""

from __future__ import annotations

import dis
import signal
import sys
from functools import cache
from types import CodeType, FrameType
from typing import Any

_BEGINS = ("RESUME", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")


@cache
def points(code: CodeType) -> frozenset[int]:
    """Offsets of the steps before which a handler may run."""
    found, steps = set(), list(dis.get_instructions(code))
    table = dis._parse_exception_table(code)

    def handler(offset: int) -> Any:
        return next((each.target for each in table if each.start <= offset < each.end), None)

    for before, step in zip([None, *steps], steps, strict=False):
        called = (
            before is not None
            and before.opname.startswith("CALL")
            # an exception belongs to the call before, and has to meet the same handler here
            and handler(before.offset) == handler(step.offset)
        )
        if called or step.opname.startswith(_BEGINS):
            found.add(step.offset)
    return frozenset(found)


class Pressed:
    """Presses Ctrl-C at some of the points that a block visits on this thread.

    Parameters
    ----------
    at : int
        The number of the first point; none of them if it is negative.
    again_after : int
        Press once more so many points later; never if it is negative.
    """

    def __init__(self, at: int = -1, again_after: int = -1) -> None:
        self.at, self.again = {at}, again_after
        if again_after >= 0:
            self.at.add(at + again_after)
        self.visited = 0

    def __enter__(self) -> Pressed:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        """Follow a frame that begins; `points` is asked once a frame, as that takes long."""
        if frame.f_code.co_filename == __file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        places = points(frame.f_code)

        def step(frame: FrameType, event: str, argument: object) -> Any:
            if event == "opcode" and frame.f_lasti in places:
                self._visit()
            return step

        return step

    def _visit(self) -> None:
        self.visited += 1
        if self.visited in self.at:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                if self.visited < max(self.at):  # Python stops tracing when this raises
                    sys.settrace(self._trace)
                raise
