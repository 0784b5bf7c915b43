"""Parsers of the command line: shapes with placements, sizes, and values by annotation."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from ooc_cudnn.settings import settings
from ooc_cudnn.tensor import ACCUMULATOR, PLACEMENTS, TensorSpec
from ooc_cudnn.types import Array, PerChannel, Sizes
from perfmodel import shipped_names

PROGRAM = "ooc-cudnn"
SHAPE = "SHAPE[@PLACEMENT]"


class ArrayArgument(NamedTuple):
    """An array as the command line gives it; without a placement that is None."""

    shape: tuple[int, ...]
    placement: str | None = None


class Kind(NamedTuple):
    """Kind of an argument, by its annotation.

    `read` reads its text, and is None for what no text gives; `metavar` is how its text looks;
    `mark` is what kind of array it is, if it is one.
    """

    read: Callable[[str], Any] | None
    metavar: str = ""
    is_array: bool = False
    mark: Any = None


class Defaults(NamedTuple):
    """The dtype of arrays, and the placement of those that name none."""

    dtype: str
    placement: str

    def spec(self, given: ArrayArgument, kind: Kind) -> TensorSpec:
        """The array that is meant."""
        sums = isinstance(kind.mark, PerChannel) and kind.mark.in_dtype_of_sums
        dtype = ACCUMULATOR[self.dtype] if sums else self.dtype
        return TensorSpec(given.shape, dtype, given.placement or self.placement)


def kind_of(annotation: Any) -> Kind:
    """Return what an annotation of a public function or an operation says.

    Examples
    --------
    >>> kind_of(int).metavar, kind_of(Array | None).is_array
    ('N', True)
    """
    for choice in (annotation, *get_args(annotation)):
        mark = None
        if get_origin(choice) is Annotated:
            choice, mark = get_args(choice)
        if choice is Array:
            return Kind(operand, SHAPE, True, mark)
        if choice in _SCALARS:
            return _SCALARS[choice]
        if get_origin(choice) is tuple:
            return Kind(shape, "SHAPE")
    if not set(get_args(Sizes)).isdisjoint(get_args(annotation)):
        return Kind(sizes, "N[,N...]")
    return Kind(None)


def meanings(function: Callable[..., Any], functions: Mapping[str, Any]) -> dict[str, str]:
    """Return what a function's docstring says of each parameter: an array's shape, or a sentence.

    Where that is "As for `other`.", it is what the other one says.
    """
    descriptions: dict[str, str] = {}
    text = (inspect.getdoc(function) or "").replace("``", "")
    section = re.search(r"Parameters\n-+\n(.*?)(\n\n\w+\n-+\n|\Z)", text, re.DOTALL)
    for entry in re.split(r"\n(?=\S)", section[1]) if section else []:
        head, *body = entry.split("\n")
        names, _, kind = head.partition(" : ")
        said = re.split(r"(?<=[.;])\s", " ".join(" ".join(body).split()))[0].rstrip(".;")
        other = re.fullmatch(r"As for `(\w+)`", said)
        others = meanings(functions[other[1]], functions) if other else {}
        extent = kind.partition("array, ")[2]
        for name in names.split(", "):
            descriptions[name] = extent or others.get(name) or said or kind
    return descriptions


def parameters_of(signature_of: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function or class, their annotations evaluated."""
    return dict(inspect.signature(signature_of, eval_str=True).parameters)


def operand(text: str) -> ArrayArgument:
    """Read "512x64x256x256@pinned".

    >>> operand("8x3x32x32@disk")
    ArrayArgument(shape=(8, 3, 32, 32), placement='disk')
    """
    extents, separator, placement = text.partition("@")
    if separator and placement not in PLACEMENTS:
        raise argparse.ArgumentTypeError(
            f"{placement!r} is not a placement{nearest(placement, PLACEMENTS)}; "
            f"give one of {', '.join(PLACEMENTS)}"
        )
    return ArrayArgument(shape(extents), placement or None)


def shape(text: str) -> tuple[int, ...]:
    """Read "512x64x256x256"."""
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape; give one like 512x64x256x256")
    extents = tuple(int(extent) for extent in text.split("x"))
    if not math.prod(extents):
        raise argparse.ArgumentTypeError(f"{text!r} is empty; every extent must be 1 or more")
    return extents


