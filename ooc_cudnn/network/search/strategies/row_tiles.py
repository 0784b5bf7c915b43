"""Tiles of rows: outer phases go down the rows of their maps, in bands."""

from __future__ import annotations

import numpy as np

from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.ir.live_ranges import LiveRanges
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.lower import peak_live_bytes
from ooc_cudnn.network.lowering.summarize import RewriteSpec
from ooc_cudnn.network.passes.microbatch import WholeBatchError, images_of, split_into_microbatches
from ooc_cudnn.network.policies.policy import POLICIES
from ooc_cudnn.network.search.candidate import Candidate
from ooc_cudnn.network.search.incumbent import Candidates, Incumbent
from ooc_cudnn.network.search.micro_batch_counts import has_room_for_shared
from ooc_cudnn.network.search.pass_pipeline import apply_passes
from ooc_cudnn.network.search.search_budget import REWRITTEN
from ooc_cudnn.network.search.strategies.strategy import PlanRequest, Strategy

#: Bands are as few as leave the rest of memory to whole maps and to what tasks need.
MOST_BANDS = 1024
SHARE_OF_BANDS = 0.7
#: Bands that take so many times as long as the best plan so far are not planned to their end, nor
#: are more of them. Parts of calls are much to plan: 24 of 43 s for DenseNet-121 at an eighth.
FAR_SLOWER = 1.3
#: Twice as many are tried as long as that saves such a share: after a little, it saves as little.
WORTH_BANDS = 0.02


class RowTiles(Strategy):
    """Strategy of row tiling: as few bands as leave memory to whole maps, then twice as many.

    All images at once, and one by one; or in so many micro-batches as are asked for.
    """

    def candidates(self, request: PlanRequest, incumbent: Incumbent) -> Candidates[None]:
        """Propose bands for each number of micro-batches."""
        _, step, constraints, micro_batches = request
        if micro_batches is not None:
            counts = [micro_batches]
        elif has_room_for_shared(step, constraints) and not step.pauses:
            counts = [1, images_of(step)]
        else:
            counts = [1]
        for count in dict.fromkeys(counts):
            yield from self._in_micro_batches(request, count, incumbent)

    def _in_micro_batches(
        self, request: PlanRequest, count: int, incumbent: Incumbent
    ) -> Candidates[None]:
        constraints, least = request.constraints, np.inf
        bands = 1
        while (bands := 2 * bands) <= MOST_BANDS and not incumbent.is_over:
            try:
                if bands == 2 and not incumbent.can_beat_incumbent(
                    split_into_microbatches(request.step, count)
                ):
                    return
                rewritten = apply_passes(request.step, frozenset(), count, bands)
            except WholeBatchError:
                return
            incumbent.budget.lower(REWRITTEN * len(rewritten.phases))
            live_ranges = without_inputs(rewritten)
            nbytes = bands_bytes(rewritten, live_ranges)
            if nbytes is None:
                return
            if nbytes > SHARE_OF_BANDS * constraints.target.room_bytes:
                continue
            spec = RewriteSpec(count, bands)
            try:
                best = incumbent.best
                most_seconds = np.inf if best is None else FAR_SLOWER * best.plan.seconds
                planned = yield Candidate(
                    rewritten, live_ranges, constraints, "rows", spec, most_seconds=most_seconds
                )
            except PlanInfeasibleError:
                return  # a part of a call may take more than all of it: it adds to what is there
            # more bands leave more memory to what is whole, and cross the link more
            if planned is None or planned.plan.seconds > (1 - WORTH_BANDS) * least:
                return
            least = planned.plan.seconds
            if least > most_seconds:
                return


def bands_bytes(step: Step, live_ranges: LiveRanges) -> int | None:
    """Return the most bytes of what bands have at once; None where nothing is in bands."""
    of_bands = {
        base: ranges
        for base, ranges in live_ranges.items()
        if step.tensors[base].origin.row_tile is not None
    }
    return peak_live_bytes(step, of_bands) if of_bands else None


def without_inputs(step: Step) -> LiveRanges:
    """Keep everything but inputs, whose rows come with each band."""
    return {
        base: ranges
        for base, ranges in POLICIES["keep"].live_ranges_of(step).items()
        if step.tensors[base].kind != "input"
    }
