"""A step of training in two calls: forward, to outputs; and backward, from gradients of these.

For whoever makes a loss of the outputs elsewhere. It is one plan and one program, which pauses
between: the block of device memory holds meanwhile what is kept there. Where somebody else wants
the block first, that goes to pinned memory of the host, and back before backward. Backward may
pause, too, wherever gradients are final: they are handed out while the others are made. Each part
is shown and recorded by itself, beside what was predicted of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ooc_cudnn import interrupts
from ooc_cudnn.arrays.copying import memcpy
from ooc_cudnn.arrays.operands import ArrayRef, array_ref
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engines import Measurement
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.errors import OocError
from ooc_cudnn.functions.call.observe import is_observed
from ooc_cudnn.memory.loans import Allocation
from ooc_cudnn.memory.pinned import allocate
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.lowering.device_gradients import SETS, GradientBlock, split_passed_on
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.network.lowering.summarize import split_plan
from ooc_cudnn.network.runtime.executable import DEFAULT_ALLOCATION, Executable, ResultAllocation
from ooc_cudnn.network.runtime.gradient_buckets import final_items
from ooc_cudnn.network.runtime.inputs import NONE, arrays_given, check_given, plain, results_given
from ooc_cudnn.network.runtime.lazy_step import LazyStep
from ooc_cudnn.pipeline.execute import Executor
from ooc_cudnn.pipeline.program import COPY_IN, COPY_OUT
from ooc_cudnn.pipeline.segments import split_at_pauses
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import TensorSpec
from perfmodel.cached import cached_property


class TwoPartStep(LazyStep["ExecutableParts"]):
    """A step of training of a network that pauses at the outputs.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> net = ooc_cudnn.Network()
    >>> x = net.input("x", (2, 3, 8, 8))
    >>> step = net.pausing_step(net.convolution(x, 4, window=3))
    >>> with ooc_cudnn.settings(device="host", machine="host", memory_limit="64KiB"):
    ...     paused = step.forward(x=np.ones(x.shape, "float32"))
    ...     (y,) = paused.outputs
    ...     gradients = paused.backward([np.ones_like(y)])
    >>> y.shape, gradients["convolution_1.b"][0]
    ((2, 4, 6, 6), np.float32(72.0))
    """

    _name = "training_step"
    #: Backward pauses where gradients of so many bytes are final; without it, nowhere.
    pause_bytes: int | None = None

    def forward(self, /, **inputs: Any) -> PausedStep:
        """Run forward; return what was made, and from where backward goes on.

        The running statistics of the network are those after the step when this returns.

        Raises
        ------
        TypeError, ValueError
            If an input is missing, or does not have the network's shape or dtype.
        PlanInfeasibleError, HostOutOfMemoryError, DeviceOutOfMemoryError
            As for `Network.plan`.
        """
        paused = self.run(inputs)
        with interrupts.defer_signals():
            for name, array in paused.running.items():
                self._network.running[name] = array
        return paused

    def run(
        self,
        inputs: Mapping[str, Any],
        out: Mapping[str, Any] = NONE,
        lasting: Mapping[str, Any] = NONE,
        making: ResultAllocation = DEFAULT_ALLOCATION,
    ) -> PausedStep:
        """The same, but the network's running statistics stay as they are.

        Parameters
        ----------
        inputs : mapping
            Arrays by name.
        out : mapping, optional
            Of some of `outputs`, the packed arrays to write to; any placement. Their gradients are
            expected in the same one.
        lasting : mapping, optional
            Parameters and running statistics to be taken in place of the network's.
        making : ResultAllocation, optional
            With it, the host does not wait for what is made on the device.
        """
        step, device = self._step, get_device(current().device)
        arrays = arrays_given(self._network, step, inputs, device, lasting)
        written = results_given(step, arrays, out, device)
        arrays |= written
        ready = self._prepared(device, {**arrays, **self._seeds(written)}, making.changing)
        self.plan = ready.planned.plan
        return ready.forward(arrays, out, making)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Outputs of forward."""
        return tuple(self._step.tensors[name] for name in self._step.outputs)

    @property
    def seeded(self) -> frozenset[int]:
        """The places of the outputs whose gradients backward takes."""
        step = self._step
        return frozenset(at for at, name in enumerate(step.outputs) if name in step.seeds)

    def _seeds(self, written: Mapping[str, ArrayRef]) -> dict[str, ArrayRef]:
        """The specs of the gradients that will be given: packed, where the outputs are."""
        step, seeds = self._step, {}
        for output, name in step.seeds.items():
            where = written[output].spec.placement if output in written else "pageable"
            spec = TensorSpec(step.tensors[name].shape, step.tensors[name].dtype, where)
            seeds[name] = ArrayRef(None, spec, 0)
        return seeds

    def tune_for(self, given: Mapping[str, TensorSpec], **how: Any) -> list[Measurement]:
        """Tune as for any step; the gradients of outputs are given where the outputs are."""
        wrapped = {name: ArrayRef(None, spec, 0) for name, spec in given.items()}
        seeds = {name: each.spec for name, each in self._seeds(wrapped).items()}
        return super().tune_for({**given, **seeds}, **how)

    def _made_ready(self, planned: LoweredStep, device: Device) -> ExecutableParts:
        ready = ExecutableParts(planned, device, self.pause_bytes)
        # running statistics of the step before are the network's until a step has ended
        ready.pin_beforehand(dict.fromkeys(ready.on_host, 1), SETS)
        return ready


