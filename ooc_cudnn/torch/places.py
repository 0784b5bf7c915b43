"""Source lines, modules and attributes of the user's model."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._guards import TracingContext

#: Whose lines are not the user's: PyTorch's and all of the library's.
NOT_THE_USERS = tuple(
    os.path.dirname(each) + os.sep for each in (torch.__file__, os.path.dirname(__file__))
)
_HELD = re.compile(r"\['?_(?:parameters|buffers|modules)'?\]|\._(?:parameters|buffers|modules)\b")
#: The name by which TorchDynamo has a module; and what comes before the variable of a function.
_IMPORTED = re.compile(r"^__import_(\w+)")
_CELL = re.compile(r"^.*\.__closure__\[\d+\]\.(?:cell_contents\.)?")
#: How TorchDynamo looks up a key without a name, and an entry of a class of dictionaries or lists.
_KEY = re.compile(r"list\(dict\.keys\((?:[^()]|\([^()]*\))*\)\)\[\d+\]")
_ENTRY = re.compile(r"\b\w+\.__getitem__\((.*?), ('[^']*'|[\w.]+)\)")
_ARGUMENT = re.compile(r"L\['args'\]\[(\d+)\]")
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_QUOTED = re.compile(r"\['([^']*)'\]")


def users_frame() -> str:
    """The line of the user's code that has called us, on a line of its own; "" if none has."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((*NOT_THE_USERS, contextlib.__file__, "<")):
            return f'\n  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}'
        frame = frame.f_back
    return ""


def source_line(node: Any) -> str:
    """The last line of the user's own code before PyTorch's, on the way to a node."""
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    frames = [at for at, line in enumerate(lines) if line.strip().startswith('File "')]
    own = [at for at in frames if not any(each in lines[at] for each in NOT_THE_USERS)]
    return ": ".join(line.strip() for line in lines[own[-1] : own[-1] + 2]) if own else ""


def traced_line() -> str:
    """The last line of the user's own code on the way to what TorchDynamo traces now."""
    stack = reversed(TracingContext.extract_stack())
    own = (each for each in stack if not each.filename.startswith(NOT_THE_USERS))
    found = next(own, None)
    if found is None:
        return ""
    return f'File "{found.filename}", line {found.lineno}, in {found.name}: {found.line}'


def module_of(node: Any, names: Mapping[str, str]) -> str:
    """The name of the module that a node is in: "layer1.0.conv1"."""
    stack = node.meta.get("nn_module_stack") or {}
    for key in reversed(list(stack)):
        if str(key) in names:
            return names[str(key)]
    return ""


def source_name(source: Any) -> str:
    """Return TorchDynamo's name of a source: "L['self'].conv"; "" if there is none."""
    # of what forward makes: it raises an error
    if isinstance(source, torch._dynamo.source.TempLocalSource):
        return ""
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)  # a method in older versions


def of_arguments(source: str, forward: Callable[..., Any] | None) -> str:
    """Put the names of arguments in TorchDynamo's name of what a call of a model brings.

    >>> of_arguments("L['args'][1].gain", lambda x, settings: x)
    "L['settings'].gain"
    >>> of_arguments("L['args'][1]", lambda x, *all, y: x), of_arguments("L['kwargs']['y']", None)
    ("L['argument 1']", "L['y']")
    """
    found = _ARGUMENT.match(source)
    if found is None:
        return source.replace("L['kwargs']", "L", 1)
    at, names = int(found[1]), list[str]()
    with contextlib.suppress(TypeError, ValueError):  # it has no signature
        parameters = inspect.signature(forward).parameters.values() if forward else ()
        names = [each.name for each in parameters if each.kind in _BY_PLACE]
    name = names[at] if at < len(names) else f"argument {at}"
    return f"L['{name}']{source[found.end() :]}"


def name_of(source: str) -> str:
    """The name of a tensor that a model holds, by how TorchDynamo came to it.

    >>> name_of("L['forward'].__self__.__dict__['_modules']['seq']._modules['0']._buffers['mean']")
    'seq.0.mean'
    >>> name_of("L['forward'].__self__.gains[0]"), name_of("G['table']")
    ('gains.0', 'table')
    >>> name_of("G['__import_nets_dot_parts'].table")
    'nets.parts.table'
    """
    path = source.rpartition("__self__")[2] if "__self__" in source else source
    path = re.sub(r"^[LG](?=\[)", "", path).replace(".__dict__", "")
    path = _HELD.sub("", path)
    path = _QUOTED.sub(r".\1", path)
    path = re.sub(r"\[([^\]]*)\]", r".\1", path)
    path = _IMPORTED.sub(lambda found: found[1].replace("_dot_", "."), path.strip("."))
    return path or source


def told_name(source: str) -> str:
    """The same as its user would write it, of what a function reads.

    >>> told_name("G['__import___main__'].settings.gain")
    'settings.gain'
    >>> told_name("L['forward'].__func__.__closure__[0].gain")
    'gain'
    >>> told_name("type(L['forward'].__self__.box).gain"), told_name("L['forward'].__self__.gain")
    ('type(box).gain', 'gain')
    >>> told_name("L['forward'].__self__._buffers")
    '_buffers'
    >>> told_name("dict.__getitem__(L['forward'].__self__.t, 'a').gain")
    't.a.gain'
    >>> told_name("L['forward'].__self__.t[list(dict.keys(L['forward'].__self__.t))[1]].gain")
    't.(a key).gain'
    """
    source, found = _KEY.sub("'(a key)'", source), 1
    while found:
        source, found = _ENTRY.subn(r"\1[\2]", source)
    within = re.fullmatch(r"type\((.*)\)((?:\.\w+)+)", source)
    if within:
        return f"type({told_name(within[1])}){within[2]}"
    name = name_of(_CELL.sub("", source))
    return source.rpartition(".")[2] if name == source else name.removeprefix("__main__.")


def dtype_name(tensor: torch.Tensor) -> str:
    """The name of a tensor's dtype: float32, say."""
    return str(tensor.dtype).removeprefix("torch.")
