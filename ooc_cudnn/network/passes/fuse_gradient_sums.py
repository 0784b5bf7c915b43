"""Fuse reductions (bias and batch-norm sums) into the pass that makes the gradient.

A rewrite of a step, the last one: which maps backward reads stays the same.

- The gradient of a bias, the sum of the gradient before an activation: one phase makes both. (On an
  H200 in float32 it takes 0.76 of the time of two passes.)
- So it is with the sums of batch normalization where another tensor was added before the
  activation, whose gradient is wanted, too; and where what comes in is the sum of two parts: what a
  convolution hands on, and the gradient of a shortcut. These are left apart, and the pass reads
  both. (0.80 of the time of three passes. Where there is one part, two passes are faster: 1.1.)
- The gradient of a bias behind which a maximum pools, and no ReLU is between: the sum of what the
  pooling hands on is the sum of what it is handed, of which there is a quarter as much, say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.operations.convolution.data_gradient import DataGradientCall
from ooc_cudnn.operations.core.activation_modes import needs_x
from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationGradientCall
from ooc_cudnn.operations.elementwise.broadcast_reduction import BroadcastGradientCall
from ooc_cudnn.operations.elementwise.gradient_reductions import (
    SUMMED_BESIDE,
    BiasActivationGradientCall,
)
from ooc_cudnn.operations.normalization.batch_fused_gradient import ActivationSumsCall
from ooc_cudnn.operations.normalization.batch_two_phase import ChannelSumsCall
from ooc_cudnn.operations.pooling.gradient import PoolingGradientCall
from ooc_cudnn.operations.pooling.indices import IndexedPoolingCall


def fuse_gradient_sums(step: Step) -> Step:
    """Rewrite a step with sums beside the gradients that they are of."""
    return _of_two_parts(_beside_biases(_before_poolings(step)))


def is_plain_sums(phase: Phase) -> bool:
    """True if a phase makes sums of batch normalization, in any order, of dy as it is."""
    call = phase.call
    return isinstance(call, ChannelSumsCall) and not call.deterministic and call.mode == "identity"


def _is_bias(phase: Phase) -> bool:
    """True if a phase makes the gradient of a bias, and adds to nothing."""
    call = phase.call
    return (
        isinstance(call, BroadcastGradientCall)
        and call.b_shape == call.shape[1:2]
        and not call.factor
        and call.beta == 0
    )


def _before_poolings(step: Step) -> Step:
    """Sum what a pooling of maxima is handed, in place of what it hands on."""
    makers = Makers(step)
    phases: list[tuple[float, Phase]] = []
    for index, phase in enumerate(step.phases):
        place = float(index)
        pooling = makers.of(phase.binds["dy"], index) if _is_bias(phase) else None
        maker = None if pooling is None else step.phases[pooling]
        if (
            maker is not None
            and pooling is not None
            and isinstance(maker.call, PoolingGradientCall)
            and maker.call.forward.is_max
            and maker.call.alpha == 1
            and not makers.has_relu(maker)
        ):
            place = pooling - 0.5
            shape = maker.call.operands["dy"].shape
            call = replace(phase.call, shape=shape)  # type: ignore[call-arg]
            phase = replace(phase, call=call, binds={**phase.binds, "dy": maker.binds["dy"]})
        phases.append((place, phase))
    phases.sort(key=lambda each: each[0])
    return replace(step, phases=tuple(phase for _, phase in phases))


def _beside_biases(step: Step) -> Step:
    """Let the gradient of an activation make that of the bias before it."""
    makers = Makers(step)
    phases: list[Phase | None] = list(step.phases)
    for index, phase in enumerate(step.phases):
        before = makers.activation(phase, index, phases) if _is_bias(phase) else None
        if before is None:
            continue
        maker = step.phases[before]
        call = BiasActivationGradientCall(**_shared(maker), alpha=phase.call.alpha)
        phases[before], phases[index] = _both(maker, phase, call), None
    return replace(step, phases=tuple(phase for phase in phases if phase is not None))


def _of_two_parts(step: Step) -> Step:
    """Let it make a norm's sums, where a convolution was to add to what it reads, and none else.

    What that would have added is left apart.
    """
    makers, tensors = Makers(step), dict(step.tensors)
    phases: list[Phase | None] = list(step.phases)
    asked = {step.base(name) for name in (*step.outputs, *step.gradients.values())}
    for index, phase in enumerate(step.phases):
        before = makers.activation(phase, index, phases) if is_plain_sums(phase) else None
        if before is None:
            continue
        maker = step.phases[before]
        dy = maker.binds["dy"]
        adder = None if dy in asked else makers.last_adder(dy, before)
        if adder is None:
            continue
        adding = step.phases[adder]
        part = replace(tensors[dy], name=f"{dy} of {adding.node}")
        tensors[part.name] = part
        apart = replace(adding.call, beta=0.0)
        phases[adder] = replace(adding, call=apart, binds={**adding.binds, "dx": part.name})
        both = _both(maker, phase, ActivationSumsCall(**_shared(maker)))
        phases[before] = replace(both, binds={**both.binds, "more": part.name})
        phases[index] = None
    return replace(step, tensors=tensors, phases=tuple(p for p in phases if p is not None))


def _shared(maker: Phase) -> dict[str, Any]:
    """The arguments that the gradient of an activation shares with what also makes sums of it."""
    of = maker.call
    assert isinstance(of, ActivationGradientCall)
    return {"shape": of.shape, "mode": of.mode, "coef": of.coef, "dtype": of.dtype}


def _both(maker: Phase, summing: Phase, call: TiledCall) -> Phase:
    """One phase that makes what two made, the second of what the first hands on."""
    binds = {name: n for name, n in summing.binds.items() if name != "dy"} | dict(maker.binds)
    return replace(maker, name=f"{maker.name}, {summing.name}", call=call, binds=binds)


class Makers:
    """The phase that alone has made a gradient, whole, when another phase reads it."""

    def __init__(self, step: Step) -> None:
        self.step, self.uses = step, step.uses

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

    def activation(self, phase: Phase, at: int, left: Sequence[Phase | None]) -> int | None:
        """The gradient of an activation that made what a phase sums, and may make the sums, too.

        It is looked up in what is `left` of the phases: there it may make another sum already.
        """
        before = self.of(phase.binds["dy"], at)
        maker = None if before is None else left[before]
        of = None if maker is None else maker.call
        if not isinstance(of, ActivationGradientCall) or needs_x(of.mode, of.coef):
            return None
        return before if of.alpha == 1 and of.dtype in SUMMED_BESIDE else None

    def has_relu(self, pooling: Phase) -> bool:
        """True if the gradient of a pooling goes through the ReLU before it: some goes nowhere."""
        if "index" not in pooling.binds:
            return False
        forward = self.step.phases[self.uses[pooling.binds["index"]].written[0]].call
        return isinstance(forward, IndexedPoolingCall) and forward.positive

    def last_adder(self, name: str, reader: int) -> int | None:
        """The convolution that adds to a gradient just before its one reader, and last."""
        used = self.uses.get(name)
        adder, last = (0, 0, *(used.phases if used else ()))[-2:]
        adding = self.step.phases[adder]
        adds = isinstance(adding.call, DataGradientCall) and adding.call.beta == 1
        return adder if last == reader and adds and adding.binds["dx"] == name else None
