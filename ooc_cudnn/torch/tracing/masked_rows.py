"""Rows at the places of a mask, on their way back to them: `y[mask] *= 2`, `y[m] = w + y[m]`.

How many there are depends on data, and nothing can be planned for that. So what is done to each of
them is done to the whole tensor, and the write takes what the mask shows. At other places 1 is put
in before each function: so nothing that a function makes there reaches a gradient.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils import _pytree as pytree

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.places import source_line
from ooc_cudnn.torch.tracing.graph import Operation, Value, name_of
from ooc_cudnn.torch.tracing.recorder_protocol import Recorder

#: Entries of an index that a mask may stand beside: they show a view.
_BASIC = (slice, int, torch.SymInt, EllipsisType, type(None))
#: They compute each element of itself, though PyTorch does not say so.
_KEEP_PLACES = frozenset({"to", "_to_copy", "clone", "contiguous"})
#: Their derivatives by another tensor are finite where the rows are 1.
_MEET_GRADIENTS = frozenset({"add", "sub", "rsub", "mul", *_KEEP_PLACES})


@dataclass(eq=False)
class MaskedRows:
    """Rows that `x[..., mask, ...]` shows.

    Attributes
    ----------
    whole : Tensor
        All of what the rows are in, 1 at other places.
    beyond : Tensor
        True at those.
    mask : Value
    behind : int
        The number of axes behind those of the mask.
    node : torch.fx.Node
        By which forward read them.
    """

    whole: torch.Tensor
    beyond: torch.Tensor
    mask: Value
    behind: int
    node: Any


@dataclass(frozen=True, eq=False)
class MaskedPlaces:
    """Along one axis of a mask the places where it is true, as `torch.where(mask)` makes them."""

    mask: torch.Tensor
    axis: int
    node: Any


@dataclass(frozen=True, eq=False)
class MaskedCount:
    """The number of places at which a mask is true: TorchDynamo asks whether it may be so."""

    most: int
    node: Any


class MaskedIndexing:
    """Handling of what is read, computed and written at the places of a mask, by a recorder."""

    def __init__(self, recorder: Recorder, call: Callable[..., Any]) -> None:
        self._recorder, self._call = recorder, call
        #: Looks at each operation that a function of rows comes to.
        self.check_operation: Callable[[Any, Sequence[Any]], None] | None = None

    @staticmethod
    def takes(node: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """True if a node reads, computes or writes such rows, or says where they are."""
        if node.target is operator.getitem and isinstance(args[0], torch.Tensor):
            return any(map(_is_mask, _entries(args[1]))) or _has_rows(args)
        return _condition(node, args, kwargs) is not None or _has_rows((args, kwargs))

    def call(self, node: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Note what a node does.

        Raises
        ------
        UnsupportedModelError
            If it needs the rows themselves.
        """
        condition = _condition(node, args, kwargs)
        if condition is not None:
            kept = condition != 0
            return tuple(MaskedPlaces(kept, axis, node) for axis in range(kept.ndim))
        if node.target is operator.getitem and isinstance(args[0], tuple):
            return args[0][args[1]]
        if node.target is torch.ops.aten.sym_size.int:
            return _size(node, *args)
        if node.target in (operator.ge, operator.le) and isinstance(args[0], MaskedCount):
            return _holds(node.target, *args)
        if node.target is operator.getitem and isinstance(args[0], torch.Tensor):
            return self._read(node, *args)
        if node.target is operator.setitem:
            return self._write(*args)
        return self._computed(node, args, kwargs)

    def _read(self, node: Any, x: torch.Tensor, index: Any) -> MaskedRows:
        shown, mask, behind = _at_mask(node, x, index)
        beyond = ~mask.reshape(*mask.shape, *(1,) * behind)
        value = self._recorder.memories.read(mask)
        return MaskedRows(_filled(shown, beyond), beyond, value, behind, node)

    def _write(self, x: Any, index: Any, value: Any) -> None:
        if isinstance(value, MaskedRows) and not _has_rows(x):
            shown, mask, behind = _at_mask(value.node, x, index)
            now = self._recorder.memories.read(mask)
            if behind == value.behind and self._is_alike(now, value.mask):
                self._put(shown, value)
                return
        check_no_rows((x, value))
        (first, *_) = _rows_in(index)
        shown, mask, behind = _at_mask(first.node, x, index)
        at: Any = (..., mask, *(slice(None),) * behind)
        shown[at] = value

    def _put(self, x: torch.Tensor, rows: MaskedRows) -> None:
        """Write rows to where they belong: a change in place, of which hooks of x see nothing."""
        memories = self._recorder.memories
        whole = rows.whole.to(x.dtype)
        if whole.ndim > x.ndim:  # it may have axes of length 1 in front
            whole = whole.reshape(whole.shape[whole.ndim - x.ndim :])
        values = [memories.read(rows.beyond), memories.to_change(x), memories.read(whole)]
        if not torch.is_grad_enabled():
            values = [self._recorder.detached(each) for each in values]
        with self._recorder.paused():
            x.copy_(torch.where(rows.beyond, x, whole))
        result, where = self._recorder.value_like(x), torch.ops.aten.where.self
        self._recorder.emit(where, "where", tuple(values), {}, (result,), where._schema)
        memories.write(x, result)

    def _computed(self, node: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Compute a function of each row. Others that it reads may have one row for all."""
        rows = [*_rows_in((args, kwargs))]
        first = rows[0]
        are_alike = all(
            isinstance(each, MaskedRows)
            and each.behind == first.behind
            and self._is_alike(each.mask, first.mask)
            for each in rows
        )
        if not are_alike or isinstance(node.target, HigherOrderOperator) or "out" in kwargs:
            raise _of_unknown_shape(first.node)
        leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
        wholes = [each.whole for each in rows]
        others = [each for each in leaves if isinstance(each, torch.Tensor)]
        follows = torch.is_grad_enabled() and any(each.requires_grad for each in others)
        leaves = [each.whole if isinstance(each, MaskedRows) else each for each in leaves]
        leaves = [_for_all(e, first) if any(e is o for o in others) else e for e in leaves]
        told, named = pytree.tree_unflatten(leaves, structure)

        def check(operation: Any, given: Sequence[Any]) -> None:
            name = name_of(operation)
            plain = name if name.endswith("__") else name.removesuffix("_")
            fits = torch.Tag.pointwise in operation.tags or plain in _KEEP_PLACES
            fits = fits and torch.Tag.nondeterministic_seeded not in operation.tags
            fits = fits and (not follows or plain in _MEET_GRADIENTS)
            if operation._schema.is_mutable:
                fits = fits and any(given[0] is each for each in wholes)
            if not fits:
                raise _of_unknown_shape(first.node)

        self.check_operation = check
        try:
            if node.op == "call_method":
                made = self._call(getattr(told[0], node.target), told[1:], named)
            else:
                made = self._call(node.target, told, named)
        finally:
            self.check_operation = None
        if not isinstance(made, torch.Tensor):
            raise _of_unknown_shape(first.node)
        for each in rows:
            if made is each.whole:
                each.whole = _filled(made, each.beyond)  # it may have been changed in place
                return each
        return MaskedRows(
            _filled(made, first.beyond), first.beyond, first.mask, first.behind, first.node
        )

    def _is_alike(self, one: Value, other: Value) -> bool:
        """True if two values are made in the same way of the same ones, as `l == 0` is twice."""
        if one is other:
            return True
        recorder = self._recorder
        makers: dict[Value | None, Operation] = {
            result: each
            for each in (*recorder.before, *recorder.operations)
            for result in each.results
        }
        pairs = [(one, other)]
        while pairs:
            a, b = pairs.pop()
            if a is b:
                continue
            first, second = makers.get(a), makers.get(b)
            if first is None or second is None or first.function != second.function:
                return False
            if torch.Tag.nondeterministic_seeded in getattr(first.function, "tags", ()):
                return False
            if first.results.index(a) != second.results.index(b):
                return False
            ours, how = pytree.tree_flatten((first.args, dict(first.kwargs)))
            theirs, told = pytree.tree_flatten((second.args, dict(second.kwargs)))
            if how != told:
                return False
            for x, y in zip(ours, theirs, strict=True):
                if isinstance(x, Value) and isinstance(y, Value):
                    pairs.append((x, y))
                elif type(x) is not type(y) or x != y:
                    return False
        return True


def check_no_rows(tree: Any) -> None:
    """Refuse what is given to whom needs the rows themselves."""
    for each in _rows_in(tree):
        raise _of_unknown_shape(each.node)


def unknown_shape(node: Any) -> str:
    """Return the message about a node that makes a tensor whose shape depends on data."""
    name = "" if node is None else f"{node.name} "
    remedy = "take it out of forward"
    if name.startswith(("getitem", "setitem")):
        remedy = f"write torch.where(mask, v, y) for y[mask] = v, or {remedy}"
    elif name.startswith(("where", "nonzero")):
        remedy = f"write y[mask] = v for y[torch.where(mask)] = v, or {remedy}"
    where = "" if node is None else source_line(node)
    return f"{name}makes a tensor whose shape depends on data: {remedy}\n  {where}"


def _of_unknown_shape(node: Any) -> UnsupportedModelError:
    return UnsupportedModelError(unknown_shape(node))


def _rows_in(tree: Any) -> Iterator[Any]:
    if isinstance(tree, MaskedRows | MaskedPlaces | MaskedCount):
        yield tree
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from _rows_in(each)
    elif isinstance(tree, Mapping):
        yield from _rows_in(list(tree.values()))
    elif isinstance(tree, slice):
        yield from _rows_in([tree.start, tree.stop, tree.step])


def _has_rows(tree: Any) -> bool:
    return next(_rows_in(tree), None) is not None


def _condition(node: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the condition of a node that tells places, `torch.where(mask)` or the like."""
    is_where = node.target is torch.where and len(args) == 1 and not kwargs
    if not is_where:
        is_nonzero = node.target in (torch.nonzero, "nonzero")
        if not is_nonzero or len(args) != 1 or dict(kwargs) != {"as_tuple": True}:
            return None
    return args[0] if isinstance(args[0], torch.Tensor) and args[0].ndim else None


def _size(node: Any, rows: Any, axis: int) -> Any:
    """An extent of rows, or of places."""
    if isinstance(rows, MaskedPlaces):
        return MaskedCount(rows.mask.numel(), rows.node)
    at = axis - len(node.args[0].meta["example_value"].shape)
    before = rows.beyond.ndim - rows.behind
    if at != -rows.behind - 1:
        return rows.whole.shape[at if at > -rows.behind - 1 else at + 1 - before]
    return MaskedCount(rows.beyond.numel(), rows.node)


def _holds(compare: Any, count: MaskedCount, number: Any) -> bool:
    """True where a count is not below 0, nor above the most; refuse to say anything else."""
    is_known = number <= 0 if compare is operator.ge else number >= count.most
    if not is_known:
        raise _of_unknown_shape(count.node)
    return True


def _is_mask(entry: Any) -> bool:
    return isinstance(entry, torch.Tensor) and entry.dtype == torch.bool and entry.ndim > 0


def _entries(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _filled(x: torch.Tensor, beyond: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(beyond, 1)


def _for_all(tensor: torch.Tensor, rows: MaskedRows) -> torch.Tensor:
    """A tensor with one row for all, as it is to meet all of what the rows are in."""
    at = tensor.ndim - rows.behind - 1
    if at < 0:
        return tensor
    if tensor.shape[at] != 1:
        raise _of_unknown_shape(rows.node)
    ones = (1,) * (rows.beyond.ndim - rows.behind)
    return tensor.reshape(*tensor.shape[:at], *ones, *tensor.shape[at + 1 :])


def _at_mask(node: Any, x: torch.Tensor, index: Any) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Split an index: what it shows but for its mask, the mask, and how many axes are behind it."""
    entries = list(_entries(index))
    places = [at for at, each in enumerate(entries) if isinstance(each, MaskedPlaces)]
    if places:
        first, end = places[0], places[-1] + 1
        mask, told = entries[first].mask, [entries[at] for at in places]
        is_whole = [each.axis for each in told] == [*range(mask.ndim)] == [*range(end - first)]
        if not is_whole or any(each.mask is not mask for each in told):
            raise _of_unknown_shape(node)
        entries[first:end] = [mask]
    masks = [at for at, each in enumerate(entries) if _is_mask(each)]
    others = [each for at, each in enumerate(entries) if at not in masks]
    if len(masks) != 1 or not all(map(_is_basic, others)):
        raise _of_unknown_shape(node)
    (at,) = masks
    before, mask, after = entries[:at], entries[at], entries[at + 1 :]
    if not all(each is Ellipsis or each == slice(None) for each in others):
        x = x[(*before, *(slice(None),) * mask.ndim, *after)]
    if any(each is Ellipsis for each in before):
        return x, mask, sum(map(_has_axis, after))
    return x, mask, x.ndim - mask.ndim - sum(map(_has_axis, before))


def _is_basic(entry: Any) -> bool:
    return isinstance(entry, _BASIC) and not isinstance(entry, bool)


def _has_axis(entry: Any) -> bool:
    """True if what an entry of an index shows has an axis for it."""
    return entry is None or isinstance(entry, slice)
