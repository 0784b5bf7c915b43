"""The library's own training step: under a memory limit, or with everything on the device."""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import ooc_cudnn
from benchmarks.contenders.training_network import Array
from benchmarks.contenders.training_reference import Outcome
from benchmarks.contenders.training_step import Step
from examples.vgg16 import VGG16
from examples.vgg16_report import Report
from ooc_cudnn.bench.contender import Contender, Unavailable
from ooc_cudnn.bench.placing import (
    available_host_bytes,
    idle_pinned_bytes,
    release_device_memory,
)
from ooc_cudnn.devices import get_device
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.settings import current
from ooc_cudnn.units import format_bytes, parse_limit

#: Host memory that is left to others: the system, the reference, staging.
HOST_RESERVE_BYTES = 8 * 2**30
#: In core, what of the free device memory the library may hold, and of that the network's arrays:
#: the rest is cuDNN's workspace.
_IN_CORE_LIMIT, _IN_CORE_SHARE = 0.9, 0.9


class LibraryStep(Contender):
    """`examples.vgg16`, its arrays allocated by the paper's rule, or, `in_core`, on the device."""

    ours = True

    def __init__(
        self,
        step: Step,
        name: str,
        about: str,
        *,
        in_core: bool = False,
    ) -> None:
        self.step, self.name, self.about = step, name, about
        self._in_core = in_core
        self._share = _IN_CORE_SHARE if in_core else 0.5
        self._network: Any = None
        self._limit = 0
        self._seconds: list[float] = []
        self._details: dict[str, Any] = {}

    def prepare(self) -> None:
        """Allocate the network, once it is known that there is room for it."""
        release_device_memory(current().device)
        self._limit = self._limit_bytes()
        outside = self._check_room()
        self._seconds, self._details = [], {"pinned_bytes_needed": outside}
        image = self.step.network.image_shape[-1]
        with self._settings():
            self._network = VGG16(
                self.step.batch,
                image,
                self.step.network.map_shapes[-1][0],
                channels_scale=self.step.case.sizes["channels_percent"] / 100,
                device_share=self._share,
            )
        places = [ooc_cudnn.placement(array) for array in self._arrays()]
        if self._in_core and set(places) != {"device"}:
            raise Unavailable(f"{places.count('pinned')} of {len(places)} arrays are not in core")
        self._details["placements"] = {place: places.count(place) for place in sorted(set(places))}

    def _limit_bytes(self) -> int:
        device = get_device(current().device)
        if self._in_core:
            return int(_IN_CORE_LIMIT * (device.free_bytes() + device.arena.held_bytes))
        return limit_bytes(device, parse_limit(self.step.case.memory_limit, name="memory_limit"))

    def _check_room(self) -> int:
        """Return the bytes that go to pinned memory, if the host (or the device) has them."""
        room = int(self._limit * self._share)
        outside = self.step.network.bytes_outside(self.step.batch, room)
        if self._in_core and outside:
            raise Unavailable(
                f"in core, {format_bytes(outside)} of the network's arrays do not fit the "
                f"{format_bytes(room)} of device memory that they may take"
            )
        free = available_host_bytes() + idle_pinned_bytes(current().device)
        if outside > free - HOST_RESERVE_BYTES:
            raise Unavailable(
                f"needs {format_bytes(outside)} of pinned host memory; {format_bytes(free)} are "
                f"free, of which {format_bytes(HOST_RESERVE_BYTES)} are left to others"
            )
        return outside

    def _settings(self) -> Any:
        return ooc_cudnn.settings(memory_limit=self._limit, allow_tf32=self.step.tf32)

    def _arrays(self) -> list[Any]:
        """Every array of the network that a step writes, parameters last."""
        network = self._network
        parameters = network.parameters.values()
        return [*network.maps, *network.gradient_pool.buffers, *(p.gradient for p in parameters)]

    def rest(self) -> None:
        for name, parameter in self._network.parameters.items():
            ooc_cudnn.memcpy(parameter.value, self.step.network.weights[name])

    def run(self) -> None:
        begin = time.perf_counter()
        with self._settings():
            self._network.forward(self.step.images)
            self._network.loss(self.step.labels)
            self._network.backward(self.step.labels)
            self._network.descend(self.step.rate)
            get_device(current().device).synchronize()
        self._seconds.append(time.perf_counter() - begin)

    def check(self) -> dict[str, Any]:
        """Take a step from poisoned arrays, recording every call, and compare all gradients."""
        expected = self.step.expected()
        self.rest()
        for array in self._arrays():
            _poison(array)
        get_device(current().device).synchronize()
        loss, rest_seconds, report = self._recorded_step()
        rate, parameters = self.step.rate, self._network.parameters
        found = Outcome(
            loss,
            {name: _on_host(p.gradient) / rate for name, p in parameters.items()},
            {name: _on_host(p.value) for name, p in parameters.items()},
        )
        # The first step of `run` makes plans and tries engines.
        measured = statistics.median(self._seconds[1:] or self._seconds) if self._seconds else None
        self._details |= {"order": "channels_first", "memory_limit": self._limit}
        self._details |= summary(report, rest_seconds=rest_seconds, measured_seconds=measured)
        peak = self._details["peak_device_bytes"]
        compared = self.step.compare(found, expected)
        return compared | {
            "ok": compared["ok"] and peak <= self._limit,
            "peak_device_bytes": peak,
            "memory_limit": self._limit,
        }

    def _recorded_step(self) -> tuple[float, float, Any]:
        """Take a step; return its loss, seconds outside of calls, and the report of its calls."""
        device, network = get_device(current().device), self._network
        report, watch = Report(), network.watch
        network.watch = report.watch
        try:
            with self._settings():
                network.forward(self.step.images)
                begin = time.perf_counter()
                loss = network.loss(self.step.labels)
                rest_seconds = time.perf_counter() - begin
                network.backward(self.step.labels)
                begin = time.perf_counter()
                network.descend(self.step.rate)
                device.synchronize()
                rest_seconds += time.perf_counter() - begin
        finally:
            network.watch = watch
        return loss, rest_seconds, report

    def details(self) -> dict[str, Any]:
        """Return the calls of the step that was checked, stage by stage, beside their plans."""
        return dict(self._details)

    def release(self) -> None:
        """Give the network back, but keep its pinned memory: the library comes once more."""
        self._network = None
        release_device_memory(current().device)


def _on_host(array: Any) -> Array:
    found = np.empty(array.shape, array.dtype)
    ooc_cudnn.memcpy(found, array)
    return found


def _poison(array: Any) -> None:
    """Fill an array with NaN: what is not written, or read before it is, shows in a gradient."""
    if not isinstance(array, np.ndarray):
        array.fill(np.nan)
        return
    workers = min(16, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as threads:
        for _ in threads.map(lambda part: part.fill(np.nan), np.array_split(array, workers)):
            pass


def summary(
    report: Report, *, rest_seconds: float, measured_seconds: float | None
) -> dict[str, Any]:
    """Sum up the calls of one recorded step, by stage: at work, and binding.

    `rest_seconds` are of what is not a call: the loss, and the descent. `measured_seconds` are of a
    whole step that nobody recorded, since recording waits for the end of every call.
    """
    rows = report.rows
    calls = sum(row.seconds for row in rows)
    planned = sum(row.predicted_seconds for row in rows)
    stages = tuple(rows[0].stage_seconds)
    found: dict[str, Any] = {
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
