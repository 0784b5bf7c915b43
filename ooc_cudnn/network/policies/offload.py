"""Offloading: maps that leave for the host after forward, and are fetched before backward."""

from __future__ import annotations

from collections.abc import Mapping

from ooc_cudnn.network.ir.live_ranges import LiveRange, LiveRanges, keep_all
from ooc_cudnn.network.ir.step import Step, Uses


def idle_phases(step: Step, uses: Mapping[str, Uses]) -> dict[str, tuple[int, int]]:
    """Find the idle phases of maps that backward reads: last use in forward, next use."""
    gaps = dict[str, tuple[int, int]]()
    for name, used in uses.items():
        if step.tensors[name].kind not in ("map", "input"):
            continue
        backward = [at for at in used.phases if step.phases[at].is_backward]
        if backward and backward[0] > used.phases[0]:
            gaps[name] = used.last_before(backward[0]), backward[0]
    return gaps


def offload_maps(step: Step, fetches: Mapping[str, int]) -> LiveRanges:
    """Everything kept but some maps, which leave beside their last reader in forward.

    Parameters
    ----------
    fetches : mapping
        Name of each map that leaves, to the phase before which the copy back starts.
    """
    uses = step.uses
    live_ranges, gaps = keep_all(step), idle_phases(step, uses)
    for name, fetch in fetches.items():
        last, first = gaps[name]
        (live_range,) = live_ranges[name]
        written = max((phase for phase in uses[name].written if phase <= last), default=-1)
        leaves = None if step.tensors[name].kind == "input" else max(last - 1, written)
        fetch = min(max(fetch, last + 1), first)
        # an output of the network has left by then: it leaves again only if backward writes it
        again = (
            live_range.leaves
            if live_range.leaves is not None and live_range.leaves >= fetch
            else None
        )
        live_ranges[name] = (
            LiveRange(live_range.first, last, live_range.fetched, leaves),
            LiveRange(fetch, live_range.last, fetched=True, leaves=again),
        )
    return live_ranges


def offload_just_in_time(step: Step, names: frozenset[str]) -> LiveRanges:
    """Maps that leave, and are fetched during the phase before their reader; all else is kept.

    Of a step that goes through its batch in parts, the names are those of the whole batch's maps.
    """
    gaps = idle_phases(step, step.uses)
    return offload_maps(
        step,
        {n: first - 1 for n, (_, first) in gaps.items() if step.tensors[n].source in names},
    )
