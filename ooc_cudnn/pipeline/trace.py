"""The trace: when each step ran. Drawn as three streams, or saved for Chrome and Perfetto."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

STREAMS = ("copy_in", "compute", "copy_out")


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step as it ran: seconds since the call began, bytes over the link (0 for compute)."""

    stream: str
    piece: int
    operands: str
    start_seconds: float
    stop_seconds: float
    host_bytes: int

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
        """From the first start to the last end."""
        if not self.steps:
            return 0.0
        return max(s.stop_seconds for s in self.steps) - min(s.start_seconds for s in self.steps)

    def busy_seconds(self, stream: str) -> float:
        """Seconds in which a stream was at work."""
        return sum(s.stop_seconds - s.start_seconds for s in self.steps if s.stream == stream)

    def moved_bytes(self, stream: str) -> int:
        """Bytes that a stream moved."""
        return sum(s.host_bytes for s in self.steps if s.stream == stream)

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain JSON values."""
        return {"steps": [asdict(step) for step in self.steps]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Trace:
        """Return the trace that `to_json` described."""
        return cls(tuple(StepTrace(**step) for step in data["steps"]))


def chrome_events(trace: Trace, *, process: int, label: str) -> list[dict[str, Any]]:
    """Return the trace in Chrome's trace event format (microseconds)."""
    found: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": process, "args": {"name": label}}
    ]
    for row, stream in enumerate(STREAMS):
        found.append(
            {
                "ph": "M",
                "name": "thread_name",
                "pid": process,
                "tid": row,
                "args": {"name": stream.replace("_", " ")},
            }
        )
    for step in trace.steps:
        found.append(
            {
                "ph": "X",
                "name": f"{step.operands} piece {step.piece}",
                "cat": step.stream,
                "pid": process,
                "tid": STREAMS.index(step.stream),
                "ts": step.start_seconds * 1e6,
                "dur": (step.stop_seconds - step.start_seconds) * 1e6,
                "args": {"bytes": step.host_bytes},
            }
        )
    return found


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

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = {"copy_in": "#4477aa", "compute": "#228833", "copy_out": "#ee6677"}
    figure = Figure(figsize=(12, 1.1 + 1.5 * len(calls)), layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(len(calls), 1, squeeze=False)[:, 0]
    for axes, (label, trace) in zip(rows, calls, strict=True):
        whole = trace.seconds
        scale, unit = (1e3, "ms") if whole < 1 else (1.0, "s")
        for row, stream in enumerate(STREAMS):
            steps = [step for step in trace.steps if step.stream == stream]
            for parity, alpha in ((0, 0.95), (1, 0.6)):
                spans = [
                    (s.start_seconds * scale, (s.stop_seconds - s.start_seconds) * scale)
                    for s in steps
                    if s.piece % 2 == parity
                ]
                axes.broken_barh(
                    spans, (row - 0.4, 0.8), facecolors=colours[stream], alpha=alpha, linewidth=0
                )
        busy = [trace.busy_seconds(s) / whole if whole else 0.0 for s in STREAMS]
        axes.set_yticks(
            range(3),
            [f"{s.replace('_', ' ')} ({b:.0%})" for s, b in zip(STREAMS, busy, strict=True)],
        )
        axes.invert_yaxis()
        axes.set_title(label, fontsize=10, loc="left")
        axes.set_xlabel(unit)
        axes.margins(x=0.01)
    figure.savefig(path, dpi=120)
