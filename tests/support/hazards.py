"""A judge of schedules: which steps touch the same memory, and may do so in either order.

For each byte of the program's block, and each element of an array that is handed in, it keeps the
last step of each stream that read it, and that wrote it. Who comes next must know, by its stream or
what it waits for, that those have ended. It shares nothing with what makes the waits
(`pipeline/hazards.py`, the rings of `pipeline/schedule.py`) but for where memory lies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ooc_cudnn.pipeline.program import Move, Task
from ooc_cudnn.pipeline.task_buffers import place_buffers
from ooc_cudnn.tensor import ITEM_BYTES

STREAMS = ("copy_in", "compute", "copy_out")


class Hazard(NamedTuple):
    """Two steps that touch the same memory, one of them writing, and that nothing orders."""

    earlier: int
    later: int
    where: str


class Use(NamedTuple):
    """Memory that a step reads or writes: of each stream, who last read and wrote it."""

    where: str
    writes: bool
    readers: list
    writers: list


class _Memory:
    """Who last used each element, by stream."""

    def __init__(self, shape):
        self.readers = [np.full(shape, -1, np.int32) for _ in STREAMS]
        self.writers = [np.full(shape, -1, np.int32) for _ in STREAMS]

    def use(self, where, writes, part):
        """What `part` picks of it."""
        return Use(where, writes, list(map(part, self.readers)), list(map(part, self.writers)))


def clocks(schedule, waits, *, staged):
    """Of each step, the last step of each stream that has ended when it begins.

    With `staged`, threads write to the host what leaves, after later steps of its stream began: it
    has ended for those alone that wait for it, or for one that left after it.
    """
    found, latest = np.full((len(schedule.steps), len(STREAMS)), -1, np.int32), {}
    for at, step in enumerate(schedule.steps):
        assert all(each < at for each in waits[at]), "a step waits for a later one"
        own = STREAMS.index(step.stream)
        for before in (*waits[at], *latest.get(own, ())):
            found[at] = np.maximum(found[at], found[before])
            other = STREAMS.index(schedule.steps[before].stream)
            if before in waits[at] or step.stream != "copy_out" or not staged:
                found[at, other] = max(found[at, other], before)
        latest[own] = (at,)
    return found


def hazards(schedule, waits=None, *, staged=True):
    """Every hazard of a schedule, one for each later step, memory and stream.

    Parameters
    ----------
    schedule : Schedule
    waits : sequence of tuple, optional
        In place of what its steps wait for.
    staged : bool
        Whether threads write to the host what leaves (`clocks`).
    """
    waits = [step.waits for step in schedule.steps] if waits is None else waits
    known, uses, found = clocks(schedule, waits, staged=staged), _Uses(schedule), []
    for at, step in enumerate(schedule.steps):
        own = STREAMS.index(step.stream)
        used = list(uses.of(step))
        for use in used:
            for index, stream in enumerate(STREAMS):
                others = [use.writers[index]] + [use.readers[index]] * use.writes
                last = max(int(each.max(initial=-1)) for each in others)
                if last > known[at, index]:
                    found.append(Hazard(last, at, f"{use.where}: {stream} and {step.stream}"))
        for use in used:
            (use.writers if use.writes else use.readers)[own][...] = at
    return found


class _Uses:
    """The memory that each step of a schedule uses."""

    def __init__(self, schedule):
        self.program = program = schedule.program
        self.block = _Memory((program.device_bytes,))
        self.pinned = _Memory((program.pinned_bytes,))
        self.arrays = {
            name: _Memory(binding.spec.shape)
            for name, binding in program.bindings.items()
            if binding.offset is None and not binding.of and name not in program.pinned
        }
        self.offsets = {
            index: place_buffers(item.plan, schedule.sizes[index], item.offset)
            for index, item in enumerate(program.items)
            if isinstance(item, Task)
        }

    def of(self, step):
        """Everything that a step uses."""
        item = self.program.items[step.item]
        if isinstance(item, Move):
            (place,) = step.places
            yield self._tensor(item.source, place.region, False)
            yield self._tensor(item.target, place.region, True)
            return
        offsets, results = self.offsets[step.item], item.request.chain.results
        if step.copies:
            (place,) = step.places
            leaves = step.copies == "copy_out"
            yield self._tensor(item.binds[place.operand], place.region, leaves)
            yield self._bytes(offsets.span(place.operand, place.slot), not leaves)
            return
        for place in step.places:
            writes = place.operand in results
            if place.slot < 0:
                yield self._tensor(item.binds[place.operand], place.region, writes)
            else:
                yield self._bytes(offsets.span(place.operand, place.slot), writes)
        beside = {buffer.block or name for name, buffer in step.buffers.items()}
        for name in ("workspace", *sorted(beside - set(item.request.chain.operands))):
            yield self._bytes(offsets.span(name), True)

    def _bytes(self, span, writes):
        start, stop = span or (0, 0)
        return self.block.use(f"bytes {start} to {stop}", writes, lambda known: known[start:stop])

    def _tensor(self, name, region, writes):
        binding = self.program.bindings[name]
        if binding.offset is not None:
            return self.block.use(
                name,
                writes,
                lambda known: _sliced(_view(known, binding.spec, binding.offset), region),
            )
        path = [region]
        while binding.of:
            path.append((binding.spec.shape, binding.region))
            name, binding = binding.of, self.program.bindings[binding.of]
        if name not in self.program.pinned:
            return self.arrays[name].use(name, writes, lambda known: _part(known, path))
        start = self.program.pinned[name]
        return self.pinned.use(
            name, writes, lambda known: _part(_view(known, binding.spec, start), path)
        )


def _part(array, path):
    """A region of a view of a view of an array, without a copy; it may have a last axis more."""
    found, more = array, array.shape[len(path[-1] if len(path) == 1 else path[-1][1]) :]
    for shape, region in reversed(path[1:]):
        found = _sliced(found, region).reshape((*shape, *more))
    found = _sliced(found, path[0])
    assert found.size == 0 or np.shares_memory(found, array)
    return found


def _sliced(array, region):
    return array[tuple(slice(*each) for each in region)]


def _view(known, spec, offset):
    """The bytes of a tensor in a block, along a last axis of their own."""
    size = ITEM_BYTES[spec.dtype]
    return as_strided(
        known[offset:],
        (*spec.shape, size),
        (*(stride * size * known.itemsize for stride in spec.strides), known.itemsize),
    )
