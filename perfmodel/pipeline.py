"""Seconds of a whole split, twice: the paper's closed form beside a replay on a virtual clock.

The closed form (section 4.3) needs ten numbers and no schedule, so it prices a split during the
search. The replay runs the very steps of a schedule, in order on each stream and each waiting for
the steps it names, and so sees what the closed form cannot: short rings and uneven pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from .record import Record, members, number, whole
from .transfer import SLABS, Slowdown, TransferModel

Stage = Literal["copy_in", "compute", "copy_out"]
STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True, slots=True)
class Split(Record):
    """The piece sizes d_n, d_cY, d_cX and d_hY: what one piece holds of each axis.

    Examples
    --------
    >>> Split(n=2, c_y=64, c_x=64, h_y=128)
    Split(n=2, c_y=64, c_x=64, h_y=128)
    """

    n: int
    c_y: int
    c_x: int
    h_y: int

    def __post_init__(self) -> None:
        for axis in ("n", "c_y", "c_x", "h_y"):
            size = getattr(self, axis)
            if type(size) is not int or size < 1:
                object.__setattr__(self, axis, whole(axis, size, at_least=1))


@dataclass(frozen=True, slots=True)
class PipelineCost(Record):
    """Seconds of one call by stage, each direction of the link counted as if it were alone.

    Parameters
    ----------
    setup_seconds : float
        Before the pipeline starts: weights that go to the device once.
    copy_in_seconds, compute_seconds, copy_out_seconds : float
        Totals over all pieces.
    first_copy_in, first_compute, last_compute, last_copy_out : float
        Of the first and of the last piece alone; parts of the totals.
    issue_seconds : float
        What the host takes to issue all steps, while the device works on those issued before.
    waiting_seconds : float
        For how long no copy in may start, because the data that its slot holds is still needed.
    turning_seconds : float
        What the slots of the slowest ring of plain memory take to be staged and copied, all of them
        side by side, as often as it needs: where staging takes long, a short ring binds
        (`with_turning`).
    filing_seconds : float
        The same of files. Such a call takes as long as the longer of both: the lines of files are
        of copies that had to turn, too.
    lost_seconds : float
        What computing takes longer because copies run beside it.
    meeting_in, meeting_out : float
        Of the copies in and out, what runs beside the other direction where rings have one slot:
        there a piece comes in while the one before leaves, or not beside anything.
    """

    setup_seconds: float
    copy_in_seconds: float
    compute_seconds: float
    copy_out_seconds: float
    first_copy_in: float
    first_compute: float
    last_compute: float
    last_copy_out: float
    issue_seconds: float = 0.0
    waiting_seconds: float = 0.0
    turning_seconds: float = 0.0
    meeting_in: float = 0.0
    meeting_out: float = 0.0
    filing_seconds: float = 0.0
    lost_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            object.__setattr__(self, name, number(name, getattr(self, name)))
        for part, total in (
            ("first_copy_in", "copy_in_seconds"),
            ("first_compute", "compute_seconds"),
            ("last_compute", "compute_seconds"),
            ("last_copy_out", "copy_out_seconds"),
            ("meeting_in", "copy_in_seconds"),
            ("meeting_out", "copy_out_seconds"),
        ):
            # a total added up piece by piece may differ in its last digits
            if getattr(self, part) > getattr(self, total) * (1.0 + 1e-6):
                raise ValueError(
                    f"{part} is {getattr(self, part)!r}, more than its total "
                    f"{total} = {getattr(self, total)!r}"
                )


def with_turning(seconds: Any, turning: Any) -> Any:
    """Return what a call takes that takes so long without waiting for its rings to turn.

    That is the longer of both where one is far less than the other. Where they are about equal, now
    the one is waited for and now the other: the cube root of the sum of cubes, numbers or arrays.
    (Chosen by the measured splits of problem 10 of `model_accuracy` on six H200s: this norm, and
    that of fourth powers, put them in the right order, and the longer of both did not.)

    Examples
    --------
    >>> round(float(with_turning(3.0, 0.3)), 3), round(float(with_turning(1.0, 1.0)), 3)
    (3.001, 1.26)
    >>> with_turning(2.0, 0.0)
    2.0
    """
    if isinstance(turning, float) and not turning:
        return seconds
    # powers of arrays take five times as long as products and cube roots
    return np.cbrt(seconds * seconds * seconds + turning * turning * turning)


#: Roads that do not slow each other down.
INDEPENDENT = Slowdown()


def _link_totals(cost: PipelineCost, slowdown: Slowdown) -> tuple[float, float]:
    """Return when all copies in are done and how long all copies out take, slowing each other down.

    The first copy in has the link alone, since nothing is computed yet, and so has the last copy
    out, since everything has arrived: with a single piece the directions never meet.
    """
    copy_in, copy_out = slowdown.together(
        max(cost.copy_in_seconds - cost.first_copy_in, 0.0),
        max(cost.copy_out_seconds - cost.last_copy_out, 0.0),
    )
    return cost.first_copy_in + copy_in + cost.waiting_seconds, copy_out + cost.last_copy_out


def closed_form(
    cost: PipelineCost,
    slowdown: Slowdown = INDEPENDENT,
    overlap: bool = True,
    one_slot: bool = False,
) -> float:
    """Return the predicted seconds of a call (paper, section 4.3).

    Parameters
    ----------
    cost : PipelineCost
    slowdown : Slowdown
        How much the two directions of the link slow each other down in this call.
    overlap : bool
        False for the same steps one after the other.
    one_slot : bool
        Whether rings have one slot: nothing is copied beside computing, and the directions meet
        only for `meeting_in` and `meeting_out`.

    Examples
    --------
    Four equal pieces, 1 s in, 2 s of computing, 1 s out: fill, four times the largest, drain.

    >>> cost = PipelineCost(0.0, 4.0, 8.0, 4.0, 1.0, 2.0, 2.0, 1.0)
    >>> closed_form(cost)
    10.0
    >>> closed_form(cost, overlap=False)
    16.0

    In rings of one slot each piece leaves while the next one comes.

    >>> from dataclasses import replace
    >>> closed_form(replace(cost, meeting_in=3.0, meeting_out=3.0), one_slot=True)
    13.0
    """
    if not overlap:
        # T = T_setup + T_in + T_compute + T_out
        stages = cost.copy_in_seconds + cost.compute_seconds + cost.copy_out_seconds
        return cost.setup_seconds + max(
            stages, cost.issue_seconds, cost.turning_seconds, cost.filing_seconds
        )
    if one_slot:
        # T = T_setup + T_compute + T_in + T_out - what the directions do at once;
        # for N equal pieces t_in + N * t_c + (N - 1) * max(t_in, t_out) + t_out
        apart = cost.copy_in_seconds - cost.meeting_in + cost.copy_out_seconds - cost.meeting_out
        meeting: float = max(slowdown.together(cost.meeting_in, cost.meeting_out))
        stages = cost.compute_seconds + apart + meeting
        longest = max(stages, cost.issue_seconds, cost.filing_seconds)
        return cost.setup_seconds + float(with_turning(longest, cost.turning_seconds))
    copy_in, copy_out = _link_totals(cost, slowdown)
    # T = T_setup + max over stages of (fill before it + all of it + drain after it);
    # for N equal pieces this is T_setup + (N - 1) * max(t_in, t_c, t_out) + t_in + t_c + t_out;
    # and the last copy out cannot start before it is issued
    longest = max(
        copy_in + cost.last_compute,
        cost.first_copy_in + cost.compute_seconds + cost.lost_seconds,
        cost.first_copy_in + cost.first_compute + copy_out - cost.last_copy_out,
        cost.issue_seconds,
        cost.filing_seconds,
    )
    turned = float(with_turning(longest, cost.turning_seconds))
    return cost.setup_seconds + turned + cost.last_copy_out


def binding_stage(cost: PipelineCost, slowdown: Slowdown = INDEPENDENT) -> Stage:
    """Return the stage with the most seconds when all overlap; the earlier one of equals.

    Examples
    --------
    >>> cost = PipelineCost(0.0, 4.0, 8.0, 4.0, 1.0, 2.0, 2.0, 1.0)
    >>> binding_stage(cost)
    'compute'
    """
    copy_in, copy_out = _link_totals(cost, slowdown)
    seconds = (copy_in, cost.compute_seconds + cost.lost_seconds, copy_out)
    return STAGES[seconds.index(max(seconds))]


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
        pair = INDEPENDENT
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
