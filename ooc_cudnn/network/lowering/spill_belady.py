"""Spilling: where a phase has too little memory, a tensor is on the host for a while.

This is for what `spill_milp` does not see: addresses, and pieces that crawl. First of those that
the phase does not touch: the one whose bytes are idle for longest (Belady, "A study of replacement
algorithms", 1966). Then of those that it does: it streams the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from ooc_cudnn.network.ir.live_ranges import LiveRange, LiveRanges
from ooc_cudnn.network.ir.step import Step, Uses


def spill_one(
    step: Step,
    uses: Mapping[str, Uses],
    results: Set[str],
    live_ranges: LiveRanges,
    phase: int,
) -> LiveRanges | None:
    """Spill one tensor more in a phase, the one with the farthest next use; None if none is there.

    Parameters
    ----------
    uses : mapping
        `Step.uses`.
    results : set of str
        What must be on the host in the end.
    """
    held = {
        base: live_range
        for base, found in live_ranges.items()
        for live_range in found
        if live_range.first <= phase <= live_range.last
    }
    if not held:
        return None

    def worth(base: str) -> tuple[bool, int, str]:
        used, nbytes = uses[base], step.tensors[base].nbytes
        if phase in used.phases:
            return False, nbytes, base
        before = max((at for at in used.phases if at < phase), default=held[base].first)
        after = min((at for at in used.phases if at > phase), default=held[base].last)
        return True, nbytes * (after - before), base

    base = max(held, key=worth)
    parts = list(_without(uses[base], held[base], phase, base in results))
    ranges = [
        part
        for live_range in live_ranges[base]
        for part in (parts if live_range is held[base] else [live_range])
    ]
    others = {name: found for name, found in live_ranges.items() if name != base}
    return {**others, base: tuple(ranges)} if ranges else others


def _without(used: Uses, live_range: LiveRange, phase: int, is_result: bool) -> Iterator[LiveRange]:
    """Split a live range around a phase: what is before it, and after."""
    before = [at for at in used.phases if live_range.first <= at < phase]
    after = [at for at in used.phases if phase < at <= live_range.last]
    if before:
        written = [at for at in used.written if live_range.first <= at <= before[-1]]
        read_later = used.phases[-1] > before[-1] or is_result
        leaves = written[-1] if written and read_later else None
        yield LiveRange(live_range.first, before[-1], live_range.fetched, leaves)
    if after:
        exists = live_range.fetched or used.phases[0] <= phase
        leaves = (
            live_range.leaves
            if live_range.leaves is not None and live_range.leaves >= after[0]
            else None
        )
        yield LiveRange(after[0], live_range.last, exists, leaves)
