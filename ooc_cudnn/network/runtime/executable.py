"""A planned step on a device: it takes arrays and gives results, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from ooc_cudnn import interrupts
from ooc_cudnn.activity import tell
from ooc_cudnn.arrays.making import array_on, empty_in
from ooc_cudnn.arrays.operands import ArrayRef, address_of, array_ref
from ooc_cudnn.devices.base import Device, HostArray
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.functions.call.observe import run_observed
from ooc_cudnn.memory.loans import Allocation, Lease
from ooc_cudnn.memory.pinned import allocate, have_ready
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.device_gradients import (
    GradientBlock,
    device_gradient_bytes,
    gradients_of,
)
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.pipeline.execute import Executor
from ooc_cudnn.pipeline.graph_replay import results_of
from ooc_cudnn.pipeline.program import Move
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import TensorSpec, numpy_dtype
from ooc_cudnn.units import format_seconds


class Memory(Protocol):
    """Memory of arrays on the device: the library's own, or another framework's."""

    def array(self, spec: TensorSpec) -> Any:
        """An array by itself."""

    def block(self, nbytes: int) -> Allocation:
        """A block, for several arrays."""

    def in_block(self, block: Any, spec: TensorSpec, start: int) -> Any:
        """An array from a byte of a block on, which it keeps alive."""


class OwnMemory:
    """The library's own, which counts against a limit in bytes."""

    def __init__(self, device: Device, limit: int) -> None:
        self._device, self._limit = device, limit

    def array(self, spec: TensorSpec) -> Any:
        """An array by itself."""
        order = spec.order or "channels_first"
        return empty_in(self._device, "device", spec.shape, spec.dtype, order, self._limit)

    def block(self, nbytes: int) -> Lease:
        """A block, for several arrays."""
        return self._device.arena.allocate_array(nbytes, self._limit)

    def in_block(self, block: Lease, spec: TensorSpec, start: int) -> Any:
        """An array from a byte of a block on, which it keeps alive."""
        return array_on(self._device, block, spec, start)


class ResultAllocation(NamedTuple):
    """Allocation of results by whoever runs a step.

    Attributes
    ----------
    memory : Memory, optional
        Of results on the device; the library's own without it.
    changing : collection of str
        What is given that the step may change where it lies; of all else it changes copies.
    """

    memory: Memory | None = None
    changing: Collection[str] = ()


DEFAULT_ALLOCATION = ResultAllocation()


