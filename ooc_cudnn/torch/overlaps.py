"""Tensors that share memory without being one: a write to one of them changes the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def _memory(tensor: Any) -> tuple[int, int, int] | None:
    """Where a tensor lies: its memory, and from which byte to which; None where it has none."""
    from torch._subclasses.fake_tensor import FakeTensor

    if not isinstance(tensor, torch.Tensor) or isinstance(tensor, FakeTensor):
        return None
    if tensor.layout != torch.strided or not tensor.numel() or tensor.is_meta:
        return None
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((extent - 1) * stride for extent, stride in pairs)
    first = tensor.data_ptr()
    last = first + (last + 1) * tensor.element_size()
    return tensor.untyped_storage()._cdata, first, last


def memory_of(tensor: Any) -> int:
    """What tells the memory that a tensor or an array lies in."""
    if isinstance(tensor, torch.Tensor):
        return int(tensor.untyped_storage()._cdata) if tensor.layout == torch.strided else 0
    return id(tensor)


def overlapping(tensors: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Pairs of tensors, by number, that are different ones and share bytes.

    >>> x = torch.zeros(4)
    >>> overlapping([x, x, x[:2], x[2:], torch.zeros(4)])
    ((0, 2), (0, 3), (1, 2), (1, 3))
    """
    if len(tensors) < 2:
        return ()
    places: dict[int, list[tuple[int, int, int]]] = {}
    found = []
    for at, tensor in enumerate(tensors):
        memory = _memory(tensor)
        if memory is None:
            continue
        storage, first, last = memory
        others = places.setdefault(storage, [])
        for other, begin, end in others:
            if tensors[other] is not tensor and first < end and begin < last:
                found.append((other, at))
        others.append((at, first, last))
    return tuple(sorted(found))


def may_overlap_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of a tensor may lie in the same place.

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
