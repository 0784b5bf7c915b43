"""Offset assignment of a step's host tensors in one block of pinned memory.

A tensor lives there from the first item of the program that touches it to the last. What lives at
other times may take the same bytes, as on the device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from ooc_cudnn.memory.alignment import align
from ooc_cudnn.memory.offset_assignment import LiveBuffer, assign_offsets
from ooc_cudnn.pipeline.program import Binding, Item, Move, Program, Task


def assign_pinned_offsets(program: Program, apart: Collection[str]) -> Program:
    """Give what lives on the host for the run alone its place in one block.

    Parameters
    ----------
    program : Program
    apart : collection of str
        Tensors on the host that have memory of their own: results, and what users hand in.
    """
    lives = {name: each for name, each in _live_ranges(program).items() if name not in apart}
    names = list(lives)
    offsets, nbytes = assign_offsets([lives[name] for name in names])
    spans = {
        name: (offset, offset + align(lives[name].nbytes))
        for name, offset in zip(names, offsets, strict=True)
    }
    bindings = dict(program.bindings)
    for name in names:
        after = tuple(
            other
            for other in names
            if lives[other].last < lives[name].first and _meet(spans[other], spans[name])
        )
        bindings[name] = bindings[name]._replace(after=after)
    starts = {name: start for name, (start, _) in spans.items()}
    return replace(program, bindings=bindings, pinned=starts, pinned_bytes=nbytes)


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _live_ranges(program: Program) -> dict[str, LiveBuffer]:
    """The first and the last item that touches each tensor made for the run on the host."""
    buffers = dict[str, LiveBuffer]()
    for index, item in enumerate(program.items):
        for name in _touched(item):
            base = _base(name, program.bindings)
            if base in program.between:
                first = buffers[base].first if base in buffers else index
                buffers[base] = LiveBuffer(first, index, program.between[base].nbytes)
    return buffers


def _touched(item: Item) -> Iterator[str]:
    """The tensors of an item that may be on the host."""
    if isinstance(item, Task):
        yield from item.binds.values()
    elif isinstance(item, Move):
        yield item.ends[1]


def _base(name: str, bindings: Mapping[str, Binding]) -> str:
    while bindings[name].of:
        name = bindings[name].of
    return name
