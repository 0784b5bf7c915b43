"""Tiles of rows in which regions make large tensors for themselves."""

from __future__ import annotations

import math

from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.lowering.summarize import RewriteSpec
from ooc_cudnn.network.passes.microbatch import WholeBatchError
from ooc_cudnn.network.passes.row_tiling_remakes import bind_bases
from ooc_cudnn.network.search.candidate import Candidate
from ooc_cudnn.network.search.incumbent import Candidates, Incumbent
from ooc_cudnn.network.search.pass_pipeline import take_concatenations_apart
from ooc_cudnn.network.search.region_remakes import choose_remakes, large_tensors
from ooc_cudnn.network.search.strategies.row_tiles import FAR_SLOWER, MOST_BANDS, BandedStep
from ooc_cudnn.network.search.strategies.strategy import PlanRequest, Strategy

#: Of a plan that takes more than so many times its computing, the bands may be too large: twice as
#: many are tried, which take as long again to plan.
WAITING_MUCH = 1.5


class RemadeRowTiles(Strategy):
    """Strategy of row tiling in which regions make large tensors for themselves, in few bands."""

    def is_worth_trying(self, request: PlanRequest, incumbent: Incumbent) -> bool:
        """Return True if the incumbent is slow, and memory holds few of some tensors."""
        return (
            super().is_worth_trying(request, incumbent)
            and request.is_whole_batch
            and bool(large_tensors(request.step, request.constraints))
        )

    def candidates(self, request: PlanRequest, incumbent: Incumbent) -> Candidates[None]:
        """Propose candidates of more and more bands, if they promise to be fast."""
        constraints = request.constraints
        step = take_concatenations_apart(request.step)
        best = incumbent.best
        most_seconds = math.inf if best is None else FAR_SLOWER * best.plan.seconds
        names, seconds = choose_remakes(
            bind_bases(step), constraints, incumbent.budget, most_seconds
        )
        if not names or seconds > most_seconds:
            return
        bands = 1
        while (bands := 2 * bands) <= MOST_BANDS:
            try:
                cut = BandedStep.of(step, 1, bands, incumbent.budget, names)
            except WholeBatchError:
                return
            if not cut.has_bands:
                return
            if not cut.fits(constraints):
                continue
            spec = RewriteSpec(1, bands, apart=True, anew=tuple(sorted(names)))
            try:
                planned = yield Candidate(
                    cut.step, cut.live_ranges, constraints, "rows", spec, most_seconds=most_seconds
                )
            except PlanInfeasibleError:
                return
            if (
                planned is None
                or planned is not incumbent.best
                or not incumbent.waits(WAITING_MUCH)
            ):
                return
