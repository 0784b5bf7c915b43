"""Seconds over memory: a step of training, planned under several limits by several policies."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple, Self

from ooc_cudnn.call_planner.explain import align_columns
from ooc_cudnn.errors import HostOutOfMemoryError, PlanInfeasibleError
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.runtime.constraints_here import constraints_for
from ooc_cudnn.network.runtime.planning_api import Runnable
from ooc_cudnn.network.search.mo_sos import POLICIES as SLOW
from ooc_cudnn.network.search.plan_step import NAMES, plan_step
from ooc_cudnn.units import format_bytes, format_seconds
from perfmodel import MachineModel

#: Of the memory that keeping everything takes.
SHARES = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2)
#: Those that plan in seconds; the others solve integer programs for minutes.
QUICK = tuple(name for name in NAMES if name not in SLOW)
#: More than any step holds.
PLENTY = 2**50


class Figures(NamedTuple):
    """Figures of a plan that JSON keeps."""

    seconds: float
    device_bytes: int
    host_bytes: int
    taken: str
    micro_batches: int
    bands: int


class Point(NamedTuple):
    """A policy's plan at a limit.

    Attributes
    ----------
    policy : str
    limit_bytes : int
    plan : NetworkPlan or Figures, optional
        None where the policy cannot run within the limit.
    why : str
        Then, what stands in the way.
    """

    policy: str
    limit_bytes: int
    plan: NetworkPlan | Figures | None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain JSON values: the figures of its plan, not the plan itself."""
        found = {name: getattr(self.plan, name, None) for name in Figures._fields}
        return {"policy": self.policy, "limit_bytes": self.limit_bytes, **found, "why": self.why}


class Trade(NamedTuple):
    """Seconds over memory.

    Attributes
    ----------
    title : str
        The network, and the machine.
    keep_all_bytes : int
        What keeping everything takes, all images at once.
    points : tuple of Point
        Of each limit those of all policies.
    bounds : dict of int to float
        By limit, what no plan of its kind can beat; limits for which that is not known are missing.
    """

    title: str
    keep_all_bytes: int
    points: tuple[Point, ...]
    bounds: dict[int, float]

    @property
    def limits(self) -> tuple[int, ...]:
        """The limits in bytes, in the order in which they were asked for."""
        return tuple(dict.fromkeys(point.limit_bytes for point in self.points))

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies, in the order in which they were asked for."""
        return tuple(dict.fromkeys(point.policy for point in self.points))

    def of(self, policy: str) -> list[Point]:
        """The points of a policy, a limit each."""
        return [point for point in self.points if point.policy == policy]

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain JSON values."""
        return {
            "title": self.title,
            "keep_all_bytes": self.keep_all_bytes,
            "bounds": [[limit, seconds] for limit, seconds in self.bounds.items()],
            "points": [point.to_json() for point in self.points],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return what `to_json` gave, with figures in place of plans."""
        points = (
            Point(
                each["policy"],
                each["limit_bytes"],
                None if each["seconds"] is None else Figures(*(each[n] for n in Figures._fields)),
                each["why"],
            )
            for each in data["points"]
        )
        return cls(data["title"], data["keep_all_bytes"], tuple(points), dict(data["bounds"]))

    def explain(self) -> str:
        """Return a table a person reads: a column for each limit, a row for each policy."""
        rows = [
            ("of keep-all", *(f"{limit / self.keep_all_bytes:.2f}" for limit in self.limits)),
            ("limit", *map(format_bytes, self.limits)),
            *((policy, *map(_seconds_of, self.of(policy))) for policy in self.policies),
            ("bound", *(_seconds(self.bounds.get(limit)) for limit in self.limits)),
            *(
                (f"{policy} above it", *(self._above_bound(point) for point in self.of(policy)))
                for policy in self.policies[:1]
            ),
        ]
        lines = [
            f"{self.title}: predicted seconds of a step over memory; keeping everything takes "
            f"{format_bytes(self.keep_all_bytes)}",
            "",
            *align_columns(rows, ("<12", *(">10" for _ in self.limits))),
        ]
        missing = [point for point in self.points if point.plan is None]
        if missing:
            said = dict.fromkeys(f"{point.policy}: {point.why}" for point in missing)
            lines += ["", "  -  no plan within that", *(f"     {each}" for each in said)]
        return "\n".join(lines)

    def _above_bound(self, point: Point) -> str:
        bound = self.bounds.get(point.limit_bytes)
        if point.plan is None or bound is None:
            return "-"
        return f"{100 * (point.plan.seconds / bound - 1):.1f} %"


def _seconds_of(point: Point) -> str:
    return _seconds(None if point.plan is None else point.plan.seconds)


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)


def trade_off(
    net: Runnable,
    loss: Tensor,
    *,
    name: str = "training_step",
    limits: Sequence[int | float] = SHARES,
    policies: Sequence[str] = QUICK,
    machine: MachineModel | str | os.PathLike[str] | None = None,
    tell: Callable[[int], object] = lambda done: None,
) -> Trade:
    """Plan a step under several limits by several policies.

    Parameters
    ----------
    limits : sequence of int or float
        Bytes, or shares of the memory that keeping everything takes, all images at once.
    policies : sequence of str
        As for `Network.plan`.
    machine : MachineModel or str, optional
        The machine to predict for; the one at hand when left out.
    tell : callable, optional
        Is given how many of the plans are made, after each of them.
    """
    keep_all = _keeping_all(net, loss, machine)
    held = keep_all.device_bytes
    asked = dict.fromkeys(
        limit if isinstance(limit, int) else math.floor(Fraction(str(limit)) * held)
        for limit in limits
    )
    points, bounds = list[Point](), dict[int, float]()
    for limit in asked:
        for point in _points(net, loss, limit, policies, machine):
            points.append(point)
            bound = getattr(point.plan, "bound_seconds", None)
            if bound is not None:
                bounds[limit] = bound
            tell(len(points))
    return Trade(f"{name} on {keep_all.machine}", held, tuple(points), bounds)


def _keeping_all(
    net: Runnable, loss: Tensor, machine: MachineModel | str | os.PathLike[str] | None
) -> NetworkPlan:
    """The plan that keeps everything, all images at once, whatever host memory there is."""
    step = net.training_phases(loss)
    constraints = replace(constraints_for(PLENTY, machine, step, {}), host=None)
    return plan_step("training_step", step, constraints, policy="keep", micro_batches=1).plan


def _points(
    net: Runnable,
    loss: Tensor,
    limit: int,
    policies: Sequence[str],
    machine: MachineModel | str | os.PathLike[str] | None,
) -> Iterator[Point]:
    """The points of one limit; the first that there is has the bound, which is that of all."""
    wants_bound = True
    for policy in policies:
        try:
            plan = net.plan(
                loss, memory_limit=limit, policy=policy, machine=machine, bound=wants_bound
            )
        except (PlanInfeasibleError, HostOutOfMemoryError) as error:
            yield Point(policy, limit, None, str(error))
        else:
            wants_bound = False
            yield Point(policy, limit, plan)
