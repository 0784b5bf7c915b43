"""Fusing in backward: what is summed of a gradient is summed by the pass that makes it.

A rewrite of a step, the last one: which maps backward reads stays the same.

- The gradient of a bias, the sum of the gradient before an activation: one phase makes both.
- The gradient of a bias behind which a maximum pools: the sum of what the pooling hands on is the
  sum of what it is handed, of which there is a quarter as much, say.
"""

from __future__ import annotations

from dataclasses import replace

from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.network.residency import uses_of
from ooc_cudnn.operations.activation_backward import needs_x
from ooc_cudnn.operations.backward_pooling import BackwardPooling
from ooc_cudnn.operations.broadcast_gradient import BroadcastGradient
from ooc_cudnn.operations.gradient_sums import BiasActivationGradient
from ooc_cudnn.operations.per_site import ActivationGradient


def summed(step: Step) -> Step:
    """Rewrite a step with sums beside the gradients that they are of."""
    return _with_biases(_before_poolings(step))


def _is_bias(phase: Phase) -> bool:
    """Whether a phase makes the gradient of a bias, and adds to nothing."""
    call = phase.call
    return (
        isinstance(call, BroadcastGradient)
        and call.b_shape == call.shape[1:2]
        and not call.factor
        and call.beta == 0
    )


def _before_poolings(step: Step) -> Step:
    """Sum what a pooling of maxima is handed, in place of what it hands on."""
    makers = _makers(step)
    phases: list[tuple[float, Phase]] = []
    for at, phase in enumerate(step.phases):
        place = float(at)
        pooling = makers.get(phase.binds["dy"]) if _is_bias(phase) else None
        maker = None if pooling is None else step.phases[pooling]
        if (
            maker is not None
            and pooling is not None
            and isinstance(maker.call, BackwardPooling)
            and maker.call.forward.is_max
            and maker.call.alpha == 1
        ):
            place = pooling - 0.5
            shape = maker.call.operands["dy"].shape
            call = replace(phase.call, shape=shape)  # type: ignore[call-arg]
            phase = replace(phase, call=call, binds={**phase.binds, "dy": maker.binds["dy"]})
        phases.append((place, phase))
    phases.sort(key=lambda each: each[0])
    return replace(step, phases=tuple(phase for _, phase in phases))


def _with_biases(step: Step) -> Step:
    """Let the gradient of an activation make that of the bias before it."""
    makers = _makers(step)
    phases: list[Phase | None] = list(step.phases)
    for at, phase in enumerate(step.phases):
        before = makers.get(phase.binds["dy"]) if _is_bias(phase) else None
        maker = None if before is None else phases[before]
        if before is None or maker is None or not isinstance(maker.call, ActivationGradient):
            continue
        of = maker.call
        if needs_x(of.mode, of.coef) or of.alpha != 1:
            continue
        call = BiasActivationGradient(of.shape, of.mode, of.coef, of.dtype, alpha=phase.call.alpha)
        binds = {**maker.binds, "db": phase.binds["db"]}
        name = f"{maker.name}, {phase.name}"
        phases[before], phases[at] = replace(maker, name=name, call=call, binds=binds), None
    return replace(step, phases=tuple(phase for phase in phases if phase is not None))


def _makers(step: Step) -> dict[str, int]:
    """Of each gradient that one phase alone writes, whole and not adding to it: that phase."""
    found = {}
    for name, used in uses_of(step).items():
        if len(used.written) == 1 and step.tensors[name].kind == "gradient":
            phase = step.phases[used.written[0]]
            if phase.call.beta == 0 and phase.binds.get("dx") == name:
                found[name] = used.written[0]
    return found
