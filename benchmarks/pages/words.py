"""Cells and sentences about the suite's records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmarks.contenders.cases import CASES
from benchmarks.pages.blocks import NOT_MEASURED, NOTHING, machine_of
from benchmarks.pages.records import Records
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.record import join_paragraphs
from ooc_cudnn.units import format_seconds

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
    "unified_memory": "Unified Memory",
    "unified_memory_prefetch": "Unified Memory, prefetch",
    "unified_memory_prefetch_split": "Unified Memory, our split",
}
#: What a column says of a case.
Cell = Callable[[Records, str], str]


def precision_of(case: str) -> str:
    """Say by which rule a case computes."""
    return PRECISIONS[case.rsplit("-", 1)[1]]


def _cell(value: Callable[[Records, str], float | None], form: Callable[[float], str]) -> Cell:
    """A value, or a dash."""

    def cell(records: Records, case: str) -> str:
        found = value(records, case)
        return NOTHING if found is None else form(found)

    return cell


def seconds(contender: str = OURS) -> Cell:
    return _cell(lambda records, case: records.seconds(case, contender), format_seconds)


def gflops(contender: str = OURS) -> Cell:
    return _cell(lambda records, case: records.gflops(case, contender), "{:,.0f}".format)


def times(contender: str) -> Cell:
    """How many times as long as the library a contender takes."""
    return _cell(lambda records, case: records.ratio(case, contender), "{:.2f} x".format)


def share_of(bound: str) -> Cell:
    """Which share of a bound's speed the library reaches."""
    return _cell(lambda records, case: records.ratio(case, bound), "{:.0%}".format)


def share_of_time(contender: str) -> Cell:
    """Which share of a contender's time the library takes."""
    inverse = lambda ratio: f"{1 / ratio:.0%}"  # noqa: E731
    return _cell(lambda records, case: records.ratio(case, contender), inverse)


def limit(records: Records, case: str) -> str:
    return CASES[case].memory_limit


def binds(records: Records, case: str) -> str:
    """Name the stage that sets the time of a case's one call, by its plan."""
    calls = records.details(case).get("calls", ())
    return calls[0]["binding_stage"].replace("_", " ") if calls else NOTHING


def provenance(records: Records, cases: Sequence[str]) -> str:
    """Say on what card, when and under which limit cases were measured."""
    measured = records.of(cases)
    if not measured:
        return f"Not measured yet: `python -m benchmarks.contenders`, {len(cases)} cases."
    cards = sorted(set(map(machine_of, measured)))
    dates = sorted({record["environment"]["date"][:10] for record in measured})
    limits = {CASES[case].memory_limit for case in cases}
    limit = f"limit {limits.pop()}" if len(limits) == 1 else "limit of each case in the table"
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    missing = len(cases) - len(measured)
    rest = f"; {missing} of {len(cases)} cases not measured yet" if missing else ""
    return f"{', '.join(cards)}, {when}; {limit}; medians{rest}."


def reasons(records: Records, cases: Sequence[str], contenders: Sequence[str]) -> str:
    """List why contenders did not run, each reason once; empty where all ran."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        for contender in contenders:
            why = records.reason(case, contender)
            if why not in (None, NOT_MEASURED) and contender in (OURS, *CASES[case].baselines):
                by_reason.setdefault((contender, str(why)), []).append(case)
    return "\n".join(
        f"- `{contender}` did not run in {', '.join(where)}: {why}"
        for (contender, why), where in by_reason.items()
    )


def notes(records: Records, cases: Sequence[str]) -> str:
    """List what the records say beside their figures, each note once."""
    by_note: dict[str, list[str]] = {}
    for record in records.of(cases):
        for note in record["notes"]:
            by_note.setdefault(note, []).append(record["case"]["name"])
    return "\n".join(
        f"- {note}" + ("" if len(where) == len(cases) else f" ({', '.join(where)})")
        for note, where in by_note.items()
    )


def section(
    records: Records, cases: Sequence[str], contenders: Sequence[str], parts: Iterable[str]
) -> str:
    """Put parts between where cases were measured and what is to be known beside them.

    Where none was measured there are no parts.
    """
    return join_paragraphs(
        (
            provenance(records, cases),
            *(parts if records.of(cases) else ()),
            reasons(records, cases, contenders),
            notes(records, cases),
        )
    )
