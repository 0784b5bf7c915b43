"""Capturing: a model and the arguments of a call, to a graph. No data is read, nothing computed.

torch.export follows the model's Python on fake tensors, without a card and without memory. What it
finds is ATen's operations as modules call them, not taken apart.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ooc_cudnn.torch.attributes import keeping_buffers, nothing_left
from ooc_cudnn.torch.autocast import AUTOCAST, Casts
from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.exporting import NOT_THE_USERS, exported, refused
from ooc_cudnn.torch.graph import Graph, Operation, Value, replaced, values_in
from ooc_cudnn.torch.ranks import within_ddp
from ooc_cudnn.torch.refusals import check_model, check_tensor

#: They hand on what they are given, or a view of it: who changes it in place changes both.
VIEWS = frozenset({
    "alias", "as_strided", "chunk", "contiguous", "detach", "diagonal", "dropout", "expand",
    "expand_as", "feature_dropout", "flatten", "movedim", "narrow", "permute", "reshape", "select",
    "slice", "split", "split_with_sizes", "squeeze", "t", "tensor_split", "to", "transpose",
    "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as",
})  # fmt: skip
#: Those that hand on a copy where they have to.
COPIES = frozenset({"contiguous", "dropout", "feature_dropout", "flatten", "reshape", "to"})
#: What makes a tensor like another one, of zeros, ones, a number, or whatever is there.
ALIKE = {
    f"{form}": value
    for kind, value in (("zeros", 0), ("ones", 1), ("full", None), ("empty", 0))
    for form in (f"new_{kind}", f"{kind}_like")
}


def capture(
    model: torch.nn.Module,
    forward: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Graph:
    """Capture a call.

    Parameters
    ----------
    model : Module
    forward : callable
        What its class (or its user) has as forward, bound.
    args, kwargs
        Of the call; tensors may be fake ones.

    Raises
    ------
    UnsupportedModelError
        If torch.export refuses, with what it says of the model's line.
    TypeError, ValueError
        If the model itself does not take these arguments.
    """
    model = within_ddp(model)
    check_model(model)
    with nothing_left(model):
        program = exported(model, keeping_buffers(model, forward), args, kwargs)
    try:
        return _Reading(program, model).graph()
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise refused(model, error) from error


def fake_like(tensors: Sequence[Any], device: Any) -> list[torch.Tensor]:
    """Tensors without memory of these shapes and dtypes, which pass for tensors on a device."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return [torch.empty(t.shape, dtype=torch_dtype(t), device=device) for t in tensors]


def fakes_for(
    model: torch.nn.Module, shapes: Sequence[Sequence[int] | torch.Tensor]
) -> list[torch.Tensor]:
    """Fake arguments of a model: of shapes, in the dtype of its parameters; or like arrays."""
    for at, each in enumerate(shapes):
        if isinstance(each, torch.Tensor):
            check_tensor(f"argument {at}", each)
    first = next(model.parameters(), None)
    dtype = torch.get_default_dtype() if first is None else first.dtype
    asked = [
        each
        if hasattr(each, "shape") and hasattr(each, "dtype")
        else torch.empty(tuple(each), dtype=dtype, device="meta")
        for each in shapes
    ]
    return fake_like(asked, device_of(model))


def device_of(model: torch.nn.Module) -> Any:
    """Where a model's first parameter is; the CPU where it has none."""
    first = next(model.parameters(), None)
    return "cpu" if first is None else first.device


def torch_dtype(array: Any) -> torch.dtype:
    """PyTorch's dtype of a tensor, or of a NumPy array.

    >>> torch_dtype(np.zeros(1, "uint8"))
    torch.uint8
    """
    if isinstance(array, torch.Tensor):
        return array.dtype
    return torch.from_numpy(np.empty(1, np.dtype(array.dtype).newbyteorder("="))).dtype


