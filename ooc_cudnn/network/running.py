"""Planning and running a network: `plan`, `training_step`, `forward`."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ooc_cudnn import interrupts
from ooc_cudnn.arrays.operands import Wrapped, wrap
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engines import Measured
from ooc_cudnn.functions.bound import check_results
from ooc_cudnn.functions.tune_rounds import Tell
from ooc_cudnn.network.fastest import PlannedStep
from ooc_cudnn.network.graph import Graph
from ooc_cudnn.network.parameters import Parameters
from ooc_cudnn.network.phases import Step
from ooc_cudnn.network.pictures import draw_step
from ooc_cudnn.network.plan import NetworkPlan
from ooc_cudnn.network.planning import check_asked, plan_again, plan_step
from ooc_cudnn.network.tensors import Tensor
from ooc_cudnn.network.terms import Limit, limit_here, misaligned_of, terms_for
from ooc_cudnn.network.training import ReadyStep, number
from ooc_cudnn.network.tuning import measure_engines
from ooc_cudnn.settings import current
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.telling import warn
from ooc_cudnn.tensor import numpy_dtype
from perfmodel import MachineModel


class Runnable:
    """What a network can be asked to do, once it is built; `running` are running statistics."""

    graph: Graph
    parameters: Parameters
    running: Parameters

    @property
    @abstractmethod
    def wanted(self) -> tuple[str, ...]:
        """What a step of training makes gradients of."""

    @abstractmethod
    def training_phases(self, loss: Tensor, wanted: Iterable[str] | None = None) -> Step:
        """The phases of a step of training."""

    @abstractmethod
    def forward_phases(self, *outputs: Tensor) -> Step:
        """The phases of inference."""

    def plan(
        self,
        loss: Tensor,
        *,
        memory_limit: Limit = None,
        policy: str = "best",
        machine: MachineModel | str | os.PathLike[str] | None = None,
        micro_batches: int | None = None,
    ) -> NetworkPlan:
        """Plan a step of training; no data and, with `machine`, no card needed.

        Parameters
        ----------
        loss : Tensor
            Of one element.
        memory_limit : int, float or str, optional
            Device memory that the library may hold: bytes, a share of the card's (0.5), or text
            ("8GiB"). The setting's when left out.
        policy : str
            "best" (the fastest of those that fit), "keep", "remake", "checkpoint", "offload",
            "mixed" (remade, then offloaded), "vdnn_all", "vdnn_conv" or "vdnn_dyn". What each does
            is in docs/networks.md.
        machine : MachineModel or str, optional
            The machine to predict for; the one at hand when left out.
        micro_batches : int, optional
            Parts of the batch that go through the network one after the other; chosen when left
            out. 1 where something needs the whole batch, as batch normalization does.

        Raises
        ------
        ValueError
            If the loss is no scalar, the policy is not known, or the network needs the whole batch
            and `micro_batches` asks for parts.
        PlanInfeasibleError
            If the memory limit admits no plan, with the smallest that would.
        HostOutOfMemoryError
            If what the step would keep on the host is more than there is (with `machine`: than the
            setting host_memory_limit).
        """
        step = self.training_phases(loss)
        terms = terms_for(memory_limit, machine, step, {})
        made = plan_step("training_step", step, terms, policy=policy, micro_batches=micro_batches)
        return made.plan

    def plot(
        self,
        loss: Tensor,
        plan: NetworkPlan,
        path: str | os.PathLike[str],
        *,
        machine: MachineModel | str | os.PathLike[str] | None = None,
    ) -> None:
        """Draw a plan: the three streams, and what device memory holds, over the step.

        Parameters
        ----------
        loss, machine
            As the plan was made with.
        plan : NetworkPlan
        path : str
            A PNG, an SVG, a PDF.

        Raises
        ------
        ValueError
            If it is the plan of another network.
        ModuleNotFoundError
            If matplotlib is not installed.
        """
        step = self.training_phases(loss)
        terms = terms_for(plan.memory_limit, machine, step, {})
        draw_step(plan_again(step, plan, terms), path)

    def training_step(
        self,
        loss: Tensor,
        *,
        memory_limit: Limit = None,
        policy: str = "best",
        micro_batches: int | None = None,
        plan: NetworkPlan | None = None,
    ) -> TrainingStep:
        """Return a step of training: call it with the inputs, and it returns the loss.

        It is planned at its first call, and again where arrays lie elsewhere or settings change:
        those count that are in force at the call. What is frozen now stays so in this step.

        Parameters
        ----------
        loss, memory_limit, policy, micro_batches
            As for `plan`.
        plan : NetworkPlan, optional
            One that was made before, for this network; it decides in place of `policy` and
            `micro_batches`.

        Raises
        ------
        ValueError
            If the loss is no scalar.
        """
        make = partial(self.training_phases, loss, self.wanted)
        make()  # refuses what cannot be trained
        check_asked(policy, micro_batches)
        asked = {"policy": policy, "micro_batches": micro_batches}
        limit = memory_limit
        if plan is not None and limit is None:
            limit = plan.memory_limit
        return TrainingStep(self, make, limit, asked, plan)

    def forward(
        self, /, *outputs: Tensor, memory_limit: Limit = None, out: Any = None, **inputs: Any
    ) -> Any:
        """Run inference: by running statistics, without dropout. It is planned at each call.

        Parameters
        ----------
        *outputs : Tensor
            What is asked for.
        memory_limit : int, float or str, optional
            As for `plan`.
        out : array or tuple of arrays, optional
            Where to write the results; any placement.
        **inputs : array
            By the names of inputs that the outputs depend on.

        Returns
        -------
        array, or tuple of them for several outputs

        Raises
        ------
        TypeError, ValueError
            If an input or a result has not the network's shape or dtype, or is missing.
        PlanInfeasibleError
            If the memory limit admits no plan, with the smallest that would.
        """
        step = self.forward_phases(*outputs)
        given = out if isinstance(out, tuple | list) else (out,) * (out is not None)
        asked = tuple(dict.fromkeys(step.outputs))
        if out is not None and len(given) != len(asked):
            raise TypeError(f"out must hold {len(asked)} arrays, not {len(given)}")
        beside = dict(zip(asked, given, strict=False))
        device = get_device(current().device)
        taken = _taken(self, step, inputs, device)
        results = {n: wrap(a, device, name="out", written=True) for n, a in beside.items()}
        for name, result in results.items():
            _check_given(step.tensors[name], result)
        check_results(taken, {f"out of {name}": each for name, each in results.items()})
        taken |= results
        terms = terms_for(memory_limit, None, step, taken)
        ready = ReadyStep(plan_step("forward", step, terms), device)
        made = ready.run(taken)
        found = tuple(
            beside[name] if name in beside else ready.of(made, name) for name in step.outputs
        )
        return found if len(found) > 1 else found[0]


class TrainingStep:
    """A step of training of a network.

    Call it with the inputs by name; it returns the loss as a float. After a call that fails,
    gradients and running statistics are those of the call before.

    Attributes
    ----------
    gradients : dict
        Parameter (or input that asked for one) to the gradient of the last call: arrays in host
        memory, new ones in each call.
    plan : NetworkPlan or None
        How the last call ran; None before the first, unless one was given.
    """

    def __init__(
        self,
        network: Runnable,
        make: Callable[[], Step],
        memory_limit: Limit,
        asked: Mapping[str, Any],
        plan: NetworkPlan | None,
    ) -> None:
        self.plan, self.gradients = plan, dict[str, Any]()
        self._network, self._make, self._limit = network, make, memory_limit
        self._asked, self._given_plan = asked, plan
        self._steps: dict[Settings, Step] = {}
        self._ready: dict[Hashable, ReadyStep] = {}

    @property
    def _step(self) -> Step:
        """The phases, in the arithmetic of the settings in force."""
        settings = current()
        if settings not in self._steps:
            self._steps = {settings: self._make()}
        return self._steps[settings]

    def __call__(self, /, **inputs: Any) -> float:
        """Run the step.

        Raises
        ------
        TypeError, ValueError
            If an input is missing, or does not have the network's shape or dtype; if a parameter
            was replaced by one of another shape.
        PlanInfeasibleError, HostOutOfMemoryError, DeviceOutOfMemoryError
            As for `Network.plan`.
        """
        device = get_device(current().device)
        step, network = self._step, self._network
        given = self._given(device, inputs)
        ready = self._prepared(device, given)
        self.plan = ready.planned.plan
        results = ready.run(given)
        gradients = {each: ready.of(results, name) for each, name in step.gradients.items()}
        value = number(ready.of(results, step.outputs[0]))
        # all is there: from here on nothing can fail, and Ctrl-C waits
        with interrupts.deferred():
            for name, array in results.items():
                if name in network.running:
                    network.running[name] = array
            self.gradients = gradients
        if not np.isfinite(value):
            warn(f"the loss is {value}")
        return value

    def tune(
        self, *, every: bool = False, seconds: float = 60.0, tell: Tell | None = None, **inputs: Any
    ) -> list[Measured]:
        """Measure cuDNN's engines for the step's convolutions, and store what was measured.

        In both memory orders, so that the steps that follow are planned by measured seconds. What
        is stored already is not measured again. Nothing is computed of the step itself.

        Parameters
        ----------
        every : bool
            Every engine there is, which takes seconds for each convolution; else those that cuDNN's
            heuristics rank.
        seconds : float
            What is not measured after so many is left to the heuristics, with a warning.
        tell : callable, optional
            Is given what was measured of each convolution, as soon as that is.
        **inputs : array
            As in a call: the plan depends on where they lie.

        Returns
        -------
        list of Measured
            What was not known before.

        Raises
        ------
        NothingToTuneError
            If the device does not choose among engines, the step has no convolution, or no engine
            could be measured.
        OSError
            If the tables cannot be stored.
        """
        device = get_device(current().device)
        given = self._given(device, inputs)
        self._ready.clear()  # what it keeps on the host is given back

        def plan() -> PlannedStep:
            self._ready.clear()
            return self._prepared(device, given).planned

        return measure_engines(
            device,
            lambda: self._planned(given, ask=False),
            plan,
            every=every,
            seconds=seconds,
            tell=tell,
        )

    def _given(self, device: Device, inputs: Mapping[str, Any]) -> dict[str, Wrapped]:
        """All that a step is given: inputs, parameters, running statistics and seeds."""
        step = self._step
        given = _taken(self._network, step, inputs, device)
        for output, name in step.seeds.items():
            seed = np.ones(step.tensors[name].shape, numpy_dtype(step.tensors[output].dtype))
            given[name] = wrap(seed, device, name=name)
        return given

    def _prepared(self, device: Device, given: Mapping[str, Wrapped]) -> ReadyStep:
        specs = tuple((name, each.spec) for name, each in given.items())
        key = current(), device.name, specs, misaligned_of(given)
        ready = self._ready.get(key)
        with device.arena.lock:
            room = limit_here(device, self._limit) - device.arena.array_bytes
        if ready is None or ready.device_bytes > room:
            self._ready.clear()  # what it keeps on the host is given back first
            ready = self._ready[key] = ReadyStep(self._planned(given), device)
        return ready

    def _planned(self, given: Mapping[str, Wrapped], *, ask: bool = True) -> PlannedStep:
        terms = terms_for(self._limit, None, self._step, given)
        terms = replace(terms, target=terms.target.asking(ask=ask, sparing=0))
        if self._given_plan is not None:
            return plan_again(self._step, self._given_plan, terms)
        return plan_step("training_step", self._step, terms, **self._asked)


def _taken(
    network: Runnable, step: Step, inputs: Mapping[str, Any], device: Device
) -> dict[str, Wrapped]:
    """Every array that a step is given: inputs, parameters, running statistics."""
    needed = {step.place(name).base for phase in step.phases for name in phase.binds.values()}
    # in the order of making, so that messages and plans are the same each time
    kinds = {name: each.kind for name, each in network.graph.tensors.items() if name in needed}
    wanted = [name for name, kind in kinds.items() if kind == "input"]
    missing = sorted(set(wanted) - set(inputs))
    strangers = sorted(set(inputs) - set(wanted))
    if missing or strangers:
        said = [f"needs {', '.join(missing)}"] * bool(missing)
        said += [f"has no input {', '.join(strangers)}"] * bool(strangers)
        raise TypeError(f"the step {' and '.join(said)}; its inputs are {', '.join(wanted)}")
    lasting = {**network.parameters.checked(), **network.running.checked()}
    found = {}
    for name, kind in kinds.items():
        if kind in ("input", "parameter", "running"):
            array = inputs[name] if kind == "input" else lasting[name]
            found[name] = wrap(array, device, name=name)
            _check_given(step.tensors[name], found[name])
    return found


def _check_given(tensor: Tensor, given: Wrapped) -> None:
    if given.spec.shape != tensor.shape:
        raise ValueError(f"{tensor.name} must have shape {tensor.shape}, not {given.spec.shape}")
    if given.spec.dtype != tensor.dtype:
        raise TypeError(f"{tensor.name} must be {tensor.dtype}, not {given.spec.dtype}")
