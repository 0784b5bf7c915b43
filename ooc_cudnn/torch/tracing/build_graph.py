"""Build the graph from a recording: dead-code elimination, write-backs of mutated inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.tracing.graph import Graph, Operation, Value, Write
from ooc_cudnn.torch.tracing.normalizing import is_statistics_update
from ooc_cudnn.torch.tracing.recorder_protocol import Recorder
from ooc_cudnn.torch.tracing.rows_of_layers import split_rows


def graph_of(recorder: Recorder, outputs: Any) -> Graph:
    """All that was noted, of which something comes."""
    results, leaves, first = [], pytree.tree_leaves(outputs), dict[int, int]()
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            results.append(recorder.memories.read(leaf))
        else:
            results.append(recorder.numbers.known(leaf))
    changes = tuple(_writes(recorder, results))
    _check_shown(recorder, leaves, results)
    results = [*_written(recorder, outputs, changes, results)]
    writes = tuple(_counting(recorder, changes, results))
    kept = [v for v in results if isinstance(v, Value)] + [w.value for w in writes]
    _keep_statistics(recorder, kept)
    kept += [value for effect in recorder.effects for value in effect.reads]
    operations = tuple(_used(recorder.operations, kept))
    needed = {value for each in (*recorder.before, *operations) for value in each.reads}
    graph = Graph(
        recorder.given,
        tuple(recorder.before),
        operations,
        tuple(results),
        tuple(recorder.effects),
        writes,
        recorder.constants,
        same=tuple(first.setdefault(id(each), at) for at, each in enumerate(leaves)),
        memories=recorder.memories.numbers,
        views=frozenset(recorder.memories.views),
        without_history=frozenset(_without_history(recorder, results)),
        read_late=dict(_read_late(recorder, leaves, needed.union(kept))),
    )
    return split_rows(graph)


def _without_history(recorder: Recorder, results: Sequence[Any]) -> Iterator[Value]:
    """Views of what asks for a gradient that were made where autograd is off, and what is of them.

    They ask for one, too, and are views of what autograd does not follow.
    """
    found = set[Value]()
    for operation in (*recorder.before, *recorder.operations):
        followed = {value for value in operation.reads if value.requires_grad}
        for made in operation.results:
            if made is None or not made.requires_grad or not followed <= found:
                continue
            if followed or made in recorder.memories.views:
                found.add(made)
    yield from (value for value in results if isinstance(value, Value) and value in found)


def _read_late(
    recorder: Recorder, leaves: Sequence[Any], needed: Set[Value]
) -> Iterator[tuple[Value | int, tuple[str, str]]]:
    """Collect what backward reads as it is then, and others have, too: for what is needed."""
    places: dict[Value | int, Any] = dict(enumerate(leaves))
    places |= {value: seen.tensor for value, seen in recorder.inputs.items()}
    for place, tensor in places.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        for who, where, made in recorder.memories.kept(tensor):
            if not made or not made.isdisjoint(needed):
                yield place, (who, where)


def _check_shown(recorder: Recorder, leaves: Sequence[Any], results: Sequence[Any]) -> None:
    """Refuse outputs that share memory and that no view of one another can be made of."""
    memories = recorder.memories
    makers = {y: each for each in (*recorder.before, *recorder.operations) for y in each.results}
    written = {id(seen.memory): seen.tensor for _, seen, _ in _changed(recorder)}
    roots: dict[int, set[Value]] = {}
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    tensors += [seen.tensor for seen in recorder.inputs.values()]
    each_once = {id(tensor): tensor for tensor in tensors}
    lie_in = Counter(id(memories.seen(tensor).memory) for tensor in each_once.values())
    for leaf, value in zip(leaves, results, strict=True):
        if not isinstance(leaf, torch.Tensor):
            continue
        line = memories.shared_line(leaf, tensors)
        if line is not None:
            raise UnsupportedModelError(
                f"an output of shape {tuple(leaf.shape)} shares memory with another one, or with "
                "what the model was given, by a view that a vmap or an autograd.Function made: "
                f"return a clone of it\n  {line}"
            )
        memory, root = id(memories.seen(leaf).memory), value
        while root in memories.views:
            maker = makers[root]
            if maker.name == "index" and lie_in[memory] > 1:
                raise UnsupportedModelError(
                    f"an output of shape {tuple(leaf.shape)} shares memory with another one, or "
                    "with what the model was given, at a place that depends on data: return a "
                    f"clone of it\n  {maker.where}"
                )
            root = maker.reads[0]
        roots.setdefault(memory, set()).add(root)
        if len(roots[memory]) > 1 or written.get(memory, leaf) is not leaf:
            raise UnsupportedModelError(
                f"an output of shape {tuple(leaf.shape)} shares memory with what forward has "
                f"written to: return a clone of it\n  {memories.seen(leaf).where}"
            )


def _changed(recorder: Recorder) -> Iterator[tuple[Value, Any, Value]]:
    """Given values that changed, and what they are now; not those the network updates itself."""
    for value, seen in recorder.inputs.items():
        if seen.written or not seen.pending:
            final = recorder.memories.read(seen.tensor)
            if final is not value:
                yield value, seen, final


def _followed(recorder: Recorder, results: Sequence[Any]) -> set[Value]:
    """Values that operations read on the way of gradients of outputs, or of what is left."""
    lasting = (final for _, _, final in _changed(recorder))
    reached = {v for v in (*results, *lasting) if isinstance(v, Value) and v.requires_grad}
    read = set[Value]()
    for operation in reversed((*recorder.before, *recorder.operations)):
        if reached.intersection(operation.results):
            reached.update(value for value in operation.reads if value.requires_grad)
            read.update(operation.reads if operation.name != "with_history" else ())
    return read


def _writes(recorder: Recorder, results: Sequence[Any]) -> Iterator[Write]:
    followed = _followed(recorder, results)
    for value, seen, final in _changed(recorder):
        if value.requires_grad and value.kind == "input" and seen.tensor.is_leaf:
            raise UnsupportedModelError(
                "forward changes an argument in place that is a leaf and asks for a gradient: let "
                f"it work on a clone of it\n  {seen.where}"
            )
        if seen.as_data and value in followed:  # PyTorch's gradients would be of either
            raise UnsupportedModelError(
                f"forward changes the data of {value.source or value.name} when it has been read, "
                "so its gradients are of numbers that autograd has not: write before it is read, "
                f"or behind the step\n  {seen.where}"
            )
        hidden = value.requires_grad and value not in followed  # nothing saved what was there
        yield Write(value, final, seen.as_data or hidden)


def _written(
    recorder: Recorder, outputs: Any, writes: Sequence[Write], results: Sequence[Any]
) -> Iterator[Any]:
    """The results; a tensor that was given and changed in place is itself handed out."""
    targets = {
        id(recorder.inputs[write.target].tensor): write.target
        for write in writes
        if write.target.kind == "input" or not write.value.requires_grad
    }
    for leaf, result in zip(pytree.tree_leaves(outputs), results, strict=True):
        yield targets.get(id(leaf), result)


def _counting(
    recorder: Recorder, writes: Sequence[Write], results: Sequence[Any]
) -> Iterator[Write]:
    """The same, with counters that nobody reads told apart: batches that were seen."""
    makers = {value: each for each in recorder.before for value in each.results}
    read = Counter(v for each in (*recorder.before, *recorder.operations) for v in each.reads)
    read.update(each for each in results if isinstance(each, Value))
    for write in writes:
        value, steps, ours = write.value, 0, list[Operation]()
        while value is not write.target:
            maker = makers.get(value)
            if maker is None or maker.name != "add" or len(maker.args) != 2 or maker.kwargs:
                break
            value, step = maker.args
            if not isinstance(step, int) or write.target.dtype != torch.int64:
                break
            steps, ours = steps + step, [*ours, maker]
        counted = {each for maker in ours for each in maker.results if each is not None}
        if value is not write.target or sum(read[each] for each in counted) >= len(ours):
            yield write
            continue
        recorder.before = [each for each in recorder.before if each not in ours]
        yield Write(write.target, write.target, step=steps)


def _keep_statistics(recorder: Recorder, kept: Sequence[Value]) -> None:
    """Let normalizations run whose result nobody needs: for what they update."""
    kept = [*kept, *(value for effect in recorder.effects for value in effect.reads)]
    used = set(_used(recorder.operations, kept))
    for operation in list(recorder.operations):
        if operation in used or not is_statistics_update(operation):
            continue
        (y, *_) = operation.results
        assert y is not None
        dims = tuple(range(2, len(y.shape)))
        with torch.no_grad():
            small = recorder.detached(y)
            if dims:
                mean = torch.ops.aten.mean.dim
                shape = (*y.shape[:2], *(1 for _ in dims))
                small = recorder.one(mean, "mean", (small, dims, True), shape, y.dtype)
        recorder.effects.append(Operation(_nothing, "unused", (small,), {}, {}, ()))


def _nothing(value: Any) -> tuple[()]:
    return ()


def _used(operations: Sequence[Operation], kept: Sequence[Value]) -> Iterator[Operation]:
    """The operations that values depend on."""
    wanted = set(kept)
    used = []
    for operation in reversed(operations):
        if wanted.intersection(operation.results):
            wanted.update(operation.reads)
            used.append(operation)
    return reversed(used)
