"""Functions of functions in a captured graph: a user's own backward, hooks, checkpoints, vmap.

A checkpoint is what it calls, for the planner recomputes by itself. All else is one operation that
PyTorch computes whole, with the graphs that TorchDynamo has of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch._functorch import autograd_function
from torch._guards import TracingContext
from torch._ops import HigherOrderOperator
from torch.utils import _pytree as pytree

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.graph import Operation, Value, replace_values
from ooc_cudnn.torch.recorder_protocol import Recorder
from ooc_cudnn.torch.unhooked_alias import unhooked_alias

#: They call their first argument, and change nothing of what it computes.
_CALLS = frozenset({"tag_activation_checkpoint", "wrap", "wrap_activation_checkpoint"})
#: From this version on hooks of a tensor come in the order in which they were registered.
_ORDERED = "2.13"
_SETS_MATERIALIZE = torch.autograd.function.FunctionCtx.set_materialize_grads.__code__
_MARKS_DIRTY = torch.autograd.function.FunctionCtx.mark_dirty.__code__
_ENTERS, _LEAVES = "_vmap_increment_nesting", "_vmap_decrement_nesting"


@dataclass(eq=False)
class Span:
    """Nodes between the begin and the end of a `torch.vmap`, as one function.

    Attributes
    ----------
    module : GraphModule
    reads, makes : sequence of Node
        Of the graph around it: what it takes, in order, and what it returns.
    """

    module: torch.fx.GraphModule
    reads: Sequence[Any]
    makes: Sequence[Any]


class HigherOrder:
    """Handling of functions of functions by a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @staticmethod
    def takes(target: Any) -> bool:
        """True if a node's target is one."""
        return isinstance(target, HigherOrderOperator)

    def call(self, node: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Note what it computes; return fake tensors of its results."""
        name = node.target.name() if callable(node.target.name) else node.target.name
        name = name.rpartition("::")[2]
        if name in _CALLS:
            body, *operands = args
            return self._recorder.run(body, operands)
        if name == "register_hook":
            return self._hooked(*args)
        tensors = [each for each in pytree.tree_leaves((args, kwargs)) if _is_tensor(each)]
        function: Any = _Bound(node.target, tuple(args), dict(kwargs))
        examples = node.meta.get("example_value")
        if name != "autograd_function_apply":
            return self._opaque(name, function, tensors, examples)
        if torch.__version__ < _ORDERED and _is_hook(args[0]):
            _, body, tensor, *others = args
            return (self._hooked(tensor, body, *others),)
        self._check_materialized(examples)
        self._check_dirty(args[0])
        dirty = _dirty(args, kwargs.get("dirty_idx", ()))
        if dirty:
            changed = {at for at, e in enumerate(tensors) if any(e is d for d in dirty.values())}
            function = _OnClones(function, frozenset(changed))
        return self._opaque(name, function, tensors, examples, _without_gradients(args), dirty)

    def _check_materialized(self, examples: Any) -> None:
        """Refuse a user's own backward that may be given None: TorchDynamo traces it with tensors.

        Of one result alone it is never called with None.
        """
        results = filter(_is_tensor, pytree.tree_leaves(examples))
        follows = torch.is_grad_enabled() and sum(each.requires_grad for each in results) > 1
        if follows and _SETS_MATERIALIZE in _traced_code():
            raise UnsupportedModelError(
                "an autograd.Function of several results calls ctx.set_materialize_grads, and "
                "TorchDynamo traces its backward as if all of them had gradients: take the call "
                f"out, so that backward is given zeros in place of None\n  {self._recorder.where}"
            )

    def _check_dirty(self, forward: torch.fx.GraphModule) -> None:
        """Refuse an input that is marked dirty where TorchDynamo loses the mark, tracing into it.

        PyTorch 2.13 notes it in the graph. A dirty input is a result, too.
        """
        if _MARKS_DIRTY in _traced_code() and _handed_on(forward):
            raise UnsupportedModelError(
                "an autograd.Function marks an input dirty (ctx.mark_dirty), which TorchDynamo "
                "does not follow before PyTorch 2.13: let it change a clone, without the mark\n"
                f"  {self._recorder.where}"
            )

    # A span of nodes --------------------------------------------------------------------------

    def spans(self, module: torch.fx.GraphModule) -> Iterator[Any]:
        """The nodes of a graph; those of a vmap as one span each."""
        nodes, index = list(module.graph.nodes), 0
        while index < len(nodes):
            if _name(nodes[index]) != _ENTERS:
                yield nodes[index]
                index += 1
                continue
            depth, last = 0, index
            for last in range(index, len(nodes)):
                depth += (_name(nodes[last]) == _ENTERS) - (_name(nodes[last]) == _LEAVES)
                if depth == 0:
                    break
            yield _span(module, nodes[index : last + 1])
            index = last + 1

    def span(self, span: Span, found: dict[Any, Any]) -> None:
        """Note a span as one operation."""
        examples = tuple(node.meta["example_value"] for node in span.makes)
        given = tuple(found[node] for node in span.reads)  # sizes of batches among them
        function = _Bound(_Calling(span.module), given, {})
        made = self._opaque("vmap", function, list(filter(_is_tensor, given)), examples)
        found.update(zip(span.makes, made, strict=True))

    # Operations --------------------------------------------------------------------------------

    def _opaque(
        self,
        name: str,
        function: Any,
        tensors: Sequence[torch.Tensor],
        examples: Any,
        without_gradients: Container[int] = (),
        dirty: Mapping[int, torch.Tensor] = MappingProxyType({}),
    ) -> Any:
        """Note one.

        Of what it reads, some get no gradient of it, by number; of what it makes, some are written
        to what it has read.
        """
        recorder = self._recorder
        values = tuple(map(recorder.memories.read, tensors))
        values = tuple(
            recorder.detached(value) if at in without_gradients else value
            for at, value in enumerate(values)
        )
        follows = torch.is_grad_enabled() and any(value.requires_grad for value in values)
        if not follows:
            values = tuple(map(recorder.detached, values))
        leaves, structure = pytree.tree_flatten(examples)
        fakes = [self._fake(each) if _is_tensor(each) else each for each in leaves]
        results = tuple(
            recorder.value_like(fake, follows and example.requires_grad)
            if _is_tensor(fake)
            else None
            for fake, example in zip(fakes, leaves, strict=True)
        )
        recorder.emit(function, name, values, {}, results)
        for index, (fake, value) in enumerate(zip(fakes, results, strict=True)):
            if value is None:
                continue
            if index not in dirty:
                recorder.memories.own(fake, value)
                continue
            if value.requires_grad and not dirty[index].requires_grad:
                raise UnsupportedModelError(
                    "an autograd.Function marks an input dirty (ctx.mark_dirty) that has no "
                    f"gradient before: let it change a clone\n  {recorder.where}"
                )
            recorder.memories.write(dirty[index], value)
            fakes[index] = dirty[index]
        return pytree.tree_unflatten(fakes, structure)

    def _fake(self, example: torch.Tensor) -> torch.Tensor:
        with self._recorder.paused():
            fake = torch.empty_strided(
                example.shape, example.stride(), dtype=example.dtype, device=example.device
            )
            follows = example.requires_grad and torch.is_grad_enabled()
            return fake.requires_grad_().clone() if follows else fake

    def _hooked(self, tensor: torch.Tensor, body: Any, *others: Any) -> torch.Tensor:
        """A tensor whose gradient a hook of the user's changes, wherever it comes from."""
        recorder = self._recorder
        seen = recorder.memories.seen(tensor)
        now = recorder.memories.read(tensor)
        if not now.requires_grad:
            return tensor
        # hooks run as they were registered: a later one is nearer to what made the tensor
        before = self._below_hooks(now)
        if before is not now and torch.__version__ < _ORDERED:  # a TorchVersion, which compares so
            raise UnsupportedModelError(
                "forward registers several hooks of one tensor, and PyTorch before 2.13 does not "
                f"say in which order: register one that does all\n  {recorder.where}"
            )
        read = map(recorder.memories.read, filter(_is_tensor, others))
        values = (before, *map(recorder.detached, read))
        result = recorder.value_like(tensor, True)
        hook = _Hooked(_Bound(body, (tensor, *others), {}))
        operation = recorder.emit(hook, "register_hook", values, {}, (result,))
        lists = [recorder.operations, recorder.before]
        operations = next(each for each in lists if each and each[-1] is operation)
        _put_behind_maker(operations, operation, before, result, set(values[1:]))
        seen.value = result if now is before else now
        return tensor

    def _below_hooks(self, value: Value) -> Value:
        """The value of a tensor before it had hooks."""
        recorder = self._recorder
        hooks = {
            each.results[0]: each.args[0]
            for each in (*recorder.before, *recorder.operations)
            if each.name == "register_hook"
        }
        while value in hooks:
            value = hooks[value]
        return value


def _put_behind_maker(
    operations: list[Operation], hook: Operation, before: Value, hooked: Value, others: set[Value]
) -> None:
    """Let all that reads a value, earlier ones too, read it behind its hook."""
    operations.pop()
    makers = [at for at, each in enumerate(operations) if before in each.results]
    first = makers[0] + 1 if makers else 0
    late = any(others.intersection(each.results) for each in operations[first:])
    if late and any(before in each.reads for each in operations[first:]):
        raise UnsupportedModelError(
            "a hook of a tensor uses what forward computes after others have read the tensor: "
            f"register it before\n  {hook.where}"
        )
    if late:
        operations.append(hook)
        return

    def put(value: Value) -> Value:
        return hooked if value == before else value

    operations[first:] = [
        hook,
        *(
            replace(
                each,
                args=replace_values(each.args, put),
                kwargs=replace_values(dict(each.kwargs), put),
                arguments=replace_values(dict(each.arguments), put),
            )
            if before in each.reads
            else each
            for each in operations[first:]
        ),
    ]


def _is_hook(forward: torch.fx.GraphModule) -> bool:
    """True if it is TorchDynamo's own identity: before PyTorch 2.13 it stands for a tensor's hook.

    A user's identity (a gradient reversal, say) has a last line of the user's.
    """
    nodes = [each for each in forward.graph.nodes if each.meta.get("example_value") is not None]
    views = _handed_on(forward)
    return len(views) == 1 and all(each.op == "placeholder" for each in nodes if each not in views)


def _handed_on(forward: torch.fx.GraphModule) -> list[Any]:
    """What TorchDynamo returns of a user's own function where that returns an input: its views."""
    return [
        each
        for each in forward.graph.nodes
        if each.op == "call_method"
        and each.target == "view_as"
        and str(autograd_function.__file__)
        in str(each.meta.get("stack_trace", "")).split('File "')[-1]
    ]


def _traced_code() -> Container[Any]:
    """The code of all that TorchDynamo has traced for the graph."""
    return getattr(TracingContext.try_get(), "traced_code", None) or ()


def _without_gradients(args: Sequence[Any]) -> frozenset[int]:
    """Which tensors a user's own backward has no gradient of: it returns None."""
    _, backward, *operands = args
    (output,) = (node for node in backward.graph.nodes if node.op == "output")
    (results,) = output.args
    results = results if isinstance(results, tuple | list) else (results,)
    pairs = [(each, gradient) for each, gradient in zip(operands, results, strict=False)]
    gradients = [gradient for each, gradient in pairs if _is_tensor(each)]
    return frozenset(at for at, gradient in enumerate(gradients) if gradient is None)


def _dirty(args: Sequence[Any], places: Sequence[int]) -> dict[int, torch.Tensor]:
    """The input of each result that is one, changed in place (`ctx.mark_dirty`), by its number."""
    if not places:
        return {}
    forward, _, *operands = args
    nodes = list(forward.graph.nodes)
    results, _ = nodes[-1].args[0]
    read = dict(zip((e for e in nodes if e.op == "placeholder"), operands, strict=True))
    return {at: read[results[at]] for at in places}


def _is_tensor(each: Any) -> bool:
    return isinstance(each, torch.Tensor)


def _name(node: Any) -> str:
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def _span(module: torch.fx.GraphModule, nodes: Sequence[Any]) -> Span:
    inside = dict.fromkeys(nodes)
    reads = list(
        dict.fromkeys(e for node in nodes for e in node.all_input_nodes if e not in inside)
    )
    makes = [node for node in nodes if any(user not in inside for user in node.users)]
    graph = torch.fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in reads}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in makes))
    return Span(torch.fx.GraphModule(module, graph), reads, makes)