class ExecutableParts(Executable):
    """A planned step that pauses, on one device; several runs may be between their parts."""

    def __init__(self, planned: LoweredStep, device: Device, pause_bytes: int | None) -> None:
        super().__init__(planned, device)
        step, program = planned.step, self.program
        assert program.pause is not None
        final = final_items(step, program, pause_bytes)
        #: The gradients that each part of backward makes, by the names of what they are of.
        self.groups = tuple(names for _, names in final)
        ends = (program.pause, *(end for end, _ in final))
        self.parts = split_at_pauses(program, ends[:-1])
        self.executors = [Executor(each) for each in self.parts.programs]
        self._ends, self.names = ends, _names(planned.plan.name, len(final))
        #: The tensors that hold gradients, and of each group those on the device.
        self.bases = frozenset(step.base(name) for name in step.gradients.values())
        #: The outputs that backward reads: all others may be changed after forward.
        self.read_again = frozenset(
            name for name in step.outputs if max(step.uses[step.base(name)].phases) >= step.turn
        )
        left = dict(self._gradients)
        of_groups = [dict.fromkeys(step.base(step.gradients[n]) for n in g) for g in self.groups]
        on_device = [
            {base: left.pop(base) for base in bases if base in left} for bases in of_groups
        ]
        #: Where those lie: what may be held in one block, what is passed on in another.
        self.blocks = [tuple(map(GradientBlock, split_passed_on(step, each))) for each in on_device]

    @cached_property
    def plans(self) -> list[NetworkPlan]:
        """The plan of each part: the whole's, with figures of its own."""
        return split_plan(self.planned.plan, self.program, self._ends, self.names)

    def forward(
        self,
        given: Mapping[str, ArrayRef],
        out: Mapping[str, Any] = NONE,
        making: ResultAllocation = DEFAULT_ALLOCATION,
    ) -> PausedStep:
        """Run the first half on given arrays: inputs, parameters, running statistics, results."""
        return PausedStep(self, given, out, making)


def _names(name: str, groups: int) -> list[str]:
    """Names of the parts, as users see them.

    >>> _names("training_step", 2)
    ['training_step forward', 'training_step backward 1 of 2', 'training_step backward 2 of 2']
    """
    backward = (
        [f"{name} backward"]
        if groups == 1
        else [f"{name} backward {group} of {groups}" for group in range(1, groups + 1)]
    )
    return [f"{name} forward", *backward]


