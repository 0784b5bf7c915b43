"""Seconds over memory: a step, planned under several limits by several policies."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple, Self

from ooc_cudnn.activity import activity, say
from ooc_cudnn.call_planner.explain import align_columns
from ooc_cudnn.errors import HostOutOfMemoryError, PlanInfeasibleError
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.plan import FATES, MemoryNeed, NetworkPlan
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.runtime.constraints_here import Limit, constraints_for
from ooc_cudnn.network.runtime.plan_cache import load_or_plan
from ooc_cudnn.network.runtime.planning_api import Runnable
from ooc_cudnn.network.search.mo_sos import POLICIES as SLOW
from ooc_cudnn.network.search.plan_step import NAMES, plan_step
from ooc_cudnn.progress import reporter
from ooc_cudnn.settings import current
from ooc_cudnn.units import format_bytes, format_seconds
from perfmodel import MachineModel, machine_label

#: Of the memory that keeping everything takes.
SHARES = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2)
#: Those that plan in seconds; the others solve integer programs for minutes.
QUICK = tuple(name for name in NAMES if name not in SLOW)
#: Where a plan takes so many times that of the next larger limit, the table says so.
FALL = 1.25
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
    fate_bytes: Mapping[str, int] = {}  # none is changed
    needs: tuple[MemoryNeed, ...] = ()


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
        if self.plan is not None:
            found["fate_bytes"] = dict(self.plan.fate_bytes)
            found["needs"] = [[*need] for need in self.plan.needs]
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
    keep_all_seconds : float, optional
        What the step takes where everything is kept; None in records from before it was stored.
    """

    title: str
    keep_all_bytes: int
    points: tuple[Point, ...]
    bounds: dict[int, float]
    keep_all_seconds: float | None = None

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
            "keep_all_seconds": self.keep_all_seconds,
            "bounds": [[limit, seconds] for limit, seconds in self.bounds.items()],
            "points": [point.to_json() for point in self.points],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return what `to_json` gave, with figures in place of plans."""
        points = (
            Point(each["policy"], each["limit_bytes"], _figures(each), each["why"])
            for each in data["points"]
        )
        keep_all_seconds = data.get("keep_all_seconds")
        bounds = dict(data["bounds"])
        return cls(data["title"], data["keep_all_bytes"], tuple(points), bounds, keep_all_seconds)

    def explain(self) -> str:
        """Return a table that a person reads.

        Of one policy a row for each limit; of several a column for each limit.
        """
        lines = [
            f"{self.title}: predicted seconds of a step over memory; keeping everything takes "
            f"{format_bytes(self.keep_all_bytes)}",
            "",
        ]
        if len(self.policies) == 1:
            lines += [*self._limit_rows(), *self._falls()]
        else:
            lines += self._policy_rows()
        missing = [point for point in self.points if point.plan is None]
        if missing:
            said = dict.fromkeys(f"{point.policy}: {point.why}" for point in missing)
            lines += ["", "  -  no plan within that", *(f"     {each}" for each in said)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        return f"<Trade: {self.title}, {len(self.limits)} limits>"

    def _falls(self) -> list[str]:
        """The limits below which a plan takes much longer; both sides were planned."""
        points = sorted(self.points, key=lambda each: -each.limit_bytes)
        planned = [(each.limit_bytes, each.plan) for each in points if each.plan is not None]
        lines = list[str]()
        for (limit, plan), (less, slower) in pairwise(planned):
            times = slower.seconds / plan.seconds
            if times > FALL:
                lines.append(
                    f"  within {format_bytes(less)} a step takes {times:.1f} times as long as "
                    f"within {format_bytes(limit)}"
                )
                lines += [
                    f"     {need.what} from {format_bytes(need.nbytes)} on at the earliest, for "
                    f"{need.phase}"
                    for need in slower.needs
                    if less < need.nbytes <= limit
                ]
        return ["", *lines] if lines else []

    def _policy_rows(self) -> list[str]:
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
        return align_columns(rows, ("<12", *(">10" for _ in self.limits)))

    def _limit_rows(self) -> list[str]:
        head = ("of keep-all", "limit", "peak", "host", "step", "of all kept")
        above = ["above bound", *map(self._above_bound, self.points)] if self.bounds else []
        done = ["  tensors"]
        done += ["" if each.plan is None else f"  {_done(each.plan)}" for each in self.points]
        columns = [*zip(head, *map(self._limit_row, self.points), strict=True), above, done]
        rows = list(zip(*filter(None, columns), strict=True))
        return align_columns(rows, (*(">11" for _ in rows[0][1:]), "<0"))

    def _limit_row(self, point: Point) -> tuple[str, ...]:
        """The figures of a point, as the columns of a table."""
        share = f"{point.limit_bytes / self.keep_all_bytes:.2f}"
        limit, plan = format_bytes(point.limit_bytes), point.plan
        if plan is None:
            return share, limit, "-", "-", "-", "-"
        times = (
            "-" if self.keep_all_seconds is None else f"{plan.seconds / self.keep_all_seconds:.2f}"
        )
        peak, host = format_bytes(plan.device_bytes), format_bytes(plan.host_bytes)
        return share, limit, peak, host, format_seconds(plan.seconds), times

    def _above_bound(self, point: Point) -> str:
        bound = self.bounds.get(point.limit_bytes)
        if point.plan is None or bound is None:
            return "-"
        return f"{100 * (point.plan.seconds / bound - 1):.1f} %"


def _figures(point: Mapping[str, Any]) -> Figures | None:
    """The figures of a point's JSON; older records have fewer."""
    if point["seconds"] is None:
        return None
    figures = Figures(**{name: point[name] for name in Figures._fields if name in point})
    return figures._replace(needs=tuple(map(MemoryNeed.from_json, figures.needs)))


