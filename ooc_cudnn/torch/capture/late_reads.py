"""Late reads, which backward would make after the capture: traced again once forward has ended.

Hooks of tensors, the backward of an `autograd.Function` and checkpoints run when forward is over,
and read attributes, cells and entries as they are then. TorchDynamo traces them where forward comes
by. So they are traced a second time at the end: where that reads something else, forward has
replaced it meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.symbolic_convert import (
    InliningInstructionTranslator,
    InstructionTranslatorBase,
)
from torch._dynamo.variables import (
    CellVariable,
    GetAttrVariable,
    UserFunctionVariable,
    base,
    builtin,
    dicts,
    higher_order_ops,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.higher_order_ops import (
    AutogradFunctionApplyVariable,
    CheckpointHigherOrderVariable,
)

from ooc_cudnn.torch.autograd.late_state import roots_of, users_alone
from ooc_cudnn.torch.capture.backend import job_of
from ooc_cudnn.torch.capture.dynamo_patches.made_objects import is_container
from ooc_cudnn.torch.capture.dynamo_patches.traced_tensors import FUNCTION_OF_HOOKS
from ooc_cudnn.torch.capture.noted_reads import NotedReads, entry_read
from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.places import NOT_THE_USERS, source_name, told_name, traced_line
from ooc_cudnn.torch.thread_patches import patched_in_this_thread
from ooc_cudnn.torch.tracing.autocast import without_autocast
from ooc_cudnn.torch.tracing.higher_order import HOOKED

_HOOK = (
    "a hook of a tensor",
    "give what it reads to the hook as a default (lambda gradient, b=self.b: gradient * b)",
)
_BACKWARD = ("backward of an autograd.Function", "give it to apply, and keep it on ctx")
_CHECKPOINT = ("a checkpoint", "give it as an argument of the checkpoint")
#: The name by which TorchDynamo traces hooks of tensors.
_OF_HOOKS = "register_hook"
#: What traces `getattr`, and by it `a.b`; and what an object's `__dict__` is for TorchDynamo.
_GETATTR: Any = getattr(builtin, "GetAttrBuiltinVariable", builtin.BuiltinVariable)
_HASATTR: Any = getattr(builtin, "HasAttrBuiltinVariable", builtin.BuiltinVariable)
_DUNDER_DICT: Any = getattr(dicts, "SideEffectsProxyDict", None)  # before 2.13, the attribute
#: As many names are told.
_TOLD = 3
#: What has no name.
_CONTAINER, _VARIABLE = "a container", "a variable"


@dataclass(frozen=True)
class _Reading:
    """Trace of a body: its graph, and the nodes outside that it is given."""

    graph: tuple[Any, ...]
    given: tuple[Any, ...]


@dataclass(frozen=True)
class _Body:
    """A body that was traced.

    Attributes
    ----------
    kind : (str, str)
        What it is, and what to do where it reads too early.
    first : _Reading
    again : function
        Traces it, given the translator.
    line : str
    writes : int
        How many writes of forward came before.
    """

    kind: tuple[str, str]
    first: _Reading
    again: Callable[[Any], _Reading]
    line: str
    writes: int


class _Watched(NotedReads):
    """The bodies of one graph, by the tracer that they were traced in, and forward's writes."""

    def __init__(self, output: OutputGraph | None = None) -> None:
        super().__init__()
        self.output = output
        self.bodies: dict[Any, list[_Body]] = {}
        self.writes: list[str] = []

    def add(self, tx: Any, kind: tuple[str, str], first: _Reading, again: Any) -> None:
        """Note a body that was traced."""
        body = _Body(kind, first, again, traced_line(), len(self.writes))
        self.bodies.setdefault(tx.output.current_tracer, []).append(body)

    def check(self, tx: Any) -> None:
        """Trace the bodies of the current tracer again, as its end is reached.

        Raises
        ------
        UnsupportedModelError
            If one reads something else than before.
        """
        for body in self.bodies.pop(tx.output.current_tracer, ()):
            names = self.writes[body.writes :]
            if not names:
                continue
            second = _traced_again(tx, body)
            if second == body.first:
                continue
            what, remedy = body.kind
            told = _replaced(body.first, second) or _told(names)
            raise UnsupportedModelError(
                f"{what} reads what forward replaces behind it ({', '.join(told[:_TOLD])}), and "
                f"in backward would find the new value: {remedy}; or replace it earlier\n"
                f"  {body.line}"
            )