class PausedStep:
    """A step of training between forward and backward, or between two parts of backward.

    Attributes
    ----------
    outputs : tuple of array
    running : mapping
        The new running statistics, by name.
    groups : tuple of tuple of str
        What each part of backward makes the gradients of.
    shared : frozenset of str
        Those of them whose gradients lie in one tensor with others.
    read_again : frozenset of str
        The outputs that backward reads.
    """

    def __init__(
        self,
        ready: ExecutableParts,
        given: Mapping[str, ArrayRef],
        out: Mapping[str, Any] = NONE,
        making: ResultAllocation = DEFAULT_ALLOCATION,
    ) -> None:
        step, arena = ready.planned.step, ready.device.arena
        self._ready, self._given, self._making = ready, dict(given), making
        self._own = dict(ready._in_block())
        self._block = 0
        #: What was in the block, where somebody else has it now.
        self._saved: dict[str, Any] | None = None
        #: The part that is next; None if one has failed.
        self._next: int | None = 0
        self.groups, self.shared = ready.groups, step.shared_gradients
        self.read_again = ready.read_again
        others = {*ready._results, *ready.changed} - ready.bases
        self._made = ready._results_made(given, others, making)
        #: What arrays on the device are made of.
        self._of = making.memory or ready.memory
        #: Memory of the gradients on the device, of each group that is to be made.
        self._memory: dict[int, list[tuple[GradientBlock, Allocation]]] = {}
        self._views: dict[str, DeviceView] = {}
        with arena.lock, interrupts.defer_signals():
            self._run(self._reserved())
            arena.settle(self)
        self.outputs = tuple(
            plain(out[name]) if name in out else ready.of(self._made, name) for name in step.outputs
        )
        self.running = {n: self._made[n] for n in ready.changed if n in self._made}

    def _reserved(self) -> int:
        plan, program = self._ready.planned.plan, self._ready.program
        arena = self._ready.device.arena
        for executor in self._ready.executors:
            executor.check_engines(self._ready.device, plan.memory_limit)
        self._block = arena.reserve(program.device_bytes, plan.memory_limit, purpose=plan.name)
        return self._block

    def _run(self, block: int) -> None:
        """Run the next part."""
        ready, part, self._next = self._ready, self._next, None
        assert part is not None
        arrays = ready._sources(self._own, self._given, self._made) | self._views
        wait = self._making is DEFAULT_ALLOCATION or not ready.is_made_there

        def make_arrays() -> None:
            for gradients, memory in self._memory.pop(part - 1, ()):
                self._made.update(gradients.arrays(memory, self._of.in_block))

        plan, name = ready.planned.plan, ready.names[part]
        if is_observed(plan):  # to split it takes a replay
            plan = ready.plans[part]
        executor = ready.executors[part]
        ready._observed(name, plan, executor, arrays, block, wait=wait, meanwhile=make_arrays)
        if self._own and not wait:
            ready.device.keep(self._own)
        self._next = part + 1

    def backward(self, seeds: Collection[Any]) -> dict[str, Any]:
        """Run backward; return the gradients by the names of what they are of.

        Parameters
        ----------
        seeds : sequence of array
            The gradient of each output that has one, in order; any placement, any strides. What is
            added to an output last, or a part of it, has a gradient that may lie in that memory.

        Raises
        ------
        OocError
            If it has run already: what forward kept is gone.
        """
        found = self.begin_backward(seeds)
        while not self.is_over:
            found |= self.go_on()
        return found

    def begin_backward(self, seeds: Collection[Any]) -> dict[str, Any]:
        """The same, but run its first part: return the gradients that are final after that."""
        if self.has_begun:
            raise OocError("backward has run: what forward kept for it is gone; run forward again")
        ready = self._ready
        self._take(seeds)
        on_host = ready.bases - ready._gradients.keys()
        self._made |= ready._results_made(self._given, on_host, self._making)
        for group, blocks in enumerate(ready.blocks):
            there = [each for each in blocks if each.nbytes]
            self._memory[group] = [(each, self._of.block(each.nbytes)) for each in there]
            for gradients, memory in self._memory[group]:
                self._views |= gradients.views(memory.pointer)
        return self.go_on()

    @property
    def has_begun(self) -> bool:
        """True if backward has."""
        return self._next != 1

    @property
    def is_over(self) -> bool:
        """True if backward has ended, or failed."""
        return self._next is None or self._next == len(self._ready.executors)

    def go_on(self) -> dict[str, Any]:
        """Run the next part of backward; return the gradients that are final now.

        Raises
        ------
        OocError
            If there is none, or the one before has failed.
        """
        ready, arena, part = self._ready, self._ready.device.arena, self._next
        if part is None or self.is_over:
            raise OocError("backward has ended: run forward again")
        step = ready.planned.step
        with arena.lock, interrupts.defer_signals():
            block = arena.resume(self)
            if block is None:
                block = self._reserved()
                self._bring_back(part - 1, block)
            self._run(block)
            if not self.is_over:
                arena.settle(self)
        self._saved = None
        group = ready.groups[part - 1]
        # what is added to an output last has for a gradient that of the output
        results = {name: self._given[name].plain for name in step.seeds.values()} | self._made
        gradients = {name: ready.of(results, step.gradients[name]) for name in group}
        for name in group:  # whoever gets them may be their only owner
            self._made.pop(step.base(step.gradients[name]), None)
        if self.is_over:
            self._own = {}
            ready.tell_first()
        return gradients

    def _take(self, seeds: Collection[Any]) -> None:
        """Accept gradients of the outputs, where and as the plan has them."""
        step, bindings = self._ready.planned.step, self._ready.program.bindings
        if len(seeds) != len(step.seeds):
            raise TypeError(f"there are {len(step.seeds)} outputs, not {len(seeds)}")
        for name, seed in zip(step.seeds.values(), seeds, strict=True):
            ref = array_ref(seed, self._ready.device, name=name)
            check_given(step.tensors[name], ref)
            spec = bindings[name].spec if name in bindings else ref.spec  # no phase may read it
            if ref.spec != spec:
                copied = self._ready._made(spec)
                memcpy(copied, ref.array)
                ref = array_ref(copied, self._ready.device, name=name)
            self._given[name] = ref

    def leave(self) -> None:
        """Bring what is kept in the block to the host: somebody else wants it."""
        ready = self._ready
        assert self._next is not None
        pause = self._next - 1
        saved = {
            str(at): allocate(
                ready.device,
                stop - start,
                current().host_memory_limit,
                purpose=f"what {ready.program.name} keeps between forward and backward",
            )
            for at, (start, stop) in enumerate(ready.parts.kept[pause])
        }
        self._copy(Executor(ready.parts.moves(pause, COPY_OUT)), saved, self._block)
        self._saved = saved

    def _bring_back(self, pause: int, block: int) -> None:
        assert self._saved is not None
        self._copy(Executor(self._ready.parts.moves(pause, COPY_IN)), self._saved, block)

    def _copy(self, executor: Executor, arrays: Mapping[str, Any], block: int) -> None:
        limit = self._ready.planned.plan.memory_limit
        executor.run(
            self._ready.device,
            arrays,
            staged=False,
            wait=True,
            limit_bytes=limit,
            block=block,
        )
