"""Trials: launches of a plan, timed on the device before the plan is settled.

One line stands for all convolutions of a kind of arithmetic, but cuDNN has another engine for every
shape, and the engines differ by more than any line tells. For one problem (channels, window,
stride) seconds are mostly linear in the size of a piece, though; so one launch of it, timed,
corrects what is predicted for all pieces that it is nearest to (`ComputeModel.corrected`), until
the size that is planned then is tried itself. What was learnt is remembered for the process; what
was measured of several engines is stored (`devices.engines`), and a plan trades their workspace
against the size of its pieces.

Which memory order is fastest to compute in is as uncertain: where computing binds, the best plan in
the other order is tried, too, if it may well be the faster one.

Nothing is tried where the result could not matter: where copies bind by far, or for milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.planner import distinct_launches
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engines import Measurement, Option, Tables
from ooc_cudnn.devices.measuring import Bench, Launched
from ooc_cudnn.devices.tuning_database import forget_tables, tables_of, try_to_save_tables
from ooc_cudnn.engines.autotune import Deadline, EngineTuner
from ooc_cudnn.engines.launch_timing import Allowance, time_well
from ooc_cudnn.engines.target import PlannedCall, PlannedPart
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.operations.convolution.gradients import AnyConvolution
from perfmodel import MachineModel, Work

#: Computing that takes less is not worth a trial (seconds of a whole call).
SHORTEST_SECONDS = 2e-4
#: Nor is computing that would have to be so many times slower to bind.
LARGEST_ERROR = 10.0
#: Nor are launches that take less than this share of what is tried.
SMALLEST_SHARE = 0.1
#: A trial may take this share of the call's seconds, or as long as building a cuDNN plan: by what
#: launches are predicted to take, and then by what they took.
MOST_SHARE, MOST_SECONDS = 0.1, 0.1
#: The plan that follows from a trial may hold launches that were not tried.
MOST_ROUNDS = 3
#: The other memory order is tried where it is predicted to take no more than so many times as long
#: (a line's error), and the call this many seconds: it may have to build engines.
RIVALS_WITHIN, RIVALS_SECONDS = 1.5, 0.02
#: Engines that are known from another size are timed again for so many seconds, at most.
MOST_TIMING_SECONDS = 1.0
#: A plan with less workspace takes this share of the seconds, at most.
WORTH_SPARING = 0.99


class Make(Protocol):
    """Plans a call with a machine model, to be computed in one of some memory orders.

    Workspace is asked for, which may build engines, unless `ask` is false: of engines that take
    less of it, where `sparing` says so (`Device.workspace`).
    """

    def __call__(
        self,
        machine: MachineModel,
        layouts: tuple[str, ...],
        *,
        ask: bool = True,
        sparing: int = 0,
    ) -> PlannedCall:
        """Return the plan."""


def forget_trials() -> None:
    """Forget what was tried and is not stored (after calibration, and in tests)."""
    forget_tables()


def plan_after_trials(
    make: Make,
    layouts: tuple[str, ...],
    machine: MachineModel,
    device: Device,
    limit_bytes: int,
) -> PlannedCall:
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
    known = tables_of(device)
    if device.arena.is_at_work:  # the caller is a progress callable: the device is taken
        return make(known.corrected(machine), layouts)

    trial = Trial(device, machine, limit_bytes)

    def settled() -> PlannedCall:
        planned = make(known.corrected(machine), layouts)
        for _ in range(MOST_ROUNDS):
            if not trial.of(planned.parts):
                break
            planned = make(known.corrected(machine), layouts)
        return planned

    planned = settled()
    rival = _rival(make, layouts, planned.plan, machine, known)
    if rival is not None and trial.of(rival.parts):
        planned = settled()
    for _ in range(MOST_ROUNDS):
        traded = _traded(make, planned, machine, known, device)
        if traded is planned or not trial.of(traded.parts):
            break
        planned = settled()
    return traded


def _traded(
    make: Make, planned: PlannedCall, machine: MachineModel, known: Tables, device: Device
) -> PlannedCall:
    """The best plan by engines that take less workspace: it may leave room for larger pieces."""
    levels = known.levels(work for part in planned.parts for work in _works(part))
    if levels < 2:
        return planned
    has_room = _has_its_engines(planned, device, 0)
    if has_room and planned.plan.pieces == 1:
        return planned
    # without room for them, it was priced with engines that it does not have
    best, seconds = planned, planned.plan.seconds if has_room else math.inf
    for sparing in range(1, levels):
        try:
            other = make(known.corrected(machine, sparing), (planned.plan.layout,), sparing=sparing)
        except PlanInfeasibleError:
            continue
        if sparing < levels - 1 and not _has_its_engines(other, device, sparing):
            continue
        if other.plan.seconds < WORTH_SPARING * seconds:
            best, seconds = other, other.plan.seconds
    return best


def _has_its_engines(planned: PlannedCall, device: Device, sparing: int) -> bool:
    """True if the workspace of a plan is as much as the engines take that it was priced with."""
    for part in planned.parts:
        launches = distinct_launches(part.request, part.plan)
        answer = device.workspace(launches, None, sparing=sparing)
        if answer is None or answer[0] > part.plan.workspace_bytes:
            return False
    return True


def _works(part: PlannedPart) -> Iterator[Work]:
    """The work of each launch of a plan."""
    return (launch.operation.work() for launch, _ in distinct_launches(part.request, part.plan))


def _rival(
    make: Make,
    layouts: tuple[str, ...],
    plan: Plan,
    machine: MachineModel,
    known: Tables,
) -> PlannedCall | None:
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
        tried = corrected is not machine
        if rival.plan.seconds > RIVALS_WITHIN * seconds and tried and not _is_known(rival, known):
            seconds = make(machine, (plan.layout,), ask=False).plan.seconds
        if rival.plan.seconds > RIVALS_WITHIN * seconds:
            return None
        return make(corrected, others)
    except PlanInfeasibleError:  # re-laying takes more memory than there is
        return None


def _is_known(planned: PlannedCall, known: Tables) -> bool:
    """True if a convolution of a plan, of whatever size, was tried."""
    works = (work for part in planned.parts for work in _works(part))
    return any(work.key.startswith("convolution") and known.knows_kind(work) for work in works)


class Trial:
    """Times what matters of plans, for as long as a call may wait."""

    def __init__(self, device: Device, machine: MachineModel, limit_bytes: int) -> None:
        self.device, self.machine, self.known = device, machine, tables_of(device)
        self.bench = Bench(device, limit_bytes, batches=1, batch_seconds=0.0)
        self.deadline = Deadline(MOST_TIMING_SECONDS)

    def of(self, parts: Sequence[PlannedPart]) -> bool:
        """Time what is not known and matters; return whether anything was learnt."""
        learnt = tuned = False
        for part in parts:
            allowance = Allowance(max(MOST_SECONDS, MOST_SHARE * part.plan.seconds))
            for launched, expected in _worth_trying(part, self.machine, self.known):
                if not allowance.allows(expected, expected):
                    break
                measurement = self._tried(launched, part.plan.workspace_bytes, expected, allowance)
                if measurement is not None:
                    self.known.add(measurement)
                    learnt = True
                    tuned |= measurement.operation is not None
        if self.device.arena.block_bytes > max(part.plan.device_bytes for part in parts):
            self.device.arena.release_block()
        if tuned:
            try_to_save_tables(self.device)
        return learnt

    def _tried(
        self, launched: Launched, scratch_bytes: int, expected: float, allowance: Allowance
    ) -> Measurement | None:
        """Time a launch: by the engines that are known for its kind, or as it is planned."""
        operation, measurement = launched[0].operation, None
        if self.device.engines is not None and isinstance(operation, AnyConvolution):
            known = self.known.nearest(operation)
            if known is not None:
                tuning = EngineTuner(self.device, self.bench, self.deadline)
                options, is_complete = self.known.options(operation), known.is_complete
                measurement = tuning.measured_again(
                    launched, options, is_complete=is_complete, allowance=allowance
                )
        if measurement is not None:
            return measurement
        timed = time_well(
            self.bench,
            launched,
            scratch_bytes=scratch_bytes,
            expected=expected,
            allowed_seconds=allowance.left,
        )
        if timed is None:
            return None
        timing, launching = timed
        allowance.take(timing.seconds, expected)
        return Measurement(operation.work(), (Option(timing.seconds),), launching=launching)


def _worth_trying(
    part: PlannedPart, machine: MachineModel, known: Tables
) -> list[tuple[Launched, float]]:
    """The largest launch of every kind, if it is not known and matters; and its seconds."""
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
    return [
        (launched, seconds)
        for seconds, launched in largest.values()
        if seconds >= SMALLEST_SHARE * total and not known.knows(launched[0].operation.work())
    ]
