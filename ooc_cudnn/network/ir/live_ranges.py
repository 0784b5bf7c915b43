"""Live ranges on the device of a step's tensors; outside of them a tensor is on the host.

A stay is the phases during which a tensor holds memory of the device. A tensor without any lives on
the host, and whoever reads or writes it streams it. Between two stays it is on the host: it left in
the first, and is fetched for the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ooc_cudnn.memory.extents import Extent, held_bytes
from ooc_cudnn.network.ir.step import Step, Uses


class LiveRange(NamedTuple):
    """Phases in which a tensor is on the device, the first and the last included.

    Attributes
    ----------
    first, last : int
        Numbers of phases in their step.
    fetched : bool
        Whether it comes from the host: the copy starts before the first phase.
    leaves : int, optional
        The phase after which a copy to the host starts.
    """

    first: int
    last: int
    fetched: bool = False
    leaves: int | None = None


#: The stays of each tensor that is no view.
LiveRanges = Mapping[str, tuple[LiveRange, ...]]


def is_live(stays: Iterable[LiveRange], phase: int) -> bool:
    """True if a tensor is on the device in a phase."""
    return any(stay.first <= phase <= stay.last for stay in stays)


def live_bytes(step: Step, stays: LiveRanges) -> Any:
    """Bytes that tensors hold in each phase, an array of int64."""
    extents = [
        Extent(stay.first, stay.last, step.tensors[base].nbytes)
        for base, found in stays.items()
        for stay in found
    ]
    return held_bytes(extents, len(step.phases))


def check_live_ranges(step: Step, stays: LiveRanges) -> None:
    """Check that whoever reads a tensor finds there what was made of it: plans may be edited.

    Raises
    ------
    ValueError
        With the tensor whose stays do not fit the step.
    """
    uses, count = step.uses, len(step.phases)
    results, given = step.results, step.host_inputs
    for base in stays.keys() | results:
        found, free = stays.get(base, ()), 0
        for stay in found:
            leaves = stay.last if stay.leaves is None else stay.leaves
            if base not in uses or not free <= stay.first <= leaves <= stay.last < count:
                raise ValueError(f"the plan cannot be followed: {stay} of {base!r}")
            free = stay.last + 1
        lost = base in uses and _reads_stale_copy(uses[base], found, base in given, base in results)
        if lost:
            raise ValueError(
                f"the plan cannot be followed: {base!r} is not always where it is read"
            )


def _reads_stale_copy(
    used: Uses, stays: tuple[LiveRange, ...], is_given: bool, is_result: bool
) -> bool:
    """True if a tensor is somewhere read, or wanted in the end, where it is not up to date."""
    streamed = {at for at in used.phases if not any(s.first <= at <= s.last for s in stays)}
    on_host = exists = is_given
    for first, stay in sorted([(s.first, s) for s in stays] + [(at, None) for at in streamed]):
        if stay is None:
            if exists and not on_host:
                return True
            on_host = exists = exists or first in used.written
            continue
        if stay.fetched != exists or (stay.fetched and not on_host):
            return True
        made = [at for at in used.written if stay.first <= at <= stay.last]
        exists = exists or bool(made)
        if made:
            on_host = stay.leaves is not None and stay.leaves >= made[-1]
    return is_result and not on_host


def keep_all(step: Step) -> dict[str, tuple[LiveRange, ...]]:
    """Everything on the device from its first use to its last."""
    results, given = step.results, step.host_inputs
    found = dict[str, tuple[LiveRange, ...]]()
    for name, used in step.uses.items():
        leaves = used.written[-1] if name in results and used.written else None
        found[name] = (LiveRange(used.phases[0], used.phases[-1], name in given, leaves),)
    return found
