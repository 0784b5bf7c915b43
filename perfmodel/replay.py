"""A replay: the very steps of a schedule on a virtual clock, in order on each stream.

Each waits for the steps it names, so that a replay sees what the closed form cannot: short rings
and uneven pieces, and which copies really meet on the link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .pipeline import STAGES, Stage
from .record import members, number, whole
from .transfer import SLABS, Slowdown, TransferModel


@dataclass(frozen=True, slots=True)
class VirtualStep:
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
        What staging a copy takes beside. A copy in starts so long after it was issued, and after
        what it waits for was begun, at the earliest; a result is in host memory so long after it
        left. And copies of a direction start so long after the slabs that they take over are free.
    beside : float
        Seconds that a copy takes longer if the other direction runs all along, beside what slows
        both: rows of pinned memory that lie far apart do.
    slabs : int
        What a staged copy goes through, of `SLABS` of its direction.
    """

    stream: Stage
    seconds: float
    waits: tuple[int, ...] = ()
    placement: str = "pinned"
    issued: float = 0.0
    latency: float = 0.0
    beside: float = 0.0
    slabs: int = 1

    def __post_init__(self) -> None:
        if self.stream not in STAGES:
            raise ValueError(f"stream is {self.stream!r}; it must be one of {', '.join(STAGES)}")
        object.__setattr__(self, "seconds", number("seconds", self.seconds))
        object.__setattr__(self, "issued", number("issued", self.issued))
        object.__setattr__(self, "latency", number("latency", self.latency))
        object.__setattr__(self, "beside", number("beside", self.beside))
        object.__setattr__(self, "slabs", whole("slabs", self.slabs, at_least=1))
        object.__setattr__(self, "waits", tuple(self.waits))

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain JSON values."""
        return {
            "stream": self.stream,
            "seconds": self.seconds,
            "waits": list(self.waits),
            "placement": self.placement,
            "issued": self.issued,
            "latency": self.latency,
            "beside": self.beside,
            "slabs": self.slabs,
        }

    @classmethod
    def from_json(cls, data: object) -> VirtualStep:
        """Return what `to_json` described."""
        names = (
            "stream", "seconds", "waits", "placement", "issued", "latency", "beside", "slabs",
        )  # fmt: skip
        return cls(**members("VirtualStep", data, names))


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each step started and finished, in seconds on the virtual clock."""

    start: tuple[float, ...]
    finish: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", tuple(self.start))
        object.__setattr__(self, "finish", tuple(self.finish))
        if len(self.start) != len(self.finish):
            raise ValueError(f"{len(self.start)} starts but {len(self.finish)} finishes")
        if any(begun > done for begun, done in zip(self.start, self.finish, strict=True)):
            raise ValueError("a step finishes before it starts")

    @property
    def seconds(self) -> float:
        """Return when the last step finishes; 0 where there are none."""
        return max(self.finish, default=0.0)

    def busy_seconds(self, steps: Sequence[VirtualStep], stream: Stage) -> float:
        """Return for how long `stream` was running one of `steps`, those of the replay."""
        if len(steps) != len(self.start):
            raise ValueError(f"{len(steps)} steps, but the timeline is of {len(self.start)}")
        return sum(
            (
                done - begun
                for step, begun, done in zip(steps, self.start, self.finish, strict=True)
                if step.stream == stream
            ),
            0.0,
        )

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain JSON values."""
        return {"start": list(self.start), "finish": list(self.finish)}

    @classmethod
    def from_json(cls, data: object) -> Timeline:
        """Return what `to_json` described."""
        return cls(**members("Timeline", data, ("start", "finish")))


def replay(
    steps: Sequence[VirtualStep], transfer: TransferModel | None = None, loss: float = 0.0
) -> Timeline:
    """Run steps on a virtual clock.

    The steps of one stream run in their order, one at a time; a step starts as soon as it is
    issued, its stream is free and the steps it waits for have finished. While a copy in and a copy
    out are both running, each is slower by the factor that `transfer` has for their placements;
    without one, they do not slow each other down. Of each second of a copy, computing beside it
    loses `loss` seconds, and at most half of its speed.

    Examples
    --------
    >>> steps = [VirtualStep("copy_in", 1.0), VirtualStep("compute", 2.0, (0,)),
    ...          VirtualStep("copy_in", 1.0), VirtualStep("copy_out", 1.0, (1,))]
    >>> timeline = replay(steps)
    >>> timeline.start, timeline.seconds
    ((0.0, 1.0, 1.0, 3.0), 4.0)
    """
    return _Clock(steps, transfer or TransferModel({}, {}), loss).run()


class _Clock:
    """The state of a replay: at most one running step a stream, advanced from event to event."""

    def __init__(self, steps: Sequence[VirtualStep], transfer: TransferModel, loss: float) -> None:
        self.steps, self.loss = steps, loss
        self.now = 0.0
        self.start = [0.0] * len(steps)
        self.finish = [0.0] * len(steps)
        self.queues: dict[str, list[int]] = {stage: [] for stage in STAGES}
        self.running: dict[str, int] = {}
        self.missing = [0] * len(steps)
        self.dependents: list[list[int]] = [[] for _ in steps]
        self.staged_in = {
            index for index, step in enumerate(steps) if step.latency and step.stream == "copy_in"
        }
        #: When a step could start, once nothing that it waits for is missing.
        self.ready = [step.issued for step in steps]
        for index in self.staged_in:
            self.ready[index] += steps[index].latency
        #: The staged copy that takes over the slabs of one.
        self.takes_over: dict[int, int] = {}
        self.slowdown = lru_cache(transfer.slowdown)
        #: By what factor the step that runs on each stream is slowed down now.
        self.factors = {"copy_in": 1.0, "compute": 1.0, "copy_out": 1.0}
        for index, step in enumerate(steps):
            self.queues[step.stream].append(index)
            for earlier in set(step.waits):
                if not 0 <= earlier < index:
                    raise ValueError(f"step {index} waits for {earlier}, not an earlier step")
                self.missing[index] += 1
                self.dependents[earlier].append(index)
        for queue in self.queues.values():
            staged = [index for index in queue if steps[index].latency]
            for place, index in enumerate(staged):
                at_once = max(SLABS // steps[index].slabs, 1)
                if place >= at_once:
                    self.takes_over[staged[place - at_once]] = index
            queue.reverse()

    def run(self) -> Timeline:
        # a step waits for earlier ones only, so the earliest unfinished step can always run
        self._start_ready()
        while self.running or any(self.queues.values()):
            due = [self.finish[index] for index in self.running.values()]
            self.now = min(due + self._getting_ready())
            self._finish_due()
            self._start_ready()
        self._land()
        return Timeline(tuple(self.start), tuple(self.finish))

    def _getting_ready(self) -> list[float]:
        """When steps are ready that nothing but that keeps from starting."""
        return [
            self.ready[queue[-1]]
            for stream, queue in self.queues.items()
            if queue and stream not in self.running and not self.missing[queue[-1]]
        ]

    def _finish_due(self) -> None:
        for stream, index in list(self.running.items()):
            if self.finish[index] <= self.now:
                del self.running[stream]
                for waiting in self.dependents[index]:
                    self.missing[waiting] -= 1
                    if waiting in self.staged_in:
                        self._ready_after(waiting, self.start[index])
                if index in self.takes_over:
                    lasted = self.now - self.start[index]
                    first_free = self.start[index] + lasted / self.steps[index].slabs
                    self._ready_after(self.takes_over[index], first_free)

    def _ready_after(self, staged: int, moment: float) -> None:
        """Let a staged copy start no earlier than its latency after a moment."""
        self.ready[staged] = max(self.ready[staged], moment + self.steps[staged].latency)

    def _land(self) -> None:
        """Let the last copy out last until all results are in host memory."""
        out = [index for index, step in enumerate(self.steps) if step.stream == "copy_out"]
        if out:
            landed = max(self.finish[index] + self.steps[index].latency for index in out)
            self.finish[out[-1]] = max(self.finish[out[-1]], landed)

    def _start_ready(self) -> None:
        """Start what can start now; `finish` of a running step assumes that nothing changes."""
        for stream, queue in self.queues.items():
            if not queue or stream in self.running or self.missing[queue[-1]]:
                continue
            if self.ready[queue[-1]] <= self.now:
                index = self.running[stream] = queue.pop()
                self.start[index] = self.now
                # as slow as the copy before it; put right below if its opposite has changed
                factor = self.factors[stream]
                self.finish[index] = self.now + self.steps[index].seconds * factor
        self._slow_down_each_other()

    def _slow_down_each_other(self) -> None:
        """Let what is left of the running steps take as long as they slow each other down now."""
        copy_in, copy_out = self.running.get("copy_in"), self.running.get("copy_out")
        pair = Slowdown()
        if copy_in is not None and copy_out is not None:
            pair = self.slowdown(self.steps[copy_in].placement, self.steps[copy_out].placement)
            pair = Slowdown(
                pair.copy_in * self._far_factor(copy_in), pair.copy_out * self._far_factor(copy_out)
            )
        self._slow_down("copy_in", copy_in, pair.copy_in)
        self._slow_down("copy_out", copy_out, pair.copy_out)
        if self.loss:
            copying = (copy_in is not None) + (copy_out is not None)
            factor = 1.0 / (1.0 - min(self.loss * copying, 0.5))
            self._slow_down("compute", self.running.get("compute"), factor)

    def _far_factor(self, index: int) -> float:
        """How much longer a copy takes for rows far apart while the other direction runs."""
        step = self.steps[index]
        return 1.0 + step.beside / step.seconds if step.beside else 1.0

    def _slow_down(self, stream: str, index: int | None, factor: float) -> None:
        was = self.factors[stream]
        if factor != was:
            self.factors[stream] = factor
            if index is not None:
                left = (self.finish[index] - self.now) * (factor / was)
                self.finish[index] = self.now + left
