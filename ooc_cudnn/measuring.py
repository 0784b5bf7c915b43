"""Seconds of copies and launches on a device, measured through its contract and nothing else.

Steps are submitted to the streams of a timed run, as the executor submits them, and timed by their
events. What is measured is the steady state: from the end of one step to the end of a later one, so
that neither the start of a run nor what trails it (staging) counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ooc_cudnn.devices.base import Device, Event, HostArray
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.chain import Buffer, Launch
from ooc_cudnn.pipeline.pricing import aligned
from ooc_cudnn.tensor import DTYPES, numpy_dtype

Action = Callable[[Any], Any]

#: Steps of a batch: as many as fill `Bench.batch_seconds`, within these.
FEWEST_STEPS, MOST_STEPS = 3, 32
#: Of a batch's steps, the first quarter only brings it to its steady state.
WARM_SHARE = 4
#: The slowdown is a ratio of two measurements, and no other samples average its errors out.
DUPLEX_BATCHES = 9
#: Random elements that buffers are filled with, over and over.
NOISE_ELEMENTS = 2**18


class Timing(NamedTuple):
    """Seconds of one step, the median of several batches; and how far they lie from it.

    `spread` is the median of the batches' distances from the median, as a share of it: one batch
    that was disturbed does not count, half of them do.
    """

    seconds: float
    spread: float


class Group(NamedTuple):
    """A part of a calibration: its name, about how many seconds it takes, and what makes it."""

    label: str
    seconds: float
    measure: Callable[[], None]


class Recorder(Protocol):
    """Takes a sample of a line: its key, its work and further features, and its timing."""

    def __call__(
        self, key: str, work: float, timing: Timing, features: Mapping[str, float] = ...
    ) -> None:
        """Keep the sample."""


class Bench:
    """Times steps on a device.

    Parameters
    ----------
    device : Device
    limit_bytes : int
        Device memory that may be held meanwhile.
    batches : int
        How often each step is measured.
    batch_seconds : float
        Roughly how long each time; short steps are repeated to fill it.
    """

    def __init__(
        self, device: Device, limit_bytes: int, *, batches: int, batch_seconds: float
    ) -> None:
        self.device, self.limit_bytes = device, limit_bytes
        self.batches, self.batch_seconds = batches, batch_seconds

    def reserve(self, nbytes: int) -> int:
        """Return the address of `nbytes` of device memory; what was reserved before is gone."""
        return self.device.arena.reserve(nbytes, self.limit_bytes, purpose="calibration")

    def fits(self, nbytes: int) -> bool:
        """Whether the memory limit allows to reserve so much."""
        return nbytes + self.device.arena.array_bytes <= self.limit_bytes

    # Steps -------------------------------------------------------------------------------------

    def steps(self, actions: Mapping[str, Sequence[Action]], *, staged: bool) -> dict[str, Any]:
        """Run actions on their streams, all streams at once; return when each ended.

        Parameters
        ----------
        actions : mapping
            The actions of each stream, in order.
        staged : bool
            As for `Device.start`.

        Returns
        -------
        dict
            For each stream, an array of seconds.
        """
        run = self.device.start(overlap=True, staged=staged, timed=True)
        events: dict[str, list[Event | None]] = {stream: [] for stream in actions}
        try:
            for index in range(max(map(len, actions.values()))):
                for stream, queued in actions.items():
                    if index < len(queued):
                        events[stream].append(run.submit(stream, (), queued[index], signals=True))
            run.finish(wait=True)
        except BaseException:
            run.cancel()
            raise
        return {
            stream: np.array([event.interval[1] for event in ended if event is not None])
            for stream, ended in events.items()
        }

    def time(
        self, stream: str, action: Callable[[int], Action], *, staged: bool = False, most: int = 0
    ) -> Timing:
        """Time a step.

        Parameters
        ----------
        stream : str
        action : callable
            Returns the action of the index-th step of a batch.
        staged : bool
            As for `Device.start`.
        most : int, optional
            Most steps of a batch.
        """
        most = most or MOST_STEPS
        count = min(FEWEST_STEPS, most)
        warm = _steady(
            self.steps({stream: [action(i) for i in range(count)]}, staged=staged)[stream]
        )
        count = min(max(int(self.batch_seconds / max(warm, 1e-9)), count), most)
        return self.repeat(
            lambda: _steady(
                self.steps({stream: [action(i) for i in range(count)]}, staged=staged)[stream]
            )
        )

    def repeat(self, measure: Callable[[], float], times: int = 0) -> Timing:
        """Return the median of what `measure` says, and how far it varies."""
        found = [measure() for _ in range(times or self.batches)]
        middle = statistics.median(found)
        distance = statistics.median(abs(seconds - middle) for seconds in found)
        return Timing(middle, distance / middle if middle > 0 else 0.0)

    # Copies ------------------------------------------------------------------------------------

    def copy(
        self, stream: str, pointer: int, host: HostArray, elements: int
    ) -> Callable[[int], Action]:
        """Return the copies of pieces that follow each other through `host`, each to one slot.

        Host memory streams past, as it does in a call; the slot stays, as in a ring.
        """
        slot = DeviceView(pointer, "float32", (elements,), (1,))
        pieces = max(1, host.shape[0] // elements)

        def action(index: int) -> Action:
            at = index % pieces * elements
            piece = host[at : at + elements]
            if stream == "copy_in":
                return lambda handle: self.device.copy_in(slot, piece, handle)
            return lambda handle: self.device.copy_out(piece, slot, handle)

        return action

    def slowdown(
        self, copy_in: Callable[[int], Action], copy_out: Callable[[int], Action],
        in_seconds: float, out_seconds: float,
    ) -> Timing:  # fmt: skip
        """Return how much longer copies take while the other direction is busy, at least 1."""
        least = max(in_seconds, out_seconds, 1e-9)
        lasting = max(FEWEST_STEPS * 2 * least, self.batch_seconds)
        actions = {
            "copy_in": [copy_in(i) for i in range(max(1, round(lasting / max(in_seconds, 1e-9))))],
            "copy_out": [
                copy_out(i) for i in range(max(1, round(lasting / max(out_seconds, 1e-9))))
            ],
        }

        def measure() -> float:
            stops = self.steps(actions, staged=False)
            both_until = min(ended[-1] for ended in stops.values())
            alone = {"copy_in": in_seconds, "copy_out": out_seconds}
            ratios = [
                _steady(ended[ended <= both_until]) / alone[stream]
                for stream, ended in stops.items()
            ]
            return max(1.0, statistics.fmean(ratios))

        return self.repeat(measure, DUPLEX_BATCHES)

    # Computing ---------------------------------------------------------------------------------

    def fill(self, pointer: int, nbytes: int, dtype: str) -> None:
        """Fill device memory with random numbers: zeros would flatter a GPU, garbage slow a CPU."""
        values = np.random.default_rng(0).standard_normal(NOISE_ELEMENTS).astype(numpy_dtype(dtype))
        count = nbytes // DTYPES[dtype]

        def action(start: int) -> Action:
            size = min(NOISE_ELEMENTS, count - start)
            view = DeviceView(pointer + start * DTYPES[dtype], dtype, (size,), (1,))
            return lambda handle: self.device.copy_in(view, values[:size], handle)

        actions = [action(start) for start in range(0, count, NOISE_ELEMENTS)]
        self.steps({"copy_in": actions}, staged=True)

    def workspace(
        self, launch: Launch, buffers: Mapping[str, Buffer], held_bytes: int
    ) -> int | None:
        """Return the scratch bytes of a launch beside what is held; None if there is no room.

        Asking makes the device build what the launch needs, so that no timing includes it.
        """
        asked = ((launch, buffers),)
        answer = self.device.workspace(asked, None)
        if answer is None or not self.fits(held_bytes + aligned(answer[0])):
            room = self.limit_bytes - self.device.arena.array_bytes - held_bytes
            answer = self.device.workspace(asked, room)
        return None if answer is None else answer[0]

    def launch(
        self,
        launch: Launch,
        buffers: Mapping[str, Buffer],
        pointers: Mapping[str, int],
        workspace: tuple[int, int],
        most: int = 0,
    ) -> Timing:
        """Time a launch on buffers at the given addresses, at most so many steps a batch."""
        views = {
            name: DeviceView(
                pointers[name] + buffer.offset_bytes, buffer.dtype, buffer.shape, buffer.strides
            )
            for name, buffer in buffers.items()
        }
        return self.time(
            "compute",
            lambda index: lambda handle: self.device.run(launch, views, workspace, handle),
            most=most,
        )


def make_bench(device: Device, limit: int, *, quick: bool) -> Bench:
    """Return a bench that repeats as often as a calibration of this device should."""
    if quick:
        return Bench(device, limit, batches=3, batch_seconds=0.01)
    return Bench(device, limit, batches=3 if device.kind == "host" else 5, batch_seconds=0.03)


def _steady(stops: Any) -> float:
    """Seconds from one step's end to the next's, after the first quarter of them."""
    if len(stops) < 2:
        return float(stops[-1]) if len(stops) else 0.0
    first = (len(stops) - 1) // WARM_SHARE
    return float(stops[-1] - stops[first]) / (len(stops) - 1 - first)
