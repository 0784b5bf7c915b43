"""Concatenations taken apart: a convolution of what was joined is the sum of those of its parts.

A rewrite of a step. A concatenation is one buffer, which a convolution reads as a whole, beside its
result: where memory is short that is the largest thing in the step. Apart, each part comes and goes
by itself; the first convolution makes the result, the others add to it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.ir.tensor import Tensor, channels_of, extents, whole_region
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.convolution.data_gradient import DataGradientCall
from ooc_cudnn.operations.convolution.filter_gradient import FilterGradientCall
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.core.ranges import Range
from ooc_cudnn.operations.elementwise.binary import AddTensor

#: The operand of a convolution, or of one of its gradients, that holds what was joined.
_JOINED = {Chain: "x", FilterGradientCall: "x", DataGradientCall: "dx"}


def split_concatenations(step: Step) -> Step:
    """Rewrite a step without concatenations that convolutions alone read whole."""
    seen_in_parts = {step.base(name) for name, tensor in step.tensors.items() if tensor.of}
    for name, tensor in step.tensors.items():
        may_be_joined = name in seen_in_parts and tensor.kind in ("map", "gradient")
        parts = _parts(step, name) if may_be_joined else ()
        if parts:
            step = _split_concatenation(step, name, parts)
    return step


def _parts(step: Step, joined: str) -> tuple[Range, ...]:
    """The channels of each part of a concatenation; none where it must stay whole."""
    shape, ranges = step.tensors[joined].shape, set[Range]()
    if joined not in step.uses or joined in step.results | set(step.seeds.values()):
        return ()
    if len(shape) < 3:
        return ()
    for phase in (step.phases[at] for at in step.uses[joined].phases):
        for operand, name in phase.binds.items():
            base, region = step.place(name)
            if base != joined:
                continue
            if region == whole_region(shape):
                reshaped = step.tensors[name].shape != shape  # channels are no axis of that view
                if reshaped or not _may_be_summed(phase) or _JOINED[type(phase.call)] != operand:
                    return ()
                continue
            if region != channels_of(shape, region[1]):
                return ()
            ranges.add(region[1])
    ends = [(0, 0), *sorted(ranges), (shape[1], shape[1])]
    if len(ranges) < 2 or any(a[1] != b[0] for a, b in pairwise(ends)):
        return ()
    return tuple(ends[1:-1])


def _convolution(phase: Phase) -> Convolution | None:
    """The convolution of a phase that is one, with what is added to it, or is a gradient of one."""
    call = phase.call
    if isinstance(call, FilterGradientCall | DataGradientCall):
        return call.forward
    if not isinstance(call, Chain) or call.alpha != 1:
        return None
    first, *others = call.operations
    plain = all(isinstance(each, AddTensor) for each in others)
    return first if isinstance(first, Convolution) and plain else None


def _may_be_summed(phase: Phase) -> bool:
    """True if a phase is linear, in numbers that lose nothing in being stored between sums."""
    forward = _convolution(phase)
    return forward is not None and forward.groups == 1 and forward.dtype in ("float32", "float64")


def _split_concatenation(step: Step, joined: str, parts: tuple[Range, ...]) -> Step:
    tensors, phases = dict(step.tensors), list[Phase]()
    old = tensors.pop(joined)
    names = [f"{joined} [{first}:{last}]" for first, last in parts]
    for name, (first, last) in zip(names, parts, strict=True):
        shape = (old.shape[0], last - first, *old.shape[2:])
        tensors[name] = replace(old, name=name, shape=shape)
    for name, tensor in step.tensors.items():
        if name == joined or step.base(name) != joined:
            continue
        region = step.place(name).region
        if region[1] not in parts:
            # of convolutions, which are taken apart, or of a concatenation in this one
            del tensors[name]
            continue
        position = parts.index(region[1])
        whole = whole_region(extents(region))
        tensors[name] = replace(tensor, of=names[position], region=whole)
    for index, phase in enumerate(step.phases):
        operand = _JOINED.get(type(phase.call), "")
        bound = phase.binds.get(operand, joined if operand else "")
        if operand not in phase.binds or step.place(bound) != (joined, whole_region(old.shape)):
            phases.append(phase)
            continue
        pieces = _of_parts(phase, operand, parts, names, tensors)
        if isinstance(phase.call, DataGradientCall):
            # what is read last is made first: it leaves while the others are made and read
            later = [_next_use(step, joined, part, index) for part in parts]
            pieces = [pieces[at] for at in sorted(range(len(parts)), key=lambda at: -later[at])]
        phases += pieces
    count = sum(not phase.is_backward for phase in phases)
    return replace(step, tensors=tensors, phases=tuple(phases), forward_count=count)


def _next_use(step: Step, joined: str, part: Range, index: int) -> int:
    """The next phase that touches some channels of a concatenation."""
    for position in range(index + 1, len(step.phases)):
        for name in step.phases[position].binds.values():
            base, region = step.place(name)
            if base == joined and region[1][0] < part[1] and part[0] < region[1][1]:
                return position
    return len(step.phases)


def _of_parts(
    phase: Phase,
    operand: str,
    parts: tuple[Range, ...],
    names: list[str],
    tensors: dict[str, Tensor],
) -> list[Phase]:
    """A convolution, or one of its gradients, of each part; the filters' parts become views."""
    call, phases = phase.call, list[Phase]()
    for index, (channels, name) in enumerate(zip(parts, names, strict=True)):
        filters = "dw" if isinstance(call, FilterGradientCall) else "w"
        of = phase.binds[filters]
        region = whole_region(tensors[of].shape)
        region = (region[0], channels, *region[2:])
        view = f"{of} [{channels[0]}:{channels[1]}]"
        tensors[view] = replace(tensors[of], name=view, shape=extents(region), of=of, region=region)
        binds = {**phase.binds, operand: name, filters: view}
        forward = _convolution(phase)
        assert forward is not None
        forward = replace(forward, x_shape=tensors[name].shape, w_shape=extents(region))
        part_call: Chain | FilterGradientCall | DataGradientCall
        if isinstance(call, Chain):
            others = call.operations[1:]
            if index < len(parts) - 1:  # what is added to all is added with the last
                others = ()
                binds = {each: binds[each] for each in ("x", "w", "y")}
            beta = call.beta if index == 0 else 1.0
            part_call = replace(call, operations=(forward, *others), beta=beta)
        else:
            assert isinstance(call, FilterGradientCall | DataGradientCall)
            part_call = replace(call, forward=forward)
        phases.append(replace(phase, name=f"{phase.name} [{index}]", call=part_call, binds=binds))
    return phases
