"""Spilling: tensors are on the host for a while, wherever memory is short."""

from __future__ import annotations

from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.summarize import RewriteSpec
from ooc_cudnn.network.passes.remat_for_backward import forward_only_maps, remat_seconds
from ooc_cudnn.network.policies.policy import POLICIES, mixed
from ooc_cudnn.network.search.candidate import Candidate
from ooc_cudnn.network.search.incumbent import Candidates, Incumbent
from ooc_cudnn.network.search.pass_pipeline import apply_passes, take_concatenations_apart
from ooc_cudnn.network.search.strategies.strategy import PlanRequest, Strategy

#: Shares of the bytes that can be rematerialized of which the rest spills.
SHARES_SPILLED = (0.25, 0.75, 1.0)
#: As a share of memory: of larger maps few are there at once.
LARGE = 1 / 8


class Spill(Strategy):
    """A share of maps is rematerialized; of the rest the spill program chooses what leaves.

    Concatenations are split, so that no tensor is larger than it must be. Of what is
    rematerialized, the largest maps are made anew for each reader where a copy takes longer.
    """

    def candidates(self, request: PlanRequest, incumbent: Incumbent) -> Candidates[None]:
        """Propose a candidate for each share."""
        constraints, count = request.constraints, request.micro_batches or 1
        step = take_concatenations_apart(request.step)
        for share in SHARES_SPILLED:
            rematerialized, anew = _rematerialized(step, constraints, share)
            rewritten = apply_passes(step, rematerialized, count, 1, anew)
            live_ranges = POLICIES["keep"].live_ranges_of(rewritten)
            if not incumbent.can_beat_incumbent(rewritten, live_ranges):
                continue  # before it is known what spills, which takes long
            spec = RewriteSpec(
                count,
                rematerialized=tuple(sorted(rematerialized)),
                apart=True,
                anew=tuple(sorted(anew)),
            )
            try:
                yield Candidate(rewritten, live_ranges, constraints, "spill", spec, spill=True)
            except PlanInfeasibleError:
                return  # an addition to what another part made takes more than all at once


def _rematerialized(
    step: Step, constraints: PlanConstraints, share: float
) -> tuple[frozenset[str], set[str]]:
    """Maps to rematerialize, up to a share of their bytes; and those of them for each reader."""
    machine, room_bytes = constraints.target.machine, constraints.target.room_bytes
    rematerialized = mixed(step, machine, share)[-1].rematerialized
    seconds_of = remat_seconds(step, machine, rematerialized | forward_only_maps(step))
    anew = {
        name
        for name in rematerialized
        if (nbytes := step.tensors[name].nbytes) > LARGE * room_bytes
        and seconds_of(name) < machine.transfer.copy_seconds("copy_in", "pinned", nbytes)
    }
    return rematerialized, anew
