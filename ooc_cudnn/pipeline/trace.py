"""The trace: when each step ran. Drawn as three streams, or saved for Chrome and Perfetto."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ooc_cudnn.devices.base import STREAMS
from ooc_cudnn.pipeline.instructions import Instruction
from ooc_cudnn.pipeline.program import Move, Program, Task
from ooc_cudnn.plotting import blank_figure

#: Colours of even and of odd pieces, by stream.
COLOURS = {
    "copy_in": ("#3b6ea5", "#8fb3d9"),
    "compute": ("#2a7f3f", "#86c193"),
    "copy_out": ("#c8504b", "#eba29e"),
}
#: How many pieces of a long call are shown enlarged, about.
ENLARGED_PIECES = 10


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step as it ran: seconds since the call began, bytes over the link (0 for compute).

    `task` is what it belongs to: the function, or the task or move of a longer program.
    """

    stream: str
    piece: int
    operands: str
    start_seconds: float
    stop_seconds: float
    host_bytes: int
    task: str = ""

    def __post_init__(self) -> None:
        if self.stream not in STREAMS:
            raise ValueError(f"stream must be one of {', '.join(STREAMS)}, not {self.stream!r}")
        if self.stop_seconds < self.start_seconds:
            raise ValueError(f"a step cannot end before it starts: {self}")


@dataclass(frozen=True)
class Trace:
    """Every step of one call."""

    steps: tuple[StepTrace, ...]

    @property
    def seconds(self) -> float:
        """Seconds from the first start to the last end."""
        if not self.steps:
            return 0.0
        return max(s.stop_seconds for s in self.steps) - min(s.start_seconds for s in self.steps)

    def busy_seconds(self, stream: str) -> float:
        """Seconds in which a stream was at work."""
        return sum(s.stop_seconds - s.start_seconds for s in self.steps if s.stream == stream)

    def moved_bytes(self, stream: str) -> int:
        """Bytes that a stream moved."""
        return sum(s.host_bytes for s in self.steps if s.stream == stream)


def make_trace(
    program: Program, steps: Iterable[Instruction], intervals: Iterable[tuple[float, float]]
) -> Trace:
    """The trace of a program's steps, from when each ran."""
    traces = []
    for step, (start, stop) in zip(steps, intervals, strict=True):
        item = program.items[step.item]
        operands = ", ".join(place.operand for place in step.places)
        if isinstance(item, Move):
            operands = item.source
        traces.append(
            StepTrace(
                step.stream, step.piece, operands, start, stop, link_bytes(program, step), item.name
            )
        )  # fmt: skip
    return Trace(tuple(traces))


def link_bytes(program: Program, step: Instruction) -> int:
    """Bytes that a step moves over the link."""
    if not step.copies:
        return 0
    (place,) = step.places
    item = program.items[step.item]
    if isinstance(item, Move):
        spec = program.bindings[item.source].spec
    else:
        assert isinstance(item, Task)
        spec = item.request.specs[place.operand]
        if spec.placement == "device":
            return 0
    return math.prod(high - low for low, high in place.region) * spec.itemsize


def chrome_events(trace: Trace, *, process: int, label: str) -> list[dict[str, Any]]:
    """Return the trace in Chrome's trace event format (microseconds).

    A step is named by its operands; where there are several tasks, by its task.
    """
    several = len({step.task for step in trace.steps}) > 1
    named = {"ph": "M", "pid": process}
    events: list[dict[str, Any]] = [{**named, "name": "process_name", "args": {"name": label}}]
    for row, stream in enumerate(STREAMS):
        args = {"name": stream.replace("_", " ")}
        events.append({**named, "name": "thread_name", "tid": row, "args": args})
    for step in trace.steps:
        events.append(
            {
                "ph": "X",
                "name": f"{step.task if several else step.operands} piece {step.piece}",
                "cat": step.stream,
                "pid": process,
                "tid": STREAMS.index(step.stream),
                "ts": step.start_seconds * 1e6,
                "dur": (step.stop_seconds - step.start_seconds) * 1e6,
                "args": {"bytes": step.host_bytes, "task": step.task, "operands": step.operands},
            }
        )
    return events


