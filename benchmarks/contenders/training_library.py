"""The library's own training step: under a memory limit, or with every map kept on the device."""

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
from benchmarks.contenders.training_stages import summary
from benchmarks.contenders.training_step import Step
from ooc_cudnn import networks
from ooc_cudnn.bench.contender import Contender, Unavailable
from ooc_cudnn.bench.placing import available_host_bytes, release_device_memory
from ooc_cudnn.devices import get_device
from ooc_cudnn.errors import HostOutOfMemoryError
from ooc_cudnn.functions.tune.tune import NothingToTuneError
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.memory.pinned import held_bytes
from ooc_cudnn.network.lowering.device_gradients import SETS
from ooc_cudnn.settings import current
from ooc_cudnn.units import format_bytes, parse_limit

#: What a record says of the library where it ran a network as one program.
NETWORK = "ooc_cudnn.networks.vgg16, its step planned whole, under the memory limit"
#: Host memory that is left to others: the system, the reference, staging.
HOST_RESERVE_BYTES = 8 * 2**30
#: In core, what of the free device memory the library may hold.
_IN_CORE_LIMIT = 0.9
#: What of the memory limit parameters on the device and their gradients, which are there twice, may
#: take; other parameters go to pinned memory.
_PARAMETERS_SHARE = 0.5
#: Of the largest part of a gradient that descent takes to the device at once.
_DESCENT_ELEMENTS = 2**24
#: How long cuDNN's engines are measured before anything is timed: PyTorch's are, too.
TUNE_SECONDS = 60.0
_PLANNED = ("policy", "micro_batches", "bands", "seconds", "device_bytes", "host_bytes")
#: Beside its inputs, what a step in core may fetch: sums and single numbers.
_FETCHED_BESIDE = 0.1


