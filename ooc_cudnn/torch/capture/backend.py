"""The backend of `torch.compile`: a graph of TorchDynamo's, planned under a limit and run by us."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ooc_cudnn.network.runtime.larger_plans import LargerPlans
from ooc_cudnn.torch.autograd.late_state import LateState
from ooc_cudnn.torch.capture.dynamo_patches.lstm_results import lstm_results_as_computed
from ooc_cudnn.torch.capture.dynamo_patches.numpy_calls import check_numpy
from ooc_cudnn.torch.capture.guards.asked_again import look_at_questions
from ooc_cudnn.torch.capture.guards.extra_guards import look_at_guards
from ooc_cudnn.torch.capture.refusals import check_nested, check_python_state, check_transforms
from ooc_cudnn.torch.capture.stand_ins import torch_dtype
from ooc_cudnn.torch.lowering.fallback_runner import kept_as_they_are
from ooc_cudnn.torch.options import Options
from ooc_cudnn.torch.places import name_of, of_arguments, source_name, told_name
from ooc_cudnn.torch.runtime.empty import EmptyModel, is_empty
from ooc_cudnn.torch.runtime.ranks import STATISTICS
from ooc_cudnn.torch.runtime.ready_model import ReadyModel
from ooc_cudnn.torch.stored import STORED_DTYPES, widen
from ooc_cudnn.torch.tracing.aten_tracing import record
from ooc_cudnn.torch.tracing.graph import Graph, Value
from ooc_cudnn.torch.tracing.overlaps import WrittenMemory
from ooc_cudnn.torch.tracing.scalar_inputs import hint_of, only_counts, specialize
from ooc_cudnn.torch.tracing.switches import autograd_follows
from ooc_cudnn.units import parse_limit

_here = threading.local()
#: One capture at a time, in all threads. Nobody waits for it whose call is known.
capturing = threading.RLock()
#: Of one capture, sizes of arguments that are kept: at least so many, and more while all of them
#: have no more operations than that. One takes some 170 KB of the process (12 MB of a ResNet-18).
FEWEST_SIZES, MOST_OPERATIONS = 16, 6_000


class RefusedSizesError(Exception):
    """A graph cannot be made ready for other sizes: captured for these, its error says why."""


@contextmanager
def handle_call(call: Any, action: Callable[..., Any] | None) -> Iterator[None]:
    """Let compiled graphs know for which call they run in this thread, and what to do instead."""
    before = getattr(_here, "job", None)
    _here.job = call, action
    try:
        yield
    finally:
        _here.job = before


def job_of() -> tuple[Any, Callable[..., Any] | None]:
    """The call that this thread is working on, if any."""
    found = getattr(_here, "job", None)
    return (None, None) if found is None else found


def ooc_cudnn_backend(
    module: torch.fx.GraphModule, examples: Sequence[Any], **options: Any
) -> Callable[..., Any]:
    """Compile a graph: ``torch.compile(model, backend="ooc_cudnn")``.

    Parameters
    ----------
    module : GraphModule
        Of torch functions, as TorchDynamo makes it.
    examples : sequence of Tensor
        What its first call is made with.
    options : mapping
        ``memory_limit`` ("8GiB"), ``strict`` and ``statistics`` as of `ooc_cudnn.torch.limit`.
        Where the graph breaks, each part has the limit for itself, one at a time.

    Raises
    ------
    TypeError, ValueError
        If there is no such option, or it cannot be that.
    UnsupportedModelError
        If the graph cannot be planned.
    """
    told = dict(options.pop("options", None) or {}) | options
    told.pop("mode", None)
    wrong = told.keys() - {"memory_limit", "strict", "statistics"}
    if wrong:
        raise TypeError(
            f"the backend ooc_cudnn has no option {', '.join(sorted(wrong))}: it has memory_limit, "
            "strict and statistics"
        )
    if told.get("memory_limit") is not None:
        parse_limit(told["memory_limit"], name="memory_limit")
    if told.get("statistics", "rank") not in STATISTICS:
        raise ValueError(f"statistics must be rank or global, not {told['statistics']!r}")
    return _compiled(module, examples, None, Options(**told))


def compile_with(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """Compile a graph of the call that this thread is working on."""
    call, _ = job_of()
    check_numpy(module)
    call.names = look_at_guards(call.model, call.missed)
    assert call.compared is not None
    call.questions = look_at_questions(call.compared)
    return _compiled(module, examples, call, call.options)


def _compiled(
    module: torch.fx.GraphModule, examples: Sequence[Any], call: Any, options: Options
) -> Callable[..., Any]:
    check_python_state()
    placeholders = placeholders_of(module, in_a_call=call is not None)
    larger = None if call is None else call.larger
    first = _made_ready(module, placeholders, examples, call, options, larger)
    written = WrittenMemory(first.graph)
    written.check(examples if call is None else [call.real.get(id(e), e) for e in examples])
    free = [at for at, each in enumerate(placeholders) if each.has_free_sizes or each.is_a_size]
    sizes = Sizes(free, examples, first)
    if call is not None:
        call.has_free_sizes = bool(free)
    grad = torch.is_grad_enabled()
    late_reads, names = ((), {}) if call is None else (call.late_reads, call.globals)

    def run(*tensors: Any) -> Any:
        call, action = job_of()
        if call is None:  # else the call was looked at
            check_transforms("a compiled function", tensors)

        def make() -> ReadyModel | EmptyModel:
            with lstm_results_as_computed(), torch.set_grad_enabled(grad):
                return _made_ready(module, placeholders, tensors, call, options, larger)

        ready = sizes.of(tensors, make)
        real: Mapping[int, Any] = {} if call is None else call.real
        inputs = [real.get(id(each), each) for each in tensors] if real else tensors
        if call is None:  # else the capture looks, and a call may be captured anew
            written.check(inputs)
        if call is not None:
            call.late_state = None
            if late_reads:
                call.late_state = LateState(late_reads, {**call.scope, "G": names})
        is_off = ready.graph.has_history and not autograd_follows()
        with following_autograd() if is_off else nullcontext():
            return ready(inputs) if action is None else action(ready, inputs)

    return run


@contextmanager
def following_autograd() -> Iterator[None]:
    """Let autograd follow what forward makes under `enable_grad`: the caller has it off."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def _made_ready(
    module: torch.fx.GraphModule,
    placeholders: Sequence[Placeholder],
    examples: Sequence[Any],
    call: Any,
    options: Options,
    larger: LargerPlans | None,
) -> ReadyModel | EmptyModel:
    """A graph of TorchDynamo's, made ready for the sizes of its examples."""
    # what is traced is nothing that a caller's checkpoint saves, and has no numbers to look at
    with kept_as_they_are(), torch.autograd.set_detect_anomaly(False):
        graph = graph_of(module, placeholders, examples, call, options)
        if is_empty(graph):
            return EmptyModel(graph)
        return ReadyModel(
            graph,
            examples,
            options,
            None if call is None else call.model,
            with_gradients=torch.is_grad_enabled() or graph.has_history,
            larger=larger,
        )