class _Reading:
    """What torch.export found, being read node by node."""

    def __init__(self, program: Any, model: torch.nn.Module) -> None:
        self.program, self.model = program, model
        self.given: list[Value] = []
        self.constants: dict[str, torch.Tensor] = {}
        #: What each node is now: what is changed in place becomes another value.
        self.now: dict[Any, Any] = {}
        #: Of a view, the node whose memory it shows.
        self.base: dict[Any, Any] = {}
        self.of_inputs: set[Value] = set()
        self.before: list[Operation] = []
        self.operations: list[Operation] = []
        self.counted: list[Operation] = []
        self.places: dict[Any, int] = {}
        #: Of a block, the nodes that it hands out.
        self.handed: dict[Any, Sequence[Any]] = {}
        self.casts = Casts()
        self._cast_already: dict[tuple[Value, torch.dtype], Value] = {}

    def graph(self) -> Graph:
        """Read everything."""
        self._place(self.program.graph_module)
        self._placeholders()
        outputs = tuple(map(self._argument, self._read(self.program.graph_module)))
        return Graph(
            tuple(self.given),
            tuple(self.before),
            tuple(_used(self.operations, outputs)),
            tuple(self.counted),
            outputs,
            self.program.call_spec.out_spec,
            self.constants,
        )

    def _place(self, module: Any) -> None:
        """Number all nodes in the order in which they run, those of blocks within it."""
        for node in module.graph.nodes:
            if _is_autocast(node):
                self._place(_block_of(node, module))
            self.places[node] = len(self.places)

    def _read(self, module: Any) -> Sequence[Any]:
        """Read the nodes of a module, or of a block; return what it hands out."""
        outputs: Sequence[Any] = ()
        for node in module.graph.nodes:
            if _is_autocast(node):
                self._under_autocast(node, _block_of(node, module))
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                outputs = node.args[0]
            elif node.op == "get_attr" and all(map(_is_block, node.users)):
                self.now[node] = getattr(module, node.target)
            elif node.op != "placeholder":
                raise UnsupportedModelError(
                    f"{node.op} {node.target}: a part of the model that torch.export left as it is"
                )
        return outputs

    def _under_autocast(self, node: Any, block: Any) -> None:
        """A block under `torch.autocast`: its operations are the model's, with other casts."""
        inside = [each for each in block.graph.nodes if each.op == "placeholder"]
        given = node.args[5:]
        for one, outer in zip(inside, given, strict=True):
            self.now[one] = self._argument(outer)
            if isinstance(outer, torch.fx.Node):
                self.base[one] = self.base.get(outer, outer)
        with self.casts.under(*node.args[:4]):
            outputs = self._read(block)
        for one, outer in zip(inside, given, strict=True):  # some may have been changed in place
            if isinstance(outer, torch.fx.Node):
                self.now[outer] = self.now[one]
        self.now[node], self.handed[node] = tuple(map(self._argument, outputs)), outputs

    def _placeholders(self) -> None:
        kinds = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant"}
        names = {id(each): n for n, each in self.model.named_parameters(remove_duplicate=False)}
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        inputs = 0
        for node in self.program.graph.nodes:
            if node.op != "placeholder":
                continue
            spec, seen = specs[node.name], node.meta.get("val")
            if spec.kind.name == "USER_INPUT":
                if isinstance(seen, torch.Tensor):
                    value = _value(node, seen, "input", str(inputs))
                    self.of_inputs.add(value)
                    self.given.append(value)
                    self.now[node] = value
                else:
                    self.now[node] = seen
                inputs += 1
                continue
            kind, source = kinds.get(spec.kind.name), (spec.target or "").removeprefix("model.")
            if kind is None or not isinstance(seen, torch.Tensor):
                raise UnsupportedModelError(f"{source or node.name} is a {spec.kind.name.lower()}")
            if kind == "parameter":  # by the first of its names
                source = names[id(self.model.get_parameter(source))]
            value = _value(node, seen, kind, source)
            if kind == "constant":
                self.constants[value.name] = self.program.constants[spec.target]
            self.given.append(value)
            self.now[node] = value

    def _argument(self, tree: Any) -> Any:
        return pytree.tree_map(
            lambda each: self.now[each] if isinstance(each, torch.fx.Node) else each,
            tree,
        )

    def _call(self, node: Any) -> None:
        if node.target is operator.getitem:
            parts, at = self.now[node.args[0]], node.args[1]
            self.now[node] = parts[at]
            source = self.handed[node.args[0]][at] if node.args[0] in self.handed else node.args[0]
            self.base[node] = self.base.get(source, source)
            return
        if _is_grad_mode(node):
            self._block(node)
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            self.now[node] = self._computed(node)
            return
        schema = node.target._schema
        name = schema.name.partition("::")[2]
        in_place = name.endswith("_") and not name.endswith("__")
        args, kwargs = self._argument(tuple(node.args)), self._argument(dict(node.kwargs))
        results = _results(node)
        function: Callable[..., Any] = node.target
        if name in ALIKE and results[0] is not None:  # it reads no more than a shape
            function, args, kwargs = _filled(results[0], node, ALIKE[name], args), (), {}
        elif not in_place:
            function, casts = self.casts.of(node)
            args, kwargs = replaced((args, kwargs), lambda value: self._cast(value, casts, node))
        own_casts = function is not node.target and name not in ALIKE
        made = Operation(
            function,
            (name.removesuffix("_") if in_place else name) + AUTOCAST * own_casts,
            args,
            kwargs,
            _bound(schema, args, kwargs) if args or kwargs else {},
            results,
            _module(node),
            _where(node),
        )
        if in_place and self._is_counter(node):
            self.counted.append(made)
            self.now[node] = made.args[0]
            return
        is_of_inputs = self._enter(made)
        single = len(schema.returns) == 1 and schema.returns[0].type.kind() != "ListType"
        self.now[node] = results[0] if single else results
        if in_place:
            self._changed(node, is_of_inputs)
        elif made.name in VIEWS and node.args and isinstance(node.args[0], torch.fx.Node):
            self.base[node] = self.base.get(node.args[0], node.args[0])

    def _enter(self, made: Operation) -> bool:
        """Add an operation to those of the inputs, or to those before; return to which."""
        is_of_inputs = bool(self.of_inputs.intersection(made.reads))
        if is_of_inputs:
            self.of_inputs.update(value for value in made.results if value is not None)
            self.operations.append(made)
        else:
            self.before.append(made)
        return is_of_inputs

    def _cast(self, value: Value, casts: Mapping[str, torch.dtype], node: Any) -> Value:
        """What an operation reads under autocast: a value, or it in another dtype, made once."""
        names = [each for each in node.all_input_nodes if self.now.get(each) is value]
        dtype = next((casts[each.name] for each in names if each.name in casts), None)
        if dtype is None:
            return value
        known = (value, dtype)
        if known not in self._cast_already:
            made = Value(f"{value.name}_{str(dtype).removeprefix('torch.')}", value.shape, dtype)
            function = torch.ops.aten._to_copy.default
            told = {"self": value, "dtype": dtype}
            operation = Operation(
                function, "_to_copy", (value,), {"dtype": dtype}, told, (made,),
                _module(node), _where(node),
            )  # fmt: skip
            self._enter(operation)
            self._cast_already[known] = made
        return self._cast_already[known]

    def _block(self, node: Any) -> None:
        """A block under `torch.no_grad`, as in spectral norm: PyTorch runs all of it before."""
        enabled, part, *args = self._argument(tuple(node.args))
        if self.of_inputs.intersection(values_in(args)):
            lines = filter(None, map(_where, part.graph.nodes))
            raise UnsupportedModelError(
                "torch.no_grad within forward, around what depends on the inputs: take it out of "
                f"forward, or limit the parts before and after it\n  {next(lines, '')}"
            )

        def run(*tensors: torch.Tensor) -> Any:
            with torch.set_grad_enabled(enabled):
                return part(*tensors)

        self.now[node] = results = _results(node)
        made = Operation(run, "no_grad", tuple(args), {}, {}, results, _module(node), _where(node))
        self.before.append(made)

    def _computed(self, node: Any) -> Any:
        """What is no tensor operation: arithmetic with sizes, which are known."""
        args = self._argument(tuple(node.args))
        if any(isinstance(each, Value) for each in pytree.tree_leaves(args)):
            raise UnsupportedModelError(f"{node.target}: not an operation of ATen; {_where(node)}")
        return node.target(*args, **self._argument(dict(node.kwargs)))

    @staticmethod
    def _is_counter(node: Any) -> bool:
        """Whether a buffer goes up by a number, and nobody reads it."""
        target = node.args[0]
        return (
            target.op == "placeholder"
            and not node.users
            and len(target.users) == 1
            and not any(isinstance(each, torch.fx.Node) for each in node.args[1:])
        )

    def _changed(self, node: Any, is_of_inputs: bool) -> None:
        """Note that a node was changed in place: from here on it is the result."""
        changed = node.args[0]
        if not is_of_inputs:
            self.base[node] = self.base.get(changed, changed)
            return  # PyTorch runs it as it is
        before = self.now[changed]
        if not isinstance(before, Value) or before.kind == "made":
            before = self._held(changed) or before
        if isinstance(before, Value) and before.kind != "made":
            raise UnsupportedModelError(
                f"{node.target} changes {before.kind} {before.source or before.name} in place; "
                f"{_where(node)}"
            )
        root = self.base.get(changed, changed)
        for other, at in self.places.items():
            if other in (changed, node) or self.base.get(other, other) is not root:
                continue
            if self.now.get(other) is before:  # the same one, within a block or around it
                self.now[other] = self.now[node]
                continue
            if at < self.places[node] and any(
                self.places[user] > self.places[node] for user in other.users
            ):
                raise UnsupportedModelError(
                    f"{node.target} changes in place what {other} shows, too, which is read later; "
                    f"{_where(node)}"
                )
        self.now[changed] = self.now[node]
        self.base[node] = root

    def _held(self, node: Any) -> Value | None:
        """The buffer or the parameter whose memory a node shows, if it does for certain."""
        while node.op == "call_function":
            name = str(getattr(node.target, "_opname", ""))
            shows = name in VIEWS - COPIES or (name.endswith("_") and not name.endswith("__"))
            if not (shows or node.target is operator.getitem):
                return None
            node = node.args[0]
        if node in self.base:  # given to a block
            return self._held(self.base[node])
        kinds = ("buffer", "parameter")
        return next((e for e in self.given if e.name == node.name and e.kind in kinds), None)