class LibraryStep(Contender):
    """`networks.vgg16` under a memory limit; or, `in_core`, with every map kept on the device.

    Parameters lie on the device as long as they fit, within the limit, and so do their gradients.
    Gradients of the others come to pinned memory, and go to the device once more, where descent is.
    """

    ours = True

    def __init__(self, step: Step, name: str, about: str, *, in_core: bool = False) -> None:
        self.step, self.name, self.about = step, name, about
        self._in_core = in_core
        self._network: Any = None
        self._ready: Any = None
        self._buffer: Any = None
        self._limit = self._host_limit = 0
        self._seconds: list[float] = []
        self._details: dict[str, Any] = {}

    def prepare(self) -> None:
        """Make the network, and take a first step: it plans, tries engines and takes memory."""
        release_device_memory(current().device)
        self._limit, self._seconds = self._limit_bytes(), []
        held = held_bytes(get_device(current().device))
        self._host_limit = max(held + available_host_bytes() - HOST_RESERVE_BYTES, held)
        step, sizes = self.step, self.step.case.sizes
        net, loss = networks.vgg16(
            step.batch,
            sizes["image"],
            classes=step.network.map_shapes[-1][0],
            width=sizes["channels_percent"] / 100,
            dropout=0,
        )
        self._network = net
        largest = max(weight.size for weight in step.network.weights.values())
        with self._settings(share=_PARAMETERS_SHARE / (1 + SETS)):
            self._buffer = ooc_cudnn.empty((2 * min(largest, _DESCENT_ELEMENTS),))
            for name, weight in step.network.weights.items():
                net.parameters[name] = ooc_cudnn.empty(weight.shape)
        self._ready = net.training_step(loss, **self._how())
        self.rest()
        try:
            tuned = self._tune()
            self._take_step()
        except (ooc_cudnn.PlanInfeasibleError, HostOutOfMemoryError) as error:
            raise Unavailable(str(error)) from error
        plan = self._ready.plan
        inputs = step.images.nbytes + step.labels.nbytes
        if self._in_core and plan.bytes_in > (1 + _FETCHED_BESIDE) * inputs:
            raise Unavailable(
                f"in core, maps do not fit {format_bytes(self._limit)} of device memory: a step "
                f"would fetch {format_bytes(plan.bytes_in - inputs)} beside its inputs"
            )
        places = [ooc_cudnn.placement(array) for array in net.parameters.values()]
        self._details = {
            "pinned_bytes_needed": plan.host_bytes,
            "placements": {place: places.count(place) for place in sorted(set(places))},
            "plan": {name: getattr(plan, name) for name in _PLANNED},
            "tuning": tuned,
            "engines": {task.name: [task.seconds, task.engines] for task in plan.tasks},
        }

    def _tune(self) -> dict[str, Any]:
        """Measure cuDNN's engines, where there are several; return what that was allowed and took.

        The step is planned by what is found, as PyTorch chooses by what `cudnn.benchmark` finds.
        """
        begin = time.perf_counter()
        try:
            with self._settings():
                found = self._ready.tune(
                    seconds=TUNE_SECONDS, images=self.step.images, labels=self.step.labels
                )
        except NothingToTuneError as error:
            return {"reason": str(error)}
        seconds = time.perf_counter() - begin
        return {"limit_seconds": TUNE_SECONDS, "seconds": seconds, "convolutions": len(found)}

    def _how(self) -> dict[str, Any]:
        """What decides about maps; at the tiny size one policy, since comparing takes seconds."""
        if self._in_core:
            return {"policy": "keep", "micro_batches": 1}
        return {"policy": "offload", "micro_batches": 1} if self.step.tiny else {}

    def _limit_bytes(self) -> int:
        device = get_device(current().device)
        if self._in_core:
            return int(_IN_CORE_LIMIT * (device.free_bytes() + device.arena.held_bytes))
        return limit_bytes(device, parse_limit(self.step.case.memory_limit, name="memory_limit"))

    def _settings(self, share: float = 1.0) -> Any:
        limit = max(int(self._limit * share), 1)
        return ooc_cudnn.settings(
            memory_limit=limit, host_memory_limit=self._host_limit, allow_tf32=self.step.tf32
        )

    def rest(self) -> None:
        for name, weight in self.step.network.weights.items():
            ooc_cudnn.memcpy(self._network.parameters[name], weight)

    def run(self) -> None:
        begin = time.perf_counter()
        self._take_step()
        self._seconds.append(time.perf_counter() - begin)

    def _take_step(self) -> float:
        """Take a step and descend; return the loss."""
        with self._settings():
            loss: float = self._ready(images=self.step.images, labels=self.step.labels)
            for name, gradient in self._ready.gradients.items():
                self._descend(self._network.parameters[name].reshape(-1), gradient.reshape(-1))
            get_device(current().device).synchronize()
        return loss

    def _descend(self, weights: Any, gradient: Array) -> None:
        """Subtract the rate times a gradient, part by part: in the buffer, wherever they lie."""
        for start in range(0, len(gradient), len(self._buffer) // 2):
            part = gradient[start : start + len(self._buffer) // 2]
            moved, held = (half[: len(part)] for half in self._buffer.reshape(2, -1))
            target = weights[start : start + len(part)]
            if ooc_cudnn.placement(part) == ooc_cudnn.placement(moved):
                np.multiply(part, self.step.rate, out=moved)  # CuPy's, on a card
            else:
                ooc_cudnn.memcpy(moved, part)
                moved *= self.step.rate
            if ooc_cudnn.placement(target) == ooc_cudnn.placement(moved):
                target -= moved
                continue
            ooc_cudnn.memcpy(held, target)
            held -= moved
            ooc_cudnn.memcpy(target, held)

    def check(self) -> dict[str, Any]:
        """Take a step into poisoned memory, recording it, and compare all gradients."""
        expected = self.step.expected()
        self.rest()
        while self._ready.gradients:  # the next ones lie where these lay
            _poison(self._ready.gradients.popitem()[1])
        with ooc_cudnn.profile() as recorded:
            begin = time.perf_counter()
            loss = self._take_step()
            seconds = time.perf_counter() - begin
        (call,) = recorded.calls
        found = Outcome(
            loss,
            {name: _on_host(gradient) for name, gradient in self._ready.gradients.items()},
            {name: _on_host(w) for name, w in self._network.parameters.items()},
        )
        measured = statistics.median(self._seconds) if self._seconds else None
        self._details |= {"order": call.plan.order, "memory_limit": self._limit}
        self._details |= summary(
            call, rest_seconds=seconds - call.seconds, measured_seconds=measured
        )
        compared = self.step.compare(found, expected)
        return compared | {
            "ok": compared["ok"] and call.peak_device_bytes <= self._limit,
            "peak_device_bytes": call.peak_device_bytes,
            "memory_limit": self._limit,
        }

    def details(self) -> dict[str, Any]:
        """Return the step that was checked, stage by stage, beside its plan."""
        return dict(self._details)

    def release(self) -> None:
        """Give the network back, but keep its pinned memory: the library comes once more."""
        self._network = self._ready = self._buffer = None
        release_device_memory(current().device)


def _on_host(array: Any) -> Array:
    found = np.empty(array.shape, array.dtype)
    ooc_cudnn.memcpy(found, array)
    return found


def _poison(array: Array) -> None:
    """Fill an array with NaN: what is not written shows in a gradient."""
    if ooc_cudnn.placement(array) == "device":
        array[...] = np.nan
        return
    workers = min(16, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as threads:
        for _ in threads.map(lambda part: part.fill(np.nan), np.array_split(array, workers)):
            pass
