"""Functions of functions in a captured graph: a user's own backward, hooks, checkpoints, vmap.

A checkpoint is what it calls, for the planner recomputes by itself. All else is one operation that
PyTorch computes whole, with the graphs that TorchDynamo has of it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch._functorch import autograd_function
from torch._guards import TracingContext
from torch._ops import HigherOrderOperator
from torch.utils import _pytree as pytree

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.places import source_line
from ooc_cudnn.torch.tracing.autocast import UnderAutocast, state
from ooc_cudnn.torch.tracing.bodies import Body, Bound, OnClones, WithZeros
from ooc_cudnn.torch.tracing.body_writes import BodyWrites, writes_of
from ooc_cudnn.torch.tracing.graph import FUNCTION, Value
from ooc_cudnn.torch.tracing.hooks import Hooks, fake_like
from ooc_cudnn.torch.tracing.recorder_protocol import Recorder
from ooc_cudnn.torch.tracing.scalar_inputs import BY_DATA, is_unknown
from ooc_cudnn.torch.tracing.vmap_spans import DERIVED, DERIVES, Span, name_of_call

_CHECKPOINT = "tag_activation_checkpoint"
#: They call their first argument, and change nothing of what it computes.
_CALLS = frozenset({_CHECKPOINT, "wrap", "wrap_activation_checkpoint"})
#: In the `meta` of a node that registers a hook of a tensor: forward has removed it.
REMOVED = "ooc_cudnn_removed"
#: In the `meta` of the node of a function: it stands for a hook, as before PyTorch 2.13.
IS_HOOK = "ooc_cudnn_is_hook"
#: In the `meta` of the node of a tensor with a hook: that of the tensor before.
HOOKED = "ooc_cudnn_hooked"
_SETS_MATERIALIZE = torch.autograd.function.FunctionCtx.set_materialize_grads.__code__
_MARKS_DIRTY = torch.autograd.function.FunctionCtx.mark_dirty.__code__


class HigherOrder:
    """Handling of functions of functions by a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._hooks = recorder, Hooks(recorder)
        #: Results of reentrant checkpoints, which are functions of a backward of their own.
        self._of_functions = set[Value]()

    @staticmethod
    def takes(target: Any) -> bool:
        """True if a node's target is one."""
        return isinstance(target, HigherOrderOperator)

    def call(self, node: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Note what it computes; return fake tensors of its results."""
        name = node.target.name() if callable(node.target.name) else node.target.name
        name = name.rpartition("::")[2]
        if name in _CALLS:
            made = self._called(*args)
            is_reentrant = name == _CHECKPOINT and kwargs.get("use_reentrant") is not False
            if is_reentrant and torch.is_grad_enabled():
                tensors = filter(_is_tensor, pytree.tree_leaves(made))
                self._of_functions.update(map(self._recorder.memories.read, tensors))
            return made
        for each in args:
            if isinstance(each, torch.fx.GraphModule):
                _check_numbers(each)
        if name == "register_hook":
            return args[0] if REMOVED in node.meta else self._hooks.register(*args)
        examples = node.meta.get("example_value")
        if name != FUNCTION:  # nothing says what they take
            raise UnsupportedModelError(
                f"forward calls {name}, which takes functions and cannot be planned: take "
                "torch.where for a condition, or compute it outside of forward\n  "
                f"{self._recorder.where}"
            )
        if IS_HOOK in node.meta:
            body, tensor, others = _of_hook(args)
            is_removed = REMOVED in node.meta
            return (tensor if is_removed else self._hooks.register(tensor, body, *others),)
        self._check_materialized(examples)
        self._check_dirty(args[0])
        return self._opaque(name, args, kwargs, examples, node.target)

    def _called(self, body: Any, *operands: Any) -> Any:
        """Compute a checkpoint's results. In backward PyTorch reads again all that it is given."""
        memories = self._recorder.memories
        tensors = [each for each in operands if _is_tensor(each)]
        values = list(map(memories.read, tensors))
        made = self._recorder.run(body, operands)
        for tensor, value in zip(tensors, values, strict=True):
            # what it changes itself, as statistics, PyTorch changes twice
            if torch.is_grad_enabled() and memories.read(tensor) is value:
                memories.keep(tensor, "a checkpoint")
        return made

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

    def span(self, span: Span, found: dict[Any, Any]) -> None:
        """Note a span as one operation."""
        examples = tuple(node.meta["example_value"] for node in span.makes)
        given = tuple(found[node] for node in span.reads)  # sizes of batches among them
        if torch.is_grad_enabled() and DERIVES.intersection(
            map(name_of_call, span.module.graph.nodes)
        ):
            raise UnsupportedModelError(DERIVED + self._recorder.where)
        made = self._opaque("vmap", given, {}, examples, Body(span.module))
        found.update(zip(span.makes, made, strict=True))

    # Operations --------------------------------------------------------------------------------

    def _opaque(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], examples: Any, target: Any
    ) -> Any:
        """Note one as an operation that PyTorch computes whole.

        What it changes in place it returns, too; it works on clones of that.
        """
        recorder = self._recorder
        tensors = [each for each in pytree.tree_leaves((args, kwargs)) if _is_tensor(each)]
        values = tuple(map(recorder.memories.read, tensors))
        is_function = name == FUNCTION
        passed_over = _without_gradients(args) if is_function else ()
        zeroed = self._functions_behind([values[at] for at in passed_over])
        values = tuple(
            recorder.detached(value) if at in passed_over else value
            for at, value in enumerate(values)
        )
        followed_values = (value.requires_grad for value in (*values, *zeroed))
        follows = torch.is_grad_enabled() and any(followed_values)
        if not follows:
            values = tuple(map(recorder.detached, values))
        function: Any = Bound(target, tuple(args), dict(kwargs))
        writes = self._writes_of(function, tensors, values, with_backward=is_function)
        dirty = _dirty(args, kwargs.get("dirty_idx", ())) if is_function else {}
        if follows:
            seen = [at for at in writes.given if not is_function or _is_in(tensors[at], dirty)]
            values = tuple(
                recorder.memories.to_change(tensors[at]) if at in seen else value
                for at, value in enumerate(values)
            )
        if is_function:
            *bodies, operands = *args[:2], args[2:]
            told = (*(Body(each).as_graph() for each in bodies), *operands)
            function = Bound(target, told, dict(kwargs))
        leaves, structure = pytree.tree_flatten(examples)
        fakes = [fake_like(self._recorder, each) if _is_tensor(each) else each for each in leaves]
        results = tuple(
            recorder.value_like(fake, follows and example.requires_grad)
            if _is_tensor(fake)
            else None
            for fake, example in zip(fakes, leaves, strict=True)
        )
        clones = tuple(
            recorder.value_like(tensors[at], is_followed)
            for at, is_followed in zip(writes.given, writes.follows, strict=True)
        )
        if writes.given:
            function = OnClones(function, writes.given)
        if state():
            function = UnderAutocast(function, state())
        followed = tuple(each if each.requires_grad else None for each in clones)
        made = (*results, *followed)
        reads: tuple[Value, ...] = values
        if zeroed and follows:
            function, reads = WithZeros.of(function, zeroed, made), (*values, *zeroed)
        recorder.emit(function, name, reads, {}, made)
        if None in followed:  # by itself: what has no gradient is made wherever there is room
            others = tuple(None if each.requires_grad else each for each in clones)
            reads = tuple(map(recorder.detached, reads))
            recorder.emit(function, name, reads, {}, (*(None for _ in results), *others))
        for fake, value in zip(fakes, results, strict=True):
            if value is not None:
                recorder.memories.own(fake, value)
        self._write([tensors[at] for at in writes.given], clones, dirty, hidden=is_function)
        if follows:
            results_kept = [fakes[at] for at in writes.results_kept if at not in dirty]
            for each in (*(tensors[at] for at in writes.kept), *results_kept):
                recorder.memories.keep(each, "the backward of an autograd.Function", made)
        for at, index in writes.shown:
            if at not in dirty:
                recorder.memories.share(fakes[at], tensors[index])
        for one, two in writes.alike:
            recorder.memories.share(fakes[one], fakes[two])
        for at, tensor in dirty.items():
            fakes[at] = tensor
        return pytree.tree_unflatten(fakes, structure)

    def zeroed(self, given: Sequence[Any], results: Sequence[Any]) -> tuple[Value, ...]:
        """List what gets zeros behind the tensors that an operator's backward returns None for."""
        outputs = [each for each in results if _is_tensor(each) and each.requires_grad]
        tensors = [each for each in given if _is_tensor(each) and each.requires_grad]
        values = list(map(self._recorder.memories.read, tensors))
        if not outputs or not self._functions_behind(values):
            return ()
        gradients = torch.autograd.grad(
            outputs,
            tensors,
            list(map(torch.zeros_like, outputs)),
            allow_unused=True,
            retain_graph=True,
        )
        pairs = zip(values, gradients, strict=True)
        return self._functions_behind([value for value, gradient in pairs if gradient is None])

    def _functions_behind(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Collect what functions with a backward of their own make, of which values are made.

        Where PyTorch has no gradient for the values, it has none for what made them, either, but
        calls the backward of such a function with zeros.
        """
        recorder, found, wanted = self._recorder, dict[Value, None](), list(values)
        operations = (*recorder.before, *recorder.operations) if values else ()
        makers = {result: each for each in operations for result in each.results}
        seen = set[Value]()
        while wanted:
            value = wanted.pop()
            maker = makers.get(value)
            if not value.requires_grad or value in seen or maker is None:
                continue
            seen.add(value)
            if maker.has_own_backward or value in self._of_functions:
                found[value] = None
            else:
                wanted.extend(maker.reads)
        return tuple(found)

    def _writes_of(
        self,
        function: Any,
        tensors: Sequence[torch.Tensor],
        values: Sequence[Value],
        *,
        with_backward: bool,
    ) -> BodyWrites:
        """Return what it changes in place; refuse what it cannot be given clones of."""
        recorder = self._recorder
        pairs = zip(tensors, values, strict=True)
        own = [
            fake_like(self._recorder, each, follows=value.requires_grad) for each, value in pairs
        ]
        with recorder.left():
            writes = writes_of(function, own, with_backward=with_backward)
        if writes.draws and (writes.given or any(value.requires_grad for value in values)):
            raise UnsupportedModelError(
                "a vmap or an autograd.Function draws random numbers, and others when backward "
                f"runs it: draw them before, and give them as an argument\n  {recorder.where}"
            )
        if writes.gradients:
            raise UnsupportedModelError(
                "backward of an autograd.Function changes the gradient that it is given in place, "
                f"and others may read that: let it return another one\n  {recorder.where}"
            )
        if writes.backward:
            raise UnsupportedModelError(
                "backward of an autograd.Function changes a tensor in place that it did not make: "
                f"let it work on a clone, and count in forward\n  {recorder.where}"
            )
        changed = [tensors[at] for at in writes.given]
        recorder.memories.check_apart("a vmap or an autograd.Function", tensors, changed)
        return writes

    def _write(
        self,
        tensors: Sequence[torch.Tensor],
        values: Sequence[Value],
        dirty: Mapping[int, torch.Tensor],
        *,
        hidden: bool,
    ) -> None:
        """Note what has changed in place: `hidden` from autograd, but for what is marked dirty."""
        recorder = self._recorder
        for tensor, value in zip(tensors, values, strict=True):
            is_dirty = _is_in(tensor, dirty)
            follows = recorder.memories.read(tensor).requires_grad
            if is_dirty and value.requires_grad and not follows:
                raise UnsupportedModelError(
                    "an autograd.Function marks an input dirty (ctx.mark_dirty) that has no "
                    f"gradient before: let it change a clone\n  {recorder.where}"
                )
            if value.requires_grad and not tensor.requires_grad:
                with recorder.paused():
                    tensor.copy_(fake_like(self._recorder, tensor, follows=True))
            recorder.memories.write(tensor, value, as_data=hidden and follows and not is_dirty)


def _handed_on(forward: torch.fx.GraphModule) -> list[Any]:
    """Return what TorchDynamo makes of a function that returns an input: views of it."""
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
    """List the tensors that a user's own backward has no gradient of: it returns None."""
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
    read, results, _ = _forward_of(args)
    return {at: read[results[at]] for at in places}


def _of_hook(args: Sequence[Any]) -> tuple[Any, torch.Tensor, list[Any]]:
    """A hook that is a function: its body, its tensor, and what else the body is given.

    That is what the function's forward saves, which by itself is a view of the tensor. The body
    returns a gradient for each input of the function; a hook has that of its tensor alone.
    """
    read, (view,), saved = _forward_of(args)
    tensor = read[view.args[0]]
    graph = torch.fx.Graph()
    results: Any = graph.graph_copy(args[1].graph, {})
    graph.output((results[list(read).index(view.args[0])],))  # the others are of sizes, of a batch
    body = torch.fx.GraphModule(args[1], graph)
    return body, tensor, [tensor if each is view else read[each] for each in saved]


def _forward_of(args: Sequence[Any]) -> tuple[dict[Any, Any], Sequence[Any], Sequence[Any]]:
    """Read a function's forward: what each input is, its results, and what backward is given."""
    forward, _, *operands = args
    *nodes, output = forward.graph.nodes
    read = dict(zip((e for e in nodes if e.op == "placeholder"), operands, strict=True))
    return read, *output.args[0]


def _is_in(tensor: torch.Tensor, dirty: Mapping[int, torch.Tensor]) -> bool:
    return any(tensor is each for each in dirty.values())


def _is_tensor(each: Any) -> bool:
    return isinstance(each, torch.Tensor)


def _check_numbers(body: torch.fx.GraphModule) -> None:
    """Refuse a body that makes a number of data: what runs it is planned without any."""
    for node in body.graph.nodes:
        if is_unknown(node.meta.get("example_value")):
            raise UnsupportedModelError(BY_DATA + source_line(node))
    for each in body.children():
        if isinstance(each, torch.fx.GraphModule):
            _check_numbers(each)
