"""The calls of a training step summed up: stages, what binds, predicted beside measured."""

from __future__ import annotations

from typing import Any


def summary(report: Any, *, rest_seconds: float, measured_seconds: float | None) -> dict[str, Any]:
    """Sum up the calls of one recorded step.

    Parameters
    ----------
    report : examples.vgg16_report.Report
    rest_seconds : float
        Of what is not a call: the loss, and the descent.
    measured_seconds : float or None
        Of a whole step that nobody recorded, since recording waits for the end of every call.

    Returns
    -------
    dict
        ``calls``, a row for each layer and direction; ``stage_seconds``, for which each stream was
        at work; ``binding_share``, the seconds of the calls that each stage binds over those of all
        calls; ``predicted_seconds`` of the step, which are those of the calls' plans and
        `rest_seconds`; and ``predicted_over_measured``.
    """
    rows = report.rows
    calls = sum(row.seconds for row in rows)
    planned = sum(row.predicted_seconds for row in rows)
    stages = tuple(rows[0].stage_seconds)
    found = {
        "stage_seconds": {name: sum(row.stage_seconds[name] for row in rows) for name in stages},
        "binding_share": {
            name: sum(row.seconds for row in rows if row.binds == name) / calls for name in stages
        },
        "seconds_of_calls": calls,
        "predicted_seconds_of_calls": planned,
        "rest_seconds": rest_seconds,
        "predicted_seconds": planned + rest_seconds,
        "measured_seconds": measured_seconds,
        "peak_device_bytes": max(row.peak_device_bytes for row in rows),
        "bytes_in": sum(row.bytes_in for row in rows),
        "bytes_out": sum(row.bytes_out for row in rows),
        "calls": report.to_json(),
    }
    if measured_seconds is not None:
        found["predicted_over_measured"] = found["predicted_seconds"] / measured_seconds
    return found
