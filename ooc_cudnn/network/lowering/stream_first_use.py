"""Inputs that need not be there before computing begins.

An input on the device is copied whole before its first reader starts, and nothing computes
meanwhile. That reader may stream it instead: its pieces compute while the next ones come.
"""

from __future__ import annotations

from collections.abc import Iterator

from ooc_cudnn.network.ir.live_ranges import LiveRanges
from ooc_cudnn.network.ir.step import Step


def stream_first_uses(step: Step, stays: LiveRanges) -> Iterator[LiveRanges]:
    """Stays without the first readers of the inputs.

    Nothing where no input is fetched.
    """
    inputs = [
        base
        for base, found in stays.items()
        if step.tensors[base].kind == "input" and found and found[0].fetched
    ]
    if not inputs:
        return
    uses, later = step.uses, dict(stays)
    for base in inputs:
        stay = stays[base][0]
        rest = [at for at in uses[base].phases if stay.first < at <= stay.last]
        later[base] = ((stay._replace(first=rest[0]),) if rest else ()) + stays[base][1:]
    yield later
