"""Spilling by MILP: live ranges that copy the fewest bytes and fit.

A whole number program. Of each use u of a tensor it decides whether the tensor is on the device in
that phase (there), else the phase streams it; of each gap g between two uses, whether it stays. It
comes back for a use where it did not stay, and leaves once for each time w that it was written, if
it did not stay up to its last use. In each phase that is short of room what is there fits.

    there(u) >= stays(g)                  of the uses before and after a gap
    leaves(w) + stays(g) >= 1             of the gaps up to the next time that it is written
    sum of bytes of what is there, or stays <= room
    minimise the sum of bytes of leaves(w) - stays(g) - there(u) * (sweeps - 1 + STREAMING)

A large program is solved by relax-and-fix: as one of real numbers first, of which few are fractions
(Wolsey, Integer Programming, 12.5). Tensors that have none keep their decisions; the program of the
others is solved then. It always has a solution: what has a fraction may be off the device.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np

from ooc_cudnn.memory.alignment import align
from ooc_cudnn.network.ir.live_ranges import LiveRange, LiveRanges, live_bytes
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.solver.highs import optional_solver
from ooc_cudnn.network.solver.model import LinearProgram, Sum

#: Smaller tensors, as a share of the room, stay: they take little, and their copies do.
SMALL = 2**-12
#: Of the room, the most that is left to a phase's pieces: more would only make them larger.
MOST_FOR_PIECES = 0.25
#: What streaming costs beside its copies, as a share of a copy: pieces are smaller, and wait.
STREAMING = 0.02
#: How much more may be copied than need be, and how many nodes the search may look at.
GAP, MOST_NODES = 0.01, 200
#: A program with more entries is large: HiGHS took 5 s for 209,000 of ResNet-50 in slabs, and 0.8
#: when most was fixed, with 0.3 % more to copy.
WHOLE_ENTRIES = 30_000
#: One with more entries is not solved.
MOST_ENTRIES = 250_000
#: What is nearer to a whole number is one; and the steps that the simplex may take.
ROUNDING, MOST_ITERATIONS = 1e-6, 10**6


def minimize_copies(
    step: Step, live_ranges: LiveRanges, pieces: np.ndarray[Any, Any], room_bytes: int
) -> LiveRanges:
    """Find live ranges that fit with few copies; the given ones where there is nothing to do.

    Parameters
    ----------
    live_ranges : mapping
        Those of a step that keeps everything: one for each tensor.
    pieces : array
        Bytes that each phase takes for its pieces, beside tensors on the device.
    """
    if room_bytes <= 0:  # arrays that are there take all of it: there is nothing to share out
        return dict(live_ranges)
    room = room_bytes - np.minimum(pieces, MOST_FOR_PIECES * room_bytes)
    held = live_bytes(step, live_ranges)
    program = _SpillMilp(step, held > room, room_bytes)
    for base, (live_range,) in live_ranges.items():
        nbytes = align(step.tensors[base].nbytes)
        if (
            nbytes > SMALL * room_bytes
            and program.is_short[live_range.first : live_range.last + 1].any()
        ):
            held[live_range.first : live_range.last + 1] -= nbytes
            program.add(base)
    spilled = None
    with optional_solver():
        spilled = program.solved(room - held)
    return dict(live_ranges) if spilled is None else {**live_ranges, **spilled}


class _SpillMilp(LinearProgram):
    """The variables and rows of the program; bytes are shares of the room."""

    def __init__(self, step: Step, is_short: np.ndarray[Any, Any], room_bytes: int) -> None:
        super().__init__()
        self.step, self.is_short, self.room_bytes = step, is_short, room_bytes
        self.uses, self.results = step.uses, step.results
        self.given = step.host_inputs
        #: Of each tensor the variables of its uses, and of the gaps between them.
        self.bases: dict[str, tuple[list[int], list[int]]] = {}
        #: And all of its variables.
        self.variables_of: dict[str, range] = {}
        #: Of each phase what a variable holds there.
        self.held: dict[int, Sum] = defaultdict(Sum)

    def add(self, base: str) -> None:
        """Add the decisions on a tensor."""
        size = align(self.step.tensors[base].nbytes) / self.room_bytes
        phases, begin = self.uses[base].phases, len(self.costs)
        present, gaps = list[int](), list[int]()
        for phase in phases:  # each sweep streams it again
            again = self.step.phases[phase].call.sweeps - 1
            present.append(self.variable(1.0, -size * (again + STREAMING)))
            self.held[phase][present[-1]] = size
        for before, after in pairwise(range(len(phases))):
            gaps.append(self.variable(1.0, -size))  # what stays need not come back
            for use in (before, after):
                self.at_least({present[use]: 1, gaps[-1]: -1})
            for phase in range(phases[before] + 1, phases[after]):
                self.held[phase][gaps[-1]] = size
        writes = [use for use, phase in enumerate(phases) if phase in self.uses[base].written]
        for write, end in pairwise([*writes, len(phases) - 1]):
            if base in self.results and write == writes[-1]:
                continue  # it leaves in any case
            leaves = self.variable(1.0, size)
            for gap in gaps[write:end]:
                self.at_least({leaves: 1, gap: 1}, 1)
        self.bases[base] = present, gaps
        self.variables_of[base] = range(begin, len(self.costs))

    def solved(self, room: np.ndarray[Any, Any]) -> LiveRanges | None:
        """Live ranges by the solution for so much room in each phase; None where none was found.

        Nor where there is nothing to decide, or too much.
        """
        for phase in np.flatnonzero(self.is_short).tolist():
            self.at_most(self.held[phase], room[phase] / self.room_bytes)
        if not 0 < self.entries <= MOST_ENTRIES:
            return None
        fixed = self._relaxed() if self.entries > WHOLE_ENTRIES else {}
        optimum = self.minimize_whole(GAP, MOST_NODES, fixed=fixed)
        if optimum is None:
            return None
        chosen = optimum.values > 0.5
        return {base: tuple(self._stays(base, chosen)) for base in self.bases}

    def _relaxed(self) -> dict[int, float]:
        """Variables of tensors for which the program of real numbers decides, and their values."""
        relaxed = self.minimize(MOST_ITERATIONS)
        if relaxed is None:
            return {}
        rounded = relaxed.values.round()
        is_whole = np.abs(relaxed.values - rounded) < ROUNDING
        return {
            variable: float(rounded[variable])
            for variables in self.variables_of.values()
            if is_whole[variables.start : variables.stop].all()
            for variable in variables
        }

    def _stays(self, base: str, chosen: np.ndarray[Any, Any]) -> list[LiveRange]:
        used, (present, gaps) = self.uses[base], self.bases[base]
        runs = list[list[int]]()
        for use, phase in enumerate(used.phases):
            if use and chosen[gaps[use - 1]]:
                runs[-1].append(phase)
            elif chosen[present[use]]:
                runs.append([phase])
        ranges = list[LiveRange]()
        for run in runs:
            written = [phase for phase in run if phase in used.written]
            wanted = base in self.results or run[-1] < used.phases[-1]
            leaves = written[-1] if written and wanted else None
            fetched = base in self.given or run[0] > used.phases[0]
            ranges.append(LiveRange(run[0], run[-1], fetched, leaves))
        return ranges
