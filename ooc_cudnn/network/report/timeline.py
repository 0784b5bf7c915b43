"""A step as a picture: the three streams, and what device memory holds, over its seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.pipeline.program import COMPUTE, COPY_IN, COPY_OUT, Task
from ooc_cudnn.pipeline.schedule import Schedule, make_schedule
from ooc_cudnn.pipeline.simulate import ReplayedSchedule
from ooc_cudnn.pipeline.trace import Trace
from ooc_cudnn.plotting import PART_COLOURS, STREAM_COLOURS, legend, panels
from ooc_cudnn.units import format_bytes, format_seconds
from perfmodel import machine_label

STREAMS = (COPY_IN, COMPUTE, COPY_OUT)
#: What memory holds, from the bottom of the picture up: none in a colour of the streams, but for
#: what is recomputed.
CLASS_COLOURS = {
    "weights": "#1b2a80",
    "kept maps": "#ebca98",
    "offloaded maps": "#39a0b0",
    "recomputed maps": PART_COLOURS["recomputing"][0],
    "gradients": "#6b1a3a",
    "working room": "#777777",
}
CLASSES = tuple(CLASS_COLOURS)


class Span(NamedTuple):
    """Seconds of a stream at one task or move, from its first step of it to its last.

    `what` is "copies", or of computing "forward", "backward" or "recomputing".
    """

    stream: str
    what: str
    start: float
    stop: float


class Course(NamedTuple):
    """A step as it runs: on a virtual clock, or as it was recorded.

    Attributes
    ----------
    title : str
    spans : sequence of Span
    begins : array, shape (tasks + 1,)
        Seconds at which each task begins to compute, the first at 0; and those of the step.
    held : array, shape (classes, tasks)
        Bytes on the device in each task, by `CLASSES`.
    limit_bytes, peak_bytes : int
        The memory limit, and what the step reserves of it: most of `held`, and gaps between.
    """

    title: str
    spans: Sequence[Span]
    begins: Any
    held: Any
    limit_bytes: int
    peak_bytes: int


def course_of(made: LoweredStep, measured: Trace | None = None) -> Course:
    """A planned step as it ran, or else as its replay has it.

    Raises
    ------
    ValueError
        If it is the trace of another step.
    """
    program, plan = made.lowered.program, made.plan
    schedule = make_schedule(program)
    if measured is None:
        replay = ReplayedSchedule(schedule)
        intervals = list(zip(replay.timeline.start, replay.timeline.finish, strict=True))
        seconds, said = replay.seconds, f"{format_seconds(replay.seconds)} predicted"
    else:
        intervals = _intervals(measured, schedule)
        seconds = max(stop for _, stop in intervals)
        said = f"{format_seconds(seconds)} measured, {format_seconds(plan.seconds)} predicted"
    runs: dict[tuple[str, int], tuple[float, float]] = {}
    for item_step, (start, stop) in zip(schedule.steps, intervals, strict=True):
        first, last = runs.get((item_step.stream, item_step.item), (start, stop))
        runs[item_step.stream, item_step.item] = min(first, start), max(last, stop)
    tasks = sorted(item for stream, item in runs if stream == COMPUTE)
    parts = {at: item.part for at, item in enumerate(program.items) if isinstance(item, Task)}
    spans = [
        Span(stream, parts[item] if stream == COMPUTE else "copies", *span)
        for (stream, item), span in runs.items()
    ]
    begins = [runs[COMPUTE, item][0] for item in tasks]
    held = np.zeros((len(CLASSES), len(tasks)), np.int64)
    held[-1] = [task.plan.device_bytes for task in program.tasks]
    for row, first, last, nbytes in _stays(made):
        held[row, first : last + 1] += nbytes
    return Course(
        f"{plan.name} on {machine_label(plan.machine)}, policy {plan.policy}: {said}",
        spans,
        np.array([0.0, *begins[1:], seconds]),
        held,
        plan.memory_limit,
        plan.device_bytes,
    )


def _intervals(measured: Trace, schedule: Schedule) -> list[tuple[float, float]]:
    """Start and stop of each step of a schedule."""
    items = schedule.program.items
    if [(s.stream, items[s.item].name) for s in schedule.steps] != [
        (s.stream, s.task) for s in measured.steps
    ]:
        raise ValueError("the recorded call is not one of this step as it is planned now")
    return [(step.start_seconds, step.stop_seconds) for step in measured.steps]


def _stays(planned: LoweredStep) -> Iterator[tuple[int, int, int, int]]:
    """Row of `CLASSES`, first and last phase, and bytes of each live range."""
    step = planned.step
    of_weights = {step.base(name) for name in step.gradients.values()}
    for base, live_ranges in planned.lowered.live_ranges.items():
        tensor = step.tensors[base]
        if tensor.kind in ("parameter", "running") or base in of_weights:
            name = "weights"
        elif tensor.kind == "gradient":
            name = "gradients"
        elif tensor.origin.copy:
            name = "recomputed maps"
        else:
            name = "offloaded maps" if len(live_ranges) > 1 else "kept maps"
        for live_range in live_ranges:
            yield CLASSES.index(name), live_range.first, live_range.last, tensor.nbytes


def draw_step(
    made: LoweredStep, path: str | os.PathLike[str], measured: Trace | None = None
) -> None:
    """Draw a planned step, as it ran where that is given; as PNG or whatever the suffix says.

    Raises
    ------
    ValueError
        If it is the trace of another step.
    ModuleNotFoundError
        If matplotlib is not installed.
    """
    figure_of(course_of(made, measured)).savefig(path)


def figure_of(course: Course) -> Any:
    """The picture of a course, not written yet: streams above, memory below.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    """
    figure, axes = panels(2, 1, width=12, height=6.5)
    seconds = course.begins[-1]
    scale, unit = (1e3, "ms") if seconds < 1 else (1.0, "s")
    streams, memory = axes[:, 0]
    _draw_streams(streams, course, scale)
    _draw_memory(memory, course, scale)
    streams.set_title(course.title, loc="left", fontweight="bold", pad=22)
    memory.set_xlabel(f"time in {unit}")
    for panel in (streams, memory):
        panel.set_xlim(0, seconds * scale)
    return figure


def _draw_streams(axes: Any, course: Course, scale: float) -> None:
    """A row for each stream; computing by what it does."""
    drawn: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for span in course.spans:
        bars = drawn.setdefault((span.stream, span.what), [])
        bars.append((span.start * scale, (span.stop - span.start) * scale))
    named = set[str]()
    for (stream, what), bars in drawn.items():
        label = what if what in PART_COLOURS and what not in named else None
        named.add(what)
        place = (STREAMS.index(stream) - 0.38, 0.76)
        colour, _ = PART_COLOURS.get(what, STREAM_COLOURS[stream])
        axes.broken_barh(bars, place, color=colour, linewidth=0.3, label=label)
    axes.set_yticks(range(len(STREAMS)), [stream.replace("_", " ") for stream in STREAMS])
    axes.set_ylim(len(STREAMS) - 0.5, -0.5)
    # Above, since bars fill the panel; and below the title, which may be as wide.
    legend(axes, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(PART_COLOURS))


def _draw_memory(axes: Any, course: Course, scale: float) -> None:
    """Draw what is held, stacked; the limit, and the peak with addresses that is promised."""
    times = np.repeat(course.begins, 2)[1:-1] * scale
    held = {
        name: np.repeat(nbytes, 2) / 2**30
        for name, nbytes in zip(CLASSES, course.held, strict=True)
        if nbytes.any()
    }
    colours = [CLASS_COLOURS[name] for name in held]
    axes.stackplot(times, *held.values(), labels=held, colors=colours, linewidth=0)
    for nbytes, name, left in (
        (course.limit_bytes, "limit", 0.002),
        (course.peak_bytes, "peak", 0.12),
    ):
        axes.axhline(nbytes / 2**30, color="#333333", linewidth=0.8, linestyle="--")
        axes.annotate(f"{name} {format_bytes(nbytes)}", (left, nbytes / 2**30),
                      xycoords=("axes fraction", "data"), fontsize=8, va="bottom")  # fmt: skip
    axes.set_ylabel("device memory in GiB")
    axes.set_ylim(0, 1.15 * course.limit_bytes / 2**30)
    legend(axes, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(CLASSES))
