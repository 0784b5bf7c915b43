"""Casts of parameters before a call, all at once: autocast has one of each weight."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ooc_cudnn.torch.tracing.graph import Operation, Value

#: Of fewer the host is at PyTorch's own for no longer.
FEWEST = 4
#: Gradients are cast in so many parts, of so many bytes at least: one part is there beside those
#: that it is added to, where gradients accumulate over several steps.
PARTS, LEAST_BYTES = 8, 2**23


def cast_together(
    operations: Sequence[Operation], found: dict[Value, Any], apart: Mapping[Value, Hashable]
) -> Sequence[Operation]:
    """Cast what is there already; add the results, and return the other operations.

    One by one, the host takes 35 us for each, and as long for its gradient: a tenth of a step of a
    ConvNeXt-T. What autograd follows has its gradients cast together, too; results that differ in
    `apart` have not: a loss may leave some of them out.
    """
    casts = [each for each in operations if _is_cast(each, found)]
    if len(casts) < FEWEST:
        return operations
    followed = [t for t in (found[each.args[0]] for each in casts) if t.requires_grad]
    most = part_bytes(sum(each.nbytes for each in followed))
    alike = dict[tuple[torch.dtype, bool, Hashable], list[Operation]]()
    for each in casts:
        follows = torch.is_grad_enabled() and found[each.args[0]].requires_grad
        (result,) = each.results
        of = apart.get(result) if follows and result is not None else None
        alike.setdefault((each.kwargs["dtype"], follows, of), []).append(each)
    for (dtype, follows, _), some in alike.items():
        tensors = [found[each.args[0]] for each in some]
        if follows:
            parts = _parts(tensors, most)
            made = [y for part in parts for y in CastTogether.apply(dtype, *part)]
        else:
            made = _cast(tensors, [dtype] * len(tensors))
        for each, result in zip(some, made, strict=True):
            found[each.results[0]] = result  # type: ignore[index]  # `_is_cast` has looked
    done = set(map(id, casts))
    return [each for each in operations if id(each) not in done]


def part_bytes(nbytes: int) -> int:
    """Bytes that gradients of so many bytes are cast in at a time, where no tensor has more."""
    return min(nbytes, max(LEAST_BYTES, nbytes // PARTS))


def _parts(tensors: Sequence[torch.Tensor], most_bytes: int) -> Iterator[list[torch.Tensor]]:
    """Neighbours that have no more bytes together, or a tensor that has more."""
    part, nbytes = list[torch.Tensor](), 0
    for each in tensors:
        if part and nbytes + each.nbytes > most_bytes:
            yield part
            part, nbytes = [], 0
        part.append(each)
        nbytes += each.nbytes
    if part:
        yield part


def _is_cast(operation: Operation, found: Mapping[Value, Any]) -> bool:
    """True of a copy in another dtype, of a tensor that is there and is no subclass."""
    is_cast = operation.name == "_to_copy" and set(operation.kwargs) == {"dtype"}
    if not is_cast or operation.results[0] is None:
        return False
    of = found.get(operation.args[0]) if isinstance(operation.args[0], Value) else None
    return type(of) in (torch.Tensor, torch.nn.Parameter)


class CastTogether(torch.autograd.Function):
    """Tensors in another dtype."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Copy each; the order of memory stays."""
        ctx.set_materialize_grads(False)
        ctx.dtypes = [each.dtype for each in tensors]
        return tuple(_cast(tensors, [dtype] * len(tensors)))

    @staticmethod
    @torch._disable_dynamo  # a compiled function that calls backward traces what that calls
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        """Cast the gradients that are there; of the others there is none."""
        there = [each for each in gradients if each is not None]
        pairs = zip(ctx.dtypes, gradients, strict=True)
        made = iter(_cast(there, [dtype for dtype, each in pairs if each is not None]))
        return None, *(None if each is None else next(made) for each in gradients)


def _cast(tensors: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
    """Copy each in a dtype of its own."""
    made = [torch.empty_like(t, dtype=dtype) for t, dtype in zip(tensors, dtypes, strict=True)]
    for at in _alike(tensors, made):
        torch._foreach_copy_([made[i] for i in at], [tensors[i] for i in at])
    return made


def _alike(tensors: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Places of tensors that are copied in one launch: of one device, from one dtype to another."""
    kinds: dict[Any, list[int]] = {}
    for at, (source, target) in enumerate(zip(tensors, made, strict=True)):
        kinds.setdefault((source.device, source.dtype, target.dtype), []).append(at)
    yield from kinds.values()
