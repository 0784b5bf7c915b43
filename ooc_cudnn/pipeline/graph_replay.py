"""Graph replay: a run at the same addresses is recorded the second time, then launched whole.

A network's step has hundreds of steps of microseconds, and to issue one takes the host longer. The
device goes through recorded ones by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ooc_cudnn.devices.base import Device, RecordedRun, Run
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.pipeline.lookahead import pieces_ahead
from ooc_cudnn.pipeline.program import Program
from ooc_cudnn.pipeline.views import Source

#: Programs of fewer tasks are no network's: the host is at them for microseconds.
FEWEST_TASKS = 16
#: Sets of addresses that a program is kept recorded for: two of gradients, by two of inputs, twice.
MOST_RECORDED = 8

#: And for that it is remembered to have been run at.
MOST_SEEN = 64

#: Where all is: the block, what is on the device, and what is in memory of the host. Copies and
#: fills in a recorded run are of memory, not of addresses: of what they may touch, the number of
#: the allocation is part of it, too.
Addresses = tuple[int | tuple[int | None, ...] | None, ...]
#: Where what is handed in can be, for the device to get at it alone.
PLACEMENTS = ("device", "pinned")


def may_be_recorded(program: Program, pieces: int) -> bool:
    """True if a device that records can go through a program of so many pieces alone.

    Not where the host has a part in it: where it computes, stages, must not run far ahead, or
    has another library look at data or draw random numbers.
    """
    tasks = list(program.tasks)
    takes_part = any(spec.placement not in PLACEMENTS for spec in program.given.values()) or any(
        task.is_on_host or not task.request.chain.may_be_recorded for task in tasks
    )
    return len(tasks) >= FEWEST_TASKS and not takes_part and pieces <= pieces_ahead(program, pieces)


def results_of(program: Program) -> frozenset[str]:
    """Select the tensors that tasks write, and those that they are views of."""
    written = {task.binds[name] for task in program.tasks for name in task.request.chain.results}
    return frozenset(program.bindings[name].of or name for name in written)


class RepeatedRuns:
    """Recorded runs of a program, by addresses.

    Parameters
    ----------
    program : Program
    """

    def __init__(self, program: Program) -> None:
        written = results_of(program)
        self._given = {
            name: name in written or spec.placement != "device"
            for name, spec in program.given.items()
        }
        self._overlap = program.overlap
        #: Of each run: whether it may be recorded, and what was.
        self._seen: dict[Addresses, bool] = {}
        self._recorded: dict[Addresses, RecordedRun] = {}
        self._is_refused = False

    def addresses(self, device: Device, arrays: Mapping[str, Source], base: int) -> Addresses:
        """Return the addresses of all that a run takes, and which memory is at them."""
        found: list[int | tuple[int | None, ...] | None] = [base, device.allocation_of(base)]
        for name, is_copied in self._given.items():
            array = arrays[name]
            if isinstance(array, DeviceView):
                pointer = array.pointer
                found.append(pointer)
            else:
                pointer = int(array.__array_interface__["data"][0])
                found += [pointer, array.strides]
            if is_copied:
                found.append(device.allocation_of(pointer))
        return tuple(found)

    def of(
        self, device: Device, addresses: Addresses, issue: Callable[[Run], Any]
    ) -> RecordedRun | None:
        """Return the run recorded for some addresses; record it if a run comes to them again."""
        run = self._recorded.pop(addresses, None)
        if run is None and self._seen.get(addresses) and not self._is_refused:
            run = device.record(issue, overlap=self._overlap)
            self._is_refused = run is None
        if run is None:
            return None
        self._recorded[addresses] = run  # the last used is the last to go
        if len(self._recorded) > MOST_RECORDED:
            self._recorded.pop(next(iter(self._recorded)))
        return run

    def ran(self, addresses: Addresses, *, may_be_recorded: bool) -> None:
        """Note that a run went through some addresses step by step."""
        self._seen.setdefault(addresses, may_be_recorded)
        if len(self._seen) > MOST_SEEN:
            self._seen.pop(next(iter(self._seen)))
