"""A device that computes nothing: a virtual clock, priced by a machine model, behind the contract.

The unchanged executor drives it. Actions run at once on the caller's thread and only say what they
cost; each becomes a `perfmodel.VirtualStep`, and `perfmodel.replay` says at the end of the run when
it would have started and stopped, the two directions of the link slowing each other down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ooc_cudnn.devices.base import Event, HostArray
from ooc_cudnn.devices.host.device import PinnedRanges
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.arena import Allocation, Arena
from ooc_cudnn.memory.blocks import rows_of
from ooc_cudnn.memory.files import bases
from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.operations.core.pointwise import Relayout
from ooc_cudnn.pipeline.virtual_steps import StepCost, VirtualCall
from ooc_cudnn.tensor import DTYPES, ORDERS, TensorSpec, packed_strides
from perfmodel import MachineModel
from perfmodel.rows import WHOLE, Rows

#: Memory of a device whose machine model does not say: more than anybody asks for.
BOUNDLESS_BYTES = 2**62


class SimulatedArray(np.ndarray[Any, Any]):
    """A host array without data: one element behind every index, and a placement.

    Slices keep the placement and how the array would lie in memory (strides in elements), so the
    device knows both of every region that is copied.
    """

    placement: str = "pageable"
    lying: tuple[int, ...] = ()

    def __array_finalize__(self, source: object) -> None:
        self.placement = getattr(source, "placement", "pageable")
        self.lying = getattr(source, "lying", ())


def simulated_array(
    shape: tuple[int, ...], dtype: str, placement: str, strides: tuple[int, ...] | None = None
) -> SimulatedArray:
    """Return an array of any size that takes no memory.

    `strides` are those that an array with data would have, in elements.

    Examples
    --------
    >>> array = simulated_array((512, 64, 256, 256), "bfloat16", "disk")
    >>> array.nbytes, array[:1, :, 8:16].nbytes, array[:1].placement
    (4294967296, 262144, 'disk')
    """
    element = np.zeros((), f"V{DTYPES[dtype]}")
    array = np.broadcast_to(element, shape).view(SimulatedArray)
    array.lying = packed_strides(shape, "channels_first") if strides is None else strides
    array.placement = placement
    return array


def simulated_operand(spec: TensorSpec) -> SimulatedArray | DeviceView:
    """Return an operand without data: an array, or a view at an address that nobody reads."""
    if spec.placement == "device":
        return DeviceView(0, spec.dtype, spec.shape, spec.strides)
    return simulated_array(spec.shape, spec.dtype, spec.placement, spec.strides)


class SimulatedAllocation:
    """Device memory that is only counted."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.pointer, self.nbytes = pointer, nbytes