def _traced_again(tx: Any, body: _Body) -> _Reading | None:
    """Trace again what a body reads; None if it cannot be traced, or adds to its graph."""
    output = tx.output
    effects, parts = output.side_effects, set(output.nn_modules)
    graphs = [each.graph for each in output.tracers]
    nodes = [len(each.nodes) for each in graphs]
    kept = effects.clone()
    try:
        reading = body.again(tx)
    except torch._dynamo.exc.TorchDynamoException:
        return None
    finally:
        vars(effects).update(vars(kept))  # objects of forward's own write to what it is
        output.side_effects = effects
        for name in [each for each in output.nn_modules if each not in parts]:
            del output.nn_modules[name]
        for graph in graphs:
            _drop_last(graph, parts)
    return reading if nodes == [len(each.nodes) for each in graphs] else None


@contextmanager
def _without_new_inputs(tracer: Any) -> Iterator[None]:
    """Take back the inputs that a trace adds to the graph around it, which is done already.

    A tensor with a hook has another proxy than when that graph was traced.
    """
    lifted, named = dict(tracer.lifted_freevars), dict(tracer.input_name_to_proxy)
    nodes = set(tracer.graph.nodes)
    try:
        yield
    finally:
        tracer.lifted_freevars, tracer.input_name_to_proxy = lifted, named
        for node in reversed(tracer.graph.nodes):
            if node not in nodes:
                tracer.graph.erase_node(node)


def _drop_last(graph: torch.fx.Graph, parts: set[str]) -> None:
    """Erase the last nodes of a graph that get a part of it which is gone."""
    while (last := next(iter(reversed(graph.nodes)), None)) is not None:
        if last.op != "get_attr" or last.target in parts or last.users:
            return
        graph.erase_node(last)


def _reading(graph: torch.fx.Graph, given: Sequence[Any], own: Sequence[Any] = ()) -> _Reading:
    """Return what a body reads; its `own` results by number, for they are others outside of it."""
    nodes = [_below_hooks(each.node) for each in given]
    return _Reading(
        _as_numbered(graph), tuple(own.index(each) if each in own else each for each in nodes)
    )


def _nodes_of(results: Any) -> list[torch.fx.Node]:
    """The nodes of what a forward has returned, as they are now."""
    items = [results] if results.is_tensor() else results.items
    return [_below_hooks(each.as_proxy().node) for each in items if each.is_tensor()]


def _as_numbered(graph: torch.fx.Graph) -> tuple[Any, ...]:
    """A graph as plain data, its nodes by number: names are others in each trace."""
    numbers = {node: f"%{at}" for at, node in enumerate(graph.nodes)}

    def noted(node: torch.fx.Node) -> tuple[Any, ...]:
        target: Any = None if node.op == "placeholder" else node.target
        if node.op == "get_attr":
            part = _part(str(target))
            target = _as_numbered(part.graph) if isinstance(part, torch.fx.GraphModule) else target
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), numbers.__getitem__)
        return node.op, target, arguments

    return tuple(map(noted, graph.nodes))


def _part(name: str) -> Any:
    """A part of what is traced now, by its name in graphs."""
    translator = torch._dynamo.symbolic_convert.InstructionTranslator
    return translator.current_tx().output.nn_modules.get(name)


def _below_hooks(node: torch.fx.Node) -> torch.fx.Node:
    """The node of a tensor before it had hooks: each puts another one in its place."""
    while HOOKED in node.meta:
        node = node.meta[HOOKED]
    return node


def _replaced(first: _Reading, second: _Reading | None) -> list[str]:
    """The names of the tensors that a body has read, and now does not."""
    now = () if second is None else second.given
    gone = (each for each in first.given if each not in now and not isinstance(each, int))
    sources = (getattr(each.meta.get("grapharg"), "source", None) for each in gone)
    return [told_name(source_name(each)) for each in sources if each is not None]


def _name_of_write(item: Any, name: str | None, tx: Any) -> str:
    """Name what forward writes: an attribute, a variable of a function, or into a container."""
    if isinstance(item, CellVariable):
        found = item.local_name or tx.current_instruction.argval
        return found if isinstance(found, str) else _VARIABLE
    source = getattr(item, "source", None)
    return name or (told_name(source_name(source)) if source is not None else _CONTAINER)


def _told(names: Sequence[str]) -> list[str]:
    """The names of writes to tell, once each: not those by which TorchDynamo traces others."""
    found = list(dict.fromkeys(each for each in names if not each.startswith("__")))
    return [each for each in found if each != _CONTAINER] or found


def _is_pytorchs(code: CodeType) -> bool:
    """True if a function is PyTorch's, or the library's: its variables are none of the user's."""
    return code.co_filename.startswith(NOT_THE_USERS)


def _of_wrapped(made: tuple[Any, ...]) -> _Reading:
    """Return what a checkpoint has read, of what TorchDynamo notes of it."""
    (_, *given), *others = made
    module = next(each for each in others if isinstance(each, torch.fx.GraphModule))
    return _reading(module.graph, given)


