"""Trials: launches of a plan, timed on the device before the plan is settled.

One line stands for all convolutions of a kind of arithmetic, but cuDNN has another engine for every
shape, and the engines differ by more than any line tells. For one problem (channels, window,
stride) seconds are mostly linear in the size of a piece, though; so one launch of it, timed,
corrects what is predicted for pieces of all sizes (`ComputeModel.corrected`), until the size that
is planned then is tried itself. What was learnt is remembered for the process.

Which memory order is fastest to compute in is as uncertain: where computing binds, the best plan in
the other order is tried, too, if it may well be the faster one.

Nothing is tried where the result could not matter: where copies bind by far, or for milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Protocol
from weakref import WeakKeyDictionary

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.measuring import Bench, Launched
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.functions.target import Planned, PlannedPart
from ooc_cudnn.pricing.plan import Plan
from ooc_cudnn.pricing.planner import distinct_launches
from perfmodel import MachineModel

#: Computing that takes less is not worth a trial (seconds of a whole call).
SHORTEST_SECONDS = 2e-4
#: Nor is computing that would have to be so many times slower to bind.
LARGEST_ERROR = 10.0
#: Nor are launches that take less than this share of what is tried.
SMALLEST_SHARE = 0.1
#: Launches of a trial, after as many that only warm up; of those that take longer than so many
#: seconds, one.
LAUNCHES, LONG_SECONDS = 3, 5e-3
#: What takes so many times as long as predicted is timed again, and the shorter time counts: it may
#: have been disturbed.
SUSPICIOUS = 1.5
#: A trial may take this share of the call's seconds, or as long as building a cuDNN plan.
MOST_SHARE, MOST_SECONDS = 0.1, 0.1
#: The plan that follows from a trial may hold launches that were not tried.
MOST_ROUNDS = 3
#: The other memory order is tried where it is predicted to take no more than so many times as long
#: (a line's error), and the call this many seconds: it may have to build engines.
RIVALS_WITHIN, RIVALS_SECONDS = 1.5, 0.02


class Make(Protocol):
    """Plans a call with a machine model, to be computed in one of some memory orders.

    Workspace is asked for, which may build engines, unless `ask` is false.
    """

    def __call__(
        self, machine: MachineModel, layouts: tuple[str, ...], *, ask: bool = True
    ) -> Planned:
        """Return the plan."""


@dataclass
class Learnt:
    """What trials told: measured over predicted seconds, and seconds of the host to launch."""

    factors: dict[str, float] = field(default_factory=dict)
    launching: dict[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.factors)

    def update(self, other: Learnt) -> None:
        """Take what was learnt since."""
        self.factors.update(other.factors)
        self.launching.update(other.launching)

    def corrected(self, machine: MachineModel) -> MachineModel:
        """Return a machine's model, corrected by it."""
        if not self:
            return machine
        return replace(machine, compute=machine.compute.corrected(self.factors, self.launching))


_known: WeakKeyDictionary[Device, Learnt] = WeakKeyDictionary()


def forget_trials() -> None:
    """Forget what was tried (after calibration, and in tests)."""
    _known.clear()


def planned_after_trials(
    make: Make,
    layouts: tuple[str, ...],
    machine: MachineModel,
    device: Device,
    limit_bytes: int,
) -> Planned:
    """Plan a call, try what matters of the plan, and plan again by what was learnt.

    Parameters
    ----------
    make : Make
    layouts : tuple of str
        Those to choose from.
    machine : MachineModel
        The device's, as it was calibrated.
    device : Device
        Its arena's lock is held.
    limit_bytes : int
        Device memory that may be held meanwhile, users' arrays included.
    """
    known = _known.setdefault(device, Learnt())
    if device.arena.is_at_work:  # the caller is a progress callable: the device is taken
        return make(known.corrected(machine), layouts)

    def settled() -> Planned:
        planned = make(known.corrected(machine), layouts)
        for _ in range(MOST_ROUNDS):
            learnt = _try(planned.parts, machine, known, device, limit_bytes)
            if not learnt:
                break
            known.update(learnt)
            planned = make(known.corrected(machine), layouts)
        return planned

    planned = settled()
    rival = _rival(make, layouts, planned.plan, machine, known)
    learnt = _try(rival.parts, machine, known, device, limit_bytes) if rival else None
    if not learnt:
        return planned
    known.update(learnt)
    return settled()


