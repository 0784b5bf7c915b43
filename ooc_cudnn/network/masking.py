"""Masks as bits, where they save memory: a rewrite of a step.

The gradient of a ReLU reads y, of which it needs a bit an element. Where nothing else in backward
reads y (a pooling follows that has indices, or a sum), forward saves the bits, and y is free as
soon as forward is done with it. Where the filter gradient of a convolution reads y anyway, bits
would only come on top.
"""

from __future__ import annotations

from dataclasses import replace

from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.network.tensors import Tensor, meet
from ooc_cudnn.operations.activation import Activation
from ooc_cudnn.operations.chain import Chain
from ooc_cudnn.operations.masks import (
    PASSES,
    MaskedActivation,
    MaskedActivationGradient,
    mask_shape,
)
from ooc_cudnn.operations.per_site import ActivationGradient


def with_masks(step: Step) -> Step:
    """Save bits in place of what only the gradient of an activation would read."""
    tensors, phases = dict(step.tensors), list(step.phases)
    kept = {step.place(name).base for name in step.outputs}
    for at, phase in enumerate(step.phases[: step.forward_count]):
        activation = _activation(phase)
        y = phase.binds.get("y", "")
        if activation is None or step.place(y).base in kept:
            continue
        gradients = [
            at
            for at in _readers(step, y)
            if isinstance(step.phases[at].call, ActivationGradient)
            and step.phases[at].binds.get("y") == y
        ]
        if not gradients or gradients != _readers(step, y):
            continue
        shape, mode, coef = activation.shape, activation.mode, activation.coef
        mask = Tensor(f"{phase.node}.mask", mask_shape(shape), "uint8")
        tensors[mask.name] = mask
        forward = MaskedActivation(shape, mode, coef, activation.dtype)
        phases[at] = replace(phase, call=forward, binds={**phase.binds, "mask": mask.name})
        for index in gradients:
            old = phases[index]
            call = MaskedActivationGradient(
                shape, mode, coef, activation.dtype, alpha=old.call.alpha, beta=old.call.beta
            )
            binds = {name: bound for name, bound in old.binds.items() if name != "y"}
            phases[index] = replace(old, call=call, binds={**binds, "mask": mask.name})
    return replace(step, tensors=tensors, phases=tuple(phases))


def _activation(phase: Phase) -> Activation | None:
    """The activation that a phase applies, if its slopes are told by a bit."""
    call = phase.call
    if not isinstance(call, Chain) or len(call.operations) != 1 or call.scaling("y") != (1, 0):
        return None
    (operation,) = call.operations
    told = isinstance(operation, Activation) and operation.mode in PASSES
    return operation if told else None  # type: ignore[return-value]


def _readers(step: Step, name: str) -> list[int]:
    """Backward phases that read any of what a tensor holds."""
    base, region = step.place(name)
    return [
        at
        for at, phase in enumerate(step.phases)
        if at >= step.forward_count
        and any(
            place.base == base and meet(place.region, region)
            for place in map(step.place, phase.reads)
        )
    ]