class Executable:
    """A planned step on one device: what its runs have in common.

    Nothing that is given is changed: what a step updates (running statistics) is among its results.
    """

    def __init__(self, planned: LoweredStep, device: Device) -> None:
        self.planned, self.device = planned, device
        self.memory: Memory = OwnMemory(device, planned.plan.memory_limit)
        step, self.program = planned.step, planned.lowered.program
        results = step.results
        specs = {name: binding.spec for name, binding in self.program.bindings.items()}
        self._results = {n: spec for n, spec in self.program.between.items() if n in results}
        self._gradients = gradients_of(step, specs)
        self._results |= self._gradients
        #: What a step changes, running statistics, and how it makes them.
        self.changed = {name: specs[name] for name in step.changed}
        #: Results, those first that are let go of last: memory is lent again like plates of a
        #: stack, so that each comes back to its tensor, and runs to addresses where others were.
        of_parameters = {step.base(name) for name in step.gradients.values()}
        last_first = tuple(reversed(self._results))
        self._last_first = [name for name in last_first if name not in of_parameters]
        self._last_first += [name for name in last_first if name in of_parameters]
        #: What running it takes of the device.
        self.device_bytes = planned.plan.device_bytes + new_array_bytes(step, specs)
        self.device_bytes += planned.plan.outside_bytes
        #: Whether it makes nothing on the host but for itself: then nobody need wait for it.
        self.is_made_there = self._made_on_host() <= self.program.between.keys() - results
        self._views: dict[str, tuple[TensorSpec, DeviceView]] = {}
        #: When it began to be planned, until its first run has ended.
        self.began: float | None = None

    def _made_on_host(self) -> set[str]:
        """Tensors that tasks and moves write in memory of the host."""
        program = self.program
        moved = {item.target for item in program.items if isinstance(item, Move)}
        written = results_of(program) | {program.bindings[name].of or name for name in moved}
        bindings = {name: program.bindings[name] for name in written}
        return {
            name
            for name, binding in bindings.items()
            if binding.offset is None and binding.spec.placement != "device"
        }

    def _in_block(self) -> Iterator[tuple[str, Any]]:
        """The arrays that live on the host meanwhile, in one block of pinned memory."""
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
            yield name, _within(block, program.between[name], start)

    def _made(self, spec: TensorSpec, making: ResultAllocation = DEFAULT_ALLOCATION) -> Any:
        if spec.placement == "device":
            return (making.memory or self.memory).array(spec)
        order = spec.order or "channels_first"
        return empty_in(self.device, spec.placement, spec.shape, spec.dtype, order)

    def _results_made(
        self,
        inputs: Mapping[str, ArrayRef],
        names: Collection[str],
        making: ResultAllocation = DEFAULT_ALLOCATION,
    ) -> dict[str, Any]:
        """Arrays for the results of these names; what a step changes begins as what is given."""
        arrays = {n: self._made(self._results[n], making) for n in self._last_first if n in names}
        changed = [name for name in self.changed if name in names and name not in making.changing]
        for name, array in self._changed_made(changed):
            array[...] = inputs[name].plain
            arrays[name] = array
        return arrays

    @property
    def on_host(self) -> tuple[str, ...]:
        """The results that are made in pinned memory, but for what a step changes."""
        return tuple(n for n, spec in self._results.items() if spec.placement == "pinned")

    def pin_beforehand(self, sets: Mapping[str, int], changed_sets: int) -> None:
        """Have pinned memory ready for what runs make on the host, so that they pin none.

        Parameters
        ----------
        sets : mapping
            Of some `on_host`, by name, how many there are at once: two where those of the run
            before are held until a run has ended.
        changed_sets : int
            The same of what a step changes.
        """
        sizes = [self._results[name].nbytes for name, each in sets.items() for _ in range(each)]
        changed = self._changed_on_host(self.changed).nbytes
        sizes += [changed] * changed_sets * (changed > 0)
        have_ready(self.device, sizes, current().host_memory_limit)

    def _changed_on_host(self, names: Iterable[str]) -> GradientBlock:
        """Places of what a step changes in a block of pinned memory, but for what is elsewhere."""
        specs = {name: self.program.bindings[name].spec for name in names}
        return GradientBlock(
            {name: spec for name, spec in specs.items() if spec.placement != "device"}
        )

    def _changed_made(self, names: Collection[str]) -> Iterator[tuple[str, Any]]:
        """Arrays for what a step changes; those on the host in one block of pinned memory."""
        specs = {name: self.program.bindings[name].spec for name in names}
        on_device = {name: spec for name, spec in specs.items() if spec.placement == "device"}
        pinned = self._changed_on_host(specs)
        if pinned.nbytes:
            memory = allocate(self.device, pinned.nbytes, current().host_memory_limit)
            yield from pinned.arrays(memory, _within).items()
        for name, spec in on_device.items():
            yield name, self._made(spec)

    def _sources(
        self, held: Mapping[str, Any], inputs: Mapping[str, ArrayRef], results: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Every array that is handed in, as the executor takes it."""
        arrays: dict[str, Any] = {**held, **results}
        for name, ref in inputs.items():
            if name not in results:
                on_device = ref.spec.placement == "device"
                arrays[name] = self._view(name, ref.spec, ref.pointer) if on_device else ref.array
        for name, array in results.items():
            spec = self.program.bindings[name].spec
            if spec.placement == "device":
                if name in self.changed:  # packed, however the given one lies
                    spec = array_ref(array, self.device, name=name, written=True).spec
                arrays[name] = self._view(name, spec, address_of(array))
        return arrays

    def _view(self, name: str, spec: TensorSpec, pointer: int) -> DeviceView:
        """A tensor on the device; that of the call before, where it has not moved."""
        known = self._views.get(name)
        if known is None or known[0] is not spec or known[1].pointer != pointer:
            view = DeviceView(pointer, spec.dtype, spec.shape, spec.strides)
            known = self._views[name] = spec, view
        return known[1]

    def tell_first(self) -> None:
        """Say, where somebody watches, that the first run has ended, and what the plan does."""
        began, plan, self.began = self.began, self.planned.plan, None
        if began is not None and not plan.derived:
            seconds = format_seconds(time.monotonic() - began)
            tell(f"{plan.name}: first run after {seconds}, {plan.decisions}", current().progress)

    def _observed(
        self,
        name: str,
        plan: NetworkPlan,
        executor: Executor,
        arrays: Mapping[str, Any],
        block: int | None = None,
        *,
        wait: bool = True,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Run a program of it, which has this name and plan."""
        run_observed(
            name,
            plan,
            executor,
            self.device,
            arrays,
            staged=executor.program.in_threads,
            wait=wait,
            limit_bytes=plan.memory_limit,
            block=block,
            meanwhile=meanwhile,
        )

    def of(self, results: Mapping[str, Any], name: str) -> Any:
        """A result, as it lies in the array of the tensor whose view it is."""
        step: Step = self.planned.step
        if name in results and name in self._gradients:
            return results[name]
        base, region = step.place(name)
        part = results[base][tuple(slice(*each) for each in region)]
        return part.reshape(step.tensors[name].shape)


class ExecutableStep(Executable):
    """A planned step on one device: runs again and again on other arrays.

    What it keeps on the host is allocated once, when it is made.
    """

    def __init__(self, planned: LoweredStep, device: Device) -> None:
        super().__init__(planned, device)
        self.executor = Executor(self.program)
        self._own = dict(self._in_block())
        #: Of the gradients on the device.
        self._block = GradientBlock(self._gradients)

    def gradient_memory(self) -> Allocation | None:
        """Memory for the gradients on the device; None if there are none."""
        return self.memory.block(self._block.nbytes) if self._gradients else None

    def run(
        self,
        given: Mapping[str, ArrayRef],
        making: ResultAllocation = DEFAULT_ALLOCATION,
        *,
        wait: bool = True,
        memory: Allocation | None = None,
    ) -> dict[str, Any]:
        """Run on given arrays; return every result by the name of its tensor.

        Parameters
        ----------
        given : mapping
            Inputs, parameters, running statistics and seeds.
        making : ResultAllocation
        wait : bool
            Whether the host waits until all is there.
        memory : Allocation, optional
            Where gradients on the device are to be, if there are any: `gradient_memory`. Their
            arrays are made while the device works.
        """
        names = {*self._results, *self.changed} - self._gradients.keys()
        results = self._results_made(given, names, making)
        arrays = self._sources(self._own, given, results)

        def make_arrays() -> None:
            if memory is not None:
                results.update(self._block.arrays(memory, self.memory.in_block))

        with self.device.arena.lock, interrupts.defer_signals():
            if memory is not None:
                arrays |= self._block.views(memory.pointer)
            plan = self.planned.plan
            self._observed(plan.name, plan, self.executor, arrays, wait=wait, meanwhile=make_arrays)
            if self._own and not wait:
                self.device.keep(self._own)
        self.tell_first()
        return results


def new_array_bytes(step: Step, specs: Mapping[str, TensorSpec]) -> int:
    """Bytes on the device of what a step changes, in arrays of its own, and of its gradients."""
    on_device = {n for n, spec in specs.items() if spec.placement == "device" and n in step.tensors}
    if not on_device:
        return 0
    changed = on_device.intersection(step.changed)
    return sum(specs[n].nbytes for n in changed) + device_gradient_bytes(step, specs)


def number(array: Any) -> float:
    """A loss, as a Python number."""
    return float(np.asarray(array).reshape(-1)[0])


def _within(block: HostArray, spec: TensorSpec, start: int) -> HostArray:
    """An array of a spec that begins at a byte of a block."""
    strides = tuple(step * spec.itemsize for step in spec.strides)
    return np.ndarray(spec.shape, numpy_dtype(spec.dtype), block, start, strides)
