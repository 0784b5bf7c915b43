"""Tracing to ATen: TorchDynamo's graph of torch functions, run on fake tensors.

Nothing is computed. Each function is called as PyTorch calls it, and the operations that it comes
to are noted above autograd and autocast: "conv2d", "batch_norm", as modules call them, not taken
apart. The fake tensors know what shares memory and what autograd follows, so what is changed in
place becomes new values (`mutations`), and a graph of values is left.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, disable_autocast_cache
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.places import module_of, source_line
from ooc_cudnn.torch.tracing.autocast import AUTOCAST, casts_of
from ooc_cudnn.torch.tracing.bodies import WithZeros
from ooc_cudnn.torch.tracing.build_graph import graph_of
from ooc_cudnn.torch.tracing.constant_tensors import (
    constant_of,
    has_unknown_shape,
    tell_numbers,
)
from ooc_cudnn.torch.tracing.element_indexing import in_place_of, recorded_part
from ooc_cudnn.torch.tracing.filled_tensor import FilledTensor
from ooc_cudnn.torch.tracing.graph import Graph, Operation, Value, name_of, replace_values
from ooc_cudnn.torch.tracing.higher_order import HigherOrder
from ooc_cudnn.torch.tracing.masked_rows import MaskedIndexing, check_no_rows, unknown_shape
from ooc_cudnn.torch.tracing.mutations import Functional, Memories
from ooc_cudnn.torch.tracing.normalizing import kept_statistics_of
from ooc_cudnn.torch.tracing.scalar_inputs import BY_DATA, Numbers, is_unknown, specialize
from ooc_cudnn.torch.tracing.switches import (
    SwitchesSet,
    autograd_follows,
    check_switch,
    switches_kept,
)
from ooc_cudnn.torch.tracing.vmap_spans import DERIVED, DERIVES, Span, spans

#: What makes a tensor like another one, of zeros, ones, a number, or whatever is there.
ALIKE = {
    f"{form}": value
    for kind, value in (("zeros", 0), ("ones", 1), ("full", None), ("empty", 0))
    for form in (f"new_{kind}", f"{kind}_like")
} | {"zero": 0, "fill": None}

#: What draws a mask, unless it drops nothing or all.
_DROPOUTS = frozenset({"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"})
#: What joins tensors along an axis, and passes over those that are empty.
JOINS = frozenset({
    "cat", "column_stack", "concat", "concatenate", "dstack", "hstack", "row_stack", "vstack",
})  # fmt: skip


def record(
    module: torch.fx.GraphModule,
    given: Sequence[Value],
    fakes: Sequence[Any],
    stored: Mapping[int, Callable[[torch.Tensor], torch.Tensor]],
    names: Mapping[str, str],
    switches: Sequence[Any] | None = None,
) -> Graph:
    """Record a graph of TorchDynamo's.

    Parameters
    ----------
    module : GraphModule
        With a placeholder for each tensor that it is given.
    given : sequence of Value
        What these are.
    fakes : sequence of FakeTensor
        Like them; they are changed.
    stored : mapping
        Of some of them, by number, what is done before the graph reads them.
    names : mapping
        The path of a module by its `id`, as text.
    switches : sequence, optional
        Those of the process when the call began; TorchDynamo may have set some since.

    Raises
    ------
    UnsupportedModelError
        If something in it can be made no operation on values, or it leaves a switch of the process
        in another position.
    """
    recorder = GraphRecording(given, fakes, names, Numbers(fakes))
    with switches_kept(switches), recorder.recording():
        first = [stored[at](fake) if at in stored else fake for at, fake in enumerate(fakes)]
        outputs = recorder.run(module, first)
        recorder.check_switches()
    return graph_of(recorder, outputs)


class GraphRecording(ProxyTorchDispatchMode):
    """Notes what functions come to, and what each fake tensor stands for.

    It is a mode above autograd: PyTorch takes none there but those of this class.
    """

    def __init__(
        self,
        given: Sequence[Value],
        fakes: Sequence[Any],
        names: Mapping[str, str],
        numbers: Numbers,
    ) -> None:
        self.numbers = numbers
        key = torch._C.DispatchKey.PreDispatch
        TorchDispatchMode.__init__(self, key)
        self._dispatch_key, self.pre_dispatch = key, True
        self.enter_stack: list[Any] = []
        self.given, self.names = tuple(given), names
        self.constants: dict[Value, torch.Tensor] = {}
        self.of_inputs = {value for value in given if value.kind == "input"}
        self.before: list[Operation] = []
        self.operations: list[Operation] = []
        self.effects: list[Operation] = []
        self.memories = Memories(self)
        self.inputs = {
            value: self.memories.own(fake, value)
            for fake, value in zip(fakes, given, strict=True)
            if isinstance(fake, torch.Tensor)
        }
        self._node: Any = None
        #: A node and its line, which is asked for several times.
        self._line: tuple[Any, str] = None, ""
        self._taken = {value.name for value in given}
        self._casts: dict[tuple[Value, torch.dtype], Value] = {}
        self._is_paused = False
        self._higher_order = HigherOrder(self)
        self._masked = MaskedIndexing(self, self._made_by)
        self._entered: list[Any] = []
        self._refusal: UnsupportedModelError | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Be in force."""
        self._switches = SwitchesSet()
        fake = next((seen.tensor for seen in self.inputs.values()), None)
        with ExitStack() as stack:
            mode = getattr(fake, "fake_mode", None)
            if mode is not None:
                stack.enter_context(mode)
            stack.enter_context(enable_python_dispatcher())
            stack.enter_context(disable_autocast_cache())
            stack.enter_context(self)
            stack.callback(self._exit_entered)
            yield

    def _exit_entered(self) -> None:
        """Leave the modes of autocast and inference that a refusal has left open."""
        while self._entered:
            self._entered.pop().__exit__(None, None, None)

    def check_switches(self) -> None:
        """Refuse a graph that leaves a switch of the process in another position."""
        self._switches.check()

    @property
    def where(self) -> str:
        """The line of the user's model that is being recorded."""
        node, line = self._line
        if node is not self._node:
            line = "" if self._node is None else source_line(self._node)
            self._line = self._node, line
        return line

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Note nothing."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    @contextmanager
    def left(self) -> Iterator[None]:
        """Be in force no more: a function of functions knows no such mode."""
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    # Functions --------------------------------------------------------------------------------

    def run(self, module: torch.fx.GraphModule, args: Sequence[Any]) -> Any:
        """Call what a graph says, node by node; return what it hands out."""
        values: dict[Any, Any] = {}
        inputs = iter(args)
        outputs: Any = None
        for node in spans(module):
            if isinstance(node, Span):
                check_no_rows([values[each] for each in node.reads])
                self._higher_order.span(node, values)
                continue
            self._node = node if node.meta.get("stack_trace") or self._node is None else self._node
            if not values.keys() >= set(node.all_input_nodes):
                raise UnsupportedModelError(
                    "TorchDynamo's graph reads a tensor before it is made: PyTorch before 2.13 "
                    f"does so for hooks that read what forward has computed\n  {self.where}"
                )
            tell_numbers(node, values.__getitem__, values.__getitem__)
            told = torch.fx.node.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            if node.op == "placeholder":
                values[node] = next(inputs)
            elif node.op == "get_attr":
                values[node] = self._attribute(module, node.target)
            elif node.op == "output":
                check_no_rows(told)
                (outputs,) = told[0]
            elif (made := self._constant_of(node, values)) is not None:
                values[node] = made
            elif self._masked.takes(node, *told):
                values[node] = self._masked.call(node, *told)
            elif node.op == "call_method" and node.target in ("item", "tolist"):
                values[node] = self._number(node)
            elif by_tensors := in_place_of(node.target, *told):
                shows = functools.partial(recorded_part, self)
                values[node] = self._made_by(by_tensors, told[0], {**told[1], "shows": shows})
            elif node.op == "call_method":
                first, *others = told[0]
                values[node] = self._made_by(getattr(first, node.target), others, told[1])
            elif node.op == "call_function":
                values[node] = self._called(node, *told)
            else:
                raise UnsupportedModelError(f"{node.op} {node.target} in a captured graph")
            if node.op.startswith("call_") and is_unknown(values[node]):
                values[node] = self._number(node)  # as NumPy's `item` is, a function of Dynamo's
        return outputs

    def _called(self, node: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        target = node.target
        name = getattr(target, "__name__", "")
        if self._higher_order.takes(target):
            return self._higher_order.call(node, args, kwargs)
        check_switch(name, self.where)
        if name in DERIVES:
            raise UnsupportedModelError(DERIVED + self.where)
        if name == "_get_data_attr":
            return args[0].detach()
        if name.partition(".")[0] in ("set_", "shallow_copy_data_"):  # the latter since 2.14
            return self.memories.assign(args[0], args[1])
        if name == "_lower_version_count_by_1":
            return args[0]
        result = self._made_by(target, args, kwargs)
        if result is None:
            self._switches.note(self.where)
        if name.startswith("_enter_") and hasattr(result, "__exit__"):
            self._entered.append(result)
        elif name.startswith("_exit_") and args and args[0] in self._entered:
            self._entered.remove(args[0])
        return result

    def _made_by(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a function of PyTorch's."""
        try:
            return function(*args, **kwargs)
        except torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode:
            raise UnsupportedModelError(BY_DATA + self.where) from None
        except TypeError as error:  # an operator of Python's makes another one of a refusal
            raise self._refusal or error from None

    @staticmethod
    def _number(node: Any) -> Any:
        example = node.meta.get("example_value")
        if isinstance(example, torch.SymFloat | torch.SymInt) and example.node.has_hint():
            return specialize(example)  # of what is given: guards compare it
        if node.users:
            raise UnsupportedModelError(BY_DATA + source_line(node))
        return None

    def _attribute(self, module: Any, name: str) -> Any:
        value = operator.attrgetter(name)(module)
        if not isinstance(value, torch.Tensor):
            return value
        for given, seen in self.inputs.items():
            if self.constants.get(given) is value:
                return seen.tensor
        return self._held(value)

    def _held(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor for one that is there already."""
        with self.paused():
            fake = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
        constant = self.constant(tensor)
        self.inputs[constant] = self.memories.own(fake, constant)  # an optimizer's step changes it
        return fake

    def _constant_of(self, node: Any, values: Mapping[Any, Any]) -> Any:
        """Return what a node of unknown shape makes of numbers alone, or None."""
        if not has_unknown_shape(node.meta.get("example_value")):
            return None
        made = constant_of(node, values.__getitem__)
        return pytree.tree_map_only(torch.Tensor, self._held, made)

    def constant(self, tensor: torch.Tensor) -> Value:
        """A value for a tensor that is there already."""
        made = Value(self._name("constant"), tuple(tensor.shape), tensor.dtype, "constant")
        self.constants[made] = tensor
        return made

    # Operations -------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation on fake tensors, and note it."""
        try:
            return self._dispatched(func, types, args, kwargs or {})
        except UnsupportedModelError as error:
            self._refusal = error
            raise

    def _dispatched(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._is_paused:
            return func(*args, **kwargs)
        if self._masked.check_operation is not None:
            self._masked.check_operation(func, args)
        if func is torch.ops.aten.expand_as.default:  # it reads no more than a shape
            func, args, kwargs = torch.ops.aten.expand.default, (args[0], [*args[1].shape]), {}
        made_anew = _of_lists(func)
        if made_anew is not None:
            for index, target in enumerate(args[0]):  # one may be a view of another
                if self.memories.to_change(target) is not self.memories.read(target):
                    raise UnsupportedModelError(
                        f"forward changes a view with a hook by {func}: change it by itself, as "
                        f"y += 1 does\n  {self.where}"
                    )
                alone, named = (_only(index, each) for each in (args, kwargs))
                (value,) = self.__torch_dispatch__(made_anew, types, alone, named)
                self.__torch_dispatch__(torch.ops.aten.copy_.default, types, (target, value))
            return args[0] if func._schema.returns else None
        if name_of(func).removesuffix("_") in _DROPOUTS and args[1] == 1 and args[2]:
            # as PyTorch's kernels do: nothing is drawn
            zeros = torch.ops.aten.mul_ if name_of(func).endswith("_") else torch.ops.aten.mul
            return self.__torch_dispatch__(zeros.Tensor, types, (args[0], 0.0), {})
        kept = kept_statistics_of(func, args)
        told = args if kept is None else kept.given(args, self)
        values, named = pytree.tree_map_only(torch.Tensor, self.memories.read, (told, kwargs))
        if _reads_strides(func):
            values = (self._laid_out(func, args[0], values[0]), *values[1:])
        if func is torch.ops.aten.dropout.default and not (args[1] and args[2]):
            return args[0]  # as PyTorch's kernel does; the form for fake tensors makes a clone
        with casts_of(func, args, kwargs, self.memories.read) as casts:
            result = func(*args, **kwargs)
        self._note(func, args, kwargs, values, named, result, casts)
        if kept is not None:
            kept.note(self, values[0])
        return result

    def _laid_out(self, func: Any, tensor: torch.Tensor, value: Value) -> Value:
        """A value in the memory order of its shape: others may be planned.

        What takes neighbours together (`view_as_complex`) makes the same of it in any order that it
        takes.
        """
        if name_of(func) == "as_strided" and not tensor.is_contiguous():
            raise UnsupportedModelError(
                f"as_strided is given a map in another memory order than its shape's: give it "
                f"x.contiguous()\n  {self.where}"
            )
        return self.one(_contiguous, "laid_out", (value,), value.shape, value.dtype)

    def __sym_dispatch__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Numbers are counted as they are."""
        return func(*args, **kwargs)

    def _note(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        values: tuple[Any, ...],
        named: Mapping[str, Any],
        result: Any,
        casts: Any,
    ) -> None:
        """Note an operation: what it read, and what it has made or changed."""
        schema = func._schema
        written = Functional.written(schema, args, kwargs, self.where)
        name = name_of(func)
        tensors = result if isinstance(result, tuple | list) else (result,)
        if written:
            if func.namespace not in ("aten", "prims"):
                leaves = pytree.tree_leaves((args, kwargs))
                given = [each for each in leaves if isinstance(each, torch.Tensor)]
                self.memories.check_apart(schema.name, given, list(written.values()))
            self._changed(func, name, values, named, written, tensors)
            return
        if not any(isinstance(each, torch.Tensor) for each in tensors):
            self._done_for_effect(func, name, values, named)
            return
        if all(each is None or self.memories.knows(each) for each in tensors):
            return  # what it was given is handed on
        function: Callable[..., Any] = func
        function, cast = casts.function, casts.inputs
        if cast:  # before histories are left out: casts are known by what is read with them
            values, named = replace_values((values, dict(named)), lambda v: self._cast(v, cast))
        values, named = self._stopped(values, named, tensors, draws=_draws(func))
        results = tuple(self._result(each) for each in tensors)
        if name in ALIKE and results[0] is not None and not _has_gradient_of_zeros(name, results):
            # it reads no more than a shape
            number = ALIKE[name]
            number = number if number is not None else named.get("fill_value", values[-1])
            if not isinstance(number, Value):
                function, values, named = (
                    FilledTensor(results[0], tensors[0].device, number),
                    (),
                    {},
                )
        if name in JOINS and results[0] is not None:
            values = (self._without_empty(values[0], results[0]), *values[1:])
        label = name + AUTOCAST * (function is not func and name not in ALIKE)
        if "::" in name:  # of another library, with a backward of a user's
            zeroed = self._higher_order.zeroed(pytree.tree_leaves((args, kwargs)), tensors)
            if zeroed:
                function = WithZeros.of(function, zeroed, results)
                values, schema = (*values, *zeroed), None
        self.emit(function, label, values, named, results, schema)
        self.memories.made(func, args, kwargs, tensors, results)

    def _changed(
        self,
        func: Any,
        name: str,
        values: Any,
        named: Any,
        written: Mapping[Any, torch.Tensor],
        returned: Sequence[Any],
    ) -> None:
        """Note an operation that works in place, as one that makes what is there afterwards."""
        label = name.removesuffix("_") if not name.endswith("__") else name
        targets = list(written.values())
        if torch.Tag.inplace_view in func.tags:
            self.memories.reshaped(func, values, named, targets[0])
            return
        # what is overwritten has a gradient of zeros: one that is a view, through its base
        first = self.memories.read(targets[0])
        ends = autograd_follows() and first.requires_grad
        ends = ends and self.memories.seen(targets[0]).base is None
        if label == "copy" and len(values) > 1 and isinstance(values[1], Value) and not ends:
            self.memories.write(targets[0], self._copied(values[1], targets[0]))
            return
        values, named = list(values), dict(named)
        for place, target in written.items():
            held: Any = values if isinstance(place, int) else named
            held[place] = self.memories.to_change(target)
        values = tuple(values)
        results = tuple(self._result(each) for each in targets)
        # what it returns beside, as an operation of a user's own may
        others = {
            at: each
            for at, each in enumerate(returned)
            if isinstance(each, torch.Tensor) and not self.memories.knows(each)
        }
        made = tuple(self._result(each) for each in others.values())
        function: Any = Functional(func, tuple(written), tuple(others))
        if label in ALIKE and results[0] is not None and not ends:
            number = ALIKE[label] if ALIKE[label] is not None else values[1]
            if not isinstance(number, Value):
                function, values, named = (
                    FilledTensor(results[0], targets[0].device, number),
                    (),
                    {},
                )
        values, named = self._stopped(values, named, targets)
        self.emit(function, label, values, named, (*results, *made), func._schema)
        for target, value in zip(targets, results, strict=True):
            assert value is not None
            self.memories.write(target, value)
        for tensor, value in zip(others.values(), made, strict=True):
            assert value is not None
            self.memories.own(tensor, value)

    def _copied(self, source: Value, target: torch.Tensor) -> Value:
        """The value that `copy_` leaves: the source in the target's dtype and shape."""
        aten = torch.ops.aten
        value = source
        if value.dtype != target.dtype:
            value = self.one(aten.to.dtype, "to", (value, target.dtype), value.shape, target.dtype)
        if value.shape != tuple(target.shape):
            shape = tuple(target.shape)
            value = self.one(aten.expand.default, "expand", (value, shape), shape, value.dtype)
        if value is source or value.shape != source.shape:  # it has memory of its own
            value = self.one(aten.clone.default, "clone", (value,), value.shape, value.dtype)
        return value

    def _without_empty(self, parts: Sequence[Value], result: Value) -> Sequence[Value]:
        """The parts of a join but for empty ones, which count for the dtype and have a gradient."""
        filled = [each for each in parts if 0 not in each.shape]
        if not filled or len(filled) == len(parts):
            return parts
        aten, dtype = torch.ops.aten, result.dtype
        first, *others = (
            each if each.dtype == dtype else self._cast(each, {each: dtype}) for each in filled
        )
        for part in parts:
            if 0 in part.shape and part.requires_grad:  # its gradient is one of zeros, not None
                nothing = self.one(aten.sum.default, "sum", (part,), (), part.dtype)
                first = self.one(aten.sub.Tensor, "sub", (first, nothing), first.shape, dtype)
        return [first, *others]

    def _stopped(self, values: Any, named: Any, made: Sequence[Any], *, draws: bool = False) -> Any:
        """The values that are read, without their history where autograd is off.

        So are those of what is drawn like a tensor, of which only a shape is read.
        """
        tensors = [each for each in made if isinstance(each, torch.Tensor)]
        follows = not draws or any(each.requires_grad for each in tensors)
        if not tensors or (autograd_follows() and follows):
            return values, named
        return replace_values((values, dict(named)), self.detached)

    def detached(self, value: Value) -> Value:
        """A value that autograd does not follow: it shows the same memory."""
        if not value.requires_grad:
            return value
        detach = torch.ops.aten.detach.default
        result = self.one(detach, "detach", (value,), value.shape, value.dtype, once=True)
        self.memories.views.add(result)
        return result

    def _cast(self, value: Value, casts: Mapping[Value, torch.dtype]) -> Value:
        """The value that is read under autocast: it, or it in another dtype, made once."""
        dtype = casts.get(value)
        if dtype is None:
            return value
        known = (value, dtype)
        if known not in self._casts:
            name = f"{value.name}_{str(dtype).removeprefix('torch.')}"
            result = Value(self._name(name), value.shape, dtype, requires_grad=value.requires_grad)
            function = torch.ops.aten._to_copy.default
            self.emit(function, "_to_copy", (value,), {"dtype": dtype}, (result,), function._schema)
            self._casts[known] = result
        return self._casts[known]

    def _done_for_effect(self, func: Any, name: str, values: Any, named: Any) -> None:
        reads = [each for each in pytree.tree_leaves((values, named)) if isinstance(each, Value)]
        if not reads or name == "_assert_tensor_metadata":
            return
        values, named = replace_values((values, dict(named)), self.detached)
        operation = self._operation(func, name, values, named, (), func._schema)
        if self.of_inputs.intersection(operation.reads):
            self.effects.append(operation)
        else:
            self.before.append(operation)

    # What is made ------------------------------------------------------------------------------

    def one(
        self,
        function: Any,
        name: str,
        args: tuple[Any, ...],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        requires_grad: bool | None = None,
        once: bool = False,
    ) -> Value:
        """Note an operation of ours with one result, and return that; `once` for the same."""
        if once:
            for known in (*self.before, *self.operations):
                same = (known.function, known.args) == (function, args)
                if same and known.results[0] is not None:
                    return known.results[0]
        if requires_grad is None:
            follows = any(isinstance(each, Value) and each.requires_grad for each in args)
            requires_grad = follows and name != "detach" and autograd_follows()
        result = Value(self._name(name), shape, dtype, requires_grad=requires_grad)
        self.emit(function, name, args, {}, (result,), getattr(function, "_schema", None))
        return result

    def emit(
        self,
        function: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        results: tuple[Value | None, ...],
        schema: Any = None,
    ) -> Operation:
        """Add an operation to those of the inputs, or to those before."""
        if any(map(is_unknown, pytree.tree_leaves((args, dict(kwargs))))):
            raise UnsupportedModelError(BY_DATA + self.where)
        operation = self._operation(function, name, args, kwargs, results, schema)
        _check_dense(operation)
        if self.of_inputs.intersection(operation.reads):
            self.of_inputs.update(value for value in operation.results if value is not None)
            self.operations.append(operation)
        else:
            self.before.append(operation)
        return operation

    def _operation(
        self, function: Any, name: str, args: Any, kwargs: Any, results: Any, schema: Any
    ) -> Operation:
        bound = _bound(schema, args, kwargs) if schema is not None and (args or kwargs) else {}
        module = "" if self._node is None else module_of(self._node, self.names)
        return Operation(function, name, args, dict(kwargs), bound, results, module, self.where)

    def _result(self, tensor: Any) -> Value | None:
        if not isinstance(tensor, torch.Tensor):
            return None
        return self.value_like(tensor)

    def value_like(self, tensor: torch.Tensor, requires_grad: bool | None = None) -> Value:
        """A new value like a fake tensor."""
        if any(not isinstance(extent, int) for extent in tensor.shape):
            raise UnsupportedModelError(unknown_shape(self._node))
        name = "made" if self._node is None else self._node.name
        follows = tensor.requires_grad if requires_grad is None else requires_grad
        return Value(self._name(name), tuple(tensor.shape), tensor.dtype, requires_grad=follows)

    def another(self, value: Value, *, requires_grad: bool) -> Value:
        """A new value of the same shape and dtype."""
        name = "made" if self._node is None else self._node.name
        return Value(self._name(name), value.shape, value.dtype, requires_grad=requires_grad)

    def _name(self, wanted: str) -> str:
        name, count = wanted, 0
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def _check_dense(operation: Operation) -> None:
    """Refuse an operation whose gradient is a sparse tensor."""
    for flag, read in (("sparse", "weight"), ("sparse_grad", "self")):
        source = operation.arguments.get(read)
        if operation.arguments.get(flag) and isinstance(source, Value) and source.requires_grad:
            who = f"{operation.name} {operation.module}".strip()
            raise UnsupportedModelError(
                f"{who} has {flag}=True, and its gradient is a sparse tensor, which the library "
                f"has not: make it with {flag}=False\n  {operation.where}"
            )


def _has_gradient_of_zeros(name: str, results: Sequence[Value | None]) -> bool:
    """True if what an operation fills with a number has a history: `fill`, and no `full_like`."""
    return name in ("fill", "zero") and any(v is not None and v.requires_grad for v in results)


def _draws(func: Any) -> bool:
    """True if an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags


def _of_lists(func: Any) -> Any:
    """The form out of place of one that changes lists of tensors, as `_foreach_add_` does."""
    name = name_of(func)
    if not name.startswith("_foreach_") or not name.endswith("_"):
        return None
    return getattr(getattr(torch.ops.aten, name.removesuffix("_")), func._overloadname)


def _only(at: int, arguments: Any) -> Any:
    """Arguments with one element of each list."""
    return pytree.tree_map(
        lambda each: [each[at]] if isinstance(each, list | tuple) else each,
        arguments,
        is_leaf=lambda each: each is not arguments and isinstance(each, list | tuple),
    )


def _reads_strides(func: Any) -> bool:
    """True if what an operation makes depends on how its operand lies in memory."""
    name = name_of(func)
    return name in ("as_strided", "view_as_complex") or func is torch.ops.aten.view.dtype


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous()


def _bound(schema: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by their names, those that were left out with their defaults."""
    bound = {}
    for index, argument in enumerate(schema.arguments):
        if index < len(args):
            bound[argument.name] = args[index]
        elif argument.name in kwargs:
            bound[argument.name] = kwargs[argument.name]
        else:
            bound[argument.name] = argument.default_value
    return bound
