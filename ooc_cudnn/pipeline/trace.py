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
from ooc_cudnn.pipeline.program import COMPUTE, Move, Program, Task
from ooc_cudnn.plotting import PART_COLOURS, STREAM_COLOURS, blank_figure, legend

#: How many pieces of a long call are shown enlarged, about.
ENLARGED_PIECES = 10
#: Width of a character on an enlarged bar, of the picture's.
CHARACTER = 0.0055


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step as it ran: seconds since the call began, bytes over the link (0 for compute).

    `task` is what it belongs to: the function, or the task or move of a longer program. `part` is
    of what a network's step computes "forward", "backward" or "recomputing"; else it is empty.
    """

    stream: str
    piece: int
    operands: str
    start_seconds: float
    stop_seconds: float
    host_bytes: int
    task: str = ""
    part: str = ""

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
        part = item.part if isinstance(item, Task) and step.stream == COMPUTE else ""
        nbytes, named = link_bytes(program, step), item.name
        traces.append(
            StepTrace(step.stream, step.piece, operands, start, stop, nbytes, named, part)
        )
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

    A call of many pieces gets a second row: some pieces from its middle, enlarged. Of a network's
    step the colour of computing says which part it is of, and the enlarged bars which task.

    Parameters
    ----------
    calls : list of (str, Trace)
        Each call's title and steps. A title's first line is set in bold.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    """
    figure_of(calls).savefig(path)


def figure_of(calls: list[tuple[str, Trace]]) -> Any:
    """The picture of calls, not written yet.

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
            legend(axes, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(PART_COLOURS))
        else:
            _draw(axes, trace, window, number=True)
            axes.set_title("from the middle, enlarged", fontsize=9, color="#555555", loc="left")
    return figure


def _draw(axes: Any, trace: Trace, window: tuple[float, float], *, number: bool) -> None:
    """Draw the part of a trace in a window of seconds since its first step."""
    zero = min((step.start_seconds for step in trace.steps), default=0.0)
    # The whole call in one unit, whichever part of it is shown.
    scale, unit = (1e3, "ms") if trace.seconds < 1 else (1.0, "s")
    left, right = (edge * scale for edge in window)
    several = len({step.task for step in trace.steps}) > 1
    spans: dict[tuple[str, str, bool], list[tuple[float, float]]] = {}
    for step in trace.steps:
        start, stop = ((at - zero) * scale for at in (step.start_seconds, step.stop_seconds))
        is_odd = step.piece % 2 == 1
        spans.setdefault((step.stream, step.part, is_odd), []).append((start, stop - start))
        if number:
            low, high = max(start, left), min(stop, right)
            text = step.task if several else str(step.piece)
            if high - low > max(0.025, CHARACTER * len(text)) * (right - left):
                axes.text((low + high) / 2, STREAMS.index(step.stream), text, ha="center",
                          va="center", color="#111111" if is_odd else "white", fontsize=8,
                          parse_math=False)  # fmt: skip
    for (stream, part, is_odd), bars in spans.items():
        colour = (PART_COLOURS[part] if part else STREAM_COLOURS[stream])[is_odd]
        # An outline of a fraction of a pixel keeps short steps of a long call visible.
        place = (STREAMS.index(stream) - 0.38, 0.76)
        axes.broken_barh(bars, place, color=colour, linewidth=0.3)
    there = {step.part for step in trace.steps}
    for part, (colour, _) in PART_COLOURS.items():
        if part in there:
            axes.broken_barh([], (0, 0), color=colour, label=part)
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
