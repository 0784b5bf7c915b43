"""Seconds of copies and launches on a device, measured through its contract and nothing else.

Steps are submitted to the streams of a timed run, as the executor submits them, and timed by their
events. What is measured is the steady state: from the end of one step to the end of a later one, so
that neither the start of a run nor what trails it (staging) counts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import accumulate, zip_longest
from typing import Any, NamedTuple, cast

import numpy as np

from ooc_cudnn.devices.base import Device, Event, HostArray, open_run
from ooc_cudnn.devices.binding import bind, declare_buffers
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.alignment import align
from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.tensor import DTYPES, ITEM_BYTES, numpy_dtype, packed_strides

Action = Callable[[Any], Any]
#: Returns the next action of a batch.
Next = Callable[[], Action]
#: A launch, and the buffers it takes.
Launched = tuple[Launch, Mapping[str, Buffer]]
#: Measures a batch: seconds of a step, by stream or by whatever else is told apart.
Measure = Callable[[], Mapping[str, float]]

#: Steps of a batch: as many as fill `Bench.batch_seconds`, within these.
FEWEST_STEPS, MOST_STEPS = 2, 32
#: Turns that are made in any case, and how many times longer than planned the others may take.
FEWEST_TURNS, PATIENCE = 2, 3
#: A first launch that takes no longer may have loaded code: on an H200 up to 0.46 s, of an engine
#: that computes for 1 ms. It is launched again before it is called slow.
LOADING_SECONDS = 1.0
#: Launches that seem to take less may wait for the host, which issues them one by one: the stream
#: is held until a few of them are issued, at so many seconds each, or as many as they seem to take.
#: (Where 100 us were the end, on an H200 a launch of 8.5 us was measured at 34, one of 25 at 117.)
HELD_WITHIN, HELD_STEPS, ISSUE_SECONDS = 5e-4, 8, 2e-4
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

    @classmethod
    def of_host(cls, batches: Sequence[float]) -> Timing:
        """Sum up what the host took: the lower quartile counts, since disturbances only add."""
        return cls(float(np.percentile(batches, 25)), cls.of(batches).spread)


class HostMemory:
    """Host memory of which each copy takes the next part, so that no processor cache holds it."""

    def __init__(self, array: HostArray) -> None:
        self.array, self._at = array, 0
        #: How often all of it was taken.
        self.round = 0

    def next(self, nbytes: int) -> HostArray:
        """The part of so many bytes that was taken longest ago."""
        size = nbytes // self.array.itemsize
        if self._at + size > self.array.size:
            self._at, self.round = 0, self.round + 1
        part = self.array[self._at : self._at + size]
        self._at += size
        return part


class WatchedDevice:
    """A device, and the seconds for which the host is at each launch."""

    def __init__(self, device: Device) -> None:
        self._device, self.seconds = device, list[float]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def run(self, *arguments: Any) -> None:
        """Launch."""
        self.seconds.append(wall(partial(self._device.run, *arguments)))


class PlacedLaunch(NamedTuple):
    """A launch in device memory, which was reserved from `base` on.

    `launching` has the seconds of the host at each launch, where it does not compute it itself.
    """

    base: int
    run: Action
    launching: list[float]


class Bench:
    """Times steps on a device, `batches` times for roughly `batch_seconds` each time.

    Short steps are repeated to fill that. At most `limit_bytes` of the device's memory are held.
    With `refill` False, buffers of a launch that was placed last have their numbers still: nothing
    else writes to the block meanwhile.
    """

    def __init__(
        self,
        device: Device,
        limit_bytes: int,
        *,
        batches: int,
        batch_seconds: float,
        refill: bool = True,
    ) -> None:
        self.device, self.limit_bytes = device, limit_bytes
        self.batches, self.batch_seconds = batches, batch_seconds
        self._refill = refill
        #: The launch whose buffers are filled, and the block that they are in.
        self._filled: tuple[Launched, int, int] | None = None

    def reserve(self, nbytes: int) -> int:
        """Return the address of `nbytes` of device memory; what was reserved before is gone."""
        return self.device.arena.reserve(nbytes, self.limit_bytes, purpose="calibration")

    def fits(self, nbytes: int) -> bool:
        """True if the memory limit allows to reserve so much."""
        return nbytes + self.device.arena.array_bytes <= self.limit_bytes

    # Steps -------------------------------------------------------------------------------------

    def seconds_to_rest(self, actions: Mapping[str, Sequence[Action]], *, staged: bool) -> float:
        """Run actions as `spans` does; return when all was at rest, what is staged out included."""
        return wall(partial(self.spans, actions, staged=staged))

    def spans(
        self, actions: Mapping[str, Sequence[Action]], *, staged: bool, held_seconds: float = 0.0
    ) -> dict[str, Any]:
        """Run the actions of each stream in order, all streams at once; return when each ran.

        That is for each stream an array of seconds, a row (start, stop) for each action. The
        compute stream is held before its first action, so that what the host takes to issue
        launches is no part of what they take.
        """
        events: dict[str, list[Event | None]] = {stream: [] for stream in actions}
        with open_run(self.device, overlap=True, staged=staged, timed=True) as run:
            if held_seconds:
                spin = partial(self.device.spin, held_seconds)
                run.submit("compute", (), spin, signals=False)
            for abreast in zip_longest(*actions.values()):
                for stream, action in zip(actions, abreast, strict=True):
                    if action is not None:
                        events[stream].append(run.submit(stream, (), action, signals=True))
            run.finish(wait=True)
        return {
            stream: np.array([event.interval for event in ended if event is not None])
            for stream, ended in events.items()
        }

    def steady(
        self,
        several: Iterable[Mapping[str, Next]],
        *,
        staged: bool,
        most: int = MOST_STEPS,
        patience: float = math.inf,
    ) -> list[dict[str, Timing]]:
        """Time a step of each stream while all of them are busy; of several such, in turns.

        A batch has at most so many steps of a stream. Where a step of the warm-up takes longer than
        `patience` (seconds), and again if it may have loaded code, that is what it takes.
        """
        how: dict[str, Any] = {"staged": staged, "most": most, "patience": patience}
        return self.in_turns([self._measure(each, **how) for each in several])

    def at_rest(
        self, wanted: Iterable[tuple[Mapping[str, Next], int]], *, staged: bool
    ) -> list[Timing]:
        """Time how long so many copies each way take until all is at rest; of several, in turns."""

        def until(copies: Mapping[str, Next], number: int) -> dict[str, float]:
            batch = _batch(copies, dict.fromkeys(copies, number))
            return {"": self.seconds_to_rest(batch, staged=staged)}

        measures = [partial(until, *each) for each in wanted]
        for measure in measures:
            measure()  # warms up
        return [found[""] for found in self.in_turns(measures, fewest=self.batches)]

    def _measure(
        self, actions: Mapping[str, Next], *, staged: bool, most: int, patience: float
    ) -> Measure:
        """Warm a step of each stream up, and return what measures a batch."""
        few = min(FEWEST_STEPS, most)

        def warmed_up() -> dict[str, float]:
            warm = self.spans(_batch(actions, dict.fromkeys(actions, few)), staged=staged)
            return {stream: max(_steady(span[:, 1]), 1e-9) for stream, span in warm.items()}

        seconds = warmed_up()
        if patience < max(seconds.values()) < LOADING_SECONDS:
            seconds = warmed_up()  # the first launch of a kernel loads its code
        if max(seconds.values()) > patience:
            return lambda: seconds
        lasting = max(self.batch_seconds, few * len(actions) * max(seconds.values()))
        counts = {way: min(max(int(lasting / spent), few), most) for way, spent in seconds.items()}
        held = 0.0
        if self.device.kind == "cuda" and seconds.get("compute", HELD_WITHIN) < HELD_WITHIN:
            counts["compute"] = min(counts["compute"], HELD_STEPS)
            held = max(ISSUE_SECONDS, seconds["compute"]) * counts["compute"]

        def measure() -> dict[str, float]:
            found = self.spans(_batch(actions, counts), staged=staged, held_seconds=held)
            until = min(span[-1, 1] for span in found.values())
            return {stream: _of_step(stream, span, until) for stream, span in found.items()}

        return measure

    def in_turns(
        self, measures: Sequence[Measure], *, fewest: int = FEWEST_TURNS
    ) -> list[dict[str, Timing]]:
        """Measure several things in turns, each `batches` times, or less often what takes long.

        Every turn has another random order: what drifts or disturbs meanwhile hits all alike.
        """
        samples: list[list[Mapping[str, float]]] = [[] for _ in measures]
        shuffled = np.random.default_rng(0)
        lasting = PATIENCE * len(measures) * self.batches * self.batch_seconds
        began = time.perf_counter()
        for turn in range(self.batches):
            if turn >= fewest and time.perf_counter() - began > lasting:
                break
            for index in shuffled.permutation(len(measures)):
                samples[index].append(measures[index]())
        return [{name: Timing.of([of[name] for of in one]) for name in one[0]} for one in samples]

    # Copies ------------------------------------------------------------------------------------

    def copies(
        self, pointer: int, slot_bytes: int, regions: Mapping[str, Callable[[], HostArray]]
    ) -> dict[str, Next]:
        """Return copies each way between its packed slot and one region after another.

        The slots lie one behind the other, and regions however they lie.
        """

        def copy(way: str, pointer: int, region: Callable[[], HostArray]) -> Action:
            lying = region()
            strides = packed_strides(lying.shape, "channels_first")
            slot = DeviceView(pointer, "float32", lying.shape, strides)
            if way == "copy_in":
                return partial(self.device.copy_in, slot, lying)
            return partial(self.device.copy_out, lying, slot)

        return {
            way: partial(copy, way, pointer + at * slot_bytes, region)
            for at, (way, region) in enumerate(regions.items())
        }

    # Computing ---------------------------------------------------------------------------------

    def fill(self, pointer: int, nbytes: int, dtype: str) -> None:
        """Fill device memory with random numbers: zeros would flatter a GPU, garbage slow a CPU.

        A few come from the host; on the device they are copied over and over.
        """
        source: Any = _noise(dtype)[: nbytes // ITEM_BYTES[dtype]].view(np.uint8)
        filled, size, actions = 0, source.nbytes, list[Action]()
        while size:
            target = DeviceView(pointer + filled, "uint8", (size,), (1,))
            actions.append(partial(self.device.copy_in, target, source))
            filled += size
            size = min(filled, nbytes - filled)
            source = DeviceView(pointer, "uint8", (size,), (1,))
        self.spans({"copy_in": actions}, staged=True)

    def time_launch(
        self,
        launched: Launched,
        scratch_bytes: int | None = None,
        *,
        most: int = MOST_STEPS,
        patience: float = math.inf,
    ) -> tuple[Timing, float | None] | None:
        """Time a launch, and the host at it where that is known; None if there is no room.

        Where the warm-up takes longer than `patience` (seconds), it is all.
        """
        placed = self.placed(launched, scratch_bytes)
        if placed is None:
            return None
        (timings,) = self.steady(
            [{"compute": lambda: placed.run}], staged=False, most=most, patience=patience
        )
        launching = Timing.of_host(placed.launching).seconds if placed.launching else None
        return timings["compute"], launching

    def placed(
        self, launched: Launched, scratch_bytes: int | None = None, *, before_bytes: int = 0
    ) -> PlacedLaunch | None:
        """Reserve memory for a launch, filled with random numbers, and so many bytes before it.

        None if there is no room. Where the scratch is not known, the device is asked for that of
        the preferred algorithm, else of one that fits; so it builds what the launch needs, and no
        timing includes that.
        """
        (launch, buffers), device = launched, self.device
        offsets, held = offsets_of(buffers)
        held += before_bytes
        room = self.limit_bytes - device.arena.array_bytes - held
        limits = (None, room) if room >= 0 else ()
        answers: Iterable[Any] = (device.workspace((launched,), limit) for limit in limits)
        if scratch_bytes is not None:
            answers = [(scratch_bytes,)]
        fitting = (answer[0] for answer in answers if answer and align(answer[0]) <= room)
        if (scratch := next(fitting, None)) is None:
            return None
        base, views = self.reserve(held + align(scratch)), {}
        filled = launched, base, device.arena.block_bytes
        fills, self._filled = self._refill or self._filled != filled, filled
        for name, buffer in buffers.items():
            start = base + before_bytes + offsets[name]
            if fills:
                self.fill(start, buffer.nbytes, buffer.dtype)
            views[name] = DeviceView(
                start + buffer.offset_bytes, buffer.dtype, buffer.shape, buffer.strides
            )
        watched, formal = WatchedDevice(device), declare_buffers((launch,), buffers)
        run = bind(cast(Device, watched), (launch,), formal, views, (base + held, scratch))
        return PlacedLaunch(base, run, [] if device.kind == "host" else watched.seconds)


def wall(run: Callable[[], object]) -> float:
    """Seconds of the host for `run`."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def repeated_seconds(run: Callable[[], object], times: int) -> list[float]:
    """Seconds of the host for `run`, so many times after one that only warms up."""
    run()
    return [wall(run) for _ in range(times)]


