"""Lookahead: how far the host issues instructions ahead of the device."""

from __future__ import annotations

import math

from ooc_cudnn.pipeline.program import Program

#: What may be in flight before the host waits: so many pieces, which hide the issuing, and as many
#: as are predicted to take so long. That bounds how far computing runs ahead of copies, and how far
#: Ctrl-C and the progress bar lag behind the device.
RUN_AHEAD_PIECES = 16
RUN_AHEAD_SECONDS = 0.25


def pieces_ahead(program: Program, pieces: int) -> int:
    """Return how many pieces may be in flight, of so many of a program."""
    tasks = list(program.tasks)
    # What a deep ring can hold ahead of its use must be issued ahead, too.
    deepest = max((slots for task in tasks for _, slots in task.plan.rings), default=0)
    seconds = max(
        sum(task.plan.compute_seconds for task in tasks),
        sum(task.plan.copy_in_seconds for task in tasks),
        sum(task.plan.copy_out_seconds for task in tasks),
    )
    lasting = math.ceil(pieces * RUN_AHEAD_SECONDS / seconds) if seconds else 0
    return max(RUN_AHEAD_PIECES, 2 * deepest, lasting)
