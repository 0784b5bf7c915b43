"""Seconds over memory of a PyTorch model: captured once, planned under several limits."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ooc_cudnn.keywords import explaining, renamed
from ooc_cudnn.network.tradeoff.curve import Swept, Trade, sweep_step
from ooc_cudnn.torch.planning import capture_for, device_to_plan_for, specs_of
from ooc_cudnn.units import parse_limit
from perfmodel import MachineModel

#: Of the memory that keeping everything takes.
SHARES = (1.0, 3 / 4, 1 / 2, 1 / 3, 1 / 4, 1 / 6, 1 / 8)


@renamed(limits="memory_limits")
@explaining
def sweep(
    model: torch.nn.Module,
    *shapes: Any,
    memory_limits: Sequence[int | float | str] = SHARES,
    policies: Sequence[str] = ("best",),
    machine: MachineModel | str | os.PathLike[str] | None = None,
    placement: str = "pinned",
    with_gradients: bool = True,
    scale: float | None = None,
    bound: bool = False,
    within_seconds: float = math.inf,
) -> Trade:
    """Plan a model under several memory limits: seconds of a step over memory.

    The model is captured once. No data, no memory and no card are needed. While it is planned, a
    line says at which limit, and about how long the rest will take.

    Parameters
    ----------
    model, shapes, machine, placement, with_gradients, scale
        As for `plan`.
    memory_limits : sequence of int, float or str
        Bytes, or text ("8GiB"), or shares of the memory that keeping everything takes: 0.5 is half
        of that, and 1.0 all of it.
    policies : sequence of str
        As for `Network.plan`: "best", "keep", "remake" and so on.
    bound : bool
        Whether to say of each limit, too, what no plan of its kind can beat: that takes seconds
        for a large model.
    within_seconds : float
        No plan is begun later than so many seconds after the first one; limits that are left out
        say so. Plans that are made do not depend on it.

    Returns
    -------
    Trade
        Printed, a table: of one policy a row for each limit. Its `points` have the plans, `to_json`
        makes plain data of their figures.

    Raises
    ------
    ValueError
        If a limit or a policy is none.
    UnsupportedModelError
        As `plan`.

    Examples
    --------
    >>> import torch, ooc_cudnn.torch as ooc
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.Conv2d(64, 8, 3))
    >>> found = ooc.sweep(model, (64, 3, 128, 128), memory_limits=(1.0, 0.25), machine="h200")
    >>> all_kept, quarter = found.points
    >>> quarter.plan.device_bytes <= found.keep_all_bytes // 4
    True
    """
    asked = tuple(parse_limit(each, name="memory_limits") for each in memory_limits)
    ready = capture_for(
        model, shapes, None, with_gradients=with_gradients, scale=scale, what="sweep"
    )
    specs = specs_of(ready, placement, device_to_plan_for(machine))
    step = ready.step
    swept = Swept(step.name, step.phases, partial(step.constraints_for, specs, machine))
    return sweep_step(
        swept,
        name=type(model).__name__,
        limits=asked,
        policies=policies,
        bound=bound,
        within_seconds=within_seconds,
    )
