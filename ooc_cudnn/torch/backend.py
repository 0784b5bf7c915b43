"""The backend of `torch.compile`: a graph of TorchDynamo's, planned under a limit and run by us."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ooc_cudnn.torch.aten_tracing import record
from ooc_cudnn.torch.call import ReadyModel
from ooc_cudnn.torch.empty import EmptyModel, is_empty
from ooc_cudnn.torch.extra_guards import look_at_guards
from ooc_cudnn.torch.graph import Graph, Value
from ooc_cudnn.torch.numpy_calls import check_numpy
from ooc_cudnn.torch.options import Options
from ooc_cudnn.torch.overlaps import WrittenMemory
from ooc_cudnn.torch.places import name_of, source_name
from ooc_cudnn.torch.ranks import STATISTICS
from ooc_cudnn.torch.refusals import check_nested, check_python_state
from ooc_cudnn.torch.scalar_inputs import only_counts, specialize
from ooc_cudnn.torch.stand_ins import torch_dtype
from ooc_cudnn.torch.stored import STORED_DTYPES, widen
from ooc_cudnn.units import parse_limit

_here = threading.local()


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
    return _compiled(module, examples, call, call.options)


def _compiled(
    module: torch.fx.GraphModule, examples: Sequence[Any], call: Any, options: Options
) -> Callable[..., Any]:
    check_python_state()
    model = None if call is None else call.model
    graph = graph_of(module, examples, call, options)
    written = WrittenMemory(graph)
    written.check(examples if call is None else [call.real.get(id(e), e) for e in examples])
    grad = torch.is_grad_enabled()
    ready = (
        EmptyModel(graph)
        if is_empty(graph)
        else ReadyModel(
            graph,
            examples,
            options,
            model,
            with_gradients=grad,
            larger=None if call is None else call.larger,
        )
    )

    def run(*tensors: Any) -> Any:
        call, action = job_of()
        real: Mapping[int, Any] = {} if call is None else call.real
        inputs = [real.get(id(each), each) for each in tensors] if real else tensors
        if call is None:  # else the capture looks, and a call may be captured anew
            written.check(inputs)
        return ready(inputs) if action is None else action(ready, inputs)

    return run


def graph_of(
    module: torch.fx.GraphModule, examples: Sequence[Any], call: Any, options: Options
) -> Graph:
    """A graph of TorchDynamo's, recorded."""
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    model = None if call is None else call.model
    names = {} if model is None else {str(id(m)): name for name, m in model.named_modules()}
    held = {} if model is None else _names_held(model)
    arguments = {id(each): at for at, each in enumerate(() if call is None else call.tensors)}
    real = {} if call is None else call.real
    values, fakes, stored = [], [], {}
    inputs = 0
    for index, (node, example) in enumerate(zip(nodes, examples, strict=True)):
        source = _source(node)
        seen = node.meta["example_value"]
        if not isinstance(seen, torch.Tensor):  # else it is a constant, which guards compare
            values.append(Value(node.name, (), torch.int64, "number"))
            fakes.append(seen if only_counts(node) else specialize(seen))
            continue
        for extent in seen.shape:
            int(extent)  # guards compare it
        is_input = id(example) in arguments or (
            _is_argument(source) if call is None else source.startswith(_OF_CALLS)
        )
        number = str(arguments.get(id(example), len(arguments) + inputs)) if is_input else ""
        inputs += is_input
        kind = "input" if is_input else _kind(example)
        name = number or held.get(id(example)) or name_of(source)
        dtype = torch.float64 if _is_a_float(node) else example.dtype
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
    return record(module, values, fakes, stored, names, switches)


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
    return source_name(getattr(node.meta.get("grapharg"), "source", None))


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
    with mode, torch.inference_mode(False):
        fake = torch.empty_strided(
            example.shape, example.stride(), dtype=dtype, device=example.device
        )
        if not example.requires_grad:
            return fake
        with torch.enable_grad():
            fake.requires_grad_()
            return fake if example.is_leaf else fake.view_as(fake).clone()
