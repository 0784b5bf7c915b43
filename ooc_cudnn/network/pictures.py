"""A step as a picture: the three streams, and what device memory holds, over its seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.figures import COLOURS, legend, panels
from ooc_cudnn.network.phases import Phase
from ooc_cudnn.network.planning import PlannedStep
from ooc_cudnn.network.remaking import REMADE
from ooc_cudnn.pipeline.program import COMPUTE, COPY_IN, COPY_OUT
from ooc_cudnn.pipeline.schedule import make_schedule
from ooc_cudnn.pipeline.simulate import Replayed

STREAMS = (COPY_IN, COMPUTE, COPY_OUT)
#: What memory holds, from the bottom of the picture up.
CLASSES = (
    "weights",
    "maps that stay",
    "maps that leave",
    "remade maps",
    "gradients",
    "working room",
)


class Span(NamedTuple):
    """A stretch of one stream: from its first step to its last, of one item of the program."""

    stream: str
    item: int
    start: float
    stop: float


class Course(NamedTuple):
    """A step as it runs, by its replay.

    Attributes
    ----------
    spans : list of Span
    begins : array
        When each task begins to compute, the first at 0; and the step's seconds.
    held : array of (class, task)
        Bytes on the device in each task, by `CLASSES`.
    """

    spans: list[Span]
    begins: Any
    held: Any


def course_of(made: PlannedStep) -> Course:
    """Replay a planned step."""
    program = made.placed.program
    schedule = make_schedule(program)
    replay = Replayed(schedule)
    spans: dict[tuple[str, int], Span] = {}
    for at, each in enumerate(schedule.steps):
        start, stop = replay.timeline.start[at], replay.timeline.finish[at]
        key = each.stream, each.item
        before = spans.get(key)
        spans[key] = Span(*key, before.start if before else start, stop)
    tasks = sorted(item for stream, item in spans if stream == COMPUTE)
    begins = [spans[COMPUTE, item].start for item in tasks]
    held = np.zeros((len(CLASSES), len(tasks)), np.int64)
    held[-1] = [task.plan.device_bytes for task in program.tasks]
    for row, first, last, nbytes in _stays(made):
        held[row, first : last + 1] += nbytes
    return Course(list(spans.values()), np.array([0.0, *begins[1:], replay.seconds]), held)


def _stays(made: PlannedStep) -> Iterator[tuple[int, int, int, int]]:
    """Class, first and last phase, and bytes of all that is on the device."""
    step = made.step
    of_weights = {step.place(name).base for name in step.gradients.values()}
    for base, stays in made.placed.residency.items():
        tensor = step.tensors[base]
        if tensor.kind in ("parameter", "running") or base in of_weights:
            name = "weights"
        elif tensor.kind == "gradient":
            name = "gradients"
        elif REMADE in base:
            name = "remade maps"
        else:
            name = "maps that leave" if len(stays) > 1 else "maps that stay"
        for stay in stays:
            yield CLASSES.index(name), stay.first, stay.last, tensor.nbytes


def draw_step(made: PlannedStep, path: str | os.PathLike[str]) -> None:
    """Draw a planned step, as PNG or whatever the suffix says.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    """
    figure, axes = panels(2, 1, width=12, height=6.5)
    course, plan = course_of(made), made.plan
    scale, unit = (1e3, "ms") if plan.seconds < 1 else (1.0, "s")
    _draw_streams(axes[0, 0], made, course, scale)
    _draw_memory(axes[1, 0], made, course, scale)
    axes[0, 0].set_title(
        f"{plan.name} on {plan.machine}, policy {plan.policy}", loc="left", fontweight="bold"
    )
    axes[1, 0].set_xlabel(f"time in {unit}")
    for each in axes[:, 0]:
        each.set_xlim(0, plan.seconds * scale)
    figure.savefig(path)


def _draw_streams(axes: Any, made: PlannedStep, course: Course, scale: float) -> None:
    """A row for each stream; computing by what it does."""
    items = [span.item for span in course.spans if span.stream == COMPUTE]
    phases = dict(zip(sorted(items), made.step.phases, strict=True))
    drawn: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for span in course.spans:
        what = "copies"
        if span.stream == COMPUTE:
            what = _kind_of(phases[span.item])
        found = drawn.setdefault((span.stream, what), [])
        found.append((span.start * scale, (span.stop - span.start) * scale))
    colours = dict(zip(("forward", "backward", "copies", "remaking"), COLOURS, strict=False))
    named = set[str]()
    for (stream, what), bars in drawn.items():
        label = what if what not in named else None
        named.add(what)
        place = (STREAMS.index(stream) - 0.38, 0.76)
        axes.broken_barh(bars, place, color=colours[what], linewidth=0.3, label=label)
    axes.set_yticks(range(len(STREAMS)), [stream.replace("_", " ") for stream in STREAMS])
    axes.set_ylim(len(STREAMS) - 0.5, -0.5)
    legend(axes, loc="upper right", ncols=4)


def _kind_of(phase: Phase) -> str:
    if any(REMADE in name for name in phase.writes):
        return "remaking"
    return "backward" if phase.is_backward else "forward"


def _draw_memory(axes: Any, made: PlannedStep, course: Course, scale: float) -> None:
    """What is held, stacked; the limit, and the peak with addresses that is promised."""
    times = np.repeat(course.begins, 2)[1:-1] * scale
    held = np.repeat(course.held, 2, axis=1) / 2**30
    axes.stackplot(times, held, labels=CLASSES, colors=COLOURS, linewidth=0)
    plan = made.plan
    for nbytes, name, at in (
        (plan.memory_limit, "limit", 0.002),
        (plan.device_bytes, "peak", 0.05),
    ):
        axes.axhline(nbytes / 2**30, color="#333333", linewidth=0.8, linestyle="--")
        axes.annotate(name, (at, nbytes / 2**30), xycoords=("axes fraction", "data"),
                      fontsize=8, va="bottom")  # fmt: skip
    axes.set_ylabel("device memory in GiB")
    axes.set_ylim(0, 1.15 * plan.memory_limit / 2**30)
    legend(axes, loc="upper right", bbox_to_anchor=(1, 0.86), ncols=2)
