"""A step of training, made ready: the program, what it keeps on the host, and the user's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ooc_cudnn import interrupts
from ooc_cudnn.arrays.making import empty_in
from ooc_cudnn.arrays.operands import Wrapped, wrap
from ooc_cudnn.devices.base import Device
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.network.phases import Step
from ooc_cudnn.network.placing import Placed
from ooc_cudnn.network.residency import GIVEN, results_of
from ooc_cudnn.pipeline.execute import Executor
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import TensorSpec

#: An array that is handed in, as steps take it.
Arrays = Mapping[str, Any]


class ReadyStep:
    """A placed step on one device: runs again and again on other inputs.

    What it keeps on the host is allocated once, when it is made.
    """

    def __init__(self, step: Step, placed: Placed, device: Device) -> None:
        self.step, self.placed, self.device = step, placed, device
        self.executor = Executor(placed.program)
        results = results_of(step)
        self._own = {
            name: self._made(spec)
            for name, spec in placed.program.between.items()
            if name not in results
        }
        self._results = {n: s for n, s in placed.program.between.items() if n in results}

    def _made(self, spec: TensorSpec) -> Any:
        placement = "pinned" if spec.placement == "device" else spec.placement
        return empty_in(self.device, placement, spec.shape, spec.dtype, "channels_first")

    def run(self, given: Mapping[str, Wrapped]) -> dict[str, Any]:
        """Run on given arrays; return every result by the name of its tensor.

        Parameters
        ----------
        given : mapping
            Inputs, parameters, running statistics and seeds. None of them is changed: new running
            statistics are among the results.
        """
        device, settings = self.device, current()
        made = {name: self._made(spec) for name, spec in self._results.items()}
        arrays: dict[str, Any] = {**self._own, **made}
        for name, wrapped in given.items():
            on_device = wrapped.spec.placement == "device"
            arrays[name] = wrapped.view() if on_device else wrapped.array
        changed = {
            self.step.place(name).base
            for phase in self.step.phases
            for name in phase.writes
            if self.step.tensors[self.step.place(name).base].kind in GIVEN
        }
        for name in changed:
            copy = np.array(given[name].array) if isinstance(arrays[name], np.ndarray) else None
            arrays[name] = copy if copy is not None else given[name].array.copy()
            made[name] = arrays[name]
        with device.arena.lock, interrupts.deferred():
            device.arena.reset_peak()
            self.executor.run(
                device,
                arrays,
                staged=any(
                    home.spec.placement in ("pageable", "disk")
                    for home in self.placed.program.homes.values()
                ),
                wait=True,
                limit_bytes=limit_bytes(device, settings.memory_limit),
            )
        return made

    def of(self, results: Mapping[str, Any], name: str) -> Any:
        """A result, as it lies in the array of the tensor whose view it is."""
        base, region = self.step.place(name)
        part = results[base][tuple(slice(*each) for each in region)]
        return part.reshape(self.step.tensors[name].shape)


def wrapped(arrays: Arrays, device: Device) -> dict[str, Wrapped]:
    """Take arrays of any placement."""
    return {name: wrap(array, device, name=name) for name, array in arrays.items()}
