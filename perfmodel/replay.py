"""A replay: the very steps of a schedule on a virtual clock, in order on each stream.

Each waits for the steps it names, so that a replay sees what the closed form cannot: short rings
and uneven pieces, and which copies really meet on the link.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .closed_form import STAGES
from .slowdown import Slowdown
from .staging import SLABS
from .transfer import TransferModel

#: The streams by number, and when nothing happens.
STREAMS, NEVER = (0, 1, 2), math.inf


class VirtualStep(NamedTuple):
    """A step as the virtual clock sees it.

    Parameters
    ----------
    stream : {"copy_in", "compute", "copy_out"}
    seconds : float
        What it takes alone.
    waits : tuple of int
        Indices of earlier steps, on whichever stream, that must have finished before it starts.
    placement : str
        Of the host memory of a copy; it decides how much it and its opposite slow each other down.
    issued : float
        When the host issues it: it starts no earlier.
    latency : float
        What staging a copy takes beside. A copy in starts so long after it was issued, at the
        earliest; a result is in host memory so long after it left.
    slabs : int
        What a staged copy goes through, of `SLABS` of its direction.
    turn : float
        Of a staged copy, what passes before it: it starts so long after the step that it waits for
        began (it is staged while that runs), and after the slabs that it takes over are free.
    """

    stream: str
    seconds: float
    waits: tuple[int, ...] = ()
    placement: str = "pinned"
    issued: float = 0.0
    latency: float = 0.0
    slabs: int = 1
    turn: float = 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """Start and finish of each step, in seconds on the virtual clock."""

    start: tuple[float, ...]
    finish: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Return when the last step finishes; 0 where there are none."""
        return max(self.finish, default=0.0)


def replay(
    steps: Sequence[VirtualStep], transfer: TransferModel | None = None, loss: float = 0.0
) -> Timeline:
    """Run steps on a virtual clock.

    The steps of one stream run in their order, one at a time; a step starts as soon as it is
    issued, its stream is free and the steps it waits for have finished. While a copy in and a copy
    out are both running, each is slower by the factor that `transfer` has for their placements;
    without one, they do not slow each other down. Of each second of a copy, computing beside it
    loses `loss` seconds, and at most half of its speed.

    Raises
    ------
    ValueError
        If a step is on no such stream, or waits for one that is not earlier.

    Examples
    --------
    >>> steps = [VirtualStep("copy_in", 1.0), VirtualStep("compute", 2.0, (0,)),
    ...          VirtualStep("copy_in", 1.0), VirtualStep("copy_out", 1.0, (1,))]
    >>> timeline = replay(steps)
    >>> timeline.start, timeline.seconds
    ((0.0, 1.0, 1.0, 3.0), 4.0)
    """
    queues, waits, takes_over = _queued(steps)
    slowdown = lru_cache((transfer or TransferModel({}, {})).slowdown)
    start, finish = [NEVER] * len(steps), [NEVER] * len(steps)
    now, none = 0.0, -1
    running, copying = [none, none, none], (none, none)
    ends = [NEVER, NEVER, NEVER]  # when what runs finishes, if nothing changes
    factors = (1.0, 1.0, 1.0)  # how many times longer it takes now
    while True:
        # Start what can start, and find when the next step can that only its own moment keeps.
        ready = NEVER
        for stream in STREAMS:
            queue = queues[stream]
            if running[stream] != none or not queue:
                continue
            index = queue[-1]
            _, seconds, _, _, moment, latency, _, turn = steps[index]
            if latency:
                moment += latency if stream == 0 else 0.0
                before = takes_over.get(index)
                if before is not None:
                    lasted = finish[before] - start[before]
                    free = start[before] + lasted / steps[before].slabs
                    moment = max(moment, free + turn)
            for earlier in waits[index]:
                if finish[earlier] > now:
                    moment = NEVER
                elif latency and stream == 0:  # it was staged while that was running
                    moment = max(moment, start[earlier] + turn)
            if moment <= now:
                queue.pop()
                running[stream], start[index] = index, now
                ends[stream] = now + seconds * factors[stream]
            elif moment < ready:
                ready = moment
        # What is left of what runs takes as long as copies slow it down now.
        if copying != (running[0], running[2]):
            copying = running[0], running[2]
            known, factors = factors, _factors(steps, *copying, slowdown, loss)
            if factors != known:
                for stream in STREAMS:
                    ends[stream] = now + (ends[stream] - now) * (factors[stream] / known[stream])
        now = min(ready, *ends)
        if now == NEVER:
            break
        for stream in STREAMS:
            if ends[stream] <= now:
                finish[running[stream]] = now
                running[stream], ends[stream] = none, NEVER
    _land(steps, finish)
    return Timeline(tuple(start), tuple(finish))


def _queued(
    steps: Sequence[VirtualStep],
) -> tuple[list[list[int]], list[tuple[int, ...]], dict[int, int]]:
    """Return the steps of each stream, for which steps each waits, and whose slabs it takes over.

    The first step of each stream stands last in its list, to be popped. Of all steps of one stream
    that a step waits for, the latest one alone counts.
    """
    queues: list[list[int]] = [[] for _ in STAGES]
    staged: list[list[int]] = [[] for _ in STAGES]
    waits, takes_over = list[tuple[int, ...]](), dict[int, int]()
    numbers: dict[str, int] = {stage: at for at, stage in enumerate(STAGES)}
    for index, step in enumerate(steps):
        stream = numbers.get(step.stream)
        if stream is None:
            raise ValueError(f"stream is {step.stream!r}; it must be one of {', '.join(STAGES)}")
        for earlier in step.waits:
            if not 0 <= earlier < index:
                raise ValueError(f"step {index} waits for {earlier}, not an earlier step")
        latest = step.waits
        if len(latest) > len(STAGES):
            latest = tuple({steps[each].stream: each for each in sorted(latest)}.values())
        waits.append(latest)
        queues[stream].append(index)
        if step.latency:
            at_once = max(SLABS // step.slabs, 1)
            if len(staged[stream]) >= at_once:
                takes_over[index] = staged[stream][-at_once]
            staged[stream].append(index)
    for queue in queues:
        queue.reverse()
    return queues, waits, takes_over


def _factors(
    steps: Sequence[VirtualStep],
    copy_in: int,
    copy_out: int,
    slowdown: Callable[[str, str], Slowdown],
    loss: float,
) -> tuple[float, float, float]:
    """Factors by which each stream takes longer while these copies run; -1 is none."""
    copying = (copy_in >= 0) + (copy_out >= 0)
    compute = 1.0 / (1.0 - min(loss * copying, 0.5))
    if copying < 2:
        return 1.0, compute, 1.0
    pair = slowdown(steps[copy_in].placement, steps[copy_out].placement)
    return pair.copy_in, compute, pair.copy_out


def _land(steps: Sequence[VirtualStep], finish: list[float]) -> None:
    """Let the last copy out last until all results are in host memory."""
    out = [index for index, step in enumerate(steps) if step.stream == "copy_out"]
    if out:
        landed = max(finish[index] + steps[index].latency for index in out)
        finish[out[-1]] = max(finish[out[-1]], landed)
