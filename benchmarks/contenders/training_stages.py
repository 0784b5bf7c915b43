"""A recorded step of a network, layer by layer: what its three streams were busy with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ooc_cudnn.devices.base import STREAMS
from ooc_cudnn.profiling import Call

#: What a step is given; of all else that is fetched, backward is the reader.
GIVEN = ("images", "labels")


def layer_of(task: str) -> tuple[str, str]:
    """The layer that a task of a step belongs to, and the direction.

    Examples
    --------
    >>> layer_of("conv1_1 forward, conv1_1.relu forward")
    ('conv1_1', 'forward')
    >>> layer_of("conv1_1 filter gradient [3]"), layer_of("offload of fc6.w.gradient")
    (('conv1_1', 'backward'), ('fc6', 'backward'))
    >>> layer_of("fetch of images [2]"), layer_of("fetch of conv1_1.relu")
    (('images', 'forward'), ('conv1_1', 'backward'))
    """
    way, _, rest = task.partition(" of ")
    is_move = way in ("fetch", "offload")
    layer = (rest if is_move else task).split(" ")[0].split(".")[0]
    is_parameter = is_move and rest.split(" ")[0].endswith((".w", ".b"))
    is_backward = "gradient" in task or task.endswith(" again")
    if way == "fetch" and layer not in GIVEN and not is_parameter:
        is_backward = True
    return layer, "backward" if is_backward else "forward"


def rows(call: Call) -> list[dict[str, Any]]:
    """A row for each layer and direction: its streams' seconds, and how far it took the step on.

    ``seconds`` are from the end of what was computed before to the end of what it computes: with
    all waiting, they add up to the step's.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}

    def row(task: str) -> dict[str, Any]:
        layer, direction = layer_of(task)
        empty = {"layer": layer, "direction": direction, "seconds": 0.0,
                 "stage_seconds": dict.fromkeys(STREAMS, 0.0),
                 "bytes_in": 0, "bytes_out": 0}  # fmt: skip
        return found.setdefault((layer, direction), empty)

    for step in call.steps:
        its = row(step.task)
        its["stage_seconds"][step.stream] += step.stop_seconds - step.start_seconds
        if step.stream != "compute":
            its["bytes_in" if step.stream == "copy_in" else "bytes_out"] += step.host_bytes
    for task, seconds in _advances(call):
        row(task)["seconds"] += seconds
    for its in found.values():
        its["binds"] = max(STREAMS, key=lambda stage: its["stage_seconds"][stage])
    return list(found.values())


def _advances(call: Call) -> Iterator[tuple[str, float]]:
    computed = sorted(
        (step for step in call.steps if step.stream == "compute"),
        key=lambda step: step.stop_seconds,
    )
    before = min(step.start_seconds for step in call.steps)
    for step in computed:
        yield step.task, step.stop_seconds - before
        before = step.stop_seconds


def summary(call: Call, *, rest_seconds: float, measured_seconds: float | None) -> dict[str, Any]:
    """Sum up a recorded step, by stage: at work, and binding.

    `rest_seconds` are of what is not the network's: the descent. `measured_seconds` are of a whole
    step that nobody recorded, since recording times every piece.
    """
    layers = rows(call)
    whole = sum(row["seconds"] for row in layers)
    found: dict[str, Any] = {
        "stage_seconds": {name: call.trace.busy_seconds(name) for name in STREAMS},
        "binding_share": {
            name: sum(row["seconds"] for row in layers if row["binds"] == name) / whole
            for name in STREAMS
        },
        "seconds_of_calls": call.seconds,
        "predicted_seconds_of_calls": call.predicted_seconds,
        "rest_seconds": rest_seconds,
        "predicted_seconds": call.predicted_seconds + rest_seconds,
        "measured_seconds": measured_seconds,
        "peak_device_bytes": call.peak_device_bytes,
        "bytes_in": call.bytes_in,
        "bytes_out": call.bytes_out,
        "calls": layers,
    }
    if measured_seconds is not None:
        found["predicted_over_measured"] = found["predicted_seconds"] / measured_seconds
    return found
