"""Diagnosis of a profiled call: its plan, how busy its streams were, and where they idled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ooc_cudnn
from ooc_cudnn.devices.base import STREAMS
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