def graph_of(
    module: torch.fx.GraphModule,
    placeholders: Sequence[Placeholder],
    examples: Sequence[Any],
    call: Any,
    options: Options,
) -> Graph:
    """A graph of TorchDynamo's, recorded for the sizes of its examples."""
    model = None if call is None else call.model
    names = {} if model is None else {str(id(m)): name for name, m in model.named_modules()}
    held = {} if model is None else _names_held(model)
    arguments = {id(each): at for at, each in enumerate(() if call is None else call.tensors)}
    real = {} if call is None else call.real
    values = list[Value]()
    fakes = list[Any]()
    stored = dict[int, Any]()
    inputs = 0
    for index, (placeholder, example) in enumerate(zip(placeholders, examples, strict=True)):
        node, source, seen = placeholder.node, placeholder.source, placeholder.seen
        if not isinstance(seen, torch.Tensor):  # else it is a constant, which guards compare
            values.append(Value(node.name, (), torch.int64, "number"))
            if placeholder.is_a_size:
                fakes.append(hint_of(example))
            else:
                fakes.append(seen if only_counts(node) else specialize(seen))
            continue
        is_input = id(example) in arguments or (
            _is_argument(source) if call is None else source.startswith(_OF_CALLS)
        )
        number = str(arguments.get(id(example), len(arguments) + inputs)) if is_input else ""
        inputs += is_input
        kind = "input" if is_input else _kind(example)
        name = number or held.get(id(example)) or name_of(source)
        dtype = torch.float64 if placeholder.is_a_float else example.dtype
        behind = real.get(id(example), example)
        if is_input and options.scale is not None and _is_stored(behind):
            stored[index] = widen(example.dtype, options.scale)
            dtype = _dtype_of(behind)
        follows = bool(example.requires_grad)
        label = node.name.removeprefix("l_").removesuffix("_") if is_input else node.name
        values.append(Value(label, tuple(example.shape), dtype, kind, name, follows))
        fakes.append(_fake(seen, example, dtype))
    if model is not None and any(_masks_an_encoder(e, model) for e in module.graph.nodes):
        check_nested(model)
    switches = None if call is None else call.switches
    with nullcontext() if call is None or not call.in_inference_mode else torch.inference_mode():
        graph = record(module, values, fakes, stored, names, switches)
    forward = None if call is None else call.forward
    pairs = zip(values, placeholders, strict=True)
    told = {v: told_name(of_arguments(p.source, forward)) for v, p in pairs if v.kind == "input"}
    return replace(graph, told=told)