def offsets_of(buffers: Mapping[str, Buffer]) -> tuple[dict[str, int], int]:
    """Offsets of buffers whose blocks lie one behind the other, and bytes in all."""
    sizes: dict[str, int] = {}
    for name, buffer in buffers.items():
        block = buffer.block or name
        sizes[block] = max(sizes.get(block, 0), align(buffer.nbytes))
    starts = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
    offsets = {name: starts[buffer.block or name] for name, buffer in buffers.items()}
    return offsets, sum(sizes.values())


def _batch(actions: Mapping[str, Next], counts: Mapping[str, int]) -> dict[str, list[Action]]:
    return {stream: [actions[stream]() for _ in range(count)] for stream, count in counts.items()}


@cache
def _noise(dtype: str) -> HostArray:
    """Random numbers, the same ones each time; integers are small, and not negative."""
    values: HostArray = np.random.default_rng(0).standard_normal(NOISE_ELEMENTS)
    if dtype not in DTYPES:
        values = np.abs(values)
    return values.astype(numpy_dtype(dtype))


def _steady(stops: Any) -> float:
    """Seconds from one step's end to the next's, after the first quarter of them."""
    if len(stops) < 2:
        return float(stops[-1])
    first = (len(stops) - 1) // WARM_SHARE
    return float(stops[-1] - stops[first]) / (len(stops) - 1 - first)


def _of_step(stream: str, span: Any, until: float) -> float:
    """Seconds of a step while all streams were busy."""
    # two steps at least: where one stream was far slower than in the warm-up
    busy = span[: max(FEWEST_STEPS, int(np.sum(span[:, 1] <= until)))]
    found = _steady(busy[:, 1])
    # of computing by itself, where the host was late to issue it in spite of being held
    return min(found, float(np.median(busy[:, 1] - busy[:, 0]))) if stream == "compute" else found
