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
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.arena import Allocation, Arena
from ooc_cudnn.memory.blocks import rows_of
from ooc_cudnn.memory.files import is_file
from ooc_cudnn.memory.pinned_ranges import PinnedRanges
from ooc_cudnn.operations.splittable import Buffer, Launch
from ooc_cudnn.tensor import DTYPES, ORDERS, TensorSpec, packed_strides
from perfmodel import MachineModel, VirtualStep, replay
from perfmodel.machine import STEPS_OF_A_PIECE
from perfmodel.transfer import WHOLE, Rows, slabs_of

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
        if is_file(array):
            return "disk"
        return "pinned" if self.is_pinned(array.ctypes.data, array.nbytes) else "pageable"

    # Device memory -----------------------------------------------------------------------------

    def as_array(self, allocation: Allocation, shape: tuple[int, ...], dtype: str) -> Any:
        array = simulated_array(shape, dtype, "device")
        array.allocation = allocation  # type: ignore[attr-defined]  # keeps it counted
        return array

    def copy_in(self, destination: DeviceView, source: HostArray | DeviceView, stream: Any) -> None:
        self._copy("copy_in", destination, source, stream)

    def copy_out(
        self, destination: HostArray | DeviceView, source: DeviceView, stream: Any
    ) -> None:
        self._copy("copy_out", source, destination, stream)

    def _copy(
        self,
        direction: str,
        view: DeviceView,
        outside: HostArray | DeviceView,
        stream: SimulatedStream,
    ) -> None:
        """Say what a copy takes, and what longer if the other direction runs meanwhile."""
        transfer, rows = self.machine.transfer, _lying(outside)
        priced = {"copy_in": transfer.copy_in_seconds, "copy_out": transfer.copy_out_seconds}
        stream.placement, moved = self._placement(outside), view.size * view.item_bytes
        stream.copied_bytes = moved
        beside = moved * transfer.far_seconds_per_byte(direction, stream.placement, rows)
        stream.seconds += priced[direction](stream.placement, moved, rows=rows) - beside
        stream.beside += beside

    # Computing ---------------------------------------------------------------------------------

    def workspace(
        self, launches: Sequence[tuple[Launch, Mapping[str, Buffer]]], budget_bytes: int | None
    ) -> tuple[int, tuple[str, ...]] | None:
        return 0, ()

    def run(
        self,
        launch: Launch,
        views: Mapping[str, DeviceView],
        workspace: tuple[int, int],
        stream: Any,
    ) -> None:
        work, compute = launch.operation.work(), self.machine.compute
        stream.seconds += compute.seconds(work)
        stream.launching += compute.launching_seconds(work, self.machine.launch_seconds)

    def hold(self, seconds: float, stream: Any) -> None:
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


class SimulatedStream:
    """What actions are handed in place of a stream: they add the seconds they would take.

    A step copies one region of one operand, whose placement and bytes it says here.
    """

    __slots__ = ("beside", "copied_bytes", "launching", "placement", "seconds")

    def __init__(self) -> None:
        self.seconds = self.beside = self.launching = 0.0
        self.copied_bytes = 0
        self.placement = "pinned"


class SimulatedEvent:
    """The end of a virtual step."""

    __slots__ = ("_run", "index")

    def __init__(self, run: SimulatedRun, index: int) -> None:
        self._run, self.index = run, index

    @property
    def interval(self) -> tuple[float, float]:
        return self._run.intervals[self.index]


class SimulatedRun:
    """One call on the virtual clock. Without overlap every step waits for the one before it."""

    def __init__(self, machine: MachineModel, *, overlap: bool, staged: bool = False) -> None:
        self.steps: list[VirtualStep] = []
        self.intervals: tuple[tuple[float, float], ...] = ()
        self._machine = machine
        self._overlap = overlap
        self._step_seconds = machine.seconds_of_step(staged=staged)
        #: Steps that are still to be issued beside a thread that stages, and what each takes more.
        self._beside_staging = 0
        self._more_seconds = machine.seconds_of_step(staged=True) - self._step_seconds
        #: When the host has issued the last step.
        self._issued = 0.0
        #: What computing loses to steps that were issued since the last one that computes.
        self._lost_seconds = 0.0

    def submit(
        self,
        stream: str,
        waits: Sequence[Event],
        action: Callable[[Any], None],
        *,
        signals: bool,
    ) -> SimulatedEvent:
        handle = SimulatedStream()
        action(handle)
        index = len(self.steps)
        if self._overlap:
            after = tuple(event.index for event in waits if isinstance(event, SimulatedEvent))
        else:
            after = (index - 1,) if index else ()
        self._issued += self._step_seconds + handle.launching
        self._lost_seconds += self._machine.lost_seconds(0.0, 0.0, self._step_seconds)
        if stream == "compute":
            handle.seconds += self._lost_seconds
            self._lost_seconds = 0.0
        latency, slabs = 0.0, 1
        if stream != "compute":
            transfer, moved = self._machine.transfer, handle.copied_bytes
            latency = float(transfer.latency_seconds(stream, handle.placement, moved))
            slabs = int(slabs_of(moved))
        if latency:
            self._beside_staging += STEPS_OF_A_PIECE
        if self._beside_staging:
            self._beside_staging -= 1
            self._issued += self._more_seconds
        self.steps.append(
            VirtualStep(
                stream,  # type: ignore[arg-type]
                handle.seconds,
                after,
                handle.placement,
                self._issued,
                latency,
                handle.beside,
                slabs,
            )
        )
        return SimulatedEvent(self, index)

    def synchronize(self, event: Event) -> None:
        pass  # the host runs ahead without limit: no step depends on when it was issued

    def finish(self, *, wait: bool = True) -> None:
        losses = self._machine.losses
        timeline = replay(self.steps, self._machine.transfer, losses.get("copies", 0.0))
        self.intervals = tuple(zip(timeline.start, timeline.finish, strict=True))

    def cancel(self) -> None:
        self.steps.clear()
