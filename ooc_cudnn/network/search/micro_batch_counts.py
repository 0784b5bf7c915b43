"""Numbers of micro-batches that are tried."""

from __future__ import annotations

from collections.abc import Iterator

from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.passes.microbatch import WholeBatchError, images_of, split_into_microbatches
from ooc_cudnn.network.passes.microbatch_sums import sum_microbatches_last

#: The next number is worth a try while it may be faster.
MICRO_BATCHES = sorted({count << doubled for count in (2, 3) for doubled in range(8)})


def micro_batches_of(step: Step, asked: int | None, constraints: PlanConstraints) -> Iterator[int]:
    """Yield numbers of micro-batches to try; only `asked` where that is given."""
    if asked is not None:
        yield asked
        return
    yield 1
    if step.pauses or not has_room_for_shared(step, constraints):
        return  # `TwoPartMicroBatches` has those of a step that pauses
    images = images_of(step)
    try:
        split_into_microbatches(step, 2)  # if not into two parts, then not into more
    except WholeBatchError:
        return
    yield from (count for count in MICRO_BATCHES if count <= images)


def has_room_for_shared(step: Step, constraints: PlanConstraints) -> bool:
    """Return True if memory holds what all micro-batches share, so that none copies it again.

    That is weights, and their gradients, which add up.
    """
    last = sum_microbatches_last(step, images_of(step))
    shared = {
        step.base(phase.binds[operand])
        for number, phase in enumerate(step.phases)
        for operand, (_, _, axes) in phase.call.operands.items()
        if "n" not in axes and number not in last
    }
    tensors = (step.tensors[base] for base in shared - constraints.on_device)
    nbytes = sum(tensor.nbytes for tensor in tensors if tensor.kind in ("parameter", "gradient"))
    return nbytes <= constraints.target.room_bytes