class SimulatedDevice:
    """A machine model behind the device contract.

    Parameters
    ----------
    machine : MachineModel
        Prices every step.
    device_bytes : int, optional
        Memory of the device; what the model says when left out, or boundless.

    Examples
    --------
    >>> from perfmodel import shipped
    >>> SimulatedDevice(shipped("h200")).free_bytes()
    150754820096
    """

    kind = "simulated"

    def __init__(self, machine: MachineModel, device_bytes: int | None = None) -> None:
        self.machine = machine
        self.name = f"simulated {machine.name}"
        known = machine.device_bytes if device_bytes is None else device_bytes
        self._device_bytes = BOUNDLESS_BYTES if known is None else known
        self._next_pointer = 256
        self._pinned = PinnedRanges()
        self.arena = Arena(self._allocate, self.free_bytes)

    def _allocate(self, nbytes: int) -> SimulatedAllocation:
        if nbytes > self.free_bytes():
            raise MemoryError
        pointer = self._next_pointer
        self._next_pointer += -(-nbytes // 256) * 256
        return SimulatedAllocation(pointer, nbytes)

    def identity(self) -> Mapping[str, str]:
        return {**self.machine.identity, "simulated": self.machine.name}

    def use(self) -> None:
        pass

    def free_bytes(self) -> int:
        return self._device_bytes - self.arena.held_bytes

    def layouts(self, dtype: str) -> tuple[str, ...]:
        return ORDERS

    def synchronize(self) -> None:
        pass

    def release_caches(self) -> None:
        self.arena.release()

    # Host memory -------------------------------------------------------------------------------

    def allocate_pinned(self, nbytes: int) -> HostArray:
        array = np.empty(nbytes, np.uint8).view(SimulatedArray)
        array.placement = "pinned"
        return array

    def pin(self, pointer: int, nbytes: int) -> None:
        self._pinned.add(pointer, nbytes)

    def unpin(self, pointer: int) -> None:
        self._pinned.remove(pointer)

    def is_pinned(self, pointer: int, nbytes: int) -> bool:
        return self._pinned.hold(pointer, nbytes)

    def _placement(self, array: HostArray | DeviceView) -> str:
        """Where the other side of a copy lives."""
        if isinstance(array, DeviceView):
            return "device"
        if isinstance(array, SimulatedArray):
            return array.placement
        if any(isinstance(base, np.memmap) for base in bases(array)):
            return "disk"
        return "pinned" if self.is_pinned(array.ctypes.data, array.nbytes) else "pageable"

    # Device memory -----------------------------------------------------------------------------

    def as_array(
        self,
        allocation: Allocation,
        shape: tuple[int, ...],
        dtype: str,
        *,
        start: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> Any:
        array = simulated_array(shape, dtype, "device")
        array.allocation = allocation  # type: ignore[attr-defined]  # keeps it counted
        return array

    def copy_in(self, destination: DeviceView, source: HostArray | DeviceView, stream: Any) -> None:
        self.copy("copy_in", source, destination, stream)

    def copy_out(
        self, destination: HostArray | DeviceView, source: DeviceView, stream: Any
    ) -> None:
        self.copy("copy_out", destination, source, stream)

    def copy(
        self, direction: str, outside: HostArray | DeviceView, view: DeviceView, cost: StepCost
    ) -> None:
        """Say what a copy between a view and what is outside of it takes."""
        placement, moved = self._placement(outside), view.size * view.item_bytes
        if placement == "device":
            cost.compute(self.machine, Relayout(view.shape, view.dtype).work())
        else:
            cost.copy(self.machine, direction, placement, moved, _lying(outside))

    # Computing ---------------------------------------------------------------------------------

    engines = None

    def workspace(
        self,
        launches: Sequence[tuple[Launch, Mapping[str, Buffer]]],
        budget_bytes: int | None,
        *,
        sparing: int = 0,
    ) -> tuple[int, tuple[str, ...]] | None:
        return 0, ()

    def run(
        self,
        launch: Launch,
        views: Mapping[str, DeviceView],
        workspace: tuple[int, int],
        stream: Any,
    ) -> None:
        stream.compute(self.machine, launch.operation.work())

    def compile_ahead(self, actions: Any) -> None:
        """There is nothing to compile."""

    def spin(self, seconds: float, stream: Any) -> None:
        pass  # its clock knows nothing of the host

    def start(self, *, overlap: bool, staged: bool, timed: bool) -> SimulatedRun:
        return SimulatedRun(self.machine, overlap=overlap, staged=staged)


def _lying(array: HostArray | DeviceView) -> Rows:
    """How the host's side of a copy lies in memory."""
    if isinstance(array, DeviceView):
        return WHOLE
    if isinstance(array, SimulatedArray) and len(array.lying) == array.ndim:
        return rows_of(array.shape, array.lying, array.itemsize)
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return rows_of(array.shape, strides, array.itemsize)


class SimulatedEvent:
    """The end of a virtual step."""

    __slots__ = ("_run", "index")

    def __init__(self, run: SimulatedRun, index: int) -> None:
        self._run, self.index = run, index

    @property
    def interval(self) -> tuple[float, float]:
        return self._run.intervals[self.index]


class SimulatedRun:
    """One call on the virtual clock."""

    may_be_recorded = False

    def __init__(self, machine: MachineModel, *, overlap: bool, staged: bool = False) -> None:
        self.call = VirtualCall(machine, overlap=overlap, staged=staged)
        self.intervals: tuple[tuple[float, float], ...] = ()

    def submit(
        self,
        stream: str,
        waits: Sequence[Event],
        action: Callable[[Any], None],
        *,
        signals: bool,
    ) -> SimulatedEvent:
        cost = StepCost()
        action(cost)
        after = tuple(event.index for event in waits if isinstance(event, SimulatedEvent))
        self.call.add(stream, after, cost)
        return SimulatedEvent(self, len(self.call.steps) - 1)

    def note_read(self, stream: str) -> None:
        pass

    def synchronize(self, event: Event) -> None:
        pass  # the host runs ahead without limit: no step depends on when it was issued

    def finish(self, *, wait: bool = True) -> None:
        timeline = self.call.timeline()
        self.intervals = tuple(zip(timeline.start, timeline.finish, strict=True))

    def cancel(self) -> None:
        self.call.steps.clear()
