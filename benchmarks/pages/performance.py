"""docs/performance.md: what the suite measured, case by case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.contenders.cases import CASES, LOOPS, UNIFIED_MEMORY
from benchmarks.pages import words
from benchmarks.pages.blocks import NOTHING, Block
from benchmarks.pages.claims import claims_table, scripts_table
from benchmarks.pages.pictures import BY_NAME
from benchmarks.pages.records import Records, feature_bytes, load, names, stage_seconds
from benchmarks.pages.words import LABELS, PRECISIONS, Cell, precision_of, section
from benchmarks.paper_figures import CHANNEL_GFLOPS, CHANNELS, FUSED_OVER_UNFUSED
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.cases import FIGURE_9
from ooc_cudnn.bench.record import join_paragraphs, markdown
from ooc_cudnn.units import format_seconds

PAGE = "docs/performance.md"
IN_CORE = (OURS, "in_core", "cudnn")
OTHERS = (*UNIFIED_MEMORY, *LOOPS, "serial", "torch_in_core")
OTHERS_OF_NETWORKS = ("in_core", *LOOPS, "torch_in_core")


def by_case(
    records: Records,
    cases: Sequence[str],
    first: str,
    columns: Mapping[str, Cell],
    label: Callable[[str], str] = "`{}`".format,
) -> str:
    """A row for each case, a column for each thing that is said of it."""
    rows = [(label(case), *(cell(records, case) for cell in columns.values())) for case in cases]
    return markdown((first, *columns), rows)


def figure_9(records: Records) -> str:
    cells = (*map(words.gflops, IN_CORE), words.binds)
    rows = []
    for channels in CHANNELS:
        limit, paper = FIGURE_9[channels]
        figures = [
            cell(records, f"fig9-c{channels}-{precision}")
            for precision in PRECISIONS
            for cell in cells
        ]
        rows.append((str(channels), limit, *figures, NOTHING if paper is None else f"{paper:,.0f}"))
    columns = [
        f"{word} {short}"
        for short in ("strict", "TF32")
        for word in ("`ooc_cudnn`", "`in_core`", "`cudnn`", "binds,")
    ]
    about = (
        f"GFLOPS. The paper's P100 went from {CHANNEL_GFLOPS.least:,.0f} to "
        f"{CHANNEL_GFLOPS.most:,.0f}; the last column has the two of its values that it states."
    )
    table = markdown(("channels", "limit", *columns, "paper"), rows)
    return section(records, names("fig9-"), IN_CORE, (about, table))


def table_4(records: Records) -> str:
    columns: dict[str, Cell] = {
        "limit": words.limit,
        "GFLOPS": words.gflops(),
        "the paper's": lambda _, case: f"{CASES[case].paper['GFLOPS']:,.0f}",
        "GFLOPS in core": words.gflops("in_core"),
        "share of raw copies": words.share_of("copy_limit"),
        "without overlap": words.times("serial"),
        "binds": words.binds,
    }
    cases, contenders = names("table4-"), (OURS, "in_core", "copy_limit", "serial")
    return section(records, cases, contenders, (by_case(records, cases, "case", columns),))


def figure_10(records: Records) -> str:
    """Fused against unfused, and what each stage of each call took."""
    columns: dict[str, Cell] = {
        "limit": words.limit,
        "fused": words.seconds(),
        "three functions": words.seconds("unfused"),
        "fused / three": words.share_of_time("unfused"),
        "the paper's": lambda *_: f"{FUSED_OVER_UNFUSED:.0%}",
        "share of raw copies": words.share_of("copy_limit"),
    }
    cases = names("fig10-")
    calls = [
        (f"`{case}`", f"`{call['function']}`", *_stages(call))
        for case in cases
        for contender in (OURS, "unfused")
        for call in records.details(case, contender).get("calls", ())
    ]
    about = (
        "What the streams were busy with, in one profiled call each. They work at the same time, "
        "so that their seconds add up to more than the call's."
    )
    head = ("case", "function", "seconds", "copy in", "compute", "copy out")
    parts = (by_case(records, cases, "case", columns),
             *((about, markdown(head, calls)) if calls else ()))  # fmt: skip
    return section(records, cases, (OURS, "unfused", "copy_limit"), parts)


def _stages(call: Mapping[str, Any]) -> list[str]:
    return [*map(format_seconds, (call["seconds_while_profiled"], *stage_seconds(call).values()))]


def _beside(others: Sequence[str]) -> dict[str, Cell]:
    """Columns of convolutions beside other ways to them."""
    columns = {"limit": words.limit, "`ooc_cudnn`": words.seconds(),
               "share of raw copies": words.share_of("copy_limit")}  # fmt: skip
    return columns | {LABELS[other]: words.times(other) for other in others}


def figure_14(records: Records) -> str:
    """Unified Memory and the other ways, over the library's seconds."""
    cases = names("fig14-")
    table = by_case(
        records, cases, "x, and y", _beside(OTHERS),
        lambda case: f"{feature_bytes(case) / 1e9:.1f} GB, {precision_of(case)}",
    )  # fmt: skip
    return section(records, cases, (OURS, "copy_limit", *OTHERS), (table,))


def networks(records: Records) -> str:
    cases = [name for name in CASES if name.startswith(("vgg-", "path", "pageable"))]
    table = by_case(records, cases, "case", _beside(OTHERS_OF_NETWORKS))
    return section(records, cases, (OURS, "copy_limit", *OTHERS_OF_NETWORKS), (table,))


RATIOS = (
    "`2.00 x` is twice as long as the library; a share of raw copies is how much of the speed of "
    "copying the same bytes both ways at once, computing nothing, the library reaches; `-` did not "
    "run, for the reason given below its table or because it is not measured yet."
)


def page(records: Records) -> str:
    return join_paragraphs(
        (
            "### What it is held to",
            words.provenance(records, list(CASES)),
            claims_table(records),
            RATIOS,
            "### Unified Memory and the other ways (figure 14)",
            "A fused convolution, bias and ReLU, of features in host memory to features in host "
            "memory. The three forms of Unified Memory are those of the paper's section 6.5.",
            BY_NAME["fig14"].link("Seconds by the size of the features", PAGE),
            figure_14(records),
            "### Channels (figure 9)",
            BY_NAME["fig9"].link("GFLOPS over the number of channels", PAGE),
            figure_9(records),
            "### Table 4",
            BY_NAME["table4"].link("GFLOPS beside the paper's", PAGE),
            table_4(records),
            "### Fused and unfused (figure 10)",
            BY_NAME["fig10"].link("What each stage of each call took", PAGE),
            figure_10(records),
            "### Layers of real networks",
            networks(records),
            "### Other measurements",
            "By the scripts in [benchmarks](../benchmarks), on one NVIDIA H200. n=512, 64 "
            "channels, 256 x 256 and 3 x 3 filters where nothing else is said. The *duplex link* "
            "is raw copies of the same bytes in both directions at once.",
            scripts_table(),
        )
    )


BLOCKS = (Block(PAGE, "figures", lambda: page(load())),)