def _seconds_of(point: Point) -> str:
    return _seconds(None if point.plan is None else point.plan.seconds)


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)


@dataclass(frozen=True)
class Swept:
    """A step that is planned under several limits.

    Attributes
    ----------
    plan_name : str
        What its plans are called.
    step : Step
    constraints_at : callable
        Is given a limit, in bytes or as `Network.plan` takes one, and says under what to plan then.
    """

    plan_name: str
    step: Step
    constraints_at: Callable[[Limit], PlanConstraints]


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
    """Plan a step of training under several limits by several policies.

    Parameters
    ----------
    name, limits, policies, tell
        As for `sweep_step`.
    machine : MachineModel or str, optional
        The machine to predict for; the one at hand when left out.
    """
    step = net.training_phases(loss)
    swept = Swept("training_step", step, lambda at: constraints_for(at, machine, step, {}))
    return sweep_step(swept, name=name, limits=limits, policies=policies, tell=tell)


def sweep_step(
    swept: Swept,
    *,
    name: str,
    limits: Sequence[int | float] = SHARES,
    policies: Sequence[str] = QUICK,
    bound: bool = True,
    within_seconds: float = math.inf,
    tell: Callable[[int], object] = lambda done: None,
) -> Trade:
    """Plan a step under several limits by several policies.

    While it is planned, a line says how many plans are left, and about how long they will take: as
    long each as the one that took longest so far.

    Parameters
    ----------
    name : str
        What is planned, for the title.
    limits : sequence of int or float
        Bytes, or shares of the memory that keeping everything takes, all images at once.
    policies : sequence of str
        As for `Network.plan`.
    bound : bool
        Whether to say of each limit, too, what no plan can beat.
    within_seconds : float
        No plan is begun later than so many seconds after the first one; the points that are left
        out say so. The plan that is being made then is finished.
    tell : callable, optional
        Is given how many of the plans are made, after each of them.
    """
    total, progress = len(limits) * len(policies), current().progress
    clock, label = _Clock(within_seconds, total), f"plans of {name}"
    # a line in place of a bar: it goes on while a plan is made, and says how that goes
    told = progress if callable(progress) else False
    with (
        activity(label, progress, holds_line=True),
        reporter(told, total=total, label=label, predicted_seconds=0.0) as report,
    ):
        keep_all, held = _keeping_all(swept)
        clock.note()
        points, bounds = list[Point](), dict[int, float]()
        for limit in _in_bytes(limits, held):
            for point in _points(swept, limit, policies, clock, bound=bound):
                points.append(point)
                seconds = getattr(point.plan, "bound_seconds", None)
                if seconds is not None:
                    bounds[limit] = seconds
                report.update(len(points))
                tell(len(points))
    title = f"{name} on {machine_label(keep_all.machine)}"
    return Trade(title, held, tuple(points), bounds, keep_all.seconds)


