"""A step planned lazily, at its first call, and again where arrays lie elsewhere."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from ooc_cudnn.arrays.operands import ArrayRef
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engines import Measurement
from ooc_cudnn.devices.machines import machine_for
from ooc_cudnn.errors import HostOutOfMemoryError
from ooc_cudnn.functions.tune.rounds import Tell
from ooc_cudnn.network.cost.compute_bound import ComputeBound
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.device_gradients import (
    SETS,
    KeptGradients,
    block_bytes,
    gradients_on_device,
)
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.network.runtime.constraints_here import (
    Limit,
    constraints_for,
    limit_here,
    misaligned_inputs,
)
from ooc_cudnn.network.runtime.engine_tuning import (
    LaunchTiming,
    measure_engines,
    time_first,
)
from ooc_cudnn.network.runtime.executable import Executable
from ooc_cudnn.network.runtime.inputs import Holder, as_held
from ooc_cudnn.network.runtime.larger_plans import LargerPlans
from ooc_cudnn.network.runtime.plan_cache import keep_plan, load_or_plan
from ooc_cudnn.network.search.pass_pipeline import canonicalize
from ooc_cudnn.network.search.plan_step import plan_again
from ooc_cudnn.pipeline.program import Program
from ooc_cudnn.settings import current
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.warnings_once import warn_once
from perfmodel import MachineModel

#: A step is planned again where arrays on the device are gone, so that it has so much more room.
MUCH_MORE = 1.1
#: A plan is made again so often by what was timed of it: what it launches then may be new.
MOST_ROUNDS = 3
#: Another plan is searched where one takes so many times as long as predicted before it was timed.
MUCH_LONGER = 1.2

R = TypeVar("R", bound=Executable)


class LazyStep(ABC, Generic[R]):
    """A step of a network, ready to run on arrays that lie as those before did.

    Attributes
    ----------
    plan : NetworkPlan or None
        How the last call ran; None before the first, unless one was given.
    """

    #: What plans and errors call it.
    _name: str

    def __init__(
        self,
        network: Holder,
        make: Callable[[], Step],
        memory_limit: Limit,
        asked: Mapping[str, Any],
        plan: NetworkPlan | None,
    ) -> None:
        self.plan = plan
        self._network, self._make, self._limit = network, make, memory_limit
        self._asked, self._given_plan = asked, plan
        self._steps: dict[Settings, Step] = {}
        self._changed: tuple[Step, tuple[str, ...]] | None = None
        #: The step whose convolutions were timed before it was planned.
        self._timed: Step | None = None
        self._ready: dict[Hashable, R] = {}
        self._room = 0  # bytes of the device, beside all arrays, when it was planned
        self._kept = KeptGradients()
        #: The last call's key and what it found: of many arrays, a key takes long to be hashed.
        self._last_ready: tuple[Hashable, R] | None = None
        #: Whether what is handed in on the device counts against the limit, too. The library's own
        #: arrays do so anyhow.
        self.counts_given = False
        #: What whoever calls holds of the device beside, for this step alone.
        self.beside_bytes = 0
        #: What has a gradient that is passed on, as `Step.passed_on`.
        self.passed_on: frozenset[str] = frozenset()
        #: Plans of the same network for larger inputs; without it, each plan is searched.
        self.larger: LargerPlans | None = None
        #: Seconds of a step by the plan that was derived last, beside computing in one piece; and
        #: of all steps so far.
        self._beside_seconds = self._spent_seconds = 0.0

    def __repr__(self) -> str:
        said = "not planned yet" if self.plan is None else self.plan.summary
        return f"<{type(self).__name__}: {said}>"

    @property
    def program(self) -> Program | None:
        """Program of the last call; None before the first."""
        last = self._last_ready
        return None if last is None else last[1].program

    def planned_for(
        self,
        given: Mapping[str, TensorSpec],
        machine: MachineModel | str | os.PathLike[str] | None = None,
    ) -> NetworkPlan:
        """Plan it without data and, with `machine`, without a card.

        Parameters
        ----------
        given : mapping
            Of what will be handed in how it lies; what is left out is packed in pinned memory.
        """
        constraints = self.constraints_for(given, machine, self._limit)
        return load_or_plan(self._name, self._step, constraints, **self._asked).plan

    def constraints_for(
        self,
        given: Mapping[str, TensorSpec],
        machine: MachineModel | str | os.PathLike[str] | None,
        memory_limit: Limit,
    ) -> PlanConstraints:
        """Return under what it is planned with a limit; the others are those of `planned_for`."""
        wrapped = {name: ArrayRef(None, spec, 0) for name, spec in given.items()}
        return constraints_for(memory_limit, machine, self._step, wrapped, -self.beside_bytes)

    def tune_for(
        self,
        given: Mapping[str, TensorSpec],
        *,
        every: bool = False,
        seconds: float = 60.0,
        tell: Tell | None = None,
    ) -> list[Measurement]:
        """Measure cuDNN's engines for what it launches, without data, and store what was measured.

        Parameters
        ----------
        given : mapping
            As for `planned_for`.
        every, seconds, tell
            As for `TrainingStep.tune`, which raises what this does.
        """
        wrapped = {name: ArrayRef(None, spec, 0) for name, spec in given.items()}
        effort = {"every": every, "seconds": seconds, "tell": tell}
        return self._tuned(wrapped, lambda: self._planned(wrapped), **effort)

    def _tuned(
        self, given: Mapping[str, ArrayRef], plan: Callable[[], LoweredStep], **effort: Any
    ) -> list[Measurement]:
        """Measure the engines of what it launches on given arrays; `plan` plans it as it will."""
        device = get_device(current().device)
        return measure_engines(device, lambda: self._planned(given, ask=False), plan, **effort)

    @abstractmethod
    def _made_ready(self, planned: LoweredStep, device: Device) -> R:
        """A planned step on a device."""

    @property
    def changed(self) -> tuple[str, ...]:
        """Inputs that are changed: running statistics, by name."""
        step, changed = self._step, self._changed
        if changed is None or changed[0] is not step:
            changed = self._changed = step, step.changed
        return changed[1]

    @property
    def name(self) -> str:
        """Name of it in plans and errors."""
        return self._name

    @property
    def phases(self) -> Step:
        """Phases that it launches, in the arithmetic of the settings in force."""
        return self._step

    @property
    def _step(self) -> Step:
        """The phases, in the arithmetic of the settings in force."""
        settings = current()
        step = self._steps.get(settings)  # another thread may have others
        if step is None:
            step = replace(self._make(), passed_on=self.passed_on)
            self._steps = {settings: step}
        return step

    def _kept_bytes(self, inputs: Mapping[str, ArrayRef], ready: R | None = None) -> int:
        """The bytes that the last call's gradients hold on the device, as far as plans count them.

        That is as much as the new ones take: it was more where a parameter has left the device.
        """
        if ready is not None:
            return min(self._kept.nbytes, ready.planned.plan.gradient_bytes // SETS)
        specs = {name: each.spec for name, each in inputs.items()}
        return min(self._kept.nbytes, block_bytes(gradients_on_device(self._step, specs)))

    def _given_bytes(self, inputs: Mapping[str, ArrayRef]) -> int:
        """The device bytes of what is handed in, where that counts, and of what is held beside."""
        specs = (each.spec for each in inputs.values() if each.spec.placement == "device")
        handed_in = sum(spec.nbytes for spec in specs) if self.counts_given else 0
        return handed_in + self.beside_bytes

    def _prepared(
        self, device: Device, inputs: Mapping[str, ArrayRef], changing: Collection[str] = ()
    ) -> R:
        """Make ready what runs on arrays that lie so; those `changing` are changed in place."""
        inputs = as_held(inputs, (name for name in self.changed if name not in changing))
        specs = tuple((name, each.spec) for name, each in inputs.items())
        key = current(), device.name, specs, misaligned_inputs(inputs)
        last = self._last_ready  # another thread may forget it
        if last is not None and last[0] == key:
            ready: R | None = last[1]
        else:
            ready = self._ready.get(key)
        with device.arena.lock:
            room = limit_here(device, self._limit) - device.arena.array_bytes
            room += self._kept_bytes(inputs, ready) - self._given_bytes(inputs)
        is_good = ready is not None and ready.device_bytes <= room <= MUCH_MORE * self._room
        if ready is None or not is_good or self._is_worth_a_search(ready.planned.plan):
            began = time.monotonic()
            self._forget()  # what it keeps on the host is given back first
            self._room = room
            planned = self._planned(inputs, may_derive=ready is None)
            try:
                ready = self._made_ready(planned, device)
            except HostOutOfMemoryError as error:
                if not isinstance(error.__cause__, MemoryError):
                    raise
                # the driver page-locks less than the machine has free: the plan is to do with it
                warn_once(
                    f"{error} Steps are planned to pin no more than can be had from here on: WSL, "
                    "containers and `ulimit -l` cap what may be page-locked."
                )
                ready = self._made_ready(self._planned(inputs), device)
            ready.began = began
            self._ready[key] = ready
        self._last_ready = key, ready
        return ready

    def _is_worth_a_search(self, plan: NetworkPlan) -> bool:
        """Count a step; true if steps by a plan that was derived took as long as a search may.

        That is beside computing in one piece, as predicted: last batches of epochs never do.
        """
        if not plan.derived:
            return False
        self._spent_seconds += self._beside_seconds
        return self._spent_seconds > current().planning_seconds

    def _forget(self) -> None:
        """Drop what is ready, and what it keeps on the host."""
        self._ready.clear()
        self._last_ready = None

    @property
    def _times_engines(self) -> bool:
        """Tell whether engines are timed before it runs; plans depend on that."""
        settings = current()
        is_fixed = settings.machine is not None or settings.deterministic
        has_engines = get_device(settings.device).engines is not None
        return has_engines and bool(settings.tune_seconds) and not is_fixed

    def _time_first(self) -> None:
        """Time what the heuristics rank, before the step is planned for the first time."""
        settings, step = current(), self._step
        if step is self._timed:
            return
        device = get_device(settings.device)
        limit, machine = limit_here(device, self._limit), machine_for(device, None)
        time_first(device, canonicalize(step, "best"), machine, limit, settings.tune_seconds)
        self._timed = step

    def _planned(
        self, inputs: Mapping[str, ArrayRef], *, ask: bool = True, may_derive: bool = False
    ) -> LoweredStep:
        step = self._step
        if self._given_plan is not None:
            return plan_again(step, self._given_plan, self._constraints(inputs, ask=ask))
        if self.larger is not None and may_derive:
            constraints = self._constraints(inputs, ask=ask)
            derived = self.larger.derive(step, constraints)
            if derived is not None:
                least = ComputeBound(constraints).seconds(
                    canonicalize(step, "best"), derived.plan.order
                )
                self._beside_seconds = max(derived.plan.seconds - least, 0.0)
                return derived
        is_timed = ask and self._times_engines
        if is_timed:
            self._time_first()
        constraints = self._constraints(inputs, ask=ask)
        planned = load_or_plan(self._name, step, constraints, **self._asked)
        if is_timed:
            planned = self._planned_as_timed(planned, inputs)
        if self.larger is not None:
            self.larger.note(step, constraints, planned.plan)
        return planned

    def _planned_as_timed(
        self, planned: LoweredStep, inputs: Mapping[str, ArrayRef]
    ) -> LoweredStep:
        """Time what a plan launches, and make it again with what was learnt.

        Where that takes much longer than predicted, another plan may be faster: it is searched,
        once.
        """
        device = get_device(current().device)
        limit = limit_here(device, self._limit)
        machine = machine_for(device, None)
        timing = LaunchTiming(device, machine, limit, current().tune_seconds)

        def settled(planned: LoweredStep) -> LoweredStep:
            """The same plan once all that it launches is known."""
            for _ in range(MOST_ROUNDS):
                if not timing.learns_from(planned):
                    break
                planned = again(planned)
            return planned

        def again(planned: LoweredStep) -> LoweredStep:
            made = plan_again(self._step, planned.plan, self._constraints(inputs, ask=True))
            searched = planned.plan.searched_seconds
            return made._replace(plan=replace(made.plan, searched_seconds=searched))

        found = settled(planned)
        if found is planned:
            return planned
        if found.plan.seconds > MUCH_LONGER * planned.plan.seconds:
            constraints = self._constraints(inputs, ask=True)
            other = settled(load_or_plan(self._name, self._step, constraints, **self._asked))
            found = min(again(found), other, key=lambda each: each.plan.seconds)
        constraints = self._constraints(inputs, ask=True)
        keep_plan(self._name, self._step, constraints, found, **self._asked)
        return found

    def _constraints(self, inputs: Mapping[str, ArrayRef], *, ask: bool) -> PlanConstraints:
        """The constraints on arrays that lie so; to `ask` cuDNN what workspace engines take."""
        more = self._kept_bytes(inputs) - self._given_bytes(inputs)
        constraints = constraints_for(self._limit, None, self._step, inputs, more)
        return replace(constraints, target=constraints.target.asking(ask=ask, sparing=0))
