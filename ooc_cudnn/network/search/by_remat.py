"""Plans in which maps are made again as often as a search found best: `remat_candidates.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import RematEvent, Step
from ooc_cudnn.network.lowering.lower import PlannedStep, lower_step
from ooc_cudnn.network.lowering.summarize import How, predicted
from ooc_cudnn.network.search.incumbent import Incumbent
from ooc_cudnn.network.search.pass_pipeline import repeated_in_parts
from ooc_cudnn.network.search.remat_candidates import coming_back, made_again

#: The policy that a plan shows whose events a search found.
SEARCHED = "repeat"


def searched(
    name: str,
    step: Step,
    terms: PlanConstraints,
    fastest: Incumbent,
    ways: Sequence[Sequence[str]],
    *,
    parts: int = 1,
    slabs: int = 1,
) -> Iterator[PlannedStep]:
    """Yield a plan for each way, the first that has room; none where it cannot be the fastest.

    Parameters
    ----------
    step : Step
        Summed and in place, and cut already where it goes in slabs.
    ways : sequence of sequence of str
        Which kinds of tensors may come back from the host. Each way goes on from what the one
        before it found.
    parts, slabs : int
        Micro-batches, and the slabs that the step is in.
    """
    least, before = float("inf"), frozenset[RematEvent]()
    for copied in ways:
        if slabs > 1 and copied is not ways[0] and not before:
            return  # with many slabs a search that finds nothing takes long
        for made in made_again(step, terms, parts, copied=copied, before=before):
            if made.seconds >= least:
                break
            rewritten = repeated_in_parts(step, made.again, parts)
            stays = coming_back(step, rewritten, made, terms.target.room_bytes)
            if not fastest.can_beat_incumbent(rewritten, stays):
                break
            placed = lower_step(
                name, rewritten, stays, terms, may_stream=False, is_worth=fastest.can_beat_incumbent
            )
            if placed is not None:
                how = How(parts, again=made.again, slabs=slabs)
                figures = predicted(name, SEARCHED, rewritten, placed, how, terms)
                yield PlannedStep(figures, rewritten, placed)
                least, before = min(least, made.seconds), made.events
                break