def _keeping_all(swept: Swept) -> tuple[NetworkPlan, int]:
    """The plan that keeps everything, whatever host memory there is; and the limit that it needs.

    That counts what lies on the device beside the plan.
    """
    constraints = replace(swept.constraints_at(PLENTY), host=None)
    plan = plan_step(swept.plan_name, swept.step, constraints, policy="keep", micro_batches=1).plan
    return plan, plan.device_bytes + plan.outside_bytes + constraints.target.beside_bytes


def _in_bytes(limits: Sequence[int | float], keep_all_bytes: int) -> Sequence[int]:
    """Limits in bytes, of shares of what keeping everything takes; each once."""
    return tuple(
        dict.fromkeys(
            limit if isinstance(limit, int) else math.floor(Fraction(str(limit)) * keep_all_bytes)
            for limit in limits
        )
    )


class _Clock:
    """Time that a sweep has taken, and about how long the rest of it will take: that is said.

    Parameters
    ----------
    within_seconds : float
        Until when plans are begun.
    count : int
        How many are asked for.
    """

    def __init__(self, within_seconds: float, count: int) -> None:
        self._within, self._left, self._longest = within_seconds, count + 1, 0.0
        self._began = self._last = time.monotonic()

    def note(self) -> None:
        """Note that a plan was made."""
        now = time.monotonic()
        self._longest, self._last = max(self._longest, now - self._last), now
        self._left -= 1
        left = min(self._left * self._longest, self._within - (now - self._began))
        if self._left:
            seconds = format_seconds(math.ceil(max(left, 1.0)))
            say(f"{self._left} more, which take about {seconds}")

    @property
    def is_over(self) -> bool:
        """True if no further plan is to be begun."""
        return time.monotonic() - self._began >= self._within

    @property
    def said(self) -> str:
        """Sentences about points that are left out."""
        return f"not planned: the {format_seconds(self._within)} of this sweep were over"


def _points(
    swept: Swept, limit: int, policies: Sequence[str], clock: _Clock, *, bound: bool
) -> Iterator[Point]:
    """The points of one limit; the first that there is has the bound, which is that of all."""
    constraints = swept.constraints_at(limit)
    for policy in policies:
        if clock.is_over:
            yield Point(policy, limit, None, clock.said)
            continue
        try:
            plan = load_or_plan(
                swept.plan_name, swept.step, constraints, policy=policy, bound=bound
            ).plan
        except (PlanInfeasibleError, HostOutOfMemoryError) as error:
            yield Point(policy, limit, None, str(error))
        else:
            bound = False
            yield Point(policy, limit, plan)
        clock.note()


def _done(plan: NetworkPlan | Figures) -> str:
    """Shares of tensors by their bytes: "kept 61 %, recomputed 39 %"."""
    nbytes = plan.fate_bytes
    total = sum(nbytes.values()) or 1
    shares = {fate: round(100 * nbytes.get(fate, 0) / total) for fate in FATES}
    return ", ".join(
        f"{fate} {share} %" for fate, share in sorted(shares.items(), key=lambda e: -e[1]) if share
    )
