"""Diagnosis of a profiled call: its plan, its tasks, and how busy its streams were or idled."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ooc_cudnn
from ooc_cudnn.devices.base import STREAMS
from ooc_cudnn.pipeline.program import COMPUTE
from ooc_cudnn.pipeline.trace import Trace
from ooc_cudnn.units import parse_limit


@contextmanager
def record_calls() -> Iterator[list[Any]]:
    """Record calls; give the list of them."""
    with ooc_cudnn.profile() as profile:
        yield profile.calls


def diagnosis(call: Any) -> dict[str, Any]:
    """Say what a profiled call did, as plain values."""
    plan, trace = call.plan, call.trace
    streams = {}
    for name in STREAMS:
        spans = sorted((s.start_seconds, s.stop_seconds) for s in trace.steps if s.stream == name)
        if not spans:
            continue
        covered, gap, end = 0.0, 0.0, spans[0][0]
        for start, stop in spans:
            gap = max(gap, start - end)
            covered += max(0.0, stop - max(start, end))
            end = max(end, stop)
        streams[name] = {
            "steps": len(spans),
            "first_start": spans[0][0],
            "last_stop": end,
            "covered_seconds": covered,
            "idle_seconds": end - spans[0][0] - covered,
            "longest_gap_seconds": gap,
            "bytes": trace.moved_bytes(name),
        }
    return {
        "function": call.function,
        "seconds_while_profiled": call.seconds,
        "predicted_seconds": call.predicted_seconds,
        "predicted_stages": {
            "copy_in": plan.copy_in_seconds,
            "compute": plan.compute_seconds,
            "copy_out": plan.copy_out_seconds,
        },
        "binding_stage": plan.binding_stage,
        "pieces": plan.pieces,
        "split": plan.split.to_json(),
        "order": list(plan.order),
        "rings": dict(plan.rings),
        "layout": plan.layout,
        "algorithms": list(plan.algorithms),
        "memory": dict(plan.memory),
        "memory_limit": plan.memory_limit,
        "peak_device_bytes": call.peak_device_bytes,
        "bytes_in": call.bytes_in,
        "bytes_out": call.bytes_out,
        "streams": streams,
    }


def format_diagnosis(found: Mapping[str, Any]) -> str:
    """Give a diagnosis in one line."""
    busy = ", ".join(
        f"{name} {s['covered_seconds'] * 1e3:.1f} ms (idle {s['idle_seconds'] * 1e3:.1f})"
        for name, s in found["streams"].items()
    )
    return (
        f"{found['pieces']} pieces {found['split']} {found['layout']} rings {found['rings']}, "
        f"profiled {found['seconds_while_profiled'] * 1e3:.1f} ms, predicted "
        f"{found['predicted_seconds'] * 1e3:.1f} ms, "
        f"peak {found['peak_device_bytes'] / 2**20:.0f} MiB; {busy}"
    )


def limit_kept(found: Mapping[str, Any], limit: str | int) -> dict[str, Any]:
    """Check the arena's peak against the limit: a verdict, with both in bytes."""
    allowed = int(parse_limit(limit, name="limit"))
    peak = found["peak_device_bytes"]
    return {"ok": peak <= allowed, "peak": peak, "limit": allowed}


def seconds_of_tasks(measured: Sequence[Trace], predicted: Trace) -> dict[str, tuple[float, float]]:
    """Compare the seconds of each task on the compute stream; those missed by most come first.

    Parameters
    ----------
    measured : sequence of Trace
        Of a step; of each part of one that pauses.
    predicted : Trace
        Of its replay.

    Returns
    -------
    dict
        Task to seconds, measured and predicted.

    Raises
    ------
    ValueError
        If these are traces of different steps.
    """
    rows: dict[str, list[float]] = {}
    for column, traces in enumerate((measured, (predicted,))):
        for step in (step for trace in traces for step in trace.steps):
            if step.stream == COMPUTE:
                row = rows.setdefault(step.task, [0.0, 0.0])
                row[column] += step.stop_seconds - step.start_seconds
    if sum(len(trace.steps) for trace in measured) != len(predicted.steps):
        raise ValueError("the traces are of different steps")
    missed = sorted(rows.items(), key=lambda each: each[1][1] - each[1][0])
    return {name: (row[0], row[1]) for name, row in missed}


def kernels_of(run: Callable[[], Any]) -> dict[str, tuple[int, float]]:
    """Count launches and seconds of each kernel that a call runs on the card, the longest first.

    PyTorch's profiler sees them (CUPTI): those of a recorded step, too.
    """
    torch: Any = importlib.import_module("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as watch:
        run()
        torch.cuda.synchronize()
    kernels: dict[str, tuple[int, float]] = {}
    for event in watch.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            count, seconds = kernels.get(event.name, (0, 0.0))
            lasted = (event.time_range.end - event.time_range.start) / 1e6
            kernels[event.name] = count + 1, seconds + lasted
    return dict(sorted(kernels.items(), key=lambda each: -each[1][1]))
