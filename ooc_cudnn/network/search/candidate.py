"""A candidate: a rewritten step with its live ranges, and how it is lowered and replayed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.live_ranges import LiveRanges
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.lower import (
    Count,
    LoweredProgram,
    LoweredStep,
    Worth,
    accept_any,
    count_nothing,
    lower_step,
)
from ooc_cudnn.network.lowering.summarize import RewriteSpec, summarize


@dataclass(frozen=True)
class Candidate:
    """A rewritten step with its live ranges, which a strategy proposes.

    Parameters
    ----------
    step : Step
        As it is rewritten.
    live_ranges : LiveRanges
        When its tensors are on the device.
    constraints : PlanConstraints
    policy : str
        The name that its plan has.
    rewrite : RewriteSpec or NetworkPlan
        How the step was rewritten, for its plan to say so.
    may_stream, spill, share, reserved, most_seconds
        As `lower_step` takes them.
    key : hashable, optional
        What tells it from others that come to the same; none where nothing does.
    is_worth : callable, optional
        Says of live ranges whether to lower them; the incumbent's bound when left out.
    is_accepted : callable, optional
        Says of the program whether to replay it; all are when left out.
    """

    step: Step
    live_ranges: LiveRanges
    constraints: PlanConstraints
    policy: str
    rewrite: RewriteSpec | NetworkPlan
    may_stream: bool = True
    spill: bool = False
    share: float = 1.0
    reserved: Mapping[int, int] = field(default_factory=dict)
    most_seconds: float = math.inf
    key: Hashable | None = None
    is_worth: Worth | None = None
    is_accepted: Callable[[LoweredProgram], bool] | None = None


def lower_and_replay(
    name: str,
    candidate: Candidate,
    is_worth: Worth = accept_any,
    count: Count = count_nothing,
) -> LoweredStep | None:
    """Plan a candidate; None where it has no room, is not worth it or its program is not accepted.

    `count` is told how many phases were planned.

    Raises
    ------
    PlanInfeasibleError
        If some phase does not fit by itself, with the least limit for which all do.
    """
    step, constraints = candidate.step, candidate.constraints
    lowered = lower_step(
        name,
        step,
        candidate.live_ranges,
        constraints,
        may_stream=candidate.may_stream,
        spill=candidate.spill,
        share=candidate.share,
        reserved=candidate.reserved,
        most_seconds=candidate.most_seconds,
        is_worth=candidate.is_worth or is_worth,
        count=count,
    )
    if lowered is None or (candidate.is_accepted and not candidate.is_accepted(lowered)):
        return None
    plan = summarize(name, candidate.policy, step, lowered, candidate.rewrite, constraints)
    return LoweredStep(plan, step, lowered)
