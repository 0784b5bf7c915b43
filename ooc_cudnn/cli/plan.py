"""``ooc-cudnn plan FUNCTION``: the arguments of each function, taken from its signature.

`ooc-cudnn plan --torch MODULE:NAME` plans a PyTorch model in its place (`cli/model.py`).
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from ooc_cudnn.cli.arguments import (
    PROGRAM,
    ArrayArgument,
    Defaults,
    Kind,
    add_device,
    add_machine,
    add_memory_limit,
    kind_of,
    meanings,
    on_device,
    one_of,
    parameters_of,
)
from ooc_cudnn.cli.chain import WRITTEN, read_chain
from ooc_cudnn.cli.model import EXAMPLE, add_model, plan_model
from ooc_cudnn.functions.call.decorator import FUNCTIONS
from ooc_cudnn.functions.call.plan_api import describe_call, plan, tiled_call_of
from ooc_cudnn.tensor import DTYPES, PLACEMENTS, TensorSpec
from ooc_cudnn.types import OfFilters, PerChannel

#: What the example of each function gives for what it needs, and for geometry: results are as large
#: as x.
EXAMPLES = {
    "x": "512x64x256x256",
    "y": "512x64x256x256",
    "dy": "512x64x256x256",
    "w": "64x64x3x3@device",
    "b": "64",
    "window": "3",
    "padding": "1",
    "stride": "1",
    "operations": "'convolution 64 window 3 padding 1; activation relu; pooling 2'",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_for_function(parser, "plan")
    parser.epilog = f"{parser.epilog}\n  {EXAMPLE}"
    add_model(parser)
    parser.set_defaults(run=_run, fail=parser.error)


def add_for_function(parser: argparse.ArgumentParser, command: str) -> None:
    """Let a command take a function, which may be left out, and its arguments."""
    names = "\n".join(f"  {name}" for name in FUNCTIONS)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        f"functions (without the ending _forward, too):\n{names}\n\n"
        f"`{PROGRAM} {command} FUNCTION --help` says what each takes.\n\n"
        f"example:\n  {example('convolution_forward', command)}"
    )
    parser.add_argument(
        "function", type=_function, metavar="FUNCTION", help="one of those below", nargs="?"
    )
    rest = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="the function's own arguments"
    )
    rest.required = False  # of a command line without any argument, FUNCTION alone is missing


def function_parser(name: str, command: str = "plan") -> argparse.ArgumentParser:
    """Return the parser of one function's arguments."""
    public = FUNCTIONS[name]
    about = (inspect.getdoc(public) or "").split("\n")[0]
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} {command} {name}",
        allow_abbrev=False,  # --w is no --window
        description=f"{command.capitalize()}: {about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"example:\n  {example(name, command)}",
    )
    said = meanings(public, FUNCTIONS)
    group = parser.add_argument_group("the function's arguments")
    for argument, parameter in _parameters(name).items():
        kind = kind_of(parameter.annotation)
        meaning = said.get(argument, "").replace("%", "%%")
        if kind.read is None:
            group.add_argument(argument, metavar="OPERATIONS", help=WRITTEN)
            continue
        needed = parameter.default is inspect.Parameter.empty
        told = isinstance(kind.mark, PerChannel)  # by how many channels there are
        group.add_argument(
            f"--{argument.replace('_', '-')}",
            type=kind.read,
            metavar=kind.metavar,
            required=needed and not told,
            help=meaning + (" (may be left out)" if needed and told else ""),
        )
    _add_common(parser.add_argument_group("where and with what"), plans=command == "plan")
    return parser


def example(name: str, command: str = "plan") -> str:
    """Return a command line that plans a function."""
    words = [PROGRAM, command, name]
    for argument, parameter in _parameters(name).items():
        kind, default = kind_of(parameter.annotation), parameter.default
        needed = default is inspect.Parameter.empty
        if kind.read is None:
            words.append(EXAMPLES[argument])
        elif isinstance(kind.mark, PerChannel):
            continue
        elif needed if kind.is_array else EXAMPLES.get(argument) not in (None, str(default)):
            words.append(f"--{argument} {EXAMPLES[argument]}")
    return " ".join([*words, "--machine h200", "--memory-limit 16GiB"])


