"""A planned step on a device: it takes arrays and gives results, again and again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ooc_cudnn import interrupts
from ooc_cudnn.arrays.making import empty_in
from ooc_cudnn.arrays.operands import Wrapped, wrap
from ooc_cudnn.devices.base import Device
from ooc_cudnn.functions.observed import run_observed
from ooc_cudnn.memory.pinned import allocate
from ooc_cudnn.network.fastest import PlannedStep
from ooc_cudnn.network.gradients import bytes_there, gradients_of
from ooc_cudnn.network.phases import Step
from ooc_cudnn.network.residency import GIVEN, results_of
from ooc_cudnn.pipeline.execute import Executor
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import TensorSpec, numpy_dtype


class Ready:
    """A planned step on one device: what its runs have in common.

    Nothing that is given is changed: what a step updates (running statistics) is among its results.
    """

    def __init__(self, planned: PlannedStep, device: Device) -> None:
        self.planned, self.device = planned, device
        step, self.program = planned.step, planned.placed.program
        results = results_of(step)
        specs = {name: home.spec for name, home in self.program.homes.items()}
        self._results = {n: spec for n, spec in self.program.between.items() if n in results}
        self._results |= gradients_of(step, specs)
        self._changed = [name for name in results if step.tensors[name].kind in GIVEN]
        #: What running it takes of the device.
        self.device_bytes = planned.plan.device_bytes + made_anew_bytes(step, specs)

    def _in_block(self) -> Iterator[tuple[str, Any]]:
        """What lives on the host meanwhile, in one block of pinned memory."""
        program = self.program
        if not program.pinned_bytes:
            return
        block = allocate(
            self.device,
            program.pinned_bytes,
            current().host_memory_limit,
            purpose=f"what {program.name} keeps on the host",
        )
        for name, start in program.pinned.items():
            spec = program.between[name]
            array = block[start : start + spec.nbytes].view(numpy_dtype(spec.dtype))
            steps = tuple(stride * spec.itemsize for stride in spec.strides)
            yield name, as_strided(array, spec.shape, steps)

    def _made(self, spec: TensorSpec) -> Any:
        order, limit = spec.order or "channels_first", self.planned.plan.memory_limit
        return empty_in(self.device, spec.placement, spec.shape, spec.dtype, order, limit)

    def _results_made(self, given: Mapping[str, Wrapped], names: Collection[str]) -> dict[str, Any]:
        """Arrays for the results of these names; what a step changes begins as what is given."""
        made = {name: self._made(spec) for name, spec in self._results.items() if name in names}
        for name in self._changed:
            if name in names:
                made[name] = self._made(given[name].spec)
                made[name][...] = given[name].array
        return made

    def _sources(
        self, own: Mapping[str, Any], given: Mapping[str, Wrapped], made: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Every array that is handed in, as the executor takes it."""
        taken = dict(given)
        for name in (*self._changed, *gradients_of(self.planned.step, self._results)):
            if name in made:
                taken[name] = wrap(made[name], self.device, name=name, written=True)
        arrays: dict[str, Any] = {**own, **made}
        for name, each in taken.items():
            arrays[name] = each.view() if each.spec.placement == "device" else each.array
        return arrays

    def _observed(
        self, executor: Executor, arrays: Mapping[str, Any], block: int | None = None
    ) -> None:
        plan = self.planned.plan
        run_observed(
            plan.name,
            plan,
            executor,
            self.device,
            arrays,
            staged=executor.program.in_threads,
            wait=True,
            limit_bytes=plan.memory_limit,
            block=block,
        )

    def of(self, results: Mapping[str, Any], name: str) -> Any:
        """A result, as it lies in the array of the tensor whose view it is."""
        step: Step = self.planned.step
        base, region = step.place(name)
        part = results[base][tuple(slice(*each) for each in region)]
        return part.reshape(step.tensors[name].shape)

    def on_device(self, gradients: Mapping[str, Any]) -> dict[str, tuple[int, list[Any]]]:
        """Of each tensor on the device that holds gradients its bytes, and the arrays in it."""
        step = self.planned.step
        specs = gradients_of(step, self._results)
        found: dict[str, tuple[int, list[Any]]] = {b: (s.nbytes, []) for b, s in specs.items()}
        for name, array in gradients.items():
            base = step.place(step.gradients[name]).base
            if base in found:
                found[base][1].append(array)
        return found


class ReadyStep(Ready):
    """A planned step on one device: runs again and again on other arrays.

    What it keeps on the host is allocated once, when it is made.
    """

    def __init__(self, planned: PlannedStep, device: Device) -> None:
        super().__init__(planned, device)
        self.executor = Executor(self.program)
        self._own = dict(self._in_block())

    def run(self, given: Mapping[str, Wrapped]) -> dict[str, Any]:
        """Run on given arrays; return every result by the name of its tensor.

        Parameters
        ----------
        given : mapping
            Inputs, parameters, running statistics and seeds.
        """
        made = self._results_made(given, {*self._results, *self._changed})
        arrays = self._sources(self._own, given, made)
        with self.device.arena.lock, interrupts.deferred():
            self._observed(self.executor, arrays)
        return made


def made_anew_bytes(step: Step, specs: Mapping[str, TensorSpec]) -> int:
    """Bytes on the device of what a step changes, in arrays of its own, and of its gradients."""
    on_device = {n for n, spec in specs.items() if spec.placement == "device" and n in step.tensors}
    if not on_device:
        return 0
    changed = (n for n in results_of(step) & on_device if step.tensors[n].kind in GIVEN)
    return sum(specs[n].nbytes for n in changed) + bytes_there(step, specs)


def number(array: Any) -> float:
    """A loss, as a Python number."""
    return float(np.asarray(array).reshape(-1)[0])
