"""Pass: saved activations made small (bit masks, argmax indices).

- The gradient of max pooling reads x, y and dy, to find the maxima again. A byte an element of y,
  saved in forward, says where they are. So x and y are not read, and either may be made again, in
  other pieces or by another engine.
- That byte also tells the slope of a ReLU in front of max pooling: a maximum of 0 has no place, and
  no gradient. So the ReLU has no phase in backward, and nothing reads its y there.
- The gradient of another ReLU reads a bit an element of its y. Where nothing else in backward reads
  y (a sum follows), forward saves the bits. Where the filter gradient of a convolution reads y
  anyway, they would only come on top.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.ir.tensor import Tensor, meet
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.core.call import Region
from ooc_cudnn.operations.core.operation import Operation
from ooc_cudnn.operations.elementwise.activation import Activation
from ooc_cudnn.operations.elementwise.activation_bitmask import (
    PASSES,
    MaskedActivationCall,
    MaskedActivationGradientCall,
    mask_shape,
)
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationGradientCall
from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.operations.pooling.gradient import PoolingGradientCall
from ooc_cudnn.operations.pooling.indices import IndexedPoolingCall, indexable

Kind = TypeVar("Kind", bound=Operation)


def compress_activations(step: Step) -> Step:
    """A step that keeps as little for backward as it can, with the same results."""
    return _save_masks(_told_by_indices(save_indices(step)))


def save_indices(step: Step) -> Step:
    """Save where maxima are, in place of x and y of poolings."""
    tensors, phases = dict(step.tensors), list(step.phases)
    for phase_index, phase in enumerate(step.phases):
        pooling = _alone(phase, Pooling)
        if pooling is None or phase.is_backward or not indexable(pooling):
            continue
        x, y = phase.binds["x"], phase.binds["y"]
        gradients = [
            index
            for index, other in enumerate(step.phases)
            if isinstance(other.call, PoolingGradientCall)
            and other.call.forward == pooling
            and (other.binds.get("x"), other.binds.get("y")) == (x, y)
        ]
        if len(gradients) != 1:
            continue
        # no user's name holds a blank
        index = Tensor(f"{phase.node} index", pooling.output_shape, "uint8")
        tensors[index.name] = index
        call = IndexedPoolingCall(pooling)
        phases[phase_index] = replace(phase, call=call, binds={**phase.binds, "index": index.name})
        old = phases[gradients[0]]
        binds = {"index": index.name, "dy": old.binds["dy"], "dx": old.binds["dx"]}
        gradient = PoolingGradientCall(
            pooling, indexed=True, alpha=old.call.alpha, beta=old.call.beta
        )
        phases[gradients[0]] = replace(old, call=gradient, binds=binds)
    return replace(step, tensors=tensors, phases=tuple(phases))


def _told_by_indices(step: Step) -> Step:
    """Leave out the gradient of a ReLU in front of max pooling: the index tells what it would."""
    tensors, phases, uses = dict(step.tensors), list[Phase | None](step.phases), _Uses(step)
    makers = {
        phase.binds["index"]: index
        for index, phase in enumerate(step.phases)
        if isinstance(phase.call, IndexedPoolingCall)
    }
    for index, relu in enumerate(step.phases):
        if not isinstance(relu.call, ActivationGradientCall) or relu.call.mode != "relu":
            continue
        between, dx = relu.binds["dy"], relu.binds["dx"]
        number = uses.only_writer(between, PoolingGradientCall, "dx")
        if number is None or uses.readers(between, backward=True) != [index]:
            continue
        gradient = step.phases[number]
        maker = makers.get(gradient.binds.get("index", ""))
        if maker is None or step.phases[maker].binds["x"] != relu.binds["y"]:
            continue
        until = step.phases[number:index]
        if any(step.base(dx) == step.base(n) for p in until for n in p.binds.values()):
            continue  # the gradient of the pooling makes dx where it stands, and not of itself
        pooling = step.phases[maker]
        phases[maker] = replace(pooling, call=replace(pooling.call, positive=True))  # type: ignore[call-arg]
        alpha, beta = relu.call.alpha, relu.call.beta
        call, binds = replace(gradient.call, alpha=alpha, beta=beta), {**gradient.binds, "dx": dx}
        phases[number], phases[index] = replace(gradient, call=call, binds=binds), None
        del tensors[between]
    left = tuple(phase for phase in phases if phase is not None)
    return replace(step, tensors=tensors, phases=left)


def _save_masks(step: Step) -> Step:
    """Save bits in place of what only the gradient of an activation would read."""
    tensors, phases = dict(step.tensors), list(step.phases)
    kept, uses = {step.base(name) for name in step.outputs}, _Uses(step)
    for index, phase in enumerate(step.phases):
        activation = _alone(phase, Activation)
        if activation is None or phase.is_backward or activation.mode not in PASSES:
            continue
        y = phase.binds["y"]
        if step.base(y) in kept:
            continue
        gradient = uses.only_reader(y, ActivationGradientCall, "y", backward=True)
        if gradient is None:
            continue
        shape, mode, coef = activation.shape, activation.mode, activation.coef
        mask = Tensor(f"{phase.node} mask", mask_shape(shape), "uint8")
        tensors[mask.name] = mask
        forward = MaskedActivationCall(shape, mode, coef, activation.dtype)
        phases[index] = replace(phase, call=forward, binds={**phase.binds, "mask": mask.name})
        old = phases[gradient]
        call = MaskedActivationGradientCall(
            shape, mode, coef, activation.dtype, alpha=old.call.alpha, beta=old.call.beta
        )
        binds = {"mask": mask.name, "dy": old.binds["dy"], "dx": old.binds["dx"]}
        phases[gradient] = replace(old, call=call, binds=binds)
    return replace(step, tensors=tensors, phases=tuple(phases))


# What phases do -----------------------------------------------------------------------------------


def _alone(phase: Phase, kind: type[Kind]) -> Kind | None:
    """The operation of a chain of one that neither scales nor adds, if it is of a kind."""
    call = phase.call
    if not isinstance(call, Chain) or len(call.operations) != 1 or call.scaling("y") != (1, 0):
        return None
    (operation,) = call.operations
    return operation if isinstance(operation, kind) else None


class _Uses:
    """Readers and writers of each tensor that is no view: phases, and of which region."""

    def __init__(self, step: Step) -> None:
        self.step = step
        places = {name: step.place(name) for name in step.tensors}
        self._reads: dict[str, list[tuple[int, Region]]] = {}
        self._writes: dict[str, list[int]] = {}
        for index, phase in enumerate(step.phases):
            for name in phase.reads:
                base, region = places[name]
                self._reads.setdefault(base, []).append((index, region))
            for name in phase.writes:
                self._writes.setdefault(places[name].base, []).append(index)

    def readers(self, name: str, *, backward: bool) -> list[int]:
        """Phases of one direction that read any of what a tensor holds."""
        base, region = self.step.place(name)
        found = (at for at, read in self._reads.get(base, ()) if meet(read, region))
        return [at for at in dict.fromkeys(found) if self.step.phases[at].is_backward == backward]

    def only_reader(self, name: str, kind: type, operand: str, *, backward: bool) -> int | None:
        """The one phase that reads it, if it is of a kind and reads it as that operand."""
        found = self.readers(name, backward=backward)
        return self._fitting(found, name, kind, operand)

    def only_writer(self, name: str, kind: type, operand: str) -> int | None:
        """The one phase that writes it, if it is of a kind, makes all of it and adds to nothing."""
        at = self._fitting(self._writes.get(name, []), name, kind, operand)
        return at if at is not None and self.step.phases[at].call.beta == 0 else None

    def _fitting(self, found: list[int], name: str, kind: type, operand: str) -> int | None:
        if len(found) != 1:
            return None
        phase = self.step.phases[found[0]]
        fits = isinstance(phase.call, kind) and phase.binds.get(operand) == name
        return found[0] if fits else None
