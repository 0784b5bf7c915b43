"""Memory of the device for what is computed outside of the library: it is not in the block.

Some images at a time, as many as a share of the limit has room for. What that takes at the most is
left free: it lives while one phase runs. What does not fit even so is computed on the host.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.lowering.lower import least_bytes
from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.operations.core.subcall import SubCall
from ooc_cudnn.operations.external.calls import AnyExternalCall
from ooc_cudnn.operations.normalization.cross_rank import CrossRankCall

#: Of the limit, and where that is little, so many bytes: a part of a batch that takes as much
#: keeps a card busy for longer than it takes to begin the next. Never more than `MOST_SHARE`, but
#: what one image takes. (With an eighth in any case, a ViT-B/16 of 384 images under an eighth of
#: its memory is predicted to take 297 ms on an H200, and 213 so: tensors cannot have what is left.)
SHARE, FEW_BYTES, MOST_SHARE = 1 / 32, 64 * 2**20, 1 / 8
#: Of the room there is: what takes no more surely fits, whatever else the step computes.
SURELY = 1 / 4


def reserve_external_memory(
    step: Step, constraints: PlanConstraints, on_host: Collection[str] | None = None
) -> tuple[Step, PlanConstraints]:
    """Return a step in which few images are computed outside at once, and the room beside.

    Parameters
    ----------
    on_host : collection of str, optional
        Phases that the host computes; those that do not fit on the device when left out.
    """
    if not any(isinstance(phase.call, AnyExternalCall) for phase in step.phases):
        return step, constraints
    limit = constraints.target.limit_bytes
    most = int(min(max(SHARE * limit, FEW_BYTES), MOST_SHARE * limit))
    step = replace(step, phases=tuple(_fitting(phase, most) for phase in step.phases))
    moved = frozenset(_too_large(step, constraints) if on_host is None else on_host)
    phases = tuple(
        replace(phase, call=whole.there()) if phase.name in moved and whole else phase
        for phase, whole in ((phase, _whole(phase.call)) for phase in step.phases)
    )
    step = replace(step, phases=phases)
    room = constraints.target.room_bytes - external_bytes(step)
    constraints = replace(
        constraints, target=constraints.target._replace(room_bytes=room), on_host=moved
    )
    return step, constraints


def _too_large(step: Step, constraints: PlanConstraints) -> set[str]:
    """The phases that must be computed on the host, so that all others fit on the device.

    Those that take most first; not those that host memory is short for, nor what waits for others.
    """
    room, most = (
        constraints.target.room_bytes,
        constraints.host and constraints.host.available_bytes,
    )
    held = {
        phase.name: external_bytes_of(phase.call) or 0
        for phase in step.phases
        if isinstance(phase.call, AnyExternalCall)
    }
    theirs = tuple(phase for phase in step.phases if phase.name in held)
    if sum(map(max, (held.values(), least_bytes(step, constraints, theirs)))) <= SURELY * room:
        return set()
    least = dict(
        zip((each.name for each in step.phases), least_bytes(step, constraints), strict=True)
    )
    candidates = {
        phase.name: held[phase.name] + least[phase.name]
        for phase in theirs
        if not isinstance(phase.call, CrossRankCall) and (most is None or held[phase.name] <= most)
    }
    moved = set[str]()
    while candidates and max(held.values()) + max(least.values()) > room:
        largest = max(candidates, key=candidates.__getitem__)
        moved.add(largest)
        del candidates[largest], held[largest], least[largest]
        held.setdefault("", 0)
        least.setdefault("", 0)
    return moved


def _fitting(phase: Phase, most_bytes: int) -> Phase:
    """The phase, with as many images at once as fit: at least one."""
    call = phase.call
    if not isinstance(call, AnyExternalCall):
        return phase
    images = call.images
    while images > 1 and call.outside_bytes_of(images) > most_bytes:
        images = -(-images // 2)
    return replace(phase, call=call.of_at_most(images))


def external_bytes(step: Step) -> int:
    """The most that a phase of a step takes of the device, outside of the library."""
    calls = (phase.call for phase in step.phases if not phase.call.on_host)
    return max((external_bytes_of(call) or 0 for call in calls), default=0)


def external_bytes_of(call: TiledCall) -> int | None:
    """Bytes that a call takes outside of the library; None if it is the library's own."""
    whole = _whole(call)
    return None if whole is None else whole.outside_bytes


def explain_external_bytes(call: TiledCall) -> str:
    """Explain why a call is not the library's own; "" if it is."""
    whole = _whole(call)
    return "" if whole is None else whole.computation.why


def _whole(call: TiledCall) -> AnyExternalCall | None:
    whole = call.call if isinstance(call, SubCall) else call
    return whole if isinstance(whole, AnyExternalCall) else None
