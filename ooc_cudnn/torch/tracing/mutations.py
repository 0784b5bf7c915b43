"""Functionalization: changes in place as new values, and which tensors share memory.

A fake tensor knows its memory. A view is made of its base by an operation, which is run again where
the base was changed after it; what is written to a view goes back into its base the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.tracing.body_writes import storage_key
from ooc_cudnn.torch.tracing.graph import Value, name_of
from ooc_cudnn.torch.tracing.image_axes import MOVES
from ooc_cudnn.torch.tracing.normalizing import Update, update_statistics
from ooc_cudnn.torch.tracing.overlaps import may_overlap_itself
from ooc_cudnn.torch.tracing.recorder_protocol import Recorder
from ooc_cudnn.torch.tracing.switches import autograd_follows

#: Operations whose gradient needs nothing that they read.
KEEPS_NOTHING = MOVES | {
    "_to_copy", "add", "avg_pool1d", "avg_pool2d", "avg_pool3d", "cat", "clone", "concat",
    "constant_pad_nd", "mean", "neg", "pad", "stack", "sub", "sum", "to", "with_history", "write",
}  # fmt: skip
#: Those whose gradient needs nothing that they make: not leaky_relu and hardtanh, whose forms in
#: place keep it.
KEEPS_NO_RESULT = KEEPS_NOTHING | {
    "_convolution", "addmm", "baddbmm", "batch_norm", "bmm", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "div", "einsum", "gelu",
    "group_norm", "hardswish", "instance_norm", "layer_norm", "linear", "masked_fill", "matmul",
    "mish", "mm", "mul", "silu", "softplus", "where",
}  # fmt: skip


class Kept(NamedTuple):
    """Reader in backward of memory as it is then, its line, and what is made of it so."""

    who: str
    where: str
    made: frozenset[Value]


@dataclass(eq=False)
class Memory:
    """Memory that tensors share, and how often it was written to."""

    writes: int = 0
    #: The line that wrote last.
    where: str = ""
    #: Others that are the same memory, by views that nothing is known of.
    others: list[Memory] = field(default_factory=list)
    #: The line that made the last of these.
    where_shared: str = ""
    #: Whether such another one was written to.
    is_stale: bool = False
    #: Hooks, backwards of the user's and checkpoints that read it.
    kept: list[Kept] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class View:
    """View of another tensor's memory: an operation, and which of its results.

    `function` takes the base alone.
    """

    function: Callable[[Any], Any]
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    at: int | None

    @property
    def hands_on(self) -> bool:
        """True if it shows all of it, as it is."""
        return self.name in ("detach", "alias")

    def put(self, base: Value, value: Value) -> tuple[Any, str, tuple[Any, ...]]:
        """The operation that puts a value where it shows its base, its name and arguments."""
        if self.name == "index":  # at places that depend on data: the operation makes a copy
            return torch.ops.aten.index_put.default, "index_put", (base, *self.args[1:], value)
        return ViewWrite(self), "write", (base, value)


@dataclass(eq=False)
class SeenTensor:
    """A fake tensor, and what it stands for."""

    tensor: torch.Tensor
    value: Value
    memory: Memory
    base: SeenTensor | None = None
    view: View | None = None
    at: int = 0
    #: Averages that normalizations have gone on since.
    pending: list[Update] = field(default_factory=list)
    #: Whether the network does not bring them up to date by itself.
    written: bool = False
    as_data: bool = False

    @property
    def is_view(self) -> bool:
        """Tell whether it is a view of another tensor to autograd, not a reshape in place."""
        first = self
        while first.base is not None and first.base.tensor is first.tensor:
            first = first.base
        return first.base is not None

    @property
    def where(self) -> str:
        """The line that wrote to its memory last."""
        return self.memory.where


class Memories:
    """Values that each fake tensor stands for now."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen: dict[int, SeenTensor] = {}
        self._memories: dict[int, Memory] = {}
        self._last: dict[int, SeenTensor] = {}
        #: Those that show another one's memory.
        self.views: set[Value] = set()
        #: What hooks of tensors were put on, by what stands behind them.
        self.hooked: dict[Value, Value] = {}
        #: What is made of a view as autograd makes it, of the view's base: hooks of the view see
        #: nothing of it.
        self.past_hooks: set[Value] = set()
        #: What was written to views.
        self._put: set[Value] = set()

    @property
    def numbers(self) -> dict[Value, int]:
        """Number the memory that each value lies in."""
        number = {id(memory): at for at, memory in enumerate(self._memories.values())}
        return {seen.value: number[id(seen.memory)] for seen in self._seen.values()}

    def knows(self, tensor: Any) -> bool:
        """True if a tensor has been seen."""
        return id(tensor) in self._seen

    def seen(self, tensor: torch.Tensor) -> SeenTensor:
        """Return what is known of a tensor."""
        return self._seen[id(tensor)]

    def own(self, tensor: torch.Tensor, value: Value) -> SeenTensor:
        """Note a tensor with memory of its own."""
        memory = self._memories.setdefault(storage_key(tensor), Memory())
        return self._enter(SeenTensor(tensor, value, memory, at=memory.writes))

    def _enter(self, made: SeenTensor) -> SeenTensor:
        self._seen[id(made.tensor)] = self._last[storage_key(made.tensor)] = made
        return made

    def read(self, tensor: torch.Tensor) -> Value:
        """Return the value that a tensor is now."""
        seen = self._seen.get(id(tensor)) or self._wrapped(tensor)
        if seen is None:
            return self.own(tensor, self._recorder.constant(_real(tensor))).value
        return self._now(seen)

    def below_hooks(self, value: Value) -> Value:
        """The value of a tensor before it had hooks."""
        while value in self.hooked:
            value = self.hooked[value]
        return value

    def to_change(self, tensor: torch.Tensor) -> Value:
        """The value that a change in place goes on from.

        Autograd makes that of a view a change of its base: hooks of the view see nothing of it.
        """
        self.read(tensor)
        return self._behind_no_view(self.seen(tensor))

    def _behind_no_view(self, seen: SeenTensor) -> Value:
        """The value of a tensor by way of its base, without hooks of views."""
        if not seen.is_view:
            return seen.value
        assert seen.base is not None
        below, base = self.below_hooks(seen.value), self._behind_no_view(seen.base)
        if base is seen.base.value:
            return below
        assert seen.view is not None
        return self._shown(seen.view, base, seen)

    def show_again(self, tensor: torch.Tensor) -> set[Value]:
        """Have views that were written to show a tensor, as autograd does; return what they were.

        It knows them by their base from then on: its hooks see the gradients of what reads them.
        Those of a view see nothing of what is a view of it.
        """
        base, found = self.seen(tensor), set[Value]()
        for seen in self._seen.values() if not base.is_view else ():
            value = self.below_hooks(seen.value)
            if seen is not base and seen.memory is base.memory and value in self._put:
                if seen.at == seen.memory.writes:
                    found.add(value)
                seen.at = _ANEW
        return found

    def _wrapped(self, tensor: torch.Tensor) -> SeenTensor | None:
        """Enter a tensor that PyTorch has made another object of, as factories and `detach` do."""
        seen = self._last.get(storage_key(tensor))
        if seen is None or _lies(seen.tensor) != _lies(tensor):
            return None
        view = View(torch.ops.aten.detach.default, "detach", (_BASE,), {}, None)
        wrapped = SeenTensor(tensor, seen.value, seen.memory, seen, view, seen.at)
        if seen.value.requires_grad:
            wrapped.value = self._recorder.detached(self._now(seen))
        return self._enter(wrapped)

    def check_apart(
        self, who: str, given: Sequence[torch.Tensor], changed: Sequence[torch.Tensor]
    ) -> None:
        """Refuse a change in place, on clones, of memory that is given twice."""
        memories = [self.seen(each).memory for each in given]
        if any(memories.count(self.seen(each).memory) > 1 for each in changed):
            raise UnsupportedModelError(
                f"{who} changes a tensor in place that shares memory with another one that it is "
                f"given: give it a clone\n  {self._recorder.where}"
            )

    def share(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """Note that two tensors share memory, in a way that nothing is known of."""
        one, two = self.seen(tensor).memory, self.seen(other).memory
        one.others.append(two)
        two.others.append(one)
        one.where_shared = two.where_shared = self._recorder.where

    def keep(self, tensor: torch.Tensor, who: str, made: Iterable[Value | None] = ()) -> None:
        """Note that backward reads the elements of a tensor as they are then.

        Where nobody needs what was `made` it does not; empty where all may be needed.
        """
        memory = self.seen(tensor).memory
        results = frozenset(each for each in made if each is not None)
        memory.kept.append(Kept(who, self._recorder.where, results))

    def kept(self, tensor: torch.Tensor) -> list[Kept]:
        """Keepers for backward of a tensor's memory, or of one that is the same."""
        memory = self.seen(tensor).memory
        return [kept for each in (memory, *_sharing(memory)) for kept in each.kept]

    def shared_line(self, tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> str | None:
        """The line since which a tensor shares memory with one of others so, if it does."""
        memory = self.seen(tensor).memory
        memories = [self.seen(each).memory for each in others]
        return memory.where_shared if any(e in memories for e in _sharing(memory)) else None

    def _now(self, seen: SeenTensor) -> Value:
        if seen.memory.is_stale:
            raise UnsupportedModelError(
                "forward writes to what a vmap or an autograd.Function has returned or was given, "
                "and the one is a view of the other: let it return a clone\n"
                f"  {self._recorder.where}"
            )
        if seen.base is not None and seen.at != seen.memory.writes:
            assert seen.view is not None
            self._now(seen.base)
            shown = self._shown(seen.view, self._behind_no_view(seen.base), seen)
            if seen.view.name == "detach" and seen.value.requires_grad:
                # what was written to it since has a history that its base has not
                shown = self._kept(seen.value, shown, as_data=True)
            seen.value = shown
            seen.at = seen.memory.writes
        for update in seen.pending:
            seen.value, seen.written = update_statistics(self._recorder, seen.value, update), True
        if seen.pending:
            seen.pending = []
            seen.memory.writes += 1
            seen.at = seen.memory.writes
        return seen.value

    def _shown(self, view: View, base: Value, seen: SeenTensor) -> Value:
        recorder = self._recorder
        if view.hands_on and not base.requires_grad:
            return base
        function = view.function if view.at is None else _Part(view.function, view.at)
        follows = base.requires_grad and view.name != "detach"
        # its tensor may have another shape since, in place
        result = recorder.another(seen.value, requires_grad=follows)
        if seen.base is not None and seen.base.is_view:
            self.past_hooks.add(result)
        name = view.name if view.at is None else f"{view.name}_part"
        args = tuple(base if each is _BASE else each for each in view.args)
        schema = getattr(view.function, "_schema", None) if view.at is None else None
        call = function if view.at is not None else view.function
        recorder.emit(call, name, args, view.kwargs, (result,), schema)
        return result

    def made(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        tensors: Sequence[Any],
        values: Sequence[Value | None],
    ) -> None:
        """Note what an operation has made: views of what it read, or new ones."""
        read = [e for e in pytree.tree_leaves((args, dict(kwargs))) if isinstance(e, torch.Tensor)]
        places = {storage_key(each): each for each in reversed(read)}
        for index, (tensor, value) in enumerate(zip(tensors, values, strict=True)):
            if value is None or self.knows(tensor):
                continue
            base = places.get(storage_key(tensor))
            if base is None:
                self.own(tensor, value)
                continue
            several = index if len(tensors) > 1 or _is_list(function) else None
            view = _view(function, args, kwargs, base, several)
            seen = self.seen(base)
            self._enter(SeenTensor(tensor, value, seen.memory, seen, view, seen.memory.writes))
            self.views.add(value)

    def shows_at(
        self, tensor: torch.Tensor, value: Value, base: torch.Tensor, indices: Sequence[Any]
    ) -> None:
        """Note a view of a tensor at places that are values, as of `aten.index`."""
        view = View(torch.ops.aten.index.Tensor, "index", (_BASE, indices), {}, None)
        seen = self.seen(base)
        self._enter(SeenTensor(tensor, value, seen.memory, seen, view, seen.memory.writes))
        self.views.add(value)

    def write(self, tensor: torch.Tensor, value: Value, *, as_data: bool = False) -> None:
        """Note that a tensor has been written to; all that share its memory have changed."""
        recorder = self._recorder
        self.read(tensor)
        seen = self.seen(tensor)
        kept = self.kept(tensor)
        if kept:
            raise UnsupportedModelError(
                f"forward changes in place what {kept[-1].who} still reads: give that a clone\n"
                f"  {recorder.where}"
            )
        self._now(seen)
        seen.value = self._kept(self._behind_no_view(seen), value, as_data=as_data)
        seen.memory.writes += 1
        seen.memory.where = recorder.where
        for memory in _sharing(seen.memory):
            memory.is_stale = True
        seen.at, seen.written, seen.as_data = seen.memory.writes, True, as_data
        while seen.base is not None:
            base, view = seen.base, seen.view
            assert view is not None
            if may_overlap_itself(seen.tensor):
                raise UnsupportedModelError(
                    f"forward writes to what {view.name} shows, whose elements may share memory: "
                    f"write to a clone of it\n  {recorder.where}"
                )
            base.at = base.memory.writes
            before, after = self._behind_no_view(base), seen.value
            if view.name == "detach" and before.requires_grad:
                self._check_not_kept(base)
            if view.hands_on:
                if view.name == "detach" and after.requires_grad and not before.requires_grad:
                    after = recorder.detached(after)  # autograd follows what is written, not this
                base.value = self._kept(before, after, as_data=view.name == "detach")
            else:
                hidden = as_data or not autograd_follows()
                both = (before, after)
                if hidden:  # what is written over has a history, too, that autograd goes on with
                    both = (recorder.detached(before), recorder.detached(after))
                follows = any(each.requires_grad for each in both)
                written = recorder.one(
                    *view.put(*both), before.shape, before.dtype, requires_grad=follows
                )
                self.past_hooks.add(written)
                self._put.add(after)
                base.value = self._kept(before, written, as_data=as_data)
            base.written = True
            base.as_data = base.as_data or as_data or view.name == "detach"
            seen = base

    def _check_not_kept(self, seen: SeenTensor) -> None:
        """Refuse to write where autograd does not see it to what it keeps for backward.

        PyTorch's gradients would be of the numbers that are there afterwards.
        """
        recorder = self._recorder
        if seen.base is None and seen.value.kind != "made":
            return  # what is given has a check of its own
        values = {each.value for each in self._seen.values() if each.memory is seen.memory}
        for operation in (*recorder.before, *recorder.operations):
            name = operation.name
            if not any(y is not None and y.requires_grad for y in operation.results):
                continue
            makes = values.intersection(operation.results) and name not in KEEPS_NO_RESULT
            reads = values.intersection(operation.reads) and name not in KEEPS_NOTHING
            if makes or reads:
                raise UnsupportedModelError(
                    f"forward writes by way of .data or detach() to what autograd keeps for the "
                    f"gradient of {name}: write to a clone of it\n"
                    f"  {recorder.where}"
                )

    def _kept(self, before: Value, value: Value, *, as_data: bool) -> Value:
        """The value, with the history of what it is written over where autograd does not see it."""
        if not before.requires_grad or (autograd_follows() and not as_data):
            return value
        value = self._recorder.detached(value)
        args = (before, value)
        return self._recorder.one(
            with_history, "with_history", args, value.shape, value.dtype, requires_grad=True
        )

    def assign(self, tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """``tensor.data = source``."""
        if tensor.shape != source.shape or tensor.dtype != source.dtype:
            raise UnsupportedModelError(
                f"forward puts a tensor of shape {tuple(source.shape)} in place of the data of one "
                f"of shape {tuple(tensor.shape)}: take it out of forward"
            )
        self.write(tensor, self.read(source), as_data=True)
        return tensor

    def reshaped(self, func: Any, values: Any, named: Any, tensor: torch.Tensor) -> None:
        """Note that a tensor was given another shape in place: as a view of what it was."""
        now = self.read(tensor)
        seen = self.seen(tensor)
        name = name_of(func).removesuffix("_")
        if name == "detach":
            seen.value = self._recorder.detached(now)
            return
        if name in ("requires_grad", "set", "resize"):
            raise UnsupportedModelError(f"{func} within forward: take it out of forward")
        function = _out_of_place(func, name)
        result = self._recorder.value_like(tensor)
        self._recorder.emit(function, name, values, named, (result,), function._schema)
        view = View(function, name, (_BASE, *values[1:]), dict(named), None)
        self._enter(SeenTensor(tensor, result, seen.memory, seen, view, seen.at))


def _sharing(memory: Memory) -> list[Memory]:
    """Other memories that are the same, directly or by way of others."""
    found = [memory]
    for each in found:
        found += [other for other in each.others if other not in found]
    return found[1:]


#: As many writes no memory has.
_ANEW = -1
_BASE: Any = type("Base", (), {"__repr__": lambda self: "base"})()


def _lies(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype


def _is_list(function: Any) -> bool:
    return any(each.type.kind() == "ListType" for each in function._schema.returns)


def _out_of_place(func: Any, name: str) -> Any:
    """The operation with the arguments of one that works in place: "t" of "t_"."""
    wanted = [(each.name, str(each.type)) for each in func._schema.arguments]
    packet = getattr(torch.ops.aten, name)
    for overload in packet.overloads():
        form = getattr(packet, overload)
        if [(each.name, str(each.type)) for each in form._schema.arguments] == wanted:
            return form
    raise UnsupportedModelError(f"{func} within forward has no form that is not in place")


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with elements: itself, or what a fake one was made of."""
    from torch._subclasses.fake_tensor import FakeTensor

    if not isinstance(tensor, FakeTensor):
        return tensor
    if tensor.constant is not None:
        return tensor.constant
    raise UnsupportedModelError(
        "forward reads a tensor that is no argument, and none that the model holds"
    )


def _view(
    function: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    base: torch.Tensor,
    part: int | None,
) -> View:
    def put(each: Any) -> Any:
        return _BASE if each is base else each

    name = name_of(function)
    told = pytree.tree_map(put, args)
    return View(function, name, tuple(told), pytree.tree_map(put, dict(kwargs)), part)


@dataclass(frozen=True, eq=False)
class _Part:
    """One of the results of an operation."""

    function: Callable[..., Any]
    at: int

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)[self.at]

    def __str__(self) -> str:
        return f"{self.function}[{self.at}]"


@dataclass(frozen=True, eq=False)
class ViewWrite:
    """Write to what an operation shows of a tensor: a new one, with it in its place."""

    view: View

    def __call__(self, base: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The base, with the value where the view shows it."""
        result = base.clone(memory_format=torch.contiguous_format)
        args = tuple(result if each is _BASE else each for each in self.view.args)
        shown = self.view.function(*args, **self.view.kwargs)
        shown = shown if self.view.at is None else shown[self.view.at]
        shown.copy_(value)
        return result

    def __str__(self) -> str:
        view = self.view
        return f"write through {view.function}{view.args[1:]}{dict(view.kwargs)}[{view.at}]"


@dataclass(frozen=True)
class Functional:
    """An operation that works in place, on clones of what it changes: it returns them.

    Parameters
    ----------
    target : OpOverload
    places : tuple of (int or str)
        Which of its arguments it changes, by position or by name.
    returned : tuple of int
        Which of the tensors that it returns are others: they stand behind those.
    """

    target: Any
    places: tuple[Any, ...]
    returned: tuple[int, ...] = ()

    @property
    def tags(self) -> Any:
        """Those of the operation."""
        return self.target.tags

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The tensors that it changes, changed."""
        positional, named = list(args), dict(kwargs)
        changed = []
        for place in self.places:
            held: Any = positional if isinstance(place, int) else named
            held[place] = held[place].clone()
            changed.append(held[place])
        result = self.target(*positional, **named)
        results = result if isinstance(result, tuple | list) else (result,)
        changed += [results[at] for at in self.returned]
        return changed[0] if len(changed) == 1 else tuple(changed)

    def __str__(self) -> str:
        return str(self.target)

    @staticmethod
    def written(
        schema: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str
    ) -> dict[Any, Any]:
        """The tensors that an operation changes, by position or name."""
        targets: dict[Any, Any] = {}
        for index, argument in enumerate(schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            place = index if index < len(args) else argument.name
            tensor = args[index] if index < len(args) else kwargs.get(argument.name)
            if isinstance(tensor, torch.Tensor):
                targets[place] = tensor
            elif tensor is not None:
                raise UnsupportedModelError(
                    f"{schema.name} changes a list of tensors in place: change one by one\n"
                    f"  {where}"
                )
        return targets


class _WithHistory(torch.autograd.Function):
    """The second, with gradients that go to the first."""

    @staticmethod
    def forward(ctx: Any, before: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # what no loss depends on has no gradient, not zeros
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        return gradient, None


def with_history(before: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Elements that were put into a tensor where autograd did not see it.

    >>> w = torch.ones(2, requires_grad=True)
    >>> y = with_history(w, torch.tensor([5.0, 6.0]))
    >>> y.sum().backward()
    >>> y.detach(), w.grad
    (tensor([5., 6.]), tensor([1., 1.]))
    """
    made: torch.Tensor = _WithHistory.apply(before, value)
    return made