def _text(module: Any) -> str:
    """All that a graph computes, as text."""
    if not isinstance(module, torch.fx.GraphModule):
        return str(module)
    parts = [_text(each) for each in module.children()]
    return "\n".join([str(module.graph), *parts])


@dataclass(frozen=True, eq=False)
class _Calling:
    """A graph, as a function of tensors."""

    module: torch.fx.GraphModule
    tags = ()

    def __call__(self, *tensors: torch.Tensor) -> Any:
        return torch.fx.Interpreter(self.module).run(*tensors)

    def __str__(self) -> str:
        return _text(self.module)


class _Bound:
    """A function of functions, with all of its arguments but for tensors."""

    tags = ()

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        leaves, self._structure = pytree.tree_flatten((args, dict(kwargs)))
        self._leaves = [None if _is_tensor(each) else each for each in leaves]
        self._places = [at for at, each in enumerate(leaves) if _is_tensor(each)]
        self._function = function

    def __call__(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self._leaves)
        for at, tensor in zip(self._places, tensors, strict=True):
            leaves[at] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        return self._function(*args, **kwargs)

    def __str__(self) -> str:
        return "\n".join(map(_text, (self._function, *self._leaves)))


@dataclass(frozen=True, eq=False)
class _OnClones:
    """A function that changes some of its tensors: it is given clones of those, by number."""

    function: _Bound
    changed: frozenset[int]
    tags = ()

    def __call__(self, *tensors: torch.Tensor) -> Any:
        own = (each.clone() if at in self.changed else each for at, each in enumerate(tensors))
        return self.function(*own)

    def __str__(self) -> str:
        return f"on clones of {sorted(self.changed)}: {self.function}"


@dataclass(frozen=True, eq=False)
class _Hooked:
    """Hands a tensor on, and calls a hook with its gradient."""

    body: Callable[..., Any]
    tags = ()

    def __call__(self, tensor: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        made = unhooked_alias(tensor)
        if made.requires_grad:
            made.register_hook(lambda gradient: self._changed(gradient, *others))
        return made

    def _changed(self, gradient: torch.Tensor, *others: torch.Tensor) -> Any:
        found = self.body(gradient, *others)
        return found[0] if isinstance(found, tuple) else found

    def __str__(self) -> str:
        return f"register_hook {_text(self.body)}"