@dataclass(frozen=True, eq=False)
class Placeholder:
    """A placeholder of a graph of TorchDynamo's, which forgets some of this.

    Attributes
    ----------
    node : torch.fx.Node
    source : str
        Where a call finds it: "L['args'][0]".
    seen : FakeTensor or number
        As it was traced.
    is_a_float : bool
        Whether Python draws it in each call: Dynamo's example is of single precision, it is not.
    is_a_size : bool
        Whether it is an extent, or a stride, of an argument.
    has_free_sizes : bool
        Whether it is an argument whose extents may be others in another call: guards compare what
        forward has found out about them.
    """

    node: torch.fx.Node
    source: str
    seen: Any
    is_a_float: bool
    is_a_size: bool
    has_free_sizes: bool


def placeholders_of(module: torch.fx.GraphModule, *, in_a_call: bool) -> list[Placeholder]:
    """The placeholders of a graph that is traced now; extents of arguments alone are free.

    Parameters
    ----------
    in_a_call : bool
        Whether it is a call of a model under a limit; else no extents are free.
    """
    made = list[Placeholder]()
    for node in module.graph.nodes:
        if node.op != "placeholder":
            continue
        source, seen = _source(node), node.meta["example_value"]
        is_argument = in_a_call and source.startswith(_OF_CALLS)
        is_tensor = isinstance(seen, torch.Tensor)
        is_free = (
            is_tensor
            and is_argument
            and any(isinstance(extent, torch.SymInt) for extent in (*seen.shape, *seen.stride()))
        )
        if is_tensor and not is_free:
            for extent in seen.shape:
                int(extent)  # guards compare it
        is_a_size = is_argument and isinstance(
            _origin(node), torch._dynamo.source.TensorPropertySource
        )
        is_a_float = is_tensor and _is_a_float(node)
        made.append(Placeholder(node, source, seen, is_a_float, is_a_size, is_free))
    return made


