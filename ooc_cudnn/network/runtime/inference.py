"""Forward alone, again and again: planned at the first call, and where arrays lie elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.network.runtime.executable import (
    DEFAULT_ALLOCATION,
    ExecutableStep,
    ResultAllocation,
)
from ooc_cudnn.network.runtime.inputs import NONE, arrays_given, plain, results_given
from ooc_cudnn.network.runtime.lazy_step import LazyStep
from ooc_cudnn.settings import current


class ForwardStep(LazyStep[ExecutableStep]):
    """Forward of a network to some outputs; `Network.forward` makes one for each call."""

    _name = "forward"

    def run(
        self,
        inputs: Mapping[str, Any],
        out: Mapping[str, Any] = NONE,
        lasting: Mapping[str, Any] = NONE,
        making: ResultAllocation = DEFAULT_ALLOCATION,
    ) -> Forward:
        """Run it; the network's running statistics stay as they are.

        Parameters
        ----------
        inputs : mapping
            Arrays by name.
        out : mapping, optional
            Of some outputs, the arrays to write to; any placement.
        lasting : mapping, optional
            Parameters and running statistics to be taken in place of the network's.
        making : ResultAllocation, optional
            With it, the host does not wait for what is made on the device.
        """
        step, device = self._step, get_device(current().device)
        taken = arrays_given(self._network, step, inputs, device, lasting)
        taken |= results_given(step, taken, out, device)
        ready = self._prepared(device, taken, making.changing)
        self.plan = ready.planned.plan
        wait = making is DEFAULT_ALLOCATION or not ready.is_made_there
        results = ready.run(taken, making, wait=wait)
        outputs = tuple(
            plain(out[name]) if name in out else ready.of(results, name) for name in step.outputs
        )
        running = {n: a for n, a in results.items() if n in self._network.running}
        return Forward(outputs, running)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Outputs that it makes."""
        return tuple(self._step.tensors[name] for name in self._step.outputs)

    def _made_ready(self, planned: LoweredStep, device: Device) -> ExecutableStep:
        return ExecutableStep(planned, device)


class Forward:
    """Results of a run of forward.

    Attributes
    ----------
    outputs : tuple of array
    running : mapping
        Running statistics, by name, where forward is training's: after the step.
    """

    def __init__(self, outputs: tuple[Any, ...], running: Mapping[str, Any]) -> None:
        self.outputs, self.running = outputs, running
