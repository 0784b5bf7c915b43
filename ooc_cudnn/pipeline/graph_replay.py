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

#: Where all is: the block, what is on the device, and what is in memory of the host. Of the block
#: and the host's also which allocation that is: a recorded copy is of memory, not of addresses.
Addresses = tuple[int | tuple[int, int | None, tuple[int, ...]], ...]
#: Where what is handed in can be, for the device to get at it alone.
PLACEMENTS = ("device", "pinned")


def may_be_recorded(program: Program, pieces: int) -> bool:
    """True if a device that records can go through a program of so many pieces alone.

    Not where the host has a part in it: where it computes, stages, or must not run far ahead. And
    not where another library computes, which takes memory of its own for each run.
    """
    tasks = list(program.tasks)
    takes_part = any(spec.placement not in PLACEMENTS for spec in program.given.values()) or any(
        task.is_on_host or task.request.chain.is_external for task in tasks
    )
    return len(tasks) >= FEWEST_TASKS and not takes_part and pieces <= pieces_ahead(program, pieces)


class RepeatedRuns:
    """Recorded runs of a program, by addresses.

    Parameters
    ----------
    program : Program
    """

    def __init__(self, program: Program) -> None:
        self._given = tuple(program.given)
        self._overlap = program.overlap
        #: Of each run: whether it may be recorded, and what was.
        self._seen: dict[Addresses, bool] = {}
        self._recorded: dict[Addresses, RecordedRun] = {}

    def addresses(self, device: Device, arrays: Mapping[str, Source], base: int) -> Addresses:
        """Return the addresses of all that a run takes."""

        def copied(pointer: int, strides: tuple[int, ...]) -> tuple[Any, ...]:
            return pointer, device.allocation_of(pointer), strides

        sources = (arrays[name] for name in self._given)
        return (
            copied(base, ()),
            *(
                each.pointer
                if isinstance(each, DeviceView)
                else copied(int(each.__array_interface__["data"][0]), each.strides)
                for each in sources
            ),
        )

    def of(
        self, device: Device, addresses: Addresses, issue: Callable[[Run], Any]
    ) -> RecordedRun | None:
        """Return the run recorded for some addresses; record it if a run comes to them again."""
        run = self._recorded.pop(addresses, None)
        if run is None and self._seen.get(addresses):
            run = device.record(issue, overlap=self._overlap)
            self._seen[addresses] = run is not None
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