class Sizes:
    """Runners of a graph for the sizes of its arguments: the newest that memory is for.

    Parameters
    ----------
    free : sequence of int
        The places of tensors whose sizes are free; and of sizes by themselves, where forward reads
        nothing else of a tensor.
    examples : sequence
        What the graph was traced with.
    first : ReadyModel or EmptyModel
        What runs it for them.
    """

    def __init__(
        self, free: Sequence[int], examples: Sequence[Any], first: ReadyModel | EmptyModel
    ) -> None:
        self._free, self._lock = tuple(free), threading.Lock()
        self._known = {self._sizes(examples): first}

    def _sizes(self, tensors: Sequence[Any]) -> Hashable:
        free = (tensors[at] for at in self._free)
        return tuple(
            (each.shape, each.stride()) if isinstance(each, torch.Tensor) else hint_of(each)
            for each in free
        )

    def of(
        self, tensors: Sequence[Any], make: Callable[[], ReadyModel | EmptyModel]
    ) -> ReadyModel | EmptyModel:
        """Return what runs tensors of these sizes; make it where there is none.

        Raises
        ------
        RefusedSizesError
            If it cannot be.
        """
        sizes = self._sizes(tensors)
        ready = self._known.get(sizes)
        if ready is None:
            with capturing:  # another thread may have made it meanwhile
                ready = self._known.get(sizes) or self._made(make)
        with self._lock:
            self._known.pop(sizes, None)
            self._known[sizes] = ready  # the last used is the last to go
            most = max(MOST_OPERATIONS // max(len(ready.graph.operations), 1), FEWEST_SIZES)
            while len(self._known) > most:
                del self._known[next(iter(self._known))]
        return ready

    def _made(self, make: Callable[[], ReadyModel | EmptyModel]) -> ReadyModel | EmptyModel:
        try:
            return make()
        except Exception as error:
            raise RefusedSizesError from error


def _masks_an_encoder(node: Any, model: torch.nn.Module) -> bool:
    """True if it makes a padding mask ready for a `TransformerEncoder`."""
    if node.op == "placeholder" or "masked_fill" not in str(node.target):
        return False
    within = [kind for _, kind in (node.meta.get("nn_module_stack") or {}).values()]
    return (within or [type(model)])[-1] is torch.nn.TransformerEncoder


#: Where arguments of a call are, of objects too that are no container.
_OF_CALLS = ("L['args']", "L['kwargs']")


def _names_held(model: torch.nn.Module) -> dict[int, str]:
    """The names of a model's tensors, the first one of each, by their `id`."""
    names: dict[int, str] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        names.setdefault(id(tensor), name)
    return names


def _source(node: Any) -> str:
    return source_name(_origin(node))


def _origin(node: Any) -> Any:
    return getattr(node.meta.get("grapharg"), "source", None)


def _is_a_float(node: Any) -> bool:
    """True if Python draws it in each call: Dynamo's example is of single precision, it is not."""
    given, seen = node.meta.get("grapharg"), node.meta["example_value"]
    is_number = getattr(given, "pass_arg_as_tensor", False) and "_from_numpy(" not in _source(node)
    return bool(is_number) and seen.dtype.is_floating_point


def _is_argument(source: str) -> bool:
    held = ("_parameters", "_buffers", "_modules", "__self__", "L['self']", "G[")
    return not any(each in source for each in held)


def _kind(example: torch.Tensor) -> str:
    is_parameter = isinstance(example, torch.nn.Parameter) or example.requires_grad
    return "parameter" if is_parameter else "buffer"


def _dtype_of(array: Any) -> torch.dtype:
    return torch_dtype(array)


def _is_stored(array: Any) -> bool:
    return _dtype_of(array) in STORED_DTYPES


def _fake(seen: torch.Tensor, example: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A fake tensor like what is given, which nothing has changed yet."""
    mode = getattr(seen, "fake_mode", None)
    assert mode is not None
    with torch.inference_mode(False):
        meta = torch.empty_strided(example.shape, example.stride(), dtype=dtype, device="meta")
        # as `torch.empty_strided` in the mode, in a third of its time: a model has many parameters
        fake = FakeTensor(mode, meta, example.device)
        if not example.requires_grad:
            return fake
        fake.requires_grad_()
        if example.is_leaf:
            return fake
        with mode, torch.enable_grad():
            return fake.view_as(fake).clone()
