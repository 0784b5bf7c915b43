"""Batch slices of the outer phases, and maps that are rematerialized between them."""

from __future__ import annotations

from ooc_cudnn.network.lowering.lower import max_touched_bytes
from ooc_cudnn.network.passes.batch_slices import slice_batch
from ooc_cudnn.network.passes.microbatch import WholeBatchError, images_of
from ooc_cudnn.network.search.incumbent import Candidates, Incumbent
from ooc_cudnn.network.search.pass_pipeline import apply_passes
from ooc_cudnn.network.search.remat_plans import propose_remat_plans
from ooc_cudnn.network.search.remat_solutions import ALL, INPUTS
from ooc_cudnn.network.search.strategies.strategy import WAITING, PlanRequest, Strategy

#: More slices are not tried, for each adds its phases to plan.
MOST_SLICES = 8
#: As a share of memory: there are so many slices that no phase touches more. The search has the
#: rest for what lives meanwhile.
SMALL_PHASE = 0.4


class RematerializeSlices(Strategy):
    """The rematerialization search, where single phases fill memory.

    It keeps within memory of the device. There are as few slices as make phases small
    (`SMALL_PHASE`); one more where no plan comes of that; then twice as many, if it was only
    places that were not found: smaller maps leave fewer gaps.
    """

    def is_worth_trying(self, request: PlanRequest, incumbent: Incumbent) -> bool:
        """Return True if the incumbent is slow beside computing with unlimited memory."""
        return request.is_whole_batch and incumbent.is_slow(WAITING)

    def candidates(self, request: PlanRequest, incumbent: Incumbent) -> Candidates[None]:
        """Propose what the search finds, in the fewest slices for which it finds something."""
        constraints = request.constraints
        step = apply_passes(request.step, frozenset(), 1, 1)
        small_bytes = max(int(SMALL_PHASE * constraints.target.room_bytes), 1)
        fewest = -(-max_touched_bytes(step, constraints) // small_bytes)
        most = min(MOST_SLICES, images_of(step))
        if not 1 < fewest <= most:
            return
        for slices in dict.fromkeys(min(each, most) for each in (fewest, fewest + 1, 2 * fewest)):
            try:
                sliced = slice_batch(step, slices)
            except WholeBatchError:
                return
            has_room = yield from propose_remat_plans(
                sliced, constraints, incumbent, (INPUTS, ALL), slices=slices
            )
            if has_room or (has_room is None and slices > fewest):
                return