def save_chrome(calls: list[tuple[str, Trace]], path: str | os.PathLike[str]) -> None:
    """Write traces to a file that chrome://tracing and ui.perfetto.dev open."""
    events = [
        event
        for process, (label, trace) in enumerate(calls)
        for event in chrome_events(trace, process=process, label=label)
    ]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)


def plot(calls: list[tuple[str, Trace]], path: str | os.PathLike[str]) -> None:
    """Draw the three streams of each call over time, as PNG or whatever the suffix says.

    A call of many pieces gets a second row: some pieces from its middle, enlarged.

    Parameters
    ----------
    calls : list of (str, Trace)
        Each call's title and steps. A title's first line is set in bold.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    """
    rows: list[tuple[str, Trace, tuple[float, float] | None]] = []
    for title, trace in calls:
        rows.append((title, trace, None))
        pieces = len({step.piece for step in trace.steps})
        if pieces > 2 * ENLARGED_PIECES:
            whole = trace.seconds
            half = whole * ENLARGED_PIECES / pieces / 2
            rows.append((title, trace, (whole / 2 - half, whole / 2 + half)))
    figure = blank_figure(12, 0.4 + 2.2 * len(rows))
    drawn = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
    for axes, (title, trace, window) in zip(drawn, rows, strict=True):
        if window is None:
            _draw(axes, trace, (0.0, trace.seconds), number=False)
            first, _, rest = title.partition("\n")
            axes.set_title(first, fontsize=12, fontweight="bold", loc="left", pad=22 * bool(rest))
            axes.annotate(
                rest, (0, 1), xytext=(0, 6), xycoords="axes fraction", textcoords="offset points",
                fontsize=9, color="#555555",
            )  # fmt: skip
        else:
            _draw(axes, trace, window, number=True)
            axes.set_title("from the middle, enlarged", fontsize=9, color="#555555", loc="left")
    figure.savefig(path)


def _draw(axes: Any, trace: Trace, window: tuple[float, float], *, number: bool) -> None:
    """Draw the part of a trace in a window of seconds since its first step."""
    zero = min((step.start_seconds for step in trace.steps), default=0.0)
    # The whole call in one unit, whichever part of it is shown.
    scale, unit = (1e3, "ms") if trace.seconds < 1 else (1.0, "s")
    left, right = (edge * scale for edge in window)
    for row, stream in enumerate(STREAMS):
        for dark in (True, False):
            steps = [
                (s.piece, (s.start_seconds - zero) * scale, (s.stop_seconds - zero) * scale)
                for s in trace.steps
                if s.stream == stream and (s.piece % 2 == 0) == dark
            ]
            spans = [(start, stop - start) for _, start, stop in steps]
            # An outline of a fraction of a pixel keeps short steps of a long call visible.
            axes.broken_barh(
                spans, (row - 0.38, 0.76), color=COLOURS[stream][not dark], linewidth=0.3
            )
            for piece, start, stop in steps if number else ():
                low, high = max(start, left), min(stop, right)
                if high - low > 0.025 * (right - left):
                    axes.text((low + high) / 2, row, piece, ha="center", va="center",
                              color="white", fontsize=8)  # fmt: skip
    whole = trace.seconds
    busy = [trace.busy_seconds(stream) / whole if whole else 0.0 for stream in STREAMS]
    names = [stream.replace("_", " ") for stream in STREAMS]
    axes.set_yticks(
        range(len(STREAMS)),
        names if number else [f"{n}\n{b:.0%} busy" for n, b in zip(names, busy, strict=True)],
    )
    axes.set_ylim(len(STREAMS) - 0.5, -0.5)
    axes.set_xlim(left, right if right > left else left + 1)
    axes.set_xlabel(f"time in {unit}")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