def _is_grad_mode(node: Any) -> bool:
    return node.target is torch.ops.higher_order.wrap_with_set_grad_enabled


def _is_autocast(node: Any) -> bool:
    return node.target is torch.ops.higher_order.wrap_with_autocast


def _is_block(node: Any) -> bool:
    return _is_grad_mode(node) or _is_autocast(node)


def _block_of(node: Any, module: Any) -> Any:
    return getattr(module, node.args[4].target)


def _value(node: Any, seen: torch.Tensor, kind: str = "made", source: str = "") -> Value:
    return Value(node.name, tuple(int(e) for e in seen.shape), seen.dtype, kind, source)


def _results(node: Any) -> tuple[Value | None, ...]:
    seen = node.meta.get("val")
    tensors = [each for each in pytree.tree_leaves(seen) if isinstance(each, torch.Tensor)]
    if any(isinstance(extent, torch.SymInt) for each in tensors for extent in each.shape):
        raise UnsupportedModelError(
            f"{node.target} makes a tensor whose shape depends on data: take it out of forward"
            f"\n  {_where(node)}"
        )
    if isinstance(seen, torch.SymInt | torch.SymFloat | torch.SymBool) and node.users:
        raise UnsupportedModelError(
            "a number that depends on data (item(), tolist()) is used in forward: keep it a tensor"
            f"\n  {_where(node)}"
        )
    if isinstance(seen, torch.Tensor):
        return (_value(node, seen),)
    if not isinstance(seen, list | tuple):
        return (None,)
    return tuple(
        Value(f"{node.name}_{at}", tuple(each.shape), each.dtype)
        if isinstance(each, torch.Tensor)
        else None
        for at, each in enumerate(seen)
    )


