"""Hazards: who last read and wrote what, and so what a step of a program has to wait for.

A copy in waits for the copy out that made its bytes, whoever writes memory for all who used it
before. Each stream runs its steps in order, so of each only the latest counts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ooc_cudnn.operations.core.call import Region
from ooc_cudnn.pipeline.program import Binding, byte_range, inside

#: The latest step of each stream.
Latest = dict[str, int]

#: Regions of an array that are told apart. Of more, neighbours become one: steps wait for more than
#: they must.
MOST_REGIONS = 64


class TouchedRegion(NamedTuple):
    """A region of an array that was handed in; of the block, where none is named, bytes."""

    array: str
    region: Region


def latest_steps(into: Latest, found: Latest) -> None:
    """Keep the later step of each stream."""
    for stream, step in found.items():
        if step > into.get(stream, -1):
            into[stream] = step


class _Bytes:
    """The block, as ranges of bytes that do not overlap, with who used each."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ranges: list[tuple[int, Latest, Latest]] = []  # stop, readers, writers

    def _split(self, offset: int) -> None:
        index = bisect_right(self.starts, offset) - 1
        if index >= 0 and self.starts[index] < offset < self.ranges[index][0]:
            stop, readers, writers = self.ranges[index]
            self.ranges[index] = offset, readers, writers
            self.starts.insert(index + 1, offset)
            self.ranges.insert(index + 1, (stop, dict(readers), dict(writers)))

    def _meeting(self, start: int, stop: int) -> slice:
        first = max(bisect_right(self.starts, start) - 1, 0)
        if first < len(self.starts) and self.ranges[first][0] <= start:
            first += 1
        return slice(first, bisect_left(self.starts, stop))

    def users(self, span: tuple[int, int], *, writes: bool) -> Latest:
        steps: Latest = {}
        for _, readers, writers in self.ranges[self._meeting(*span)]:
            latest_steps(steps, writers)
            if writes:
                latest_steps(steps, readers)
        return steps

    def use(self, span: tuple[int, int], steps: Latest, *, writes: bool) -> None:
        start, stop = span
        self._split(start)
        self._split(stop)
        met = self._meeting(start, stop)
        if writes:  # who wrote it waited for all others
            self.starts[met] = [start]
            self.ranges[met] = [(stop, {}, dict(steps))]
            return
        offset = start
        filled: list[tuple[int, tuple[int, Latest, Latest]]] = []
        for low, (high, readers, writers) in zip(self.starts[met], self.ranges[met], strict=True):
            if offset < low:
                filled.append((offset, (low, dict(steps), {})))
            latest_steps(readers, steps)
            filled.append((low, (high, readers, writers)))
            offset = high
        if offset < stop:
            filled.append((offset, (stop, dict(steps), {})))
        self.starts[met] = [low for low, _ in filled]
        self.ranges[met] = [entry for _, entry in filled]


class _Used(NamedTuple):
    """Users of a region, and how many regions became this one."""

    steps: Latest
    merged: int


class _Regions:
    """An array that was handed in, as regions with who used each."""

    def __init__(self) -> None:
        self.read: dict[Region, _Used] = {}
        self.written: dict[Region, _Used] = {}

    def users(self, region: Region, *, writes: bool) -> Latest:
        steps: Latest = {}
        for used in (self.written, self.read) if writes else (self.written,):
            for other, of in used.items():
                if _overlap(region, other):
                    latest_steps(steps, of.steps)
        return steps

    def all_users(self) -> Latest:
        """Everybody who used any of it."""
        found: Latest = {}
        for of in (*self.written.values(), *self.read.values()):
            latest_steps(found, of.steps)
        return found

    def use(self, region: Region, steps: Latest, *, writes: bool) -> None:
        used = self.written if writes else self.read
        latest_steps(used.setdefault(region, _Used({}, 1)).steps, steps)

    def close(self) -> None:
        """Keep few regions."""
        if len(self.read) > MOST_REGIONS:
            self.read = _fewer(self.read)
        if len(self.written) > MOST_REGIONS:
            self.written = _fewer(self.written)


