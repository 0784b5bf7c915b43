"""Fusing in backward: rewrites of a step with fewer passes over gradients.

`through_normalizations` comes first, for fewer maps are read in backward afterwards:

- Of an activation after a batch normalization, the normalization's phases take the slope, made
  again of what was normalised. The gradient between the two is nowhere, and y is not read for it.

`summed` comes last, and which maps backward reads stays the same: what is summed of a gradient is
summed by the pass that makes it.

- The gradient of a bias, the sum of the gradient before an activation: one phase makes both.
- So it is with the sums of batch normalization, where another tensor was added before the
  activation, and its gradient is wanted for that.
- The gradient of a bias behind which a maximum pools: the sum of what the pooling hands on is the
  sum of what it is handed, of which there is a quarter as much, say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.network.residency import uses_of
from ooc_cudnn.operations.activation import Activation
from ooc_cudnn.operations.activation_backward import needs_x
from ooc_cudnn.operations.activation_sums import ActivationSums
from ooc_cudnn.operations.backward_pooling import BackwardPooling
from ooc_cudnn.operations.batch_normalization import Normalise
from ooc_cudnn.operations.batch_phases import BatchNormalizationData, ChannelSums
from ooc_cudnn.operations.broadcast_gradient import BroadcastGradient
from ooc_cudnn.operations.chain import Chain
from ooc_cudnn.operations.channel_statistics import SAVED
from ooc_cudnn.operations.gradient_sums import BiasActivationGradient
from ooc_cudnn.operations.masks import PASSES
from ooc_cudnn.operations.per_site import ActivationGradient


def summed(step: Step) -> Step:
    """Rewrite a step with sums beside the gradients that they are of."""
    return _with_sums(_before_poolings(step))


def through_normalizations(step: Step) -> Step:
    """Rewrite a step without gradients between batch normalizations and activations."""
    found = _Between(step)
    phases: list[Phase | None] = list(step.phases)
    gone: set[str] = set()
    for at, phase in enumerate(step.phases):
        between = found.before(at) if _is_plain_sums(phase) else None
        if between is None:
            continue
        activation = step.phases[between.activation]
        told = {"mode": activation.call.mode, "coef": activation.call.coef}  # type: ignore[attr-defined]
        norm = step.phases[between.normalization].binds
        further = {"dy": activation.binds["dy"], "bias": norm["bias"]}
        phases[at] = replace(
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
    tensors = {n: tensor for n, tensor in step.tensors.items() if step.place(n).base not in gone}
    left, forward = tuple(phase for phase in phases if phase is not None), step.forward_count
    return replace(step, tensors=tensors, phases=left, forward_count=forward)


class _Found(NamedTuple):
    """Numbers of phases: forward's normalization, the activation's gradient, dx of the former."""

    normalization: int
    activation: int
    data: int | None


class _Between:
    """Gradients between a batch normalization and an activation that came straight after it."""

    def __init__(self, step: Step) -> None:
        self.step, self.uses, self.makers = step, uses_of(step), _Makers(step)
        self.asked = {step.place(n).base for n in (*step.outputs, *step.gradients.values())}
        #: The forward phase of one operation that makes a map.
        self.forward = {
            phase.binds["y"]: (at, phase.call.operations[0])
            for at, phase in enumerate(step.phases)
            if isinstance(phase.call, Chain)
            and not phase.is_backward
            and len(phase.call.operations) == 1
        }

    def before(self, sums: int) -> _Found | None:
        """What is there of the gradient that a phase sums; None if it must be made."""
        step, phases = self.step, self.step.phases
        between, x = phases[sums].binds["dy"], phases[sums].binds["x"]
        maker = self.makers.of(between, sums)
        if maker is None or between in self.asked or not _is_rectifier(phases[maker]):
            return None
        made_y = self.forward.get(phases[maker].binds["y"])
        if made_y is None or not isinstance(made_y[1], Activation):
            return None
        made_x = self.forward.get(phases[made_y[0]].binds["x"])
        if made_x is None or not isinstance(made_x[1], Normalise):
            return None
        norm = phases[made_x[0]].binds
        saved = (norm["mean"], norm.get("inverse_deviation"))
        if norm["x"] != x or saved != tuple(phases[sums].binds[name] for name in SAVED):
            return None
        others = [at for at in self.uses[between].phases if at not in (maker, sums)]
        if len(others) > 1 or any(
            not isinstance(phases[at].call, BatchNormalizationData)
            or (phases[at].binds["x"], phases[at].binds["dy"]) != (x, between)
            for at in others
        ):
            return None
        of_y = self.uses[step.place(phases[maker].binds["dy"]).base]
        if any(maker < at <= max(sums, *others) for at in of_y.written):
            return None
        return _Found(made_x[0], maker, others[0] if others else None)


def _is_rectifier(phase: Phase) -> bool:
    """Whether a phase is the gradient of an activation of few slopes, whose y tells which."""
    call = phase.call
    return (
        isinstance(call, ActivationGradient)
        and call.mode in PASSES
        and not needs_x(call.mode, call.coef)
        and call.alpha == 1
    )


def _is_plain_sums(phase: Phase) -> bool:
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
    makers = _Makers(step)
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
    makers = _Makers(step)
    phases: list[Phase | None] = list(step.phases)
    for at, phase in enumerate(step.phases):
        of_bias = _is_bias(phase)
        before = makers.of(phase.binds["dy"], at) if of_bias or _is_plain_sums(phase) else None
        maker = None if before is None else phases[before]
        if before is None or maker is None or not isinstance(maker.call, ActivationGradient):
            continue
        of = maker.call
        if needs_x(of.mode, of.coef) or of.alpha != 1:
            continue
        kind = BiasActivationGradient if of_bias else ActivationSums
        call = kind(of.shape, of.mode, of.coef, of.dtype, alpha=phase.call.alpha)
        binds = {name: n for name, n in phase.binds.items() if name != "dy"} | dict(maker.binds)
        name = f"{maker.name}, {phase.name}"
        phases[before], phases[at] = replace(maker, name=name, call=call, binds=binds), None
    return replace(step, phases=tuple(phase for phase in phases if phase is not None))


class _Makers:
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
