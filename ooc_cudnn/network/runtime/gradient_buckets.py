"""Buckets of final gradients, so that whoever sums them over processes can begin early."""

from __future__ import annotations

from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.pipeline.program import Program
from ooc_cudnn.pipeline.segments import tensors_touched


def final_items(
    step: Step, program: Program, nbytes: int | None
) -> list[tuple[int, tuple[str, ...]]]:
    """Groups of gradients, and the item of the program before which each is final.

    A gradient is final behind the last item that touches it, or what it is the gradient of: its
    owner may change both then. In micro-batches that is within the last one.

    Parameters
    ----------
    step : Step
    program : Program
    nbytes : int, optional
        What the gradients of a group take, at least, but for the last one; without it, there is one
        group.

    Returns
    -------
    list of (int, tuple of str)
        In order; the last one's is the program's end. Names are those of what the gradients are of.
    """
    last: dict[str, int] = {}
    for index, item in enumerate(program.items):
        last |= dict.fromkeys(tensors_touched(program, item), index)
    ends: dict[str, int] = {}  # of each tensor that holds gradients
    for name, gradient in step.gradients.items():
        base, of = step.base(gradient), step.base(name)
        ends[base] = max(ends.get(base, program.pause or 0), last.get(base, 0), last.get(of, 0))
    names: dict[str, list[str]] = {base: [] for base in ends}
    for name, gradient in step.gradients.items():
        names[step.base(gradient)].append(name)
    groups: list[tuple[int, tuple[str, ...]]] = []
    group: list[str] = []
    held, end = 0, len(program.items)
    for base in sorted(ends, key=ends.__getitem__):
        after = ends[base] + 1
        if nbytes is not None and held >= nbytes and after > end:
            groups.append((end, tuple(group)))
            group, held = [], 0
        group += names[base]
        held, end = held + step.tensors[base].nbytes, after
    return [*groups, (len(program.items), tuple(group))]
