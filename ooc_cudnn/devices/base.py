"""The device contract: what runs steps. Everything clever lives above it.

A `Device` gives memory and runs operations; a `Run` is one call's use of its three streams. The
same executor drives all devices, so the host device exercises it where there is no card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ooc_cudnn import interrupts
from ooc_cudnn.devices.engine_provider import EngineProvider
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.arena import Allocation
from ooc_cudnn.memory.source import HostArray, Source
from ooc_cudnn.operations.core.launch import Buffer, Launch

STREAMS = ("copy_in", "compute", "copy_out")


class Event(Protocol):
    """The end of a step; with a start if the run is timed."""

    @property
    def interval(self) -> tuple[float, float]:
        """Start and stop of the step, in seconds since the run began; only after `finish`."""


class Run(Protocol):
    """One call's use of a device: three streams, each of which runs its actions in order."""

    def submit(
        self,
        stream: str,
        waits: Sequence[Any],
        action: Callable[[Any], None],
        *,
        signals: bool,
    ) -> Event | None:
        """Queue `action(stream handle)` behind `waits`; return its event if anyone will ask."""

    def note_read(self, stream: str) -> None:
        """Note that a stream now has the last step that reads what the caller has on the host."""

    def synchronize(self, event: Any) -> None:
        """Block the host until a step has ended, and what it copies out is written.

        Raise what went wrong in any step so far.
        """

    def finish(self, *, wait: bool) -> None:
        """Join the streams: with `wait` the host blocks until all is done and written.

        Without it later device work is ordered behind this run, and the host waits no longer than
        until the caller's memory was read (`note_read`).
        """

    def cancel(self) -> None:
        """Drop what has not started, wait for what has, release everything."""

    @property
    def may_be_recorded(self) -> bool:
        """True if one that does the same at the same addresses can be (`Device.record`)."""


class RecordedRun(Protocol):
    """A run that the device goes through by itself, at the addresses that it was recorded at."""

    def launch(self) -> None:
        """Run it again; the host does not wait for it."""

    def wait(self) -> None:
        """Block until all is written that was launched."""

    def wait_until_read(self) -> None:
        """Block until the caller's host memory was read (`Run.note_read`)."""


class Device(Source, Protocol):
    """A device that computes: `cuda` or `host`."""

    kind: str

    def identity(self) -> Mapping[str, str]:
        """Key of the machine model: the hardware and the versions that matter."""

    def use(self) -> None:
        """Make it the device of the calling thread."""

    def layouts(self, dtype: str) -> tuple[str, ...]:
        """Memory orders in which windows can be computed in `dtype`."""

    def synchronize(self) -> None:
        """Block until the device is idle (for measuring, and after errors)."""

    def release_caches(self) -> None:
        """Give back everything that can be made again."""

    # Host memory -------------------------------------------------------------------------------

    def pin(self, pointer: int, nbytes: int) -> None:
        """Page-lock host memory in place."""

    def unpin(self, pointer: int) -> None:
        """Undo `pin`."""

    def is_pinned(self, pointer: int, nbytes: int) -> bool:
        """True if host memory is page-locked from its first byte to its last."""

    def allocation_of(self, pointer: int) -> int | None:
        """Number of the allocation, or of the pinning, that an address lies in.

        No other one ever has it, not even where it begins at the same address. None where nobody
        counts them.
        """

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
        """Return a user's array over device memory; it keeps the allocation alive.

        It begins `start` bytes into the allocation. Strides are in bytes; it is packed without.
        """

    def copy_in(self, destination: DeviceView, source: HostArray | DeviceView, stream: Any) -> Any:
        """Copy a region to the device.

        Returns None, or a `concurrent.futures.Future` that the run waits for.
        """

    def copy_out(self, destination: HostArray | DeviceView, source: DeviceView, stream: Any) -> Any:
        """Copy a region from the device; returns as `copy_in`."""

    # Computing ---------------------------------------------------------------------------------

    @property
    def engines(self) -> EngineProvider | None:
        """Engines to choose from, where there are several ways to run a launch."""

    def workspace(
        self,
        launches: Sequence[tuple[Launch, Mapping[str, Buffer]]],
        budget_bytes: int | None,
        *,
        sparing: int = 0,
    ) -> tuple[int, tuple[str, ...]] | None:
        """Scratch bytes that the launches need, and the algorithms' names.

        Without a budget, of the algorithms the device prefers; with one, of the best within it.
        Where engines were measured, those of each launch that take most workspace are left out, as
        many as `sparing` says. Returns None if some launch has no such algorithm.
        """

    def run(
        self,
        launch: Launch,
        views: Mapping[str, DeviceView],
        workspace: tuple[int, int],
        stream: Any,
    ) -> None:
        """Run a launch on its buffers; `workspace` is (pointer, bytes)."""

    def compile_ahead(self, actions: Iterable[Callable[[Any], None]]) -> None:
        """Compile what these actions would launch, so that they do not, one after the other."""

    def spin(self, seconds: float, stream: Any) -> None:
        """Keep a stream busy for so long, so that what the host issues meanwhile lies ready.

        Nothing where the host's own time is no part of what is timed.
        """

    def compute(self, actions: Sequence[Callable[[Any], None]]) -> None:
        """Run actions that copy nothing, on the caller's stream, one after the other.

        A run of its own would take the host longer than a small kernel takes the device.
        """

    def start(self, *, overlap: bool, staged: bool, timed: bool) -> Run:
        """Open a run. `staged`: some operand is in host memory that cannot be copied from as is."""

    def record(self, issue: Callable[[Run], Any], *, overlap: bool) -> RecordedRun | None:
        """Record the run that `issue` submits the steps of; nothing is run yet.

        Returns None where a step cannot be recorded.
        """


@contextmanager
def open_run(device: Device, *, overlap: bool, staged: bool, timed: bool) -> Iterator[Run]:
    """Open a run, and cancel it if the block raises; its end is the block's to wait for.

    Ctrl-C is heard where the run waits, and where the block says so, so that no thread is left
    behind or half started, and cancelling is not interrupted itself.
    """
    with interrupts.defer_signals():
        run = device.start(overlap=overlap, staged=staged, timed=timed)
        try:
            yield run
        except BaseException:
            run.cancel()
            raise
