"""What is made again, by the linear program: its shares rounded to whole tensors.

The program is solved with what `remaking.py` can do: nothing is offloaded, and what was made again
is held up to its last use. Most shares of the solution are 0 or 1. The largest of the
others are set to the nearer one, and it is solved again, until all are whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set

from ooc_cudnn.network.bound import outline_of, priced
from ooc_cudnn.network.micro_batches import parts_of
from ooc_cudnn.network.phases import Step
from ooc_cudnn.network.placing import Terms
from ooc_cudnn.network.program import Link, Program
from ooc_cudnn.network.residency import GIVEN

#: How far from 0 or 1 a share may be and count as whole; how often it is solved; and how many
#: shares are set each time, of the largest things.
WHOLE, MOST_ROUNDS, AT_ONCE = 0.02, 6, 3
#: As a share of the room: what is smaller takes so little that it is rounded at once.
SMALL = 0.01
MOST_ITERATIONS = 60_000


def remade_by_program(
    step: Step, terms: Terms, micro_batches: int, room_bytes: int, can: Set[str]
) -> frozenset[str] | None:
    """Return which maps to make again, to hold so many bytes; None where nothing was found.

    Parameters
    ----------
    step : Step
        As it is planned, nothing made again.
    can : set of str
        Those that can be.
    """
    machine = terms.target.machine
    if micro_batches > 1:
        shared = {name for name, each in step.tensors.items() if each.kind in GIVEN}
        shared |= {step.place(name).base for name in step.gradients.values()}
        shared = {name for name in shared if step.tensors[name].kind != "input"}
        room_bytes -= sum(step.tensors[name].nbytes for name in shared)
        step = parts_of(step, micro_batches).part
    else:
        shared = set()
    if room_bytes <= 0 or not can:
        return None
    outline = outline_of(step, terms, priced(machine), shared)
    program = Program(outline, room_bytes, stays=True)
    program.fits({})
    program.copies()
    program.lasts(Link.of(machine))
    kept = {
        index: variable
        for index, variable in program.kept.items()
        if outline.things[index].maker is not None
    }
    x = None
    for _ in range(MOST_ROUNDS):
        found = program.minimised(program.E[-1], MOST_ITERATIONS)
        if found is None:  # the last one made too much whole
            break
        x = found
        between = [
            index
            for index, at in kept.items()
            if WHOLE < x[at] < 1 - WHOLE and outline.things[index].nbytes > SMALL * room_bytes
        ]
        between.sort(key=lambda index: -outline.things[index].nbytes)
        for index in between[:AT_ONCE]:
            if x[kept[index]] >= 0.5:
                program.at_least({kept[index]: 1}, 1)
            else:
                program.upper[kept[index]] = 0.0
        if not between:
            break
    if x is None:
        return None
    again, whole = defaultdict[str, float](float), defaultdict[str, float](float)
    for index, variable in kept.items():
        thing = outline.things[index]
        name = thing.name.split(" [")[0]
        again[name] += thing.nbytes * (1 - x[variable])
        whole[name] += thing.nbytes
    return frozenset(name for name in again if name in can and again[name] > 0.5 * whole[name])
