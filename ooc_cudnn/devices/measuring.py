"""Seconds of copies and launches on a device, measured through its contract and nothing else.

Steps are submitted to the streams of a timed run, as the executor submits them, and timed by their
events. What is measured is the steady state: from the end of one step to the end of a later one, so
that neither the start of a run nor what trails it (staging) counts.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from ooc_cudnn.devices.base import Device, Event, HostArray
from ooc_cudnn.devices.binding import bind, declared
from ooc_cudnn.devices.running import running
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.alignment import aligned
from ooc_cudnn.operations.splittable import Buffer, Launch
from ooc_cudnn.tensor import DTYPES, numpy_dtype

Action = Callable[[Any], Any]
#: Measures a batch: seconds of a step, by stream or by whatever else is told apart.
Measure = Callable[[], Mapping[str, float]]

#: Steps of a batch: as many as fill `Bench.batch_seconds`, within these.
FEWEST_STEPS, MOST_STEPS = 2, 32
#: Turns that are made in any case, and how many times longer than planned the others may take.
FEWEST_TURNS, PATIENCE = 2, 3
#: Launches that seem to take less may wait for the host, which issues them one by one: the stream
#: is held until a few of them are issued, at about so many seconds each.
HELD_WITHIN, HELD_STEPS, ISSUE_SECONDS = 1e-4, 8, 2e-4
#: Of a batch's steps, the first quarter only brings it to its steady state.
WARM_SHARE = 4
#: Random elements that buffers are filled with, over and over.
NOISE_ELEMENTS = 2**18


class Timing(NamedTuple):
    """Seconds of one step, the median of several batches; and how far they lie from it.

    `spread` is the median of the batches' distances from the median, as a share of it: one batch
    that was disturbed does not count, half of them do.

    Examples
    --------
    >>> Timing.of([1.0, 1.25, 0.5, 1.0, 9.0])
    Timing(seconds=1.0, spread=0.25)
    """

    seconds: float
    spread: float

    @classmethod
    def of(cls, batches: Sequence[float]) -> Timing:
        """Sum batches up."""
        middle = statistics.median(batches)
        distance = statistics.median(abs(seconds - middle) for seconds in batches)
        return cls(middle, distance / middle if middle > 0 else 0.0)


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


class Watched:
    """A device, and the seconds for which the host is at each launch."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.seconds = list[float]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def run(self, *arguments: Any) -> None:
        """Launch."""
        began = time.perf_counter()
        self._device.run(*arguments)
        self.seconds.append(time.perf_counter() - began)


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

    Attributes
    ----------
    launching : list of float
        Seconds for which the host was at each launch that was timed last.
    """

    def __init__(
        self, device: Device, limit_bytes: int, *, batches: int, batch_seconds: float
    ) -> None:
        self.device, self.limit_bytes = device, limit_bytes
        self.batches, self.batch_seconds = batches, batch_seconds
        self.launching = list[float]()

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
        return {stream: spans[:, 1] for stream, spans in self.spans(actions, staged=staged).items()}

    def seconds_to_rest(self, actions: Mapping[str, Sequence[Action]], *, staged: bool) -> float:
        """Run actions as `steps` does; return when all was at rest, what is staged out included."""
        began = time.perf_counter()
        stops = self.steps(actions, staged=staged)
        if self.device.kind == "simulated":  # its clock is not the host's
            return max(float(ended[-1]) for ended in stops.values())
        return time.perf_counter() - began

    def spans(
        self, actions: Mapping[str, Sequence[Action]], *, staged: bool, held_seconds: float = 0.0
    ) -> dict[str, Any]:
        """Run actions as `steps` does; return when each began and ended.

        The compute stream is held before its first action, so that what the host takes to issue
        launches is no part of what they take.
        """
        events: dict[str, list[Event | None]] = {stream: [] for stream in actions}
        with running(self.device, overlap=True, staged=staged, timed=True) as run:
            if held_seconds:
                hold = partial(self.device.hold, held_seconds)
                run.submit("compute", (), hold, signals=False)
            for index in range(max(map(len, actions.values()))):
                for stream, queued in actions.items():
                    if index < len(queued):
                        events[stream].append(run.submit(stream, (), queued[index], signals=True))
            run.finish(wait=True)
        return {
            stream: np.array([event.interval for event in ended if event is not None])
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
        measure = self.prepare({stream: action}, staged=staged, most=most or MOST_STEPS)
        return self.in_turns([measure])[0][stream]

    def prepare(
        self, actions: Mapping[str, Callable[[int], Action]], *, staged: bool, most: int
    ) -> Measure:
        """Warm a step of each stream up, and return what measures a batch of them.

        Several streams run at once, and are timed while all of them are busy.
        """
        few = min(FEWEST_STEPS, most)
        warm = self.steps(
            {stream: [action(i) for i in range(few)] for stream, action in actions.items()},
            staged=staged,
        )
        seconds = {stream: max(_steady(stops), 1e-9) for stream, stops in warm.items()}
        lasting = max(self.batch_seconds, few * len(actions) * max(seconds.values()))
        counts = {
            stream: min(max(int(lasting / spent), few), most) for stream, spent in seconds.items()
        }
        held = 0.0
        if self.device.kind == "cuda" and seconds.get("compute", HELD_WITHIN) < HELD_WITHIN:
            counts["compute"] = min(counts["compute"], HELD_STEPS)
            held = ISSUE_SECONDS * counts["compute"]

        def measure() -> dict[str, float]:
            spans = self.spans(
                {
                    stream: [action(i) for i in range(counts[stream])]
                    for stream, action in actions.items()
                },
                staged=staged,
                held_seconds=held,
            )
            until = min(span[-1, 1] for span in spans.values())
            found = {}
            for stream, span in spans.items():
                # two steps at least: where one stream was far slower than in the warm-up
                meanwhile = span[: max(FEWEST_STEPS, int(np.sum(span[:, 1] <= until)))]
                found[stream] = _steady(meanwhile[:, 1])
                if stream == "compute":
                    # where the host was late in spite of that
                    alone = float(np.median(meanwhile[:, 1] - meanwhile[:, 0]))
                    found[stream] = min(found[stream], alone)
            return found

        return measure

    def in_turns(
        self, measures: Sequence[Measure], *, fewest: int = FEWEST_TURNS
    ) -> list[dict[str, Timing]]:
        """Measure several things in turns, each `batches` times, or less often what takes long.

        Every turn has another random order, so that whatever drifts or disturbs meanwhile (clocks,
        temperature, other processes) hits all of them alike.
        """
        found: list[dict[str, list[float]]] = [{} for _ in measures]
        shuffled = np.random.default_rng(0)
        lasting = PATIENCE * len(measures) * self.batches * self.batch_seconds
        began = time.perf_counter()
        for turn in range(self.batches):
            if turn >= fewest and time.perf_counter() - began > lasting:
                break
            for index in shuffled.permutation(len(measures)):
                for name, seconds in measures[index]().items():
                    found[index].setdefault(name, []).append(seconds)
        return [{name: Timing.of(each) for name, each in one.items()} for one in found]

    def repeat(self, measure: Callable[[], float], times: int) -> Timing:
        """Sum up what `measure` says so many times."""
        return Timing.of([measure() for _ in range(times)])

    # Copies ------------------------------------------------------------------------------------

    def copy(
        self, stream: str, pointer: int, host: HostArray, elements: int
    ) -> Callable[[int], Action]:
        """Return the copies of pieces that follow each other through `host`, each to one slot.

        Host memory streams past, as it does in a call, and a batch goes on where the last one
        ended, so that no processor cache holds what is copied. The slot stays, as in a ring.
        """
        slot = DeviceView(pointer, "float32", (elements,), (1,))
        places = itertools.cycle(range(0, max(1, host.size // elements) * elements, elements))

        def action(_: int) -> Action:
            at = next(places)
            piece = host[at : at + elements]
            if stream == "copy_in":
                return lambda handle: self.device.copy_in(slot, piece, handle)
            return lambda handle: self.device.copy_out(piece, slot, handle)

        return action

    def strided_copy(
        self, stream: str, pointer: int, host: HostArray, elements: int, row: int
    ) -> Callable[[int], Action]:
        """Return copies of a piece of which the host has every other row of `row` elements."""
        rows = elements // row
        slot = DeviceView(pointer, "float32", (rows, row), (row, 1))
        lying = host[: host.size // (2 * elements) * 2 * elements].reshape(-1, rows, 2 * row)
        pieces = itertools.cycle(lying[:, :, :row])

        def action(_: int) -> Action:
            piece = next(pieces)
            if stream == "copy_in":
                return lambda handle: self.device.copy_in(slot, piece, handle)
            return lambda handle: self.device.copy_out(piece, slot, handle)

        return action

    # Computing ---------------------------------------------------------------------------------

    def fill(self, pointer: int, nbytes: int, dtype: str) -> None:
        """Fill device memory with random numbers: zeros would flatter a GPU, garbage slow a CPU.

        A few come from the host; on the device they are copied over and over.
        """
        values = _noise(dtype)[: nbytes // DTYPES[dtype]]

        def copy(source: Any, start: int, size: int) -> Action:
            view = DeviceView(pointer + start, "uint8", (size,), (1,))
            return lambda handle: self.device.copy_in(view, source, handle)

        filled = values.nbytes
        actions = [copy(values.view(np.uint8), 0, filled)]
        while 0 < filled < nbytes:
            size = min(filled, nbytes - filled)
            actions.append(copy(DeviceView(pointer, "uint8", (size,), (1,)), filled, size))
            filled += size
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
        """Time a launch on buffers at the given addresses, at most so many steps a batch.

        What the host takes for it is left in `launching`.
        """
        watched = Watched(self.device)
        self.launching = watched.seconds
        action = self.action(launch, buffers, pointers, workspace, watched)
        return self.time("compute", action, most=most)

    def action(
        self,
        launch: Launch,
        buffers: Mapping[str, Buffer],
        pointers: Mapping[str, int],
        workspace: tuple[int, int],
        watched: Watched | None = None,
    ) -> Callable[[int], Action]:
        """Return the launches of a batch, on buffers at the given addresses."""
        views = {
            name: DeviceView(
                pointers[name] + buffer.offset_bytes, buffer.dtype, buffer.shape, buffer.strides
            )
            for name, buffer in buffers.items()
        }

        device = cast(Device, watched or self.device)
        run = bind(device, (launch,), declared((launch,), buffers), views, workspace)
        return lambda index: run

    @property
    def launching_seconds(self) -> float | None:
        """What the host takes for the launch timed last; None where it computes it itself.

        The lower quartile: what disturbs a host only adds.
        """
        if self.device.kind == "host" or not self.launching:
            return None
        return undisturbed(self.launching)


def offsets_of(buffers: Mapping[str, Buffer]) -> tuple[dict[str, int], int]:
    """Offsets of buffers whose blocks lie one behind the other, and bytes in all."""
    sizes: dict[str, int] = {}
    for name, buffer in buffers.items():
        block = buffer.block or name
        sizes[block] = max(sizes.get(block, 0), aligned(buffer.nbytes))
    blocks, total = dict[str, int](), 0
    for block, size in sizes.items():
        blocks[block], total = total, total + size
    return {name: blocks[buffer.block or name] for name, buffer in buffers.items()}, total


def undisturbed(seconds: Sequence[float]) -> float:
    """The lower quartile of what the host took for the same thing: disturbances only add."""
    return float(np.percentile(seconds, 25))


@cache
def _noise(dtype: str) -> HostArray:
    """Random numbers, the same ones each time."""
    values: HostArray = np.random.default_rng(0).standard_normal(NOISE_ELEMENTS)
    return values.astype(numpy_dtype(dtype))


def make_bench(device: Device, limit: int, *, quick: bool) -> Bench:
    """Return a bench that repeats as often as a calibration of this device should."""
    if quick:
        return Bench(device, limit, batches=3, batch_seconds=0.01)
    return Bench(device, limit, batches=5, batch_seconds=0.01 if device.kind == "host" else 0.03)


def _steady(stops: Any) -> float:
    """Seconds from one step's end to the next's, after the first quarter of them."""
    if len(stops) < 2:
        return float(stops[-1]) if len(stops) else 0.0
    first = (len(stops) - 1) // WARM_SHARE
    return float(stops[-1] - stops[first]) / (len(stops) - 1 - first)
