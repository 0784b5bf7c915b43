"""Schedule prefetches: lengthen live ranges so that copies overlap computing.

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
from ooc_cudnn.memory.offset_assignment import LiveBuffer, held_bytes
from ooc_cudnn.network.cost.copy_timeline import copy_of, offload_ends, prefetch_starts
from ooc_cudnn.network.ir.live_ranges import LiveRange, LiveRanges
from ooc_cudnn.network.ir.step import Step
from perfmodel import MachineModel


def prefetch_earlier(
    step: Step,
    live_ranges: LiveRanges,
    machine: MachineModel,
    seconds: Sequence[float],
    room_bytes: Any,
    on_device: Collection[str] = (),
) -> LiveRanges:
    """Return longer live ranges.

    Parameters
    ----------
    seconds : sequence of float
        Of each phase.
    room_bytes : array
        What tensors may take in each phase.
    on_device : collection of str
        Tensors that lie on the device in any case.
    """
    longer = _LongerRanges(step, live_ranges, machine, room_bytes, on_device)
    ends = list(accumulate(seconds))
    fetched = [at for at, live_range in longer.live_ranges() if live_range.fetched]
    begun = prefetch_starts(
        [(longer.live_range(at).first, longer.copies[at[0]].back) for at in fetched], ends
    )
    leaving = [
        (at, live_range.leaves)
        for at, live_range in longer.live_ranges()
        if live_range.leaves is not None
    ]
    left = offload_ends([(leaves, longer.copies[at[0]].out) for at, leaves in leaving], ends)
    # what takes longest is waited for longest
    for copied in sorted(zip(fetched, begun, strict=True), key=longer.largest_first):
        longer.begin(*copied)
    ended = [(at, end) for (at, _), end in zip(leaving, left, strict=True)]
    for copied in sorted(ended, key=longer.largest_first):
        longer.end(*copied)
    return {base: tuple(found) for base, found in longer.found.items()}


#: A live range: its tensor, and its number among the tensor's.
_At = tuple[str, int]


class _LongerRanges:
    def __init__(
        self,
        step: Step,
        live_ranges: LiveRanges,
        machine: MachineModel,
        room: Any,
        on_device: Collection[str],
    ) -> None:
        self.found = {base: list(each) for base, each in live_ranges.items()}
        self.nbytes = {base: step.tensors[base].nbytes for base in live_ranges}
        self.copies = {
            base: copy_of(nbytes, machine, leaves=True) for base, nbytes in self.nbytes.items()
        }
        self._uses = step.uses
        #: Gradients of outputs are given when forward has ended, and no earlier.
        self._given = dict.fromkeys(step.seeds.values(), step.turn if step.pauses else 0)
        buffers = [
            LiveBuffer(live_range.first, live_range.last, self.nbytes[base])
            for (base, _), live_range in self.live_ranges()
        ]
        #: Phases that stream: what is fetched behind them is copied behind their pieces.
        self._streaming = sorted(
            {
                at
                for base, used in self._uses.items()
                if base not in on_device
                for at in used.phases
                if not any(
                    live_range.first <= at <= live_range.last
                    for live_range in live_ranges.get(base, ())
                )
            }
        )
        self._free = room - held_bytes(buffers, len(step.phases))

    def live_ranges(self) -> Iterator[tuple[_At, LiveRange]]:
        for base, each in self.found.items():
            for index, live_range in enumerate(each):
                yield (base, index), live_range

    def live_range(self, at: _At) -> LiveRange:
        return self.found[at[0]][at[1]]

    def largest_first(self, copied: tuple[_At, int]) -> tuple[int, _At]:
        (base, index), _ = copied
        return -self.nbytes[base], (base, index)

    def begin(self, key: _At, phase: int) -> None:
        """Begin a live range in a phase, or once there is room; not before others touch it."""
        base, index = key
        live_range = self.live_range(key)
        before = [used for used in self._uses[base].phases if used < live_range.first]
        before += [self.found[base][index - 1].last] if index else []
        before += self._streaming[: bisect_left(self._streaming, live_range.first)][-1:]
        earliest = max([phase, self._given.get(base, 0), *(used + 1 for used in before)])
        more = self._held(base, range(live_range.first - 1, earliest - 1, -1))
        self.found[base][index] = live_range._replace(first=live_range.first - more)

    def end(self, key: _At, phase: int) -> None:
        """End a live range in a phase, or while there is room; not after others touch it."""
        base, index = key
        live_range = self.live_range(key)
        after = [used for used in self._uses[base].phases if used > live_range.last]
        after += [each.first for each in self.found[base][index + 1 : index + 2]]
        more = self._held(base, range(live_range.last + 1, min([phase + 1, *after])))
        self.found[base][index] = live_range._replace(last=live_range.last + more)

    def _held(self, base: str, phases: Iterable[int]) -> int:
        """Hold a tensor in phases, as far as there is room; in how many."""
        nbytes, count = align(self.nbytes[base]), 0
        for phase in phases:
            if self._free[phase] < nbytes:
                break
            self._free[phase] -= nbytes
            count += 1
        return count
