"""Plans of larger steps: a smaller batch, or smaller images, go by decisions that were searched.

A step whose tensors are all as small as those of another one, or smaller, fits wherever that one
did. So it may keep, offload and recompute what the other does, without a search of its own. How its
calls are cut is planned for the step itself, and so are its results: a plan decides where tensors
are and when they are made, never what is computed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import NamedTuple

from ooc_cudnn.errors import HostOutOfMemoryError, PlanInfeasibleError
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.network.search.plan_step import derive_plan
from ooc_cudnn.settings import current

#: Plans that are known; the oldest go first. A plan is some hundred kilobytes.
MOST_KNOWN = 32


class _Known(NamedTuple):
    """A step that was planned: what it is like, the bytes of its tensors, the shape of its inputs.

    `kind` are the settings, the machine, the names of its phases, and where arrays lie.
    """

    kind: Hashable
    nbytes: Mapping[str, int]
    shapes: str
    plan: NetworkPlan

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(self.nbytes.values())


class LargerPlans:
    """Plans of one model's steps, by which smaller ones may go."""

    def __init__(self) -> None:
        self._known: tuple[_Known, ...] = ()

    def note(self, step: Step, constraints: PlanConstraints, plan: NetworkPlan) -> None:
        """Note a plan that was searched; it takes the place of one for the same sizes."""
        kind, nbytes = _kind(step, constraints), _bytes_of(step)
        others = [e for e in self._known if (e.kind, e.nbytes) != (kind, nbytes)]
        known = _Known(kind, nbytes, _input_shapes(step), plan)
        self._known = (*others, known)[-MOST_KNOWN:]

    def derive(self, step: Step, constraints: PlanConstraints) -> LoweredStep | None:
        """Return a plan that does what that of the next larger step does.

        Returns
        -------
        LoweredStep or None
            None where no such step was planned, or its plan does not fit or cannot be followed.
        """
        if not self._known:
            return None
        kind, nbytes = _kind(step, constraints), _bytes_of(step)
        larger = [
            known
            for known in self._known
            if known.kind == kind
            and known.plan.device_bytes <= constraints.target.room_bytes
            and _all_fit(nbytes, known.nbytes)
        ]
        for known in sorted(larger, key=lambda known: known.size):
            # in fewer images than micro-batches there are other phases
            with suppress(PlanInfeasibleError, HostOutOfMemoryError, ValueError):
                return derive_plan(step, known.plan, constraints, known.shapes)
        return None


def _kind(step: Step, constraints: PlanConstraints) -> Hashable:
    target = constraints.target
    given = {name: (spec.placement, spec.order) for name, spec in constraints.given.items()}
    names = tuple(phase.name for phase in step.phases)
    return current(), target.machine, names, step.outputs, frozenset(given.items())


def _bytes_of(step: Step) -> dict[str, int]:
    """The bytes of each tensor that is no view."""
    return {base: step.tensors[base].nbytes for base in step.uses}


def _all_fit(smaller: Mapping[str, int], larger: Mapping[str, int]) -> bool:
    return smaller.keys() == larger.keys() and all(n <= larger[e] for e, n in smaller.items())


def _input_shapes(step: Step) -> str:
    """The shapes of a step's inputs, as a person reads them."""
    inputs = (each.shape for each in step.tensors.values() if each.kind == "input" and not each.of)
    return ", ".join("x".join(map(str, shape)) for shape in inputs)
