"""Tiles of rows: outer phases go down the rows of their maps, in bands."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

import numpy as np

from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.ir.constraints import PlanConstraints
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
from ooc_cudnn.network.search.search_budget import REWRITTEN, SearchBudget
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
                cut = BandedStep.of(request.step, count, bands, incumbent.budget)
            except WholeBatchError:
                return
            if not cut.has_bands:
                return
            if not cut.fits(constraints):
                continue
            spec = RewriteSpec(count, bands)
            try:
                best = incumbent.best
                most_seconds = np.inf if best is None else FAR_SLOWER * best.plan.seconds
                planned = yield Candidate(
                    cut.step, cut.live_ranges, constraints, "rows", spec, most_seconds=most_seconds
                )
            except PlanInfeasibleError:
                return  # a part of a call may take more than all of it: it adds to what is there
            # more bands leave more memory to what is whole, and cross the link more
            if planned is None or planned.plan.seconds > (1 - WORTH_BANDS) * least:
                return
            least = planned.plan.seconds
            if least > most_seconds:
                return


class BandedStep(NamedTuple):
    """A step in bands of rows, with all on the device but inputs, whose rows come with each band.

    Attributes
    ----------
    step : Step
    live_ranges : mapping
    of_bands : mapping
        Those of tensors that exist for one band at a time.
    """

    step: Step
    live_ranges: LiveRanges
    of_bands: LiveRanges

    @classmethod
    def of(
        cls,
        step: Step,
        micro_batches: int,
        bands: int,
        budget: SearchBudget,
        anew: Set[str] | None = None,
    ) -> BandedStep:
        """Cut a step into so many bands, in which regions make for themselves what is `anew`.

        Raises
        ------
        WholeBatchError
            If it cannot go in so many micro-batches.
        """
        cut = apply_passes(step, frozenset(), micro_batches, bands, anew)
        budget.lower(REWRITTEN * len(cut.phases))
        live_ranges = {
            base: ranges
            for base, ranges in POLICIES["keep"].live_ranges_of(cut).items()
            if cut.tensors[base].kind != "input"
        }
        of_bands = {
            base: ranges
            for base, ranges in live_ranges.items()
            if cut.tensors[base].origin.row_tile is not None
        }
        return cls(cut, live_ranges, of_bands)

    @property
    def has_bands(self) -> bool:
        """True if something exists for one band at a time."""
        return bool(self.of_bands)

    def fits(self, constraints: PlanConstraints) -> bool:
        """Return True if bands leave the rest of memory to whole maps and to what tasks need."""
        nbytes = peak_live_bytes(self.step, self.of_bands)
        return nbytes <= SHARE_OF_BANDS * constraints.target.room_bytes
