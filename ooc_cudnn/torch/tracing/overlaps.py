"""Tensors that share memory without being one: a write to one of them changes the others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.tracing.body_writes import storage_key
from ooc_cudnn.torch.tracing.graph import Graph
from ooc_cudnn.torch.tracing.normalizing import is_statistics_update


def _span(tensor: Any) -> tuple[int, int]:
    """The first byte of a tensor, and the one behind its last; (0, 0) where it has none."""
    if not isinstance(tensor, torch.Tensor) or isinstance(tensor, FakeTensor):
        return 0, 0
    if tensor.layout != torch.strided or not tensor.numel() or tensor.is_meta:
        return 0, 0
    if tensor.is_contiguous():
        first = tensor.data_ptr()
        return first, first + tensor.nbytes
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((extent - 1) * stride for extent, stride in pairs)
    first = tensor.data_ptr()
    return first, first + (last + 1) * tensor.element_size()


def memory_of(tensor: Any) -> int:
    """Return a key of the memory that a tensor or an array lies in."""
    if isinstance(tensor, torch.Tensor):
        return storage_key(tensor) if tensor.layout == torch.strided else 0
    return id(tensor)


def overlapping_pairs(tensors: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Pairs of tensors, by number, that are different ones and share bytes.

    >>> x = torch.zeros(4)
    >>> overlapping_pairs([x, x, x[:2], x[2:], torch.zeros(4)])
    ((0, 2), (0, 3), (1, 2), (1, 3))
    """
    if len(tensors) < 2:
        return ()
    pairs = _pairs(list(map(_span, tensors)))
    return tuple(sorted((a, b) for a, b in pairs if tensors[a] is not tensors[b]))


def _pairs(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Pairs of spans, by number, that have bytes in common."""
    begun: list[int] = []
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        first, end = spans[number]
        begun = [other for other in begun if first < spans[other][1]]
        yield from ((min(number, other), max(number, other)) for other in begun)
        if first < end:
            begun.append(number)


class Memory:
    """Bytes that tensors take up together.

    Parameters
    ----------
    spans : iterable of (int, int)
        Of each the first byte, and the one behind its last.

    >>> memory = Memory([(8, 16), (0, 4), (12, 20)])
    >>> memory.meets((4, 8)), memory.meets((19, 30))
    (False, True)
    """

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        #: In order, none of which touches another.
        self._begins: list[int] = []
        self._ends: list[int] = []
        for first, end in sorted(spans):
            if self._ends and first <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            elif first < end:
                self._begins.append(first)
                self._ends.append(end)

    def meets(self, span: tuple[int, int]) -> bool:
        """True if some byte of a span is among them."""
        at = bisect_right(self._ends, span[0])
        return at < len(self._begins) and self._begins[at] < span[1]


class WrittenMemory:
    """Memory that a graph changes, which no other tensor of a call may share.

    Parameters
    ----------
    graph : Graph
    """

    def __init__(self, graph: Graph) -> None:
        written = {write.target for write in graph.writes if write.step is None}
        written |= {
            value
            for operation in graph.operations
            if is_statistics_update(operation)
            for value in operation.reads
            if value.kind == "buffer"
        }
        self._given = graph.given
        self._is_written = [value in written for value in graph.given]
        self._writes_any = any(self._is_written)
        self._is_held = [value.is_held for value in graph.given]
        self._brought = [at for at, value in enumerate(graph.given) if not value.is_held]
        #: Where what the model holds was when it was looked at, and what memory that is.
        self._seen: tuple[list[int] | None, Memory] = None, Memory(())

    def check(self, tensors: Sequence[Any]) -> None:
        """Refuse a call in which one that is written shares bytes with another one.

        Raises
        ------
        UnsupportedModelError
            With what to do.
        """
        shared = self.shared(tensors)
        if shared is not None:
            one, other = (self._given[at] for at in shared)
            raise UnsupportedModelError(
                f"forward changes {one.source or one.name} or {other.source or other.name} in "
                "place, and they share memory: give it a clone of one of them"
            )

    def shared(
        self, tensors: Sequence[Any], held: Sequence[Any] | None = None
    ) -> tuple[int, int] | None:
        """Two tensors of a call, by number, that share bytes, of which one is written.

        What the model holds is compared again where one of its tensors lies elsewhere than in the
        last call.

        Parameters
        ----------
        tensors : sequence
            What the graph is given, in its order.
        held : sequence, optional
            Those of them that the model holds.
        """
        if not self._writes_any or isinstance(tensors[0], FakeTensor):
            return None
        held = tuple(compress(tensors, self._is_held)) if held is None else held
        pointers = list(map(torch.Tensor.data_ptr, held))
        known, memory = self._seen
        brought = [_span(tensors[at]) for at in self._brought]
        is_apart = not any(map(memory.meets, brought))
        if pointers == known and is_apart and (len(brought) < 2 or not any(_pairs(brought))):
            return None
        places = list(map(_span, tensors))
        pair = next(filter(self._writes, _pairs(places)), None)
        if pair is None:
            self._seen = pointers, Memory(compress(places, self._is_held))
        return pair

    def _writes(self, pair: tuple[int, int]) -> bool:
        return self._is_written[pair[0]] or self._is_written[pair[1]]


def may_overlap_itself(tensor: torch.Tensor) -> bool:
    """True if two elements of a tensor may lie in the same place.

    >>> x = torch.zeros(6)
    >>> may_overlap_itself(x.unfold(0, 2, 1)), may_overlap_itself(x.unfold(0, 2, 2))
    (True, False)
    """
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    last = 0
    for stride, extent in sorted(pair for pair in pairs if pair[1] > 1):
        if stride <= last:
            return True
        last += stride * (extent - 1)
    return False
