"""Live ranges on the device of a step's tensors; outside of them a tensor is on the host.

A live range is the phases during which a tensor holds memory of the device. A tensor without any
lives on the host, and whoever reads or writes it streams it. Between two live ranges it is on the
host: it left in the first, and is fetched for the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ooc_cudnn.memory.offset_assignment import LiveBuffer, held_bytes
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


#: The live ranges of each tensor that is no view.
LiveRanges = Mapping[str, tuple[LiveRange, ...]]


def is_live(live_ranges: Iterable[LiveRange], phase: int) -> bool:
    """True if a tensor is on the device in a phase."""
    return any(live_range.first <= phase <= live_range.last for live_range in live_ranges)


def live_bytes(step: Step, live_ranges: LiveRanges) -> Any:
    """Bytes that tensors hold in each phase, an array of int64."""
    buffers = [
        LiveBuffer(live_range.first, live_range.last, step.tensors[base].nbytes)
        for base, found in live_ranges.items()
        for live_range in found
    ]
    return held_bytes(buffers, len(step.phases))


def check_live_ranges(step: Step, live_ranges: LiveRanges) -> None:
    """Check that whoever reads a tensor finds there what was made of it: plans may be edited.

    Raises
    ------
    ValueError
        With the tensor whose live ranges do not fit the step.
    """
    uses, count = step.uses, len(step.phases)
    results, inputs = step.results, step.host_inputs
    for base in live_ranges.keys() | results:
        held, free = live_ranges.get(base, ()), 0
        for live_range in held:
            leaves = live_range.last if live_range.leaves is None else live_range.leaves
            if (
                base not in uses
                or not free <= live_range.first <= leaves <= live_range.last < count
            ):
                raise ValueError(f"the plan cannot be followed: {live_range} of {base!r}")
            free = live_range.last + 1
        lost = base in uses and _reads_stale_copy(uses[base], held, base in inputs, base in results)
        if lost:
            raise ValueError(
                f"the plan cannot be followed: {base!r} is not always where it is read"
            )


def _reads_stale_copy(
    used: Uses, live_ranges: tuple[LiveRange, ...], is_given: bool, is_result: bool
) -> bool:
    """True if a tensor is somewhere read, or wanted in the end, where it is not up to date."""
    streamed = {at for at in used.phases if not any(s.first <= at <= s.last for s in live_ranges)}
    on_host = exists = is_given
    for first, live_range in sorted(
        [(s.first, s) for s in live_ranges] + [(at, None) for at in streamed]
    ):
        if live_range is None:
            if exists and not on_host:
                return True
            on_host = exists = exists or first in used.written
            continue
        if live_range.fetched != exists or (live_range.fetched and not on_host):
            return True
        writes = [at for at in used.written if live_range.first <= at <= live_range.last]
        exists = exists or bool(writes)
        if writes:
            on_host = live_range.leaves is not None and live_range.leaves >= writes[-1]
    return is_result and not on_host


def keep_all(step: Step) -> dict[str, tuple[LiveRange, ...]]:
    """Everything on the device from its first use to its last."""
    results, inputs = step.results, step.host_inputs
    ranges = dict[str, tuple[LiveRange, ...]]()
    for name, used in step.uses.items():
        leaves = used.written[-1] if name in results and used.written else None
        ranges[name] = (LiveRange(used.phases[0], used.phases[-1], name in inputs, leaves),)
    return ranges
