"""Calls that are remembered: planned, with their schedules, ready to run on other arrays.

All that depends only on shapes, dtypes, placements and settings is kept, so a repeated call goes
straight to the executor.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from ooc_cudnn import fork_safety
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.request import worth_threads
from ooc_cudnn.devices.base import Device
from ooc_cudnn.engines.trials import forget_trials
from ooc_cudnn.functions.call.bind import Bound
from ooc_cudnn.functions.call.plan import Target
from ooc_cudnn.functions.call.plan_chain import forget_plans
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.pipeline.execute import Executor
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.units import format_bytes
from ooc_cudnn.warnings_once import warn

#: Calls that are remembered.
REMEMBERED_CALLS = 256
#: More pieces than this are worth a warning: about a second of the host's time, without any work.
MANY_PIECES = 20_000
#: A remembered plan is made anew once this much more memory is available than when it was made.
ROOM_WORTH_REPLANNING = 1.25


@dataclass(frozen=True)
class PreparedCall:
    """A call, ready to run on any operands of the same specs.

    `result_bytes` is the device memory that its results are still to be given, `available_bytes`
    what the plan could choose from beside it, `staged` whether threads copy some of its data.
    """

    chain: TiledCall
    plan: Plan
    executor: Executor
    staged: bool
    available_bytes: int
    result_bytes: int


_prepared: OrderedDict[Hashable, PreparedCall] = OrderedDict()
_lock = fork_safety.lock()


def recall_call(key: Hashable, device: Device, settings: Settings) -> PreparedCall | None:
    """Return a call that was prepared before, if its plan still suits the memory there is."""
    with _lock:
        prepared = _prepared.get(key)
        if prepared is None:
            return None
        _prepared.move_to_end(key)
    room = limit_bytes(device, settings.memory_limit) - device.arena.array_bytes
    available = room - prepared.result_bytes
    if prepared.plan.device_bytes > available:
        return None
    if available > prepared.available_bytes * ROOM_WORTH_REPLANNING and not prepared.plan.in_core:
        return None
    return prepared


def prepare(
    key: Hashable, bound: Bound, device: Device, settings: Settings, *, share: float = 1.0
) -> PreparedCall:
    """Build what is to be cut, plan it, make its schedule, and remember it all."""
    chain = bound.build(settings)
    limit = limit_bytes(device, settings.memory_limit)
    target = Target.here(device, limit, chain.dtype, settings)
    planned = bound.plan(chain, target, share)
    _warn_of_many_pieces(planned.plan)
    prepared = PreparedCall(
        chain,
        planned.plan,
        Executor(planned.program),
        any(is_staged(part.plan) for part in planned.parts),
        planned.available_bytes,
        target.room_bytes - planned.available_bytes,
    )
    with _lock:
        _prepared[key] = prepared
        while len(_prepared) > REMEMBERED_CALLS:
            _prepared.popitem(last=False)
    return prepared


def is_staged(plan: Plan) -> bool:
    """True if enough of the data is in memory that cannot be copied from as it is for threads."""
    return plan.pieces > 1 and worth_threads(spec for _, spec in plan.operands)


def forget_calls() -> None:
    """Forget remembered plans and trials (after calibration, and in tests)."""
    with _lock:
        _prepared.clear()
    forget_plans()
    forget_trials()


def _warn_of_many_pieces(plan: Plan) -> None:
    """Say what is wrong with a call that would run for minutes on pieces of next to nothing."""
    if plan.pieces > MANY_PIECES:
        warn(
            f"{plan.function} is cut into {plan.pieces} pieces by the memory limit of "
            f"{format_bytes(plan.memory_limit)}, and every piece takes the host's time and memory; "
            "raise memory_limit if you can",
        )
