"""docs/kernels.md: every function but the convolutions, in core beside PyTorch's."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.engines import MOST
from benchmarks.functions_in_core import DTYPES, NAME, OF_HOST
from benchmarks.pages.blocks import NOT_MEASURED, NOTHING, Block
from ooc_cudnn.bench import script
from ooc_cudnn.bench.record import join_paragraphs, load_record, markdown

PAGE = "docs/kernels.md"


class Problem(NamedTuple):
    """A function on one map: ours over PyTorch's, and seconds in the better memory order."""

    function: str
    ratio: float
    is_host_bound: bool
    host: float
    their_host: float
    theirs: float


def function_of(name: str) -> str:
    """The function that a problem of the record calls.

    Examples
    --------
    >>> function_of("VGG-16 64x64, 224x224 float32 pooling_forward 2/2")
    'pooling_forward'
    >>> function_of("softmax 256x1000 float16 backward")
    'softmax_backward'
    """
    words = name.split()
    at = next(place for place, word in enumerate(words) if word in DTYPES)
    function = words[at + 1]
    return f"softmax_{function}" if words[0] == "softmax" else function


def problems(found: Mapping[str, Any]) -> Iterator[Problem]:
    """What a record has measured, in its order."""
    for name, row in found["measurements"].items():
        host = row["host, one call"]
        medians = {way: timing["median"] for way, timing in row["seconds"].items()}
        yield Problem(
            function_of(name),
            row["ours over PyTorch"],
            row["the host binds"],
            _least(host, "ours"),
            _least(host, "PyTorch"),
            _least(medians, "PyTorch"),
        )


def _least(ways: Mapping[str, float], who: str) -> float:
    return min(seconds for way, seconds in ways.items() if way.startswith(who))


def mean(of: Sequence[Problem]) -> float:
    return statistics.geometric_mean(problem.ratio for problem in of)


def unbound(of: Sequence[Problem]) -> list[Problem]:
    """Those that the host does not bind."""
    return [problem for problem in of if not problem.is_host_bound]


def _ratio(ratio: float) -> str:
    return f"**{ratio:.2f}**" if ratio > MOST else f"{ratio:.2f}"


def _row(name: str, of: Sequence[Problem]) -> tuple[str, ...]:
    free = unbound(of)
    of_free = [mean(free), max(problem.ratio for problem in free)] if free else []
    host = [statistics.median(seconds) for seconds in zip(*((p[3], p[4]) for p in of), strict=True)]
    return (
        name,
        f"{len(of)}",
        _ratio(mean(of)),
        f"{len(free)}",
        *(map(_ratio, of_free) if free else 2 * (NOTHING,)),
        *(f"{1e6 * seconds:.0f}" for seconds in host),
    )


def figures(folder: Path = script.RESULTS) -> str:
    """A line for each function, and one for all of them."""
    if not (folder / f"{NAME}.json").exists():
        return f"These functions were {NOT_MEASURED}: `python -m benchmarks.{NAME}` does it."
    record = load_record(NAME, folder)
    all_problems = list(problems(record))
    by_function: dict[str, list[Problem]] = {}
    for problem in all_problems:
        by_function.setdefault(problem.function, []).append(problem)
    rows = [_row(f"`{function}`", of) for function, of in by_function.items()]
    head = (
        "function", "problems", "mean", "not bound by the host", "their mean", "their largest",
        "host, ours, us", "host, PyTorch, us",
    )  # fmt: skip
    environment = record["environment"]
    about = (
        f"{environment['gpu']['name']}, {environment['date'][:10]}. Ours over PyTorch's, each in "
        "the better of two memory orders; means are geometric. "
        f"Bold is more than {MOST}. The host binds where one call takes it more than {OF_HOST} of "
        "the time of a call among many. *Host* is the median of what one call takes it. "
        "A gradient of PyTorch's is its `autograd.grad`, with the forward pass kept."
    )
    rows.append(_row("all", all_problems))
    return join_paragraphs((about, markdown(head, rows), _slow(all_problems)))


def _slow(of: Sequence[Problem]) -> str:
    """What is to be known of those whose ratio is above the bound though the host does not bind."""
    free = unbound(of)
    slow = [problem for problem in free if problem.ratio > MOST]
    said = f"Of the {len(free)} that the host does not bind, {len(slow)} are above {MOST}."
    short = sum(problem.host > problem.theirs for problem in slow)
    if short:
        said += f" In {short} of these one call takes our host longer than PyTorch's whole call."
    return said


BLOCKS = (Block(PAGE, "functions in core", figures),)