def _copied(results: Any) -> Any:
    """Copy what a forward has returned, as it is now."""
    if results.is_tensor():
        return results.clone()
    return results.clone(items=[each.clone() for each in results.items])


class _Ended(VariableTracker):
    """A function that a checkpoint calls: as it ends, the bodies within are traced again."""

    def __init__(self, function: Any, watched: _Watched) -> None:
        super().__init__()
        self._function, self._watched = function, watched

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
        """Trace it."""
        made = self._function.call_function(tx, args, kwargs)
        self._watched.check(tx)
        return made


@contextmanager
def _as_in_backward() -> Iterator[None]:
    """Answer a hook's questions as where backward runs, outside of forward's blocks."""
    with torch.no_grad(), without_autocast():
        yield


@contextmanager
def _side_effects_kept(tx: Any) -> Iterator[None]:
    """Have TorchDynamo know what forward writes after a body that it traces meanwhile.

    It goes on with a copy then. What it met in the body it would forget; and objects whose
    attributes forward has written before would still write to what was copied.
    """
    before = tx.output.side_effects
    yield
    now = tx.output.side_effects
    if now is not before:
        _keep_tracked(before, now)
        vars(before).update(vars(now))
        tx.output.side_effects = before


def _keep_tracked(before: SideEffects, now: SideEffects) -> None:
    """Let TorchDynamo know what it met in a body: else it forgets what forward writes there."""
    kinds = base.ValueMutationExisting | base.AttributeMutationExisting
    for item in before.keepalive:
        variable: Any = before.id_to_variable.get(id(item))
        is_met = variable is not None and isinstance(variable.mutation_type, kinds)
        if is_met and id(item) not in now.id_to_variable:
            now.id_to_variable[id(item)] = variable
            now.keepalive.append(item)


