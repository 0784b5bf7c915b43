"""Memory of the device for what is computed outside of the library: it is not in the block.

Some images at a time, as many as a share of the limit has room for. What that takes at the most is
left free: it lives while one phase runs.
"""

from __future__ import annotations

from dataclasses import replace

from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.network.placing import Terms
from ooc_cudnn.operations.outside import OutsideCall, OutsideGradient
from ooc_cudnn.operations.part_of import PartOf
from ooc_cudnn.operations.splittable import Splittable

#: Of the limit. One image takes what it takes.
SHARE = 1 / 8


def with_room_outside(step: Step, terms: Terms) -> tuple[Step, Terms]:
    """Return a step in which few images are computed outside at once, and the room beside."""
    if not any(isinstance(phase.call, OutsideCall | OutsideGradient) for phase in step.phases):
        return step, terms
    most = int(SHARE * terms.target.limit_bytes)
    fitting = replace(step, phases=tuple(_fitting(phase, most) for phase in step.phases))
    room = terms.target.room_bytes - outside_bytes(fitting)
    return fitting, replace(terms, target=terms.target._replace(room_bytes=room))


def _fitting(phase: Phase, most_bytes: int) -> Phase:
    """The phase, with as many images at once as fit: at least one."""
    call = phase.call
    if not isinstance(call, OutsideCall | OutsideGradient):
        return phase
    images = call.images
    while images > 1 and call.outside_bytes_of(images) > most_bytes:
        images = -(-images // 2)
    return replace(phase, call=call.of_at_most(images))


def outside_bytes(step: Step) -> int:
    """The most that a phase of a step takes of the device, outside of the library."""
    return max((outside_bytes_of(phase.call) or 0 for phase in step.phases), default=0)


def outside_bytes_of(call: Splittable) -> int | None:
    """What a call takes of the device outside of the library; None if it is the library's own."""
    whole = call.call if isinstance(call, PartOf) else call
    return whole.outside_bytes if isinstance(whole, OutsideCall | OutsideGradient) else None
