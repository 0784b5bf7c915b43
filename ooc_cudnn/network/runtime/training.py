"""A training step of a network, as users call it: inputs in, the loss out, gradients beside."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ooc_cudnn import interrupts
from ooc_cudnn.arrays.making import empty_in
from ooc_cudnn.arrays.operands import ArrayRef, array_ref, placement
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engines import Measurement
from ooc_cudnn.functions.tune.rounds import Tell
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.device_gradients import SETS, KeptGradients
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.network.report.timeline import draw_step
from ooc_cudnn.network.runtime.array_cache import ArrayCache
from ooc_cudnn.network.runtime.constraints_here import Limit
from ooc_cudnn.network.runtime.executable import ExecutableStep, number
from ooc_cudnn.network.runtime.inputs import Holder, arrays_given, as_held
from ooc_cudnn.network.runtime.lazy_step import LazyStep
from ooc_cudnn.profiling import Call
from ooc_cudnn.settings import current
from ooc_cudnn.warnings_once import warn


class TrainingStep(LazyStep[ExecutableStep]):
    """A step of training of a network.

    Call it with the inputs by name; it returns the loss as a float. After a call that fails,
    gradients and running statistics are those of the call before.

    Attributes
    ----------
    gradients : dict
        Parameter (or input that asked for one) to the gradient of the last call, in a new array:
        on the device where the parameter is handed in there, in its memory order, else in host
        memory. Gradients that share memory, as those of both terms of a sum may, are on the device
        if all their parameters are.

        Those of the call before stay until the new ones are whole. So on the device they count
        against the memory limit, twice; in host memory, which is pinned, the first call takes room
        for both, if there is any. Those of earlier calls go when nobody holds any of them, so a
        loop that reads `gradients` after each call takes no more from call to call.
    plan : NetworkPlan or None
        How the last call ran; None before the first, unless one was given.
    """

    _name = "training_step"

    def __init__(
        self,
        network: Holder,
        make: Callable[[], Step],
        memory_limit: Limit,
        asked: Mapping[str, Any],
        plan: NetworkPlan | None,
    ) -> None:
        super().__init__(network, make, memory_limit, asked, plan)
        self.gradients = dict[str, Any]()
        self._wrapping = ArrayCache()
        self._seeds = dict[str, tuple[Device, Any]]()
        self._last: LoweredStep | None = None  # what was called last; what is ready may be another

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
        arrays = self._given(device, inputs)
        ready = self._prepared(device, arrays)
        self._last, self.plan = ready.planned, ready.planned.plan
        memory = ready.gradient_memory()
        results = ready.run(arrays, memory=memory)
        gradients = {each: ready.of(results, name) for each, name in step.gradients.items()}
        kept = KeptGradients(memory)
        value = number(ready.of(results, step.outputs[0]))
        # all is there: from here on nothing can fail, and Ctrl-C waits
        with interrupts.defer_signals():
            for name, spec in ready.changed.items():
                network.running[name] = results[name]
                if spec.placement == "pinned":
                    self._wrapping.note(name, results[name], spec, device)
            self.gradients, self._kept = gradients, kept
        if not np.isfinite(value):
            warn(f"the loss is {value}")
        return value

    def tune(
        self, *, every: bool = False, seconds: float = 60.0, tell: Tell | None = None, **inputs: Any
    ) -> list[Measurement]:
        """Measure cuDNN's engines for the step's convolutions, and store what was measured.

        In both memory orders, so that the steps that follow are planned by measured seconds. What
        is stored already is not measured again. Nothing is computed of the step itself.

        Parameters
        ----------
        every : bool
            Every engine there is, which takes seconds for each convolution; else those that cuDNN's
            heuristics rank, and for one of each direction and window all that need no compiling.
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
        arrays = self._given(device, inputs)
        self._forget()  # what it keeps on the host is given back

        def plan() -> LoweredStep:
            self._forget()
            return self._prepared(device, arrays).planned

        effort = {"every": every, "seconds": seconds, "tell": tell}
        return self._tuned(as_held(arrays, self.changed), plan, **effort)

    def plot(self, path: str | os.PathLike[str], recorded: Call | None = None) -> None:
        """Draw the last call: the three streams, and what device memory held, over its seconds.

        Parameters
        ----------
        path : str
            A PNG, an SVG, a PDF.
        recorded : Call, optional
            What `ooc_cudnn.profile()` recorded of that call; as predicted when left out.

        Raises
        ------
        TypeError
            If `recorded` is no call: a profile has several, `p.calls`.
        ValueError
            If the step was not called yet, or the recorded call is another one.
        ModuleNotFoundError
            If matplotlib is not installed.
        """
        if self._last is None:
            raise ValueError("the step has not run yet: call it first, or draw a plan by net.plot")
        if not isinstance(recorded, Call | None):
            raise TypeError(f"recorded must be a call, as in p.calls[0], not {recorded!r}")
        draw_step(self._last, path, None if recorded is None else recorded.trace)

    def _given(self, device: Device, inputs: Mapping[str, Any]) -> dict[str, ArrayRef]:
        """All that a step is given: inputs, parameters, running statistics and seeds."""
        step = self._step
        given = arrays_given(self._network, step, inputs, device, wrapping=self._wrapping)
        for output, name in step.seeds.items():
            given[name] = array_ref(self._seed(device, name, output), device, name=name)
        return given

    def _seed(self, device: Device, name: str, output: str) -> Any:
        """The gradient of an output in pinned memory: one for all runs on a device."""
        known = self._seeds.get(name)
        if known is None or known[0] is not device:
            tensors = self._step.tensors
            shape, dtype = tensors[name].shape, tensors[output].dtype
            array = empty_in(device, "pinned", shape, dtype, "channels_first")
            array[...] = 1
            known = self._seeds[name] = device, array
        return known[1]

    def _made_ready(self, planned: LoweredStep, device: Device) -> ExecutableStep:
        ready = ExecutableStep(planned, device)
        sets = dict.fromkeys(ready.on_host, 1)
        for of, gradient in planned.step.gradients.items():
            if (name := planned.step.base(gradient)) in sets:
                # what the last call made there is held until this one has ended: a set already
                last = self.gradients.get(of)
                sets[name] = SETS - (last is not None and placement(last) == "pinned")
        ready.pin_beforehand(sets, SETS - bool(self.gradients))
        return ready
