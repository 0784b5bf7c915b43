"""A chain as text: ``"convolution 64 window 3 padding 1; activation relu; pooling 2"``."""

from __future__ import annotations

import argparse
import inspect
import re
from typing import Any

from ooc_cudnn import operations
from ooc_cudnn.cli.arguments import (
    ArrayArgument,
    Defaults,
    Kind,
    kind_of,
    nearest,
    one_of,
    operand,
    parameters_of,
    sizes,
    whole,
)
from ooc_cudnn.operations.chain_forms.windows_and_norms import Applied, Incoming
from ooc_cudnn.operations.core.activation_modes import MODES
from ooc_cudnn.operations.core.window_arguments import per_axis
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import PLACEMENTS, TensorSpec
from ooc_cudnn.types import OfFilters, PerChannel

WRITTEN = (
    "in quotes, operations with a ; between: a name (its beginning will do), its arguments in "
    "order or by name, and @PLACEMENT for its arrays. Filters are given by their number, and the "
    "word window; vectors may be left out; 'relu' is short for 'activation relu', 'bias' for "
    "'add_tensor'"
)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


#: Short for an operation and its first argument.
SHORT = {"bias": ["add_tensor"]} | {mode: ["activation", mode] for mode in MODES}
#: The operations of a chain by the names that they are written with.
OPERATIONS: dict[str, Any] = {
    _snake(name): getattr(operations, name) for name in operations.__all__
}


def read_chain(text: str, x: TensorSpec, defaults: Defaults) -> tuple[Applied, ...]:
    """Read the operations of a chain that begins with x.

    Raises
    ------
    ValueError
        Naming the operation, what is wrong with it and what it takes.

    Examples
    --------
    >>> x = TensorSpec((1, 3, 32, 32))
    >>> found = read_chain("conv 8 window 3; elu; pool 2", x, Defaults("float32", "pinned"))
    >>> found[0].w.shape, found[1].mode, found[2].window
    ((8, 3, 3, 3), 'elu', 2)
    >>> text = "transposed 8 window 2 stride 2; interpolation 20 mode linear align_corners true"
    >>> up, resized = read_chain(text, x, Defaults("float32", "pinned"))
    >>> up.w.shape, resized.align_corners
    ((3, 8, 2, 2), True)
    """
    chain: list[Applied] = []
    shape = x.shape
    for place, part in enumerate(text.split(";"), 1):
        try:
            applied, specs = _operation(part.split(), shape, defaults)
            shape = applied.bind(Incoming(shape, x.dtype, current()), specs).output_shape
        except (argparse.ArgumentTypeError, ValueError, TypeError) as error:
            on = f"on a tensor of {' x '.join(map(str, shape))}"
            raise ValueError(
                f"operations: number {place}, {part.strip()!r}, {on}: {error}"
            ) from None
        chain.append(applied)
    return tuple(chain)


def _operation(
    words: list[str], shape: tuple[int, ...], defaults: Defaults
) -> tuple[Applied, tuple[TensorSpec, ...]]:
    """Read one operation, on a tensor of a shape; return its arrays' specs, too."""
    if not words:
        raise ValueError(f"nothing is written there; give one of {', '.join(OPERATIONS)}")
    first = one_of(words[0], (*OPERATIONS, *SHORT), "an operation")
    name, *tokens = [*SHORT.get(first, [first]), *words[1:]]
    parameters = parameters_of(OPERATIONS[name])
    kinds = {argument: kind_of(each.annotation) for argument, each in parameters.items()}
    texts, placement = _texts(name, tokens, parameters, kinds)
    if placement is not None:
        defaults = defaults._replace(placement=placement)
    values: dict[str, Any] = {}
    for argument, kind in kinds.items():
        text = texts.get(argument)
        if isinstance(kind.mark, OfFilters):
            groups = whole(texts.get("groups", "1"))
            values[argument] = _filters(
                name, text, texts.get("window"), groups, shape, defaults, kind.mark.is_transposed
            )
        elif text is not None:
            value = _read(argument, kind, text)
            values[argument] = defaults.spec(value, kind) if kind.is_array else value
        elif kind.is_array:
            same = shape[1:2] if isinstance(kind.mark, PerChannel) else shape
            values[argument] = defaults.spec(ArrayArgument(same), kind)
        elif parameters[argument].default is inspect.Parameter.empty:
            raise ValueError(f"{argument} is missing; {_takes(name, parameters)}")
    specs = tuple(value for value in values.values() if isinstance(value, TensorSpec))
    return OPERATIONS[name](**values), specs


def _texts(
    name: str, words: list[str], parameters: dict[str, inspect.Parameter], kinds: dict[str, Kind]
) -> tuple[dict[str, str], str | None]:
    """Tell an operation's words apart: its arguments by name, and the placement of its arrays."""
    has_filters = any(isinstance(kind.mark, OfFilters) for kind in kinds.values())
    named = dict.fromkeys((*parameters, *(("window",) if has_filters else ())))
    in_order = [n for n, each in parameters.items() if each.kind is not each.KEYWORD_ONLY]
    texts: dict[str, str] = {}
    placement = None
    rest = iter(words)
    for word in rest:
        if word.startswith("@"):
            placement = one_of(word[1:], PLACEMENTS, "a placement")
            continue
        argument = word.replace("-", "_")
        if argument in named:
            value = next(rest, None)
            if value is None:
                raise ValueError(f"{word} has no value; {_takes(name, parameters)}")
        else:
            free = [each for each in in_order if each not in texts]
            if not free or nearest(argument, named):
                raise ValueError(
                    f"{word!r} is no argument{nearest(argument, named)}; {_takes(name, parameters)}"
                )
            argument, value = free[0], word
        if argument in texts:
            raise ValueError(f"{argument} is given twice")
        texts[argument] = value
    return texts, placement


def _filters(
    name: str,
    text: str | None,
    window: str | None,
    groups: int,
    shape: tuple[int, ...],
    defaults: Defaults,
    is_transposed: bool,
) -> TensorSpec:
    """The filters, by their number and window, or by their shape."""
    if text is None:
        raise ValueError(f"the number of filters is missing; write {name} 64 window 3")
    filters = operand(text)
    if len(filters.shape) > 1:
        if window is not None:
            raise ValueError(f"{text} says how large the window is; leave out window {window}")
    elif window is None:
        raise ValueError(f"window is missing; write {name} {text} window 3")
    else:
        axes = max(len(shape) - 2, 0)
        spatial = per_axis(sizes(window), axes, name="window", least=1)
        (count,), groups = filters.shape, max(groups, 1)
        channels = (count, max(shape[1] // groups, 1))
        if is_transposed:
            channels = (shape[1], max(count // groups, 1))
        filters = filters._replace(shape=(*channels, *spatial))
    return defaults.spec(filters, Kind(None))


def _read(argument: str, kind: Kind, text: str) -> Any:
    if kind.read is None:
        raise ValueError(f"{argument} cannot be written here")
    try:
        return kind.read(text)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{argument}: {error}") from None


def _takes(name: str, parameters: dict[str, inspect.Parameter]) -> str:
    names = [
        "the number of filters, window"
        if isinstance(kind_of(each.annotation).mark, OfFilters)
        else n
        for n, each in parameters.items()
    ]
    return f"{name} takes {', '.join(names)}"