@contextmanager
def late_reads_refused() -> Iterator[None]:
    """Have Dynamo refuse what reads in backward what forward replaces after it was traced."""
    watched = _Watched()

    def of(tx: Any) -> _Watched:
        nonlocal watched
        if watched.output is not tx.output:  # Dynamo may begin anew
            watched = _Watched(tx.output)
        return watched

    def speculated(was: Any, tx: Any, f: Any, *args: Any, **how: Any) -> Any:
        if _OF_HOOKS not in args[2:3]:
            return was(tx, f, *args, **how)
        with _as_in_backward(), of(tx).reading(_HOOK), _side_effects_kept(tx):
            made = was(tx, f, *args, **how)

        def again(tx: Any) -> _Reading:
            with _as_in_backward(), _side_effects_kept(tx):
                _, graph, given = was(tx, f, *args, **how)
            return _reading(graph, list(given))

        _, graph, given = made
        of(tx).add(tx, _HOOK, _reading(graph, list(given)), again)
        return made

    def traced_backward(
        was: Any, self: Any, tx: Any, ctx: Any, tracer: Any, results: Any, forward: Any
    ) -> Any:
        kept = _copied(results)  # what it is then given has other proxies later
        is_hook = self.bwd_fn is getattr(FUNCTION_OF_HOOKS, "backward", None)
        kind, around = (_HOOK, _as_in_backward) if is_hook else (_BACKWARD, without_autocast)
        with around(), of(tx).reading(kind):
            made = was(self, tx, ctx, tracer, results, forward)

        def own(results: Any) -> list[torch.fx.Node]:
            return [] if is_hook else _nodes_of(results)  # a hook's forward hands its tensor on

        def again(tx: Any) -> _Reading:
            with around(), _without_new_inputs(tracer):
                _, _, graph, given, _ = was(self, tx, ctx, tracer, _copied(kept), forward)
                return _reading(graph, list(given), own(results))

        _, _, graph, given, _ = made
        first = _reading(graph, list(given), own(kept))
        of(tx).add(tx, kind, first, again)
        return made

    def wrapped(was: Any, self: Any, tx: Any, function: Any, *args: Any, **how: Any) -> Any:
        if not torch.is_grad_enabled():
            return was(self, tx, _Ended(function, of(tx)), *args, **how)
        with of(tx).reading(_CHECKPOINT):
            made = was(self, tx, _Ended(function, of(tx)), *args, **how)

        def again(tx: Any) -> _Reading:
            return _of_wrapped(was(self, tx, function, *args, **how))

        of(tx).add(tx, _CHECKPOINT, _of_wrapped(made), again)
        return made

    def compiled(was: Any, self: Any, tx: Any, *args: Any, **how: Any) -> Any:
        of(tx).check(tx)
        call, _ = job_of()
        reads = of(tx).all_reads(tx.output.side_effects, tx.stack)
        roots = roots_of(reads, tx.output.global_scope)
        call.late_reads = users_alone(reads, call.scope | {"G": roots})
        call.globals = roots
        return was(self, tx, *args, **how)

    def is_handle(tx: Any, made: Any) -> bool:
        """True if the reads of what is in it are noted by themselves: see `pushed`."""
        if not watched.within or _is_pytorchs(tx.f_code) or made is None:
            return False
        return is_container(made) and made.source is not None

    def attribute(was: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if getattr(self, "fn", getattr) is not getattr or not args[1].is_python_constant():
            return was(self, tx, args, kwargs)
        name, made = args[1].as_python_constant(), None
        try:
            made = was(self, tx, args, kwargs)
            return made
        finally:  # it may not be there
            of(tx).has_read_of(args[0], name, is_handle=is_handle(tx, made))

    def asked(was: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        is_asked = getattr(self, "fn", hasattr) is hasattr and len(args) == 2
        if is_asked and args[1].is_python_constant():
            of(tx).has_read_of(args[0], args[1].as_python_constant(), asks=True)
        return was(self, tx, args, kwargs)

    def by_dictionary(was: Any, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Note what is read of an object's `__dict__`, an attribute of it before PyTorch 2.13."""
        if self.name == "__dict__" and args and args[0].is_python_constant():
            asks = name == "__contains__"
            of(tx).has_read_of(self.obj, args[0].as_python_constant(), asks=asks)
        return was(self, tx, name, args, kwargs)

    def entry_asked(was: Any, self: Any, key: Any) -> Any:
        if watched.output is not None:
            watched.has_read_of(self.item, self._maybe_unwrap_key(key), asks=True)
        return was(self, key)

    def called(was: Any, self: Any, tx: Any, *args: Any, **how: Any) -> Any:
        of(tx).has_called(self.fn, self.source)
        return was(self, tx, *args, **how)

    def pushed(was: Any, self: Any, item: Any) -> Any:
        """Note containers, which come to a body as variables: of functions, or its arguments."""
        if watched.within and is_container(item) and not _is_pytorchs(self.f_code):
            entry = entry_read(self)
            of(self).has_read_of(item, None, entry, is_handle=bool(entry))
        return was(self, item)

    def entry_of(was: Any, self: Any, key: Any) -> Any:
        if watched.output is not None:
            watched.has_read_of(self.item, self._maybe_unwrap_key(key))
        return was(self, key)

    def variable(was: Any, self: Any, cell: Any) -> Any:
        made = was(self, cell)
        if watched.within and watched.output is not None:
            tx = watched.output.current_tx
            name = str(tx.current_instruction.argval)
            watched.has_read_of(cell, name, is_handle=is_handle(tx, made))
        return made

    def global_of(was: Any, self: Any, instruction: Any) -> Any:
        made = was(self, instruction)
        if instruction.argval in self.f_globals:
            handle = is_handle(self, self.stack[-1])
            of(self).has_read(self.f_globals, instruction.argval, is_handle=handle)
        return made

    def stored(was: Any, self: Any, item: Any, name: str, *args: Any, **how: Any) -> Any:
        written(self, item, name)
        return was(self, item, name, *args, **how)

    def mutated(was: Any, self: Any, item: Any) -> Any:
        written(self, item, None)
        return was(self, item)

    def written(effects: Any, item: Any, name: str | None) -> None:
        output = watched.output
        if output is not None and effects.output_graph_weakref() is output:
            watched.writes.append(_name_of_write(item, name, output.current_tx))

    places: list[tuple[Any, str, Any]] = [
        (higher_order_ops, "speculate_subgraph", speculated),
        (AutogradFunctionApplyVariable, "trace_backward_graph", traced_backward),
        (CheckpointHigherOrderVariable, "create_wrapped_node", wrapped),
        (OutputGraph, "compile_subgraph", compiled),
        (SideEffects, "store_attr", stored),
        (SideEffects, "mutation", mutated),
        (_GETATTR, "call_function", attribute),
        (SideEffects, "load_cell", variable),
        (InstructionTranslatorBase, "push", pushed),
        (InliningInstructionTranslator, "_load_global", global_of),
        (UserFunctionVariable, "bind_args", called),
        (_HASATTR, "call_function", asked),
    ]
    if _DUNDER_DICT is None:
        places.append((GetAttrVariable, "call_method", by_dictionary))
    else:
        places.append((_DUNDER_DICT, "__getitem__", entry_of))
        places.append((_DUNDER_DICT, "__contains__", entry_asked))
    with patched_in_this_thread(*places):
        yield
