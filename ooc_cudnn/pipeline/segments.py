"""Segments of a program between its pauses, and what is in its block meanwhile.

All parts work in one block, at the same addresses, and on the same pinned memory. Where somebody
else wants the block meanwhile, what later parts read of it is copied to the host, and back before
the next one runs: these are programs of moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ooc_cudnn.pipeline.program import (
    COPY_IN,
    Binding,
    Item,
    Move,
    Program,
    Task,
    byte_range,
)
from ooc_cudnn.tensor import TensorSpec


@dataclass(frozen=True, eq=False)
class Segments:
    """Parts of a program between its pauses, and the bytes that are kept at each.

    Attributes
    ----------
    programs : tuple of Program
        In order: one more than there are pauses.
    kept : tuple of tuple of (int, int)
        At each pause, ranges of bytes of the block that were touched before and will be after it.
    """

    programs: tuple[Program, ...]
    kept: tuple[tuple[tuple[int, int], ...], ...]

    def kept_bytes(self, pause: int) -> int:
        """Bytes of the block that are kept at a pause."""
        return sum(stop - start for start, stop in self.kept[pause])

    def moves(self, pause: int, stream: str) -> Program:
        """The program that copies what is kept to the host (or back): arrays "0", "1", ..."""
        bindings: dict[str, Binding] = {}
        items: list[Item] = []
        for number, (start, stop) in enumerate(self.kept[pause]):
            host, on_device = str(number), f"{number} on the device"
            shape = (stop - start,)
            bindings[host] = Binding(TensorSpec(shape, "uint8", "pinned"))
            bindings[on_device] = Binding(TensorSpec(shape, "uint8", "device"), start)
            ends = (host, on_device) if stream == COPY_IN else (on_device, host)
            items.append(Move(f"{stream} of {start} to {stop}", stream, *ends))
        whole = self.programs[0]
        name = f"what {whole.name} keeps on the device"
        return Program(name, tuple(items), bindings, whole.device_bytes)


def split_at_pauses(program: Program, pauses: Sequence[int]) -> Segments:
    """The parts of a program that pauses before some of its items.

    Raises
    ------
    ValueError
        If these are not in order, or a part has no items but the last.
    """
    ends = (0, *pauses, len(program.items))
    if any(start >= stop for start, stop in pairwise(ends[:-1])) or ends[-2] > ends[-1]:
        raise ValueError(f"{program.name} cannot pause before items {list(pauses)}")
    parts = [_of(program, program.items[start:stop]) for start, stop in pairwise(ends)]
    kept = [tuple(_kept(program, pause)) for pause in pauses]
    return Segments(tuple(parts), tuple(kept))


def _of(program: Program, items: tuple[Item, ...]) -> Program:
    """The program of some of the items, with the tensors that they touch."""
    names = {name for item in items for name in tensors_touched(program, item)}
    bindings = {
        name: binding._replace(after=tuple(other for other in binding.after if other in names))
        for name, binding in program.bindings.items()
        if name in names
    }
    return replace(program, items=items, bindings=bindings, pause=None)


def _kept(program: Program, pause: int) -> list[tuple[int, int]]:
    """Bytes that items behind a pause read of what those before it left.

    By where they lie: tensors have several names, as views of other shapes.
    """
    spans = {
        _span(program, n) for item in program.items[:pause] for n in tensors_touched(program, item)
    }
    spans.discard(None)
    left = list(_merged(span for span in spans if span))
    kept: list[tuple[int, int]] = []
    written: list[tuple[int, int]] = []
    for item in program.items[pause:]:
        results = _written(item)
        for name in tensors_touched(program, item):
            span = _span(program, name)
            # what is added to was there before
            if span and (name not in results or (span in spans and isinstance(item, Task))):
                kept += _outside(_within(span, left), written)
        for name in results:
            span = _span(program, name)
            if span and span[1] - span[0] == program.bindings[name].spec.nbytes:
                written = list(_merged([*written, span]))
    return list(_merged(kept))


def _written(item: Item) -> set[str]:
    """The tensors that an item writes."""
    if isinstance(item, Task):
        results = item.request.chain.results
        return {bind for name, bind in item.binds.items() if name in results}
    return {item.target} if isinstance(item, Move) else set()


def _span(program: Program, name: str) -> tuple[int, int] | None:
    """The bytes of the block that a tensor lies in, if it does."""
    binding = program.bindings[name]
    if binding.offset is None:
        return None
    return byte_range(binding, tuple((0, extent) for extent in binding.spec.shape))


def _within(span: tuple[int, int], ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Intersections of a range with others.

    >>> _within((2, 9), [(0, 4), (6, 8), (9, 12)])
    [(2, 4), (6, 8)]
    """
    cut = ((max(span[0], start), min(span[1], stop)) for start, stop in ranges)
    return [(start, stop) for start, stop in cut if start < stop]


def _outside(
    spans: Iterable[tuple[int, int]], ranges: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Ranges without what is in any of others.

    >>> _outside([(2, 9), (12, 16)], [(4, 6), (8, 14)])
    [(2, 4), (6, 8), (14, 16)]
    """
    found = list(spans)
    for start, stop in ranges:
        parts = ((low, min(high, start), max(low, stop), high) for low, high in found)
        found = [e for a, b, c, d in parts for e in ((a, b), (c, d)) if e[0] < e[1]]
    return found


def tensors_touched(program: Program, item: Item) -> Iterator[str]:
    """The tensors that an item reads or writes, and those that these are views of."""
    names: Iterable[str] = ()
    if isinstance(item, Task):
        names = item.binds.values()
    elif isinstance(item, Move):
        names = item.ends
    for name in names:
        while name:
            yield name
            name = program.bindings[name].of


def _merged(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges of bytes in order, those that meet as one.

    >>> list(_merged([(8, 16), (0, 4), (12, 20), (20, 24)]))
    [(0, 4), (8, 24)]
    """
    spans: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(stop, spans[-1][1])
        else:
            spans.append((start, stop))
    yield from spans
