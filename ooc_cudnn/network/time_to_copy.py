"""Time to copy: tensors on the device a while longer, so that nobody waits for their copies.

Memory that a tensor is fetched into is its own from the phase on in which the copy must begin, and
what leaves keeps its memory until it has left, where there is room for that. Else the copy waits
for whoever is there before, and whoever comes after waits for the copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ooc_cudnn.memory.alignment import aligned
from ooc_cudnn.network.crossings import begun_by, copy_of, left_by
from ooc_cudnn.network.phases import Step
from ooc_cudnn.network.residency import Residency
from perfmodel import MachineModel


def with_time_to_copy(
    step: Step,
    stays: Residency,
    machine: MachineModel,
    seconds: Iterable[float],
    free_bytes: np.ndarray[Any, Any],
) -> Residency:
    """Return longer stays.

    Parameters
    ----------
    seconds : iterable of float
        Of each phase.
    free_bytes : array
        Of each phase: what nobody holds.
    """
    ends, free = np.cumsum([*seconds]).tolist(), free_bytes.copy()
    found = {base: list(each) for base, each in stays.items()}
    copies = {base: copy_of(step.tensors[base].nbytes, machine, leaves=True) for base in found}
    fetched = [(b, i) for b, each in found.items() for i, stay in enumerate(each) if stay.fetched]
    begun = begun_by([(found[b][i].first, copies[b].back) for b, i in fetched], ends)
    leaving = [
        (base, index, stay.leaves)
        for base, each in found.items()
        for index, stay in enumerate(each)
        if stay.leaves is not None
    ]
    left = left_by([(leaves, copies[base].out) for base, _, leaves in leaving], ends)

    def take(base: str, phases: Iterable[int]) -> int:
        """Hold a tensor in phases, as far as there is room; in how many."""
        nbytes, count = aligned(step.tensors[base].nbytes), 0
        for at in phases:
            if free[at] < nbytes:
                break
            free[at] -= nbytes
            count += 1
        return count

    # what takes longest is waited for longest
    for (base, index), begins in sorted(
        zip(fetched, begun, strict=True), key=lambda each: (-copies[each[0][0]].back, each)
    ):
        first = found[base][index].first
        begins = max(begins, found[base][index - 1].last + 1) if index else begins
        more = take(base, range(first - 1, begins - 1, -1))
        found[base][index] = found[base][index]._replace(first=first - more)
    for (base, index, _), end in sorted(
        zip(leaving, left, strict=True), key=lambda each: (-copies[each[0][0]].out, each)
    ):
        last, later = found[base][index].last, found[base][index + 1 :]
        end = min(end, later[0].first - 1) if later else end
        more = take(base, range(last + 1, end + 1))
        found[base][index] = found[base][index]._replace(last=last + more)
    return {base: tuple(each) for base, each in found.items()}
