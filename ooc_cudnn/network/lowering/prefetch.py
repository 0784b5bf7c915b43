"""Time to copy: tensors on the device a while longer, so that nobody waits for their copies.

Memory that a tensor is fetched into is its own from the phase on in which the copy must begin, and
what leaves keeps its memory until it has left, where there is room for that. Else the copy waits
for whoever is there before, and whoever comes after waits for the copy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from ooc_cudnn.memory.alignment import align
from ooc_cudnn.memory.extents import Extent, held_bytes
from ooc_cudnn.network.cost.copy_timeline import copy_of, offload_ends, prefetch_starts
from ooc_cudnn.network.ir.live_ranges import LiveRange, LiveRanges
from ooc_cudnn.network.ir.step import Step
from perfmodel import MachineModel


def prefetch_earlier(
    step: Step,
    stays: LiveRanges,
    machine: MachineModel,
    seconds: Sequence[float],
    room_bytes: Any,
    on_device: Collection[str] = (),
) -> LiveRanges:
    """Return longer stays.

    Parameters
    ----------
    seconds : sequence of float
        Of each phase.
    room_bytes : array
        What tensors may take in each phase.
    on_device : collection of str
        Tensors that lie on the device in any case.
    """
    longer = _LongerRanges(step, stays, machine, room_bytes, on_device)
    ends = list(accumulate(seconds))
    fetched = [at for at, stay in longer.stays() if stay.fetched]
    begun = prefetch_starts(
        [(longer.stay(at).first, longer.copies[at[0]].back) for at in fetched], ends
    )
    leaving = [(at, stay.leaves) for at, stay in longer.stays() if stay.leaves is not None]
    left = offload_ends([(leaves, longer.copies[at[0]].out) for at, leaves in leaving], ends)
    # what takes longest is waited for longest
    for copied in sorted(zip(fetched, begun, strict=True), key=longer.largest_first):
        longer.begin(*copied)
    ended = [(at, end) for (at, _), end in zip(leaving, left, strict=True)]
    for copied in sorted(ended, key=longer.largest_first):
        longer.end(*copied)
    return {base: tuple(found) for base, found in longer.found.items()}


#: Which stay of which tensor.
_At = tuple[str, int]


class _LongerRanges:
    def __init__(
        self,
        step: Step,
        stays: LiveRanges,
        machine: MachineModel,
        room: Any,
        on_device: Collection[str],
    ) -> None:
        self.found = {base: list(each) for base, each in stays.items()}
        self.nbytes = {base: step.tensors[base].nbytes for base in stays}
        self.copies = {
            base: copy_of(nbytes, machine, leaves=True) for base, nbytes in self.nbytes.items()
        }
        self._uses = step.uses
        #: Gradients of outputs are given when forward has ended, and no earlier.
        self._given = dict.fromkeys(step.seeds.values(), step.turn if step.pauses else 0)
        extents = [
            Extent(stay.first, stay.last, self.nbytes[base]) for (base, _), stay in self.stays()
        ]
        #: Phases that stream: what is fetched behind them is copied behind their pieces.
        self._streaming = sorted(
            {
                at
                for base, used in self._uses.items()
                if base not in on_device
                for at in used.phases
                if not any(stay.first <= at <= stay.last for stay in stays.get(base, ()))
            }
        )
        self._free = room - held_bytes(extents, len(step.phases))

    def stays(self) -> Iterator[tuple[_At, LiveRange]]:
        for base, each in self.found.items():
            for index, stay in enumerate(each):
                yield (base, index), stay

    def stay(self, at: _At) -> LiveRange:
        return self.found[at[0]][at[1]]

    def largest_first(self, copied: tuple[_At, int]) -> tuple[int, _At]:
        (base, index), _ = copied
        return -self.nbytes[base], (base, index)

    def begin(self, at: _At, phase: int) -> None:
        """Let a stay begin in a phase, or as soon as there is room; not before others touch it."""
        base, index = at
        stay = self.stay(at)
        before = [used for used in self._uses[base].phases if used < stay.first]
        before += [self.found[base][index - 1].last] if index else []
        before += self._streaming[: bisect_left(self._streaming, stay.first)][-1:]
        earliest = max([phase, self._given.get(base, 0), *(used + 1 for used in before)])
        more = self._held(base, range(stay.first - 1, earliest - 1, -1))
        self.found[base][index] = stay._replace(first=stay.first - more)

    def end(self, at: _At, phase: int) -> None:
        """Let a stay end in a phase, or while there is room; not after others touch it."""
        base, index = at
        stay = self.stay(at)
        after = [used for used in self._uses[base].phases if used > stay.last]
        after += [each.first for each in self.found[base][index + 1 : index + 2]]
        more = self._held(base, range(stay.last + 1, min([phase + 1, *after])))
        self.found[base][index] = stay._replace(last=stay.last + more)

    def _held(self, base: str, phases: Iterable[int]) -> int:
        """Hold a tensor in phases, as far as there is room; in how many."""
        nbytes, count = align(self.nbytes[base]), 0
        for at in phases:
            if self._free[at] < nbytes:
                break
            self._free[at] -= nbytes
            count += 1
        return count
