"""docs/performance.md: what the suite measured, case by case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.contenders.cases import CASES, LOOPS, UNIFIED_MEMORY, VGG16_BATCHES
from benchmarks.pages import words
from benchmarks.pages.blocks import NOTHING, Block, joined, markdown
from benchmarks.pages.claims import claims_table, scripts_table
from benchmarks.pages.pictures import shown
from benchmarks.pages.records import Records, feature_bytes, load, names, stage_seconds
from benchmarks.pages.words import LABELS, PRECISIONS, Cell, precision_of, section
from benchmarks.paper_figures import CHANNEL_GFLOPS, CHANNELS, FUSED_OVER_UNFUSED
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.cases import FIGURE_9
from ooc_cudnn.devices.base import STREAMS
from ooc_cudnn.units import format_seconds

IN_CORE = (OURS, "in_core", "cudnn")
OTHERS = (*UNIFIED_MEMORY, *LOOPS, "serial", "torch_in_core")
OTHERS_OF_NETWORKS = ("in_core", *LOOPS, "torch_in_core")
OTHER_STEPS = ("in_core", "torch_in_core", "torch_save_on_cpu", "torch_checkpoint",
               "torch_micro_batches")  # fmt: skip
STEPS = [f"vgg16-n{batch}-{precision}" for precision in PRECISIONS for batch in VGG16_BATCHES]


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
        found = [
            cell(records, f"fig9-c{channels}-{precision}")
            for precision in PRECISIONS
            for cell in cells
        ]
        rows.append((str(channels), limit, *found, NOTHING if paper is None else f"{paper:,.0f}"))
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


def _batch(case: str) -> str:
    return f"{CASES[case].sizes['batch']}, {precision_of(case)}"


def figure_12(records: Records) -> str:
    """Seconds of a step by batch, and the other ways over them."""
    columns = {"`ooc_cudnn`": words.seconds()}
    columns |= {f"`{other}`": words.times(other) for other in OTHER_STEPS}
    table = by_case(records, STEPS, "batch", columns, _batch)
    return section(records, names("vgg16-"), (OURS, *OTHER_STEPS), (*_way(records), table))


def _old(records: Records) -> list[str]:
    """The batches whose steps were planned call by call; with the precision where not all were."""
    measured = [case for case in STEPS if records.details(case)]
    named: list[str] = []
    for batch in VGG16_BATCHES:
        of = [case for case in measured if CASES[case].sizes["batch"] == batch]
        old = [case for case in of if records.call_by_call([case])]
        each = [f"{batch} in {precision_of(case)}" for case in old]
        named += [f"{batch}"] if old and old == of else each
    return named


def _all_old(records: Records) -> bool:
    return all(records.call_by_call([case]) for case in STEPS if records.details(case))


def _way(records: Records) -> tuple[str, ...]:
    """What must be known of records that are older than networks."""
    if not records.call_by_call(STEPS):
        return ()
    of = "" if _all_old(records) else f" of batches of {' and '.join(_old(records))}"
    return (f"The library's figures here{of} {CALL_BY_CALL}",)


CALL_BY_CALL = (
    "are of the old way: function after function, each planned by itself, with every map in one "
    "place. A [network](networks.md) plans the step whole, and is [measured "
    "above](#training-steps-planned-whole). `python -m benchmarks.contenders --case 'vgg16-*'` "
    "measures these cases that way, too."
)
#: What a step moves over the link, function by function, and where it is planned whole.
MOVES = "maps that do not fit are copied out once and back for every function that reads them"
MOVES_WHOLE = "its images, maps that leave and come back, gradients of what is not on the card"


def figure_13(records: Records) -> str:
    """What the streams of a step were busy with, which binds, and what was predicted."""
    head = ("batch", "moved in", "moved out", "copy in", "compute", "copy out", "binds: in",
            "compute", "out", "predicted / measured")  # fmt: skip
    rows = [(_batch(case), *_step(records.details(case))) for case in STEPS]
    moves = MOVES if records.call_by_call(STEPS) else MOVES_WHOLE
    if moves == MOVES and not _all_old(records):
        moves += f"; where it is planned whole, {MOVES_WHOLE}"
    about = (
        f"What a step moves over the link: {moves}. Seconds for which each stream was at work, "
        "summed over the calls of one recorded step; the share of the calls' time in calls that "
        "each stage binds; and the predicted seconds of the step over the measured ones."
    )
    parts = (*_way(records), about, markdown(head, rows))
    return section(records, names("vgg16-"), (), parts)


def _step(details: Mapping[str, Any]) -> list[str]:
    if not details:
        return [NOTHING] * 9
    busy, share = details["stage_seconds"], details["binding_share"]
    ratio = details.get("predicted_over_measured")
    return [
        *(f"{details[way] / 1e9:.1f} GB" for way in ("bytes_in", "bytes_out")),
        *(f"{busy[stage]:.3f} s" for stage in STREAMS),
        *(f"{share[stage]:.0%}" for stage in STREAMS),
        NOTHING if ratio is None else f"{ratio:.3f}",
    ]


RATIOS = (
    "`2.00 x` is twice as long as the library; a share of raw copies is how much of the speed of "
    "copying the same bytes both ways at once, computing nothing, the library reaches; `-` did not "
    "run, for the reason given below its table or because it is not measured yet."
)


def page(records: Records) -> str:
    drawn = shown(records)
    return joined(
        (
            "### What it is held to",
            words.provenance(records, list(CASES)),
            claims_table(records),
            RATIOS,
            "### Unified Memory and the other ways (figure 14)",
            "A fused convolution, bias and ReLU, of features in host memory to features in host "
            "memory. The three forms of Unified Memory are those of the paper's section 6.5.",
            words.image("fig14", "Seconds by the size of the features", drawn),
            figure_14(records),
            "### Channels (figure 9)",
            words.image("fig9", "GFLOPS over the number of channels", drawn),
            figure_9(records),
            "### Table 4",
            words.image("table4", "GFLOPS beside the paper's", drawn),
            table_4(records),
            "### Fused and unfused (figure 10)",
            words.image("fig10", "What each stage of each call took", drawn),
            figure_10(records),
            "### Layers of real networks",
            networks(records),
            "### VGG-16's training step (figure 12)",
            words.image("fig12", "Seconds of a training step by batch", drawn),
            figure_12(records),
            "### Its layers and stages (figure 13)",
            words.image("fig13", "What the streams were busy with in each layer", drawn),
            figure_13(records),
            "### Other measurements",
            "By the scripts in [benchmarks](../benchmarks), on one NVIDIA H200. n=512, 64 "
            "channels, 256 x 256 and 3 x 3 filters where nothing else is said. The *duplex link* "
            "is raw copies of the same bytes in both directions at once.",
            scripts_table(),
        )
    )


BLOCKS = (Block("docs/performance.md", "figures", lambda: page(load())),)