def _rival(
    make: Make,
    layouts: tuple[str, ...],
    plan: Plan,
    machine: MachineModel,
    known: Learnt,
) -> Planned | None:
    """The best plan in another memory order, if it may well be faster than this one.

    What makes a problem faster than its line in one order may do so in the other, too: a plan that
    trials found to be faster than predicted is compared as it was predicted, until the other order
    was tried itself.
    """
    others = tuple(layout for layout in layouts if layout != plan.layout)
    if not others or plan.binding_stage != "compute" or plan.seconds < RIVALS_SECONDS:
        return None
    corrected = known.corrected(machine)
    try:
        rival = make(corrected, others, ask=False)
        seconds = plan.seconds
        if rival.plan.seconds > RIVALS_WITHIN * seconds and known and not _is_known(rival, known):
            seconds = make(machine, (plan.layout,), ask=False).plan.seconds
        if rival.plan.seconds > RIVALS_WITHIN * seconds:
            return None
        return make(corrected, others)
    except PlanInfeasibleError:  # re-laying takes more memory than there is
        return None


def _is_known(planned: Planned, known: Learnt) -> bool:
    """Whether a convolution of a plan, of whatever size, was tried."""
    works = (
        launch.operation.work()
        for part in planned.parts
        for launch, _ in distinct_launches(part.request, part.plan)
    )
    return any(work.key.startswith("convolution") and work.kind in known.factors for work in works)


def _try(
    parts: Sequence[PlannedPart],
    machine: MachineModel,
    known: Learnt,
    device: Device,
    limit_bytes: int,
) -> Learnt:
    """Time what of a plan is not known and matters."""
    bench = Bench(device, limit_bytes, batches=1, batch_seconds=0.0)
    learnt = Learnt()
    for part in parts:
        for launched in _worth_trying(part, machine, known):
            work = launched[0].operation.work()
            expected = machine.compute.seconds(work)
            scratch, times = part.plan.workspace_bytes, _launches(expected)
            timed = partial(bench.time_launch, launched, scratch, most=times)
            found = timed()
            if found is not None:
                if found[0].seconds > SUSPICIOUS * expected:
                    found = min(found, timed() or found, key=itemgetter(0))
                timing, launching = found
                factor = timing.seconds / expected
                # Cut along channels it is another problem, and no faster than this until tried.
                least = max(1.0, known.factors.get(work.family, 1.0))
                learnt.factors[work.family] = max(least, factor)
                learnt.factors[work.kind] = learnt.factors[work.sized] = factor
                if launching is not None:
                    # nor does it take less to launch
                    most = max(launching, known.launching.get(work.family, 0.0))
                    learnt.launching[work.family] = most
                    learnt.launching[work.kind] = launching
    if device.arena.block_bytes > max(part.plan.device_bytes for part in parts):
        device.arena.release_block()
    return learnt


def _launches(seconds: float) -> int:
    """How often a launch is timed that takes about so long."""
    return 1 if seconds > LONG_SECONDS else LAUNCHES


def _worth_trying(part: PlannedPart, machine: MachineModel, known: Learnt) -> list[Launched]:
    """The largest launch of every kind, if it is not known and matters, with its buffers."""
    plan = part.plan
    link_seconds = max(plan.copy_in_seconds, plan.copy_out_seconds)
    if plan.compute_seconds < max(SHORTEST_SECONDS, link_seconds / LARGEST_ERROR):
        return []
    largest: dict[str, tuple[float, Launched]] = {}
    for launch, buffers in distinct_launches(part.request, plan):
        work = launch.operation.work()
        seconds = machine.compute.seconds(work)
        if seconds > largest.get(work.kind, (0.0,))[0]:
            taken = {name: buffers[name] for name in (*launch.inputs, launch.output) if name}
            largest[work.kind] = seconds, (launch, taken)
    total = sum(seconds for seconds, _ in largest.values())
    allowed = max(MOST_SECONDS, MOST_SHARE * plan.seconds)
    found: list[Launched] = []
    for seconds, launched in largest.values():
        if launched[0].operation.work().sized in known.factors or seconds < SMALLEST_SHARE * total:
            continue
        allowed -= 2 * _launches(seconds) * seconds
        if allowed < 0:
            break
        found.append(launched)
    return found