def _filled(
    result: Value, node: Any, number: float | None, args: Sequence[Any]
) -> Callable[[], torch.Tensor]:
    """What makes a tensor of one number, that of `full` where none is given."""
    device, value = node.meta["val"].device, number
    if value is None:
        value = args[-1] if len(args) > 1 else node.kwargs["fill_value"]
    if isinstance(value, Value):
        raise UnsupportedModelError(f"{node.target} with a number that is computed; {_where(node)}")

    def filled() -> torch.Tensor:
        return torch.full(result.shape, value, dtype=result.dtype, device=device)

    return filled


def _bound(schema: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by their names, those that were left out with their defaults."""
    found = {}
    for at, argument in enumerate(schema.arguments):
        if at < len(args):
            found[argument.name] = args[at]
        elif argument.name in kwargs:
            found[argument.name] = kwargs[argument.name]
        else:
            found[argument.name] = argument.default_value
    return found


def _module(node: Any) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    return path.removeprefix("model").removeprefix(".")


def _where(node: Any) -> str:
    """The last line of the user's own code before PyTorch's."""
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    frames = [at for at, line in enumerate(lines) if line.strip().startswith('File "')]
    own = [at for at in frames if not any(each in lines[at] for each in NOT_THE_USERS)]
    return ": ".join(line.strip() for line in lines[own[-1] : own[-1] + 2]) if own else ""


def _used(operations: Sequence[Operation], outputs: Sequence[Any]) -> Iterator[Operation]:
    """The operations that outputs depend on."""
    wanted = {value for value in outputs if isinstance(value, Value)}
    kept = []
    for operation in reversed(operations):
        if wanted.intersection(operation.results):
            wanted.update(operation.reads)
            kept.append(operation)
    return reversed(kept)
