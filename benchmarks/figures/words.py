"""Cells, rows and sentences of the generated tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.contenders.cases import CASES
from benchmarks.figures.records import NOT_MEASURED, Records
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.units import format_seconds

NOTHING = "-"
PRECISIONS = {"strict": "strict float32", "tf32": "TF32"}
#: As legends name them.
LABELS = {
    OURS: "ooc_cudnn",
    "in_core": "in core (ours)",
    "cudnn": "cuDNN by hand, in core",
    "copy_limit": "raw copies",
    "serial": "without overlap",
    "unfused": "three functions",
    "naive_loop": "plain PyTorch loop, pageable",
    "double_buffered_torch": "double-buffered PyTorch loop, pinned",
    "double_buffered_cupy": "double-buffered CuPy loop, pinned",
    "torch_in_core": "PyTorch in core, pinned",
    "torch_save_on_cpu": "PyTorch save_on_cpu",
    "torch_checkpoint": "PyTorch checkpoint",
    "torch_micro_batches": "PyTorch micro-batches",
    "unified_memory": "Unified Memory",
    "unified_memory_prefetch": "Unified Memory, prefetch",
    "unified_memory_prefetch_split": "Unified Memory, our split",
}


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Lay out a table; all but the first columns are set to the right.

    Examples
    --------
    >>> print(markdown(("case", "ms"), [("a", "12")]))
    | case | ms |
    |---|---:|
    | a | 12 |
    """
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:]])


def seconds(records: Records, case: str, contender: str = OURS) -> str:
    """Median seconds, or a dash."""
    return _shown(records.seconds(case, contender), format_seconds)


def gflops(records: Records, case: str, contender: str = OURS) -> str:
    """GFLOPS without a fraction, or a dash."""
    return _shown(records.gflops(case, contender), "{:,.0f}".format)


def times(records: Records, case: str, contender: str) -> str:
    """How many times as long as the library a contender takes, or a dash."""
    return _shown(records.ratio(case, contender), "{:.2f} x".format)


def share_of_bound(records: Records, case: str, bound: str) -> str:
    """Which share of a bound's speed the library reaches, or a dash."""
    return _shown(records.ratio(case, bound), "{:.0%}".format)


def _shown(value: float | None, form: Callable[[float], str]) -> str:
    return NOTHING if value is None else form(value)


def provenance(records: Records, cases: Sequence[str]) -> str:
    """Say on what card, when and under which limit cases were measured."""
    there = records.of(cases)
    if not there:
        return f"Not measured yet: `python -m benchmarks.contenders`, {len(cases)} cases."
    where = [record["environment"] for record in there]
    cards = sorted({each["gpu"]["name"] if each["gpu"] else "host device" for each in where})
    dates = sorted({each["date"][:10] for each in where})
    limits = list(dict.fromkeys(CASES[case].memory_limit for case in cases))
    limit = f"limit {limits[0]}" if len(limits) == 1 else "limit of each case in the table"
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    missing = len(cases) - len(there)
    rest = f"; {missing} of {len(cases)} cases not measured yet" if missing else ""
    return f"{', '.join(cards)}, {when}; {limit}; medians{rest}."


def reasons(records: Records, cases: Sequence[str], contenders: Sequence[str]) -> str:
    """List why contenders did not run, each reason once; empty where all ran."""
    found: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        for contender in contenders:
            why = records.reason(case, contender)
            if why is not None and why != NOT_MEASURED and contender in _of_case(case):
                found.setdefault((contender, why), []).append(case)
    return "\n".join(
        f"- `{contender}` did not run in {', '.join(where)}: {why}"
        for (contender, why), where in found.items()
    )


def notes(records: Records, cases: Sequence[str]) -> str:
    """List what the records say beside their figures, each note once."""
    found: dict[str, list[str]] = {}
    for record in records.of(cases):
        for note in record["notes"]:
            found.setdefault(note, []).append(record["case"]["name"])
    return "\n".join(
        f"- {note}" + ("" if len(where) == len(cases) else f" ({', '.join(where)})")
        for note, where in found.items()
    )


def _of_case(case: str) -> tuple[str, ...]:
    return (OURS, *CASES[case].baselines)


def image(name: str, about: str, drawn: Mapping[str, object]) -> str:
    """Show a picture of docs/images/bench, if there is anything to draw in it."""
    return f"![{about}](images/bench/{name}.png)" if name in drawn else ""


def section(
    records: Records, cases: Sequence[str], contenders: Sequence[str], parts: Iterable[str]
) -> str:
    """Put parts between where cases were measured and what is to be known beside them.

    Where none was measured there are no parts.
    """
    return joined(
        (
            provenance(records, cases),
            *(parts if records.of(cases) else ()),
            reasons(records, cases, contenders),
            notes(records, cases),
        )
    )


def joined(parts: Iterable[str]) -> str:
    """Join paragraphs; those without text are left out."""
    return "\n\n".join(part for part in parts if part)
