"""Batch slices of the outer phases that spill, where memory holds few of the largest maps."""

from __future__ import annotations

from collections.abc import Iterator

from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.ir.live_ranges import LiveRanges
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.summarize import RewriteSpec
from ooc_cudnn.network.passes.batch_slices import slice_batch
from ooc_cudnn.network.passes.fuse_chains import fuse_chains
from ooc_cudnn.network.passes.insert_remat_events import insert_remat_events
from ooc_cudnn.network.passes.microbatch import WholeBatchError, images_of
from ooc_cudnn.network.policies.policy import POLICIES
from ooc_cudnn.network.search.candidate import Candidate
from ooc_cudnn.network.search.host_budget import remat_to_fit
from ooc_cudnn.network.search.incumbent import Candidates, Incumbent
from ooc_cudnn.network.search.pass_pipeline import apply_passes, take_concatenations_apart
from ooc_cudnn.network.search.search_budget import REWRITTEN
from ooc_cudnn.network.search.strategies.remat_slices import MOST_SLICES
from ooc_cudnn.network.search.strategies.strategy import WAITING, PlanRequest, Strategy

#: Slices are so small that memory holds this many of the largest map's.
SLICES_OF_ROOM = 12
#: Of maps so large that memory holds fewer slices no plan comes.
FEWEST_OF_ROOM = 2
#: And so few that the step has about so many phases: more take most of a budget to plan, and
#: leave nothing to strategies that come behind.
MOST_PHASES = 3_200
#: How many times what memory holds may live at once: the rest is on the host. The first counts
#: with which the search finds what to rematerialize.
LIVING = (1.25, 1.5, 2.0, 3.0, 4.0)
#: Of the memory, the shares that tensors hold: what they leave is for copies to begin early. A clip
#: network (R3D-18, at a quarter) takes 82 ms with all of it and 73 with 0.8; ResNet-50 at a
#: sixteenth 762 and 832.
SHARES_HELD = (1.0, 0.8)
#: How often live ranges are tried, with fewer tensors on the device each time.
MOST_TRIES = 100
#: An incumbent that takes so many times the unlimited compute time is compared: the search takes
#: long.
VERY_SLOW = 2.0


class SpillSlices(Strategy):
    """Batch slices of which more lives at once than the device has room for (`LIVING`): it spills.

    In `RematerializeSlices` all that lives is on the device.
    """

    def is_worth_trying(self, request: PlanRequest, incumbent: Incumbent) -> bool:
        """Return True if the incumbent is very slow, and slices would be smaller than the batch."""
        return request.is_whole_batch and incumbent.is_slow(VERY_SLOW) and _wanted(request) > 1

    def candidates(self, request: PlanRequest, incumbent: Incumbent) -> Candidates[None]:
        """Propose a candidate for each share held, if the search finds what to rematerialize."""
        constraints, slices = request.constraints, _wanted(request)
        step = apply_passes(take_concatenations_apart(request.step), frozenset(), 1, 1)
        while True:
            try:
                sliced = slice_batch(step, slices)
            except WholeBatchError:
                return
            incumbent.budget.lower(REWRITTEN * len(sliced.phases))
            if len(sliced.phases) <= MOST_PHASES:
                break
            if slices == 2:
                return
            slices = max(slices // 2, 2)
            if FEWEST_OF_ROOM * _largest(step) > slices * constraints.target.room_bytes:
                return
        room_bytes = constraints.target.room_bytes
        solutions = (
            remat_to_fit(sliced, constraints, share * room_bytes, incumbent.budget)
            for share in LIVING
        )
        events = next((events for events in solutions if events is not None), None)
        if events is None:
            return
        rewritten = fuse_chains(insert_remat_events(sliced, events))
        live_ranges = POLICIES["keep"].live_ranges_of(rewritten)
        spec = RewriteSpec(apart=True, again=events, batch_slices=slices)
        for share in SHARES_HELD:
            tries = iter(range(MOST_TRIES))

            def is_worth(step: Step, live_ranges: LiveRanges, tries: Iterator[int] = tries) -> bool:
                is_tried = next(tries, None) is not None
                return is_tried and incumbent.can_beat_incumbent(step, live_ranges)

            try:
                yield Candidate(
                    rewritten, live_ranges, constraints, "slabs", spec,
                    spill=True, share=share, is_worth=is_worth,
                )  # fmt: skip
            except PlanInfeasibleError:
                return  # a part of a call may take more than all of it: it adds to what is there
            if not incumbent.waits(WAITING):
                return


def _wanted(request: PlanRequest) -> int:
    """The number of slices of which memory holds `SLICES_OF_ROOM`; no more than images."""
    step, room_bytes = request.step, max(request.constraints.target.room_bytes, 1)
    wanted = -(-SLICES_OF_ROOM * _largest(step) // room_bytes)
    return min(wanted, MOST_SLICES, images_of(step))


def _largest(step: Step) -> int:
    """Bytes of the largest map."""
    return max(tensor.nbytes for tensor in step.tensors.values())
