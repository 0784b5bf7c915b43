"""Stream an input's first reader, so that computing starts before the input is resident.

An input on the device is copied whole before its first reader starts, and nothing computes
meanwhile. That reader may stream it instead: its pieces compute while the next ones come.
"""

from __future__ import annotations

from collections.abc import Iterator

from ooc_cudnn.network.ir.live_ranges import LiveRanges
from ooc_cudnn.network.ir.step import Step


def stream_first_uses(step: Step, live_ranges: LiveRanges) -> Iterator[LiveRanges]:
    """Yield live ranges without the first readers of the inputs.

    Nothing where no input is fetched.
    """
    inputs = [
        base
        for base, found in live_ranges.items()
        if step.tensors[base].kind == "input" and found and found[0].fetched
    ]
    if not inputs:
        return
    uses, later = step.uses, dict(live_ranges)
    for base in inputs:
        live_range = live_ranges[base][0]
        rest = [at for at in uses[base].phases if live_range.first < at <= live_range.last]
        later[base] = ((live_range._replace(first=rest[0]),) if rest else ()) + live_ranges[base][
            1:
        ]
    yield later