def sizes(text: str) -> Any:
    """Read "1", "1,2" or "1x2"; for padding, "(0,1),2" too.

    >>> sizes("3"), sizes("3x5"), sizes("(0,1),2")
    (3, (3, 5), ((0, 1), 2))
    """
    pattern = r"-?[0-9]+|\(-?[0-9]+,-?[0-9]+\)"
    plain = text.replace(" ", "").replace("x", ",")
    if not re.fullmatch(rf"({pattern})(,({pattern}))*", plain):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; give 1, or one for each spatial axis as in 1,2 (for padding "
            "also before and after, as in (0,1),2)"
        )
    values = tuple(
        tuple(map(int, part.strip("()").split(","))) if "(" in part else int(part)
        for part in re.findall(pattern, plain)
    )
    return values[0] if len(values) == 1 and "(" not in plain else values


def whole(text: str) -> int:
    """Read a whole number."""
    if not re.fullmatch(r"-?[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def positive(text: str) -> int:
    """Read a whole number of 1 or more."""
    found = whole(text)
    if found < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {found}")
    return found


def number(text: str) -> float:
    """Read a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def truth(text: str) -> bool:
    """Read true or false.

    >>> truth("true"), truth("no")
    (True, False)
    """
    if text.lower() not in ("true", "yes", "1", "false", "no", "0"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() in ("true", "yes", "1")


def nearest(word: str, known: Iterable[str]) -> str:
    """Ask whether the nearest known word was meant, if one is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


def one_of(word: str, known: Sequence[str], what: str) -> str:
    """Return the known word that is meant: itself, or the only one that begins so.

    Raises
    ------
    argparse.ArgumentTypeError
        With the nearest, and all of them.
    """
    plain = word.replace("-", "_")
    matches = [plain] if plain in known else [each for each in known if each.startswith(plain)]
    if len(matches) != 1 or not plain:
        raise argparse.ArgumentTypeError(
            f"{word!r} is not {what}{nearest(plain, known)}; give one of {', '.join(known)}"
        )
    return matches[0]


def complain(text: str) -> None:
    """Say something beside the output."""
    with contextlib.suppress(OSError, ValueError):
        print(f"{PROGRAM}: {text}", file=sys.stderr, flush=True)


def add_device(parser: Any) -> None:
    """Let the device be named."""
    parser.add_argument("--device", metavar="NAME", help="auto, cuda, cuda:1 or host")


def add_memory_limit(parser: Any, meaning: str = "16GiB, 0.5, ...") -> None:
    """Let the memory limit be given; `--limit` is short for it."""
    parser.add_argument(
        "--memory-limit", "--limit", dest="memory_limit", metavar="SIZE", help=meaning
    )


def add_memory_limits(parser: Any, read: Callable[[str], Any], meaning: str) -> None:
    """Let the limits of a sweep be given; `--limits` is short for it."""
    parser.add_argument(
        "--memory-limits", "--limits", dest="limits", type=read, metavar="SIZE,...", help=meaning
    )


def add_machine(parser: Any) -> None:
    """Let the machine that is predicted for be named."""
    parser.add_argument(
        "--machine",
        metavar="NAME",
        help=f"{', '.join(shipped_names())} or a file; this machine when left out",
    )


def add_seconds(parser: Any) -> None:
    """Let it be said how long the search for a plan may take."""
    parser.add_argument(
        "--seconds",
        type=number,
        metavar="SECONDS",
        help="that the search for each plan may take (planning_seconds; 10 when left out)",
    )


def on_device(
    name: str | None, seconds: float | None = None
) -> contextlib.AbstractContextManager[None]:
    """The settings with the device and the seconds of planning that were named, if any were."""
    named = {"device": name, "planning_seconds": seconds}
    named = {key: value for key, value in named.items() if value is not None}
    return settings(**named) if named else contextlib.nullcontext()


_SCALARS = {
    bool: Kind(truth, "true|false"),
    int: Kind(whole, "N"),
    float: Kind(number, "NUMBER"),
    str: Kind(str, "WORD"),
}
