"""Runs of one program at the same addresses: the second is recorded, and launched whole from then.

A network's step has hundreds of steps of microseconds, and to issue one takes the host longer. The
device goes through recorded ones by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ooc_cudnn.devices.base import Device, Recorded, Run
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.pipeline.program import Program, Task
from ooc_cudnn.pipeline.views import Source

#: Of fewer steps the host has issued the last one before a call would be recorded.
FEWEST_STEPS = 32
#: Sets of addresses that a program is kept recorded for: two of gradients, by two of inputs, twice.
MOST_RECORDED = 8

#: And for that it is remembered to have been run at.
MOST_SEEN = 64

#: Where all is: the block, what is on the device, and what is in memory of the host.
Addresses = tuple[int | tuple[int, tuple[int, ...]], ...]


def may_be_recorded(program: Program, steps: int) -> bool:
    """Whether the device can go through a program of so many steps alone, and that is worth it."""
    on_host = any(isinstance(item, Task) and item.is_on_host for item in program.items)
    return steps >= FEWEST_STEPS and not on_host and not program.in_threads


class RepeatedRuns:
    """What was recorded of a program, by addresses.

    Parameters
    ----------
    program : Program
    """

    def __init__(self, program: Program) -> None:
        self._given = {
            name: home.spec.nbytes
            for name, home in program.homes.items()
            if home.offset is None and not home.of
        }
        self._overlap = program.overlap
        #: Of each run: whether it may be recorded, and what was.
        self._seen: dict[Addresses, bool] = {}
        self._recorded: dict[Addresses, Recorded] = {}

    def addresses(
        self, device: Device, arrays: Mapping[str, Source], base: int
    ) -> Addresses | None:
        """Where a run finds all that it takes; None where some of it is not pinned."""
        found: list[int | tuple[int, tuple[int, ...]]] = [base]
        for name, nbytes in self._given.items():
            array = arrays[name]
            if isinstance(array, DeviceView):
                found.append(array.pointer)
                continue
            pointer = int(array.__array_interface__["data"][0])
            if not device.is_pinned(pointer, nbytes):
                return None
            found.append((pointer, array.strides))
        return tuple(found)

    def of(
        self, device: Device, addresses: Addresses, issue: Callable[[Run], None]
    ) -> Recorded | None:
        """What was recorded for some addresses, or is now that a run comes to them again."""
        found = self._recorded.pop(addresses, None)
        if found is None and self._seen.get(addresses):
            found = device.record(issue, overlap=self._overlap)
            self._seen[addresses] = found is not None
        if found is None:
            return None
        self._recorded[addresses] = found  # the last used is the last to go
        if len(self._recorded) > MOST_RECORDED:
            self._recorded.pop(next(iter(self._recorded)))
        return found

    def ran(self, addresses: Addresses, *, may_be_recorded: bool) -> None:
        """Note that a run went through some addresses step by step."""
        self._seen.setdefault(addresses, may_be_recorded)
        if len(self._seen) > MOST_SEEN:
            self._seen.pop(next(iter(self._seen)))
