"""The least that a step takes with its copies: before anything has an address, or is replayed.

Phases run one after the other, and copies each way one after the other. A phase does not end before
what it reads has come; a copy does not leave before the phase begins that makes it. Where a phase
is one piece, it does not begin before, and the copy not before it has ended. Nothing waits for
memory here.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from ooc_cudnn.network.ir.live_ranges import LiveRanges, is_live
from ooc_cudnn.network.ir.step import Step, Uses
from ooc_cudnn.network.ir.tensor import Tensor, extents
from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.operations.core.subcall import SubCall
from perfmodel import MachineModel


class OverlapBound(NamedTuple):
    """Seconds that a step takes at the least; and if computing and copies did not wait at all."""

    seconds: float
    unwaited: float


def least_seconds(
    step: Step,
    live_ranges: LiveRanges,
    machine: MachineModel,
    seconds: Sequence[float],
    on_device: Collection[str] = (),
    pieces: Sequence[int] = (),
) -> OverlapBound:
    """Return what a step takes at the least.

    Parameters
    ----------
    live_ranges : LiveRanges
        What is in none of its own when a phase reads or writes it is streamed.
    seconds, pieces : sequence
        Of each phase; several pieces when left out.
    on_device : collection of str
        Tensors that lie there in any case.
    """
    copies = _Copies(step, live_ranges, machine, on_device)
    come, left, end, busy_out, ready = 0.0, 0.0, 0.0, 0.0, dict[int, float]()
    for phase, lasts in enumerate(seconds):
        for reader, copied in copies.fetched[phase]:  # one after the other
            come += copied
            ready[reader] = max(ready.get(reader, 0.0), come)
        come += copies.streamed_in[phase]
        is_whole = phase < len(pieces) and pieces[phase] == 1
        begin = max(end, ready.get(phase, 0.0)) if is_whole else end
        end = max(begin + lasts, ready.get(phase, 0.0), come if copies.streamed_in[phase] else 0.0)
        if copies.leaving[phase]:
            left = max(left, end if is_whole else begin) + copies.leaving[phase]
        # what several phases make may leave before the last of them begins
        left += copies.summed_out[phase]
        busy_out += copies.leaving[phase] + copies.summed_out[phase]
    return OverlapBound(max(end, come, left), max(sum(seconds), come, busy_out))


class _Copies:
    """Seconds of the copies of each phase."""

    def __init__(
        self, step: Step, live_ranges: LiveRanges, machine: MachineModel, on_device: Collection[str]
    ) -> None:
        self.streamed_in, self.leaving, self.summed_out = (
            defaultdict[int, float](float) for _ in range(3)
        )
        #: What is fetched before a phase, in order: by which one all of it is read first, or -1.
        self.fetched = defaultdict[int, list[tuple[int, float]]](list)
        tensors, uses = step.tensors, step.uses

        @cache
        def seconds_of(way: str, nbytes: int) -> float:
            return machine.transfer.copy_seconds(way, "pinned", nbytes)

        for base, ranges in live_ranges.items():
            if base in on_device:
                continue
            nbytes, used = tensors[base].nbytes, uses[base]
            for live_range in ranges:
                if live_range.fetched:
                    reader = used.phases[bisect_left(used.phases, live_range.first)]
                    reader = reader if base in step.phases[reader].reads else -1
                    copied = seconds_of("copy_in", nbytes)
                    self.fetched[live_range.first].append((reader, copied))
                if live_range.leaves is not None:
                    to = self.leaving if used.written == (live_range.leaves,) else self.summed_out
                    to[live_range.leaves] += seconds_of("copy_out", nbytes)
        for index, streamed in _streamed(uses, live_ranges, on_device).items():
            phase = step.phases[index]
            if phase.call.on_host:
                continue
            for way, operands in (("copy_in", phase.call.loaded), ("copy_out", phase.call.results)):
                to, moved = self.streamed_in, dict[str, int]()
                if way == "copy_out":
                    to = self.summed_out
                for operand in operands:
                    name = phase.binds[operand]
                    if step.base(name) in streamed:
                        nbytes = _touched_bytes(phase.call, operand, tensors[name])
                        moved[name] = max(moved.get(name, 0), nbytes)
                to[index] += sum(seconds_of(way, nbytes) for nbytes in moved.values())


def _streamed(
    uses: Mapping[str, Uses], live_ranges: LiveRanges, on_device: Collection[str]
) -> Mapping[int, set[str]]:
    """Tensors that each phase reads or writes while they are not on the device."""
    streamed = defaultdict[int, set[str]](set)
    for base, used in uses.items():
        ranges = live_ranges.get(base, ())
        if base in on_device or (
            ranges and ranges[0].first <= used.phases[0] and used.phases[-1] <= ranges[0].last
        ):
            continue
        for index in used.phases:
            if not is_live(ranges, index):
                streamed[index].add(base)
    return streamed


def _touched_bytes(call: TiledCall, operand: str, tensor: Tensor) -> int:
    """The least bytes of an operand's tensor that a call moves: its rows, of a row tile."""
    if not isinstance(call, SubCall):
        return tensor.nbytes
    regions = (call.region(operand, call.whole_piece(sweep)) for sweep in range(call.sweeps))
    elements = max((math.prod(extents(each)) for each in regions if each is not None), default=0)
    return elements * (tensor.nbytes // math.prod(tensor.shape))