def _fewer(used: Mapping[Region, _Used]) -> dict[Region, _Used]:
    """Regions that were used one after the other as one: about as many in each."""
    most = 2 * sum(of.merged for of in used.values()) / MOST_REGIONS
    groups: list[tuple[list[Region], _Used]] = []
    for region, of in used.items():
        if groups and groups[-1][1].merged + of.merged <= most:
            regions, whole = groups.pop()
        else:
            regions, whole = [], _Used({}, 0)
        latest_steps(whole.steps, of.steps)
        groups.append(([*regions, region], _Used(whole.steps, whole.merged + of.merged)))
    result: dict[Region, _Used] = {}
    for regions, whole in groups:
        before = result.setdefault(_around(regions), _Used({}, 0))
        latest_steps(before.steps, whole.steps)
        result[_around(regions)] = _Used(before.steps, before.merged + whole.merged)
    return result


def _around(regions: Sequence[Region]) -> Region:
    return tuple(
        (min(low for low, _ in parts), max(high for _, high in parts))
        for parts in zip(*regions, strict=True)
    )


def _overlap(one: Region, other: Region) -> bool:
    return all(a < d and c < b for (a, b), (c, d) in zip(one, other, strict=True))


def _written_first(noted: tuple[TouchedRegion, Latest, bool]) -> tuple[bool, int]:
    _, steps, writes = noted
    return not writes, max(steps.values())


class Hazards:
    """Users of each memory, of all items before the one at hand.

    What the item at hand does itself is noted, and counts from its end on: the steps of one call
    wait for each other by its own rings.
    """

    def __init__(self, bindings: Mapping[str, Binding]) -> None:
        self.bindings = bindings
        self._block = _Bytes()
        self._arrays = {
            name: _Regions()
            for name, binding in bindings.items()
            if binding.offset is None and not binding.of
        }
        self._before: dict[str, Latest] = {}
        self._noted: list[tuple[TouchedRegion, Latest, bool]] = []

    def users(self, name: str, region: Region | None, *, writes: bool) -> Latest:
        """The steps to wait for before a region of a tensor is read, or written; None for all."""
        where = self._where(name, region)
        if where.array:
            steps = self._arrays[where.array].users(where.region, writes=writes)
            if writes:
                latest_steps(steps, self._users_before(where.array))
            return steps
        return self._block.users(where.region[0], writes=writes)

    def _users_before(self, array: str) -> Latest:
        """Users of an array's bytes while others lived there: they are all done with."""
        steps = self._before.get(array)
        if steps is None:
            steps = self._before[array] = {}
            for name in self.bindings[array].after:
                latest_steps(steps, self._arrays[name].all_users())
        return steps

    def users_of_bytes(self, span: tuple[int, int]) -> Latest:
        """The steps to wait for before bytes of the block are written."""
        return self._block.users(span, writes=True)

    def note(self, name: str, region: Region | None, steps: Latest, *, writes: bool) -> None:
        """Note that a region of a tensor is read, or written; None for all of it."""
        self._noted.append((self._where(name, region), steps, writes))

    def note_bytes(self, span: tuple[int, int], steps: Latest) -> None:
        """Note that bytes of the block were worked in."""
        self._noted.append((TouchedRegion("", (span,)), steps, True))

    def close(self) -> None:
        """End an item: what it did counts for those that follow."""
        # bytes between rows of a region may be another's: of those that wrote them the last counts
        for where, steps, writes in sorted(self._noted, key=_written_first):
            if where.array:
                self._arrays[where.array].use(where.region, steps, writes=writes)
            else:
                self._block.use(where.region[0], steps, writes=writes)
        for name in {where.array for where, _, _ in self._noted if where.array}:
            self._arrays[name].close()
        self._noted = []

    def _where(self, name: str, region: Region | None) -> TouchedRegion:
        binding = self.bindings[name]
        shape = binding.spec.shape
        region = region or tuple((0, extent) for extent in shape)
        if binding.offset is not None:
            return TouchedRegion("", (byte_range(binding, region),))
        while binding.of:
            region, name = inside(binding.region, region, binding.spec.shape), binding.of
            binding = self.bindings[name]
        return TouchedRegion(name, region)
