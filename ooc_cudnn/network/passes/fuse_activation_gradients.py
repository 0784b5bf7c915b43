"""Fuse an activation's backward into the preceding normalization's backward.

A rewrite of a step, the first one, for fewer maps are read in backward afterwards. The phases take
the slope of the activation, made again of what was normalised. The gradient between the two is
nowhere, and y is not read for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.passes.fuse_gradient_sums import Makers, is_plain_sums
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.core.activation_modes import needs_x
from ooc_cudnn.operations.elementwise.activation import Activation
from ooc_cudnn.operations.elementwise.activation_bitmask import PASSES
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationGradientCall
from ooc_cudnn.operations.normalization.batch_two_phase import BatchNormalizationDataCall
from ooc_cudnn.operations.normalization.channel_reduction import SAVED
from ooc_cudnn.operations.normalization.group import GroupNormalizationGradientCall
from ooc_cudnn.operations.normalization.set_reduction import Normalising


def fuse_activation_gradients(step: Step) -> Step:
    """Rewrite a step without gradients between normalizations and activations."""
    matcher = _Between(step)
    phases: list[Phase | None] = list(step.phases)
    gone: set[str] = set()
    for index, phase in enumerate(step.phases):
        sums = is_plain_sums(phase) or _is_of_groups(phase)
        between = matcher.before(index) if sums else None
        if between is None:
            continue
        activation = step.phases[between.activation]
        told = {"mode": activation.call.mode, "coef": activation.call.coef}  # type: ignore[attr-defined]
        norm = step.phases[between.normalization].binds
        further = {"dy": activation.binds["dy"], "bias": norm["bias"]}
        phases[index] = replace(
            phase,
            call=replace(phase.call, **told),
            binds={**phase.binds, **further, "scale": norm["scale"]},
        )
        if between.data is not None:
            data = step.phases[between.data]
            call = replace(data.call, **told)
            phases[between.data] = replace(data, call=call, binds={**data.binds, **further})
        phases[between.activation] = None
        gone.add(phase.binds["dy"])
    tensors = {n: tensor for n, tensor in step.tensors.items() if step.base(n) not in gone}
    left, forward = tuple(phase for phase in phases if phase is not None), step.forward_count
    return replace(step, tensors=tensors, phases=left, forward_count=forward)


class _Match(NamedTuple):
    """Numbers of phases: forward's normalization, the activation's gradient, dx of the former."""

    normalization: int
    activation: int
    data: int | None


class _Between:
    """Gradients between a normalization and an activation that came straight after it."""

    def __init__(self, step: Step) -> None:
        self.step, self.uses, self.makers = step, step.uses, Makers(step)
        self.asked = {step.base(n) for n in (*step.outputs, *step.gradients.values())}
        #: The forward phase of one operation that makes a map.
        self.forward = {
            phase.binds["y"]: (at, phase.call.operations[0])
            for at, phase in enumerate(step.phases)
            if isinstance(phase.call, Chain)
            and not phase.is_backward
            and len(phase.call.operations) == 1
        }

    def before(self, sums: int) -> _Match | None:
        """Match the phases around one that sums a gradient; None if the gradient must be made."""
        step, phases = self.step, self.step.phases
        between, x = phases[sums].binds["dy"], phases[sums].binds["x"]
        maker = self.makers.of(between, sums)
        if maker is None or between in self.asked or not _is_rectifier(phases[maker]):
            return None
        made_y = self.forward.get(phases[maker].binds["y"])
        if made_y is None or not isinstance(made_y[1], Activation):
            return None
        made_x = self.forward.get(phases[made_y[0]].binds["x"])
        if made_x is None or not isinstance(made_x[1], Normalising):
            return None
        norm = phases[made_x[0]].binds
        saved = (norm["mean"], norm.get("inverse_deviation"))
        if norm["x"] != x or saved != tuple(phases[sums].binds[name] for name in SAVED):
            return None
        others = [at for at in self.uses[between].phases if at not in (maker, sums)]
        if len(others) > 1 or any(
            not isinstance(phases[at].call, BatchNormalizationDataCall)
            or (phases[at].binds["x"], phases[at].binds["dy"]) != (x, between)
            for at in others
        ):
            return None
        of_y = self.uses[step.base(phases[maker].binds["dy"])]
        if any(maker < at <= max((sums, *others)) for at in of_y.written):
            return None
        return _Match(made_x[0], maker, others[0] if others else None)


def _is_of_groups(phase: Phase) -> bool:
    """True if a phase makes sums and dx of instance or group normalization, of dy as it is."""
    return isinstance(phase.call, GroupNormalizationGradientCall) and phase.call.mode == "identity"


def _is_rectifier(phase: Phase) -> bool:
    """True if a phase is the gradient of an activation of few slopes, whose y tells which."""
    call = phase.call
    return (
        isinstance(call, ActivationGradientCall)
        and call.mode in PASSES
        and not needs_x(call.mode, call.coef)
        and call.alpha == 1
    )
