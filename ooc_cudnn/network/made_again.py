"""What is made again, and what comes back from the host, so that a step fits and takes least."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ooc_cudnn.network.bound import priced
from ooc_cudnn.network.makings import Makings
from ooc_cudnn.network.micro_batches import parts_of
from ooc_cudnn.network.phases import Step
from ooc_cudnn.network.placing import Terms, working_bytes
from ooc_cudnn.network.repeating import Again, makers_of
from ooc_cudnn.network.residency import GIVEN, Residency, Stay, kept, uses_of
from ooc_cudnn.network.searching import found

#: Of the room what may be filled, for addresses want the rest; and of the bytes that phases would
#: take beside tensors what is left to them: they may do with less.
WAYS = ((1.0, 1.0), (0.99, 1.0), (0.97, 1.0), (0.97, 0.3), (0.97, 0.0), (0.92, 0.0))
#: Of the room, the most that is left to a phase's pieces: more would only make them larger.
MOST_FOR_PIECES = 0.25


class MadeAgain(NamedTuple):
    """What a search found for a step.

    Attributes
    ----------
    again : tuple of Again
        As `repeated` wants them.
    back : mapping
        Inputs that let go of their memory, to the phase before which they begin to come back.
    """

    again: tuple[Again, ...]
    back: Mapping[str, int]


def made_again(step: Step, terms: Terms, micro_batches: int) -> Iterator[MadeAgain]:
    """Yield what to make again so that a step fits, the fastest first; nothing if none was found.

    Parameters
    ----------
    step : Step
        As it is planned, nothing made again.
    """
    machine, room = terms.target.machine, terms.target.room_bytes
    always = {base for base, spec in terms.given.items() if spec.placement == "device"}
    phases, part = tuple(range(len(step.phases))), step
    if micro_batches > 1:
        shared = {name for name, each in step.tensors.items() if each.kind in GIVEN}
        shared |= {step.place(name).base for name in step.gradients.values()}
        room -= sum(step.tensors[name].nbytes for name in shared - always)
        always |= shared
        parts = parts_of(step, micro_batches)
        part, phases = parts.part, parts.of
    if room <= 0:
        return
    working = working_bytes(part, kept(part, uses_of(part)), terms)
    working = np.minimum(working, MOST_FOR_PIECES * room)
    for share, left in WAYS:
        makings = Makings(
            part,
            priced(machine),
            share * room,
            lambda nbytes: machine.transfer.copy_seconds("copy_in", "pinned", nbytes),
            always,
            left * working,
        )
        events = found(makings)
        if events is not None:
            yield MadeAgain(
                tuple(
                    Again(phases[each.before], each.name.split(" [")[0])
                    for each in events
                    if each.is_made
                ),
                {e.name: makings.phase_of(makings.start_of(e)) for e in events if not e.is_made},
            )


def coming_back(step: Step, rewritten: Step, made: MadeAgain) -> Residency:
    """Where tensors are in the step as it is rewritten: all is kept, but for what comes back."""
    uses = uses_of(rewritten)
    stays = dict(kept(rewritten, uses))
    for name, start in made.back.items():
        put_in = (len(makers_of(step, each.name)) for each in made.again if each.before < start)
        back = start + sum(put_in)
        before = [at for at in uses[name].phases if at < back]
        (stay,) = stays[name]
        stays[name] = (
            Stay(stay.first, before[-1], fetched=True),
            Stay(back, stay.last, fetched=True),
        )
    return stays
