"""Sums beside the gradients that they are of: fewer passes over gradients.

A rewrite of a step, the last one: which maps backward reads stays the same.

- The gradient of a bias, the sum of the gradient before an activation: one phase makes both.
- So it is with the sums of batch normalization, where another tensor was added before the
  activation, and its gradient is wanted for that.
- Where what a convolution hands on is added to the gradient of a shortcut before such a pass, the
  two are left apart, and the pass reads both.
- The gradient of a bias behind which a maximum pools: the sum of what the pooling hands on is the
  sum of what it is handed, of which there is a quarter as much, say.
"""

from __future__ import annotations

from dataclasses import replace

from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.network.residency import uses_of
from ooc_cudnn.operations.activation_backward import needs_x
from ooc_cudnn.operations.activation_sums import ActivationSums
from ooc_cudnn.operations.backward_data import BackwardData
from ooc_cudnn.operations.backward_pooling import BackwardPooling
from ooc_cudnn.operations.batch_phases import ChannelSums
from ooc_cudnn.operations.broadcast_gradient import BroadcastGradient
from ooc_cudnn.operations.gradient_sums import SUMMED_BESIDE, BiasActivationGradient
from ooc_cudnn.operations.per_site import ActivationGradient


def summed(step: Step) -> Step:
    """Rewrite a step with sums beside the gradients that they are of."""
    return _in_two_parts(_with_sums(_before_poolings(step)))


def is_plain_sums(phase: Phase) -> bool:
    """Whether a phase makes sums of batch normalization, in any order, of dy as it is."""
    call = phase.call
    return isinstance(call, ChannelSums) and not call.deterministic and call.mode == "identity"


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
    makers = Makers(step)
    phases: list[tuple[float, Phase]] = []
    for at, phase in enumerate(step.phases):
        place = float(at)
        pooling = makers.of(phase.binds["dy"], at) if _is_bias(phase) else None
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


def _with_sums(step: Step) -> Step:
    """Let the gradient of an activation make that of the bias before it, or a norm's sums."""
    makers = Makers(step)
    phases: list[Phase | None] = list(step.phases)
    for at, phase in enumerate(step.phases):
        of_bias = _is_bias(phase)
        before = makers.of(phase.binds["dy"], at) if of_bias or is_plain_sums(phase) else None
        maker = None if before is None else phases[before]
        if before is None or maker is None or not isinstance(maker.call, ActivationGradient):
            continue
        of = maker.call
        if needs_x(of.mode, of.coef) or of.alpha != 1 or of.dtype not in SUMMED_BESIDE:
            continue
        kind = BiasActivationGradient if of_bias else ActivationSums
        call = kind(of.shape, of.mode, of.coef, of.dtype, alpha=phase.call.alpha)
        binds = {name: n for name, n in phase.binds.items() if name != "dy"} | dict(maker.binds)
        name = f"{maker.name}, {phase.name}"
        phases[before], phases[at] = replace(maker, name=name, call=call, binds=binds), None
    return replace(step, phases=tuple(phase for phase in phases if phase is not None))


def _in_two_parts(step: Step) -> Step:
    """Leave what a convolution adds to a gradient apart, where that is read but once, by sums."""
    uses, tensors, phases = uses_of(step), dict(step.tensors), list(step.phases)
    asked = {step.place(name).base for name in (*step.outputs, *step.gradients.values())}
    for at, phase in enumerate(step.phases):
        dy = phase.binds.get("dy", "")
        if not isinstance(phase.call, ActivationSums) or dy in asked or dy not in uses:
            continue
        adder, last = (0, *uses[dy].phases)[-2:]
        adding = step.phases[adder]
        adds = isinstance(adding.call, BackwardData) and adding.call.beta == 1
        if last != at or not adds or adding.binds["dx"] != dy:
            continue
        part = replace(tensors[dy], name=f"{dy} of {adding.node}")
        tensors[part.name] = part
        apart = replace(adding.call, beta=0.0)
        phases[adder] = replace(adding, call=apart, binds={**adding.binds, "dx": part.name})
        call = replace(phase.call, two=True)
        phases[at] = replace(phase, call=call, binds={**phase.binds, "more": part.name})
    return replace(step, tensors=tensors, phases=tuple(phases))


class Makers:
    """Which phase alone has made a gradient, whole, when another phase reads it."""

    def __init__(self, step: Step) -> None:
        self.step, self.uses = step, uses_of(step)

    def of(self, name: str, reader: int) -> int | None:
        """The one phase that has written it; None if others added to it, or it is a part."""
        used = self.uses.get(name)
        if used is None or self.step.tensors[name].kind != "gradient":
            return None
        written = [at for at in used.written if at < reader]
        if len(written) != 1:
            return None
        (maker,) = written
        phase = self.step.phases[maker]
        return maker if phase.call.beta == 0 and phase.binds.get("dx") == name else None
