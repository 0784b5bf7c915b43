"""Sums over images that micro-batches make once, in the last of them, and when.

Every part of the batch adds to a filter gradient, which is on the device from the first part to the
last. That of a large linear layer is larger than all that it is made of. So what it is
made of is kept instead, of all images, and the sum is made once, in the last part: as soon as that
part, with the sum, holds no more than it does in its fullest phase.
"""

from __future__ import annotations

from typing import Any

from ooc_cudnn.memory.offset_assignment import LiveBuffer, held_bytes
from ooc_cudnn.network.ir.step import Phase, Step


def sum_microbatches_last(step: Step, images: int) -> frozenset[int]:
    """The phases that run once, for all of so many images in the last part, by their numbers.

    Nothing else writes over what they read, or adds to their sums.
    """
    return frozenset(
        at
        for at, phase in enumerate(step.phases)
        if images > 1 and phase.is_backward and _is_summed_last(step, at, phase, images)
    )


def _is_summed_last(step: Step, index: int, phase: Phase, images: int) -> bool:
    operands, uses = phase.call.operands, step.uses
    if any("n" in operands[name].axes for name in phase.call.results):
        return False
    read = {
        step.base(phase.binds[name])
        for name in phase.call.loaded
        if "n" in operands[name].axes and operands[name].shape[0] == images
    }
    is_changed = any(uses[base].written[-1:] > (index,) for base in read)
    is_alone = all(uses[step.base(name)].written == (index,) for name in phase.writes)
    kept = sum(step.tensors[base].nbytes for base in read)
    summed = sum(step.tensors[name].nbytes for name in phase.writes)
    return bool(read) and is_alone and not is_changed and kept < summed


def run_before(step: Step, last: frozenset[int], parts: int) -> dict[int, list[int]]:
    """Map phases of the last part to those that run once and go just before them.

    Returns
    -------
    dict of int to list of int
        For a phase of the part, those that run just before it. The key is the number of all phases
        for those that run behind the last one.
    """
    runs, held = dict[int, list[int]](), _held_by_part(step, parts)
    most = held.max(initial=0)
    for index in sorted(last):
        nbytes = sum(step.tensors[name].nbytes for name in step.phases[index].writes)
        fits = (held[index:] + nbytes <= most).nonzero()[0]
        runs.setdefault(index + int(fits[0]) if len(fits) else len(step.phases), []).append(index)
    return runs


def _held_by_part(step: Step, parts: int) -> Any:
    """Bytes of maps and their gradients that one of so many parts holds in each phase."""
    buffers = [
        LiveBuffer(used.phases[0], used.phases[-1], step.tensors[base].nbytes // parts)
        for base, used in step.uses.items()
        if step.tensors[base].kind in ("map", "gradient") and base not in step.gradients.values()
    ]
    return held_bytes(buffers, len(step.phases))