def _parameters(name: str) -> dict[str, inspect.Parameter]:
    """The parameters of a function that are given by themselves: `out` has options of its own."""
    found = parameters_of(FUNCTIONS[name])
    del found["out"]
    return found


def _function(text: str) -> str:
    """Read the name of a function; "pooling" is "pooling_forward", and so on."""
    plain = text.replace("-", "_")
    short = {name.removesuffix("_forward"): name for name in FUNCTIONS}
    function = one_of(
        plain, (*FUNCTIONS, *(each for each in short if each not in FUNCTIONS)), "a function"
    )
    return short.get(function, function)


def _add_common(group: Any, *, plans: bool) -> None:
    group.add_argument("--dtype", choices=tuple(DTYPES), default="float32", help="of all arrays")
    group.add_argument(
        "--placement",
        choices=PLACEMENTS,
        default="pinned",
        help="of the arrays that name none, and of the result (default: %(default)s)",
    )
    group.add_argument("--out-placement", choices=PLACEMENTS, help="of the result")
    where = group.add_mutually_exclusive_group()
    if plans:
        add_machine(where)
        group.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_device(where)
    add_memory_limit(group)


def request_of(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return a command line's call: the function's arguments, its result and the limit."""
    defaults = Defaults(arguments.dtype, arguments.placement)
    given = _given(name, arguments, defaults)
    out = _out(name, given, defaults, arguments.out_placement)
    return {**given, "out": out, "memory_limit": arguments.memory_limit}


def _run(before: argparse.Namespace) -> int:
    name = before.function
    if (name is None) == (before.torch is None):
        before.fail("one of FUNCTION and --torch is required")
    if name is None:
        return plan_model(before)
    arguments = function_parser(name).parse_args(before.arguments)
    with on_device(arguments.device):
        call_plan = plan(name, **request_of(name, arguments), machine=arguments.machine)
    print(json.dumps(call_plan.to_json(), indent=2) if arguments.json else call_plan.explain())
    return 0


def _given(name: str, arguments: argparse.Namespace, defaults: Defaults) -> dict[str, Any]:
    """The function's arguments: arrays as specs, vectors of the data's channels where left out."""
    values: dict[str, Any] = {}
    vectors: dict[str, Kind] = {}
    texts: dict[str, str] = {}
    for argument, parameter in _parameters(name).items():
        value, kind = getattr(arguments, argument), kind_of(parameter.annotation)
        if value is None:
            if parameter.default is inspect.Parameter.empty:
                vectors[argument] = kind
        elif kind.read is None:
            texts[argument] = value
        else:
            values[argument] = defaults.spec(value, kind) if kind.is_array else value
    for argument, kind in vectors.items():
        values[argument] = defaults.spec(ArrayArgument((_channels(name, values),)), kind)
    for argument, text in texts.items():
        values[argument] = read_chain(text, values["x"], defaults)
    return values


def _channels(name: str, values: Mapping[str, Any]) -> int:
    """Channels of the result: as many as there are filters, else those of the data."""
    specs = {n: value for n, value in values.items() if isinstance(value, TensorSpec)}
    for argument, spec in specs.items():
        if isinstance(kind_of(_parameters(name)[argument].annotation).mark, OfFilters):
            return spec.shape[0]
    first, spec = next(iter(specs.items()))
    if len(spec.shape) < 2:
        raise ValueError(f"{first} must have shape (n, c, spatial axes), not {spec.shape}")
    return spec.shape[1]


def _out(name: str, arguments: Mapping[str, Any], defaults: Defaults, placement: str | None) -> Any:
    """Specs of the results; None where one changes in place and nothing else was asked for."""
    shaping = {argument: value for argument, value in arguments.items() if argument != "beta"}
    description = describe_call(name, shaping)
    call = tiled_call_of(name, **shaping)
    if placement is None and set(description.results) <= set(description.updated):
        return None
    place = partial(TensorSpec, placement=placement or defaults.placement)
    outs = tuple(
        place(call.operands[result].shape, call.operands[result].dtype)
        for result in description.results
    )
    return outs if len(outs) > 1 else outs[0]
