"""Tables of single convolutions: figures 9, 10 and 14, table 4, and layers of networks."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.contenders.cases import CASES, LOOPS, UNIFIED_MEMORY
from benchmarks.figures.records import STAGES, Records, feature_bytes, names
from benchmarks.figures.records import stage_seconds as stages_of
from benchmarks.figures.words import (
    LABELS,
    NOTHING,
    PRECISIONS,
    gflops,
    markdown,
    seconds,
    section,
    share_of_bound,
    times,
)
from benchmarks.paper_figures import CHANNEL_GFLOPS, CHANNELS, FUSED_OVER_UNFUSED
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.cases import FIGURE_9
from ooc_cudnn.units import format_seconds

IN_CORE = (OURS, "in_core", "cudnn")
OTHERS = (*UNIFIED_MEMORY, *LOOPS, "serial", "torch_in_core")


def figure_9(records: Records) -> str:
    """GFLOPS over the number of channels."""
    rows = []
    for channels in CHANNELS:
        limit, paper = FIGURE_9[channels]
        cells = [str(channels), limit]
        for precision in PRECISIONS:
            case = f"fig9-c{channels}-{precision}"
            cells += [gflops(records, case, contender) for contender in IN_CORE]
            cells.append(binds(records, case))
        rows.append([*cells, NOTHING if paper is None else f"{paper:,.0f}"])
    columns = [
        f"{word} {short}"
        for short in ("strict", "TF32")
        for word in ("`ooc_cudnn`", "`in_core`", "`cudnn`", "binds,")
    ]
    about = (
        f"GFLOPS. The paper's P100 went from {CHANNEL_GFLOPS.least:,.0f} to "
        f"{CHANNEL_GFLOPS.most:,.0f}; the last column has the two of its values that it states."
    )
    cases = names("fig9-")
    table = markdown(("channels", "limit", *columns, "paper"), rows)
    return section(records, cases, IN_CORE, (about, table))


def table_4(records: Records) -> str:
    """GFLOPS of the paper's three sizes."""
    rows = []
    cases = names("table4-")
    for case in cases:
        rows.append(
            (
                f"`{case}`", CASES[case].memory_limit, gflops(records, case),
                f"{CASES[case].paper['GFLOPS']:,.0f}", gflops(records, case, "in_core"),
                share_of_bound(records, case, "copy_limit"), times(records, case, "serial"),
                binds(records, case),
            )
        )  # fmt: skip
    head = ("case", "limit", "GFLOPS", "the paper's", "GFLOPS in core", "share of raw copies",
            "without overlap", "binds")  # fmt: skip
    return section(
        records, cases, (OURS, "in_core", "copy_limit", "serial"), (markdown(head, rows),)
    )


def figure_10(records: Records) -> str:
    """Fused against unfused, and what each stage of each call took."""
    rows, parts = [], []
    cases = names("fig10-")
    for case in cases:
        ratio = records.ratio(case, "unfused")
        share = NOTHING if ratio is None else f"{1 / ratio:.0%}"
        rows.append(
            (
                f"`{case}`", CASES[case].memory_limit, seconds(records, case),
                seconds(records, case, "unfused"), share, f"{FUSED_OVER_UNFUSED:.0%}",
                share_of_bound(records, case, "copy_limit"),
            )
        )  # fmt: skip
        for contender in (OURS, "unfused"):
            for call in records.details(case, contender).get("calls", ()):
                parts.append((f"`{case}`", f"`{call['function']}`", *_stages(call)))
    head = ("case", "limit", "fused", "three functions", "fused / three", "the paper's",
            "share of raw copies")  # fmt: skip
    broken = markdown(("case", "function", "seconds", "copy in", "compute", "copy out"), parts)
    about = (
        "What the streams were busy with, in one profiled call each. They work at the same time, "
        "so that their seconds add up to more than the call's."
    )
    return section(
        records,
        cases,
        (OURS, "unfused", "copy_limit"),
        (
            markdown(head, rows),
            *((about, broken) if parts else ()),
        ),
    )


def figure_14(records: Records) -> str:
    """Unified Memory and the other ways, over the library's seconds."""
    rows = []
    cases = names("fig14-")
    for case in cases:
        rows.append(
            (
                f"{feature_bytes(case) / 1e9:.1f} GB, {PRECISIONS[case.rsplit('-', 1)[1]]}",
                CASES[case].memory_limit, seconds(records, case),
                share_of_bound(records, case, "copy_limit"),
                *(times(records, case, contender) for contender in OTHERS),
            )
        )  # fmt: skip
    head = ("x, and y", "limit", "`ooc_cudnn`", "share of raw copies",
            *(LABELS[contender] for contender in OTHERS))  # fmt: skip
    return section(records, cases, (OURS, "copy_limit", *OTHERS), (markdown(head, rows),))


def networks(records: Records) -> str:
    """Layers of real networks."""
    rows = []
    cases = [name for name, case in CASES.items() if name.startswith(("vgg-", "path", "pageable"))]
    others = ("in_core", *LOOPS, "torch_in_core")
    for case in cases:
        rows.append(
            (
                f"`{case}`", CASES[case].memory_limit, seconds(records, case),
                share_of_bound(records, case, "copy_limit"),
                *(times(records, case, contender) for contender in others),
            )
        )  # fmt: skip
    head = ("case", "limit", "`ooc_cudnn`", "share of raw copies",
            *(LABELS[contender] for contender in others))  # fmt: skip
    return section(records, cases, (OURS, "copy_limit", *others), (markdown(head, rows),))


def binds(records: Records, case: str) -> str:
    """Name the stage that sets the time of a case's one call, by its plan."""
    calls = records.details(case).get("calls", ())
    return calls[0]["binding_stage"].replace("_", " ") if calls else NOTHING


def _stages(call: Mapping[str, object]) -> list[str]:
    busy = stages_of(call)
    whole = float(str(call["seconds_while_profiled"]))
    return [format_seconds(value) for value in (whole, *(busy[stage] for stage in STAGES))]
