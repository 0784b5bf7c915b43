"""docs/images/bench, drawn from benchmarks/results/bench."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from benchmarks.contenders.cases import CASES, LOOPS, UNIFIED_MEMORY
from benchmarks.pages import canvas
from benchmarks.pages.records import Records, feature_bytes, load, names, stage_seconds
from benchmarks.pages.words import LABELS, PRECISIONS
from benchmarks.paper_figures import CHANNEL_GFLOPS, CHANNELS, FUSED_OVER_UNFUSED
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.cases import FIGURE_9
from ooc_cudnn.devices.base import STREAMS
from ooc_cudnn.units import format_seconds

Drawn = dict[str, Any]

LINES_OF_14 = (OURS, *UNIFIED_MEMORY, *LOOPS, "torch_in_core", "copy_limit")
BARS_OF_SUMMARY = (OURS, *LOOPS[1:], "torch_in_core", *reversed(UNIFIED_MEMORY), "naive_loop")
SUMMARY_CASE = "fig14-4gb-tf32"


# Lines over sizes, a panel for each precision ----------------------------------------------------


def lines(
    contenders: Sequence[str],
    cases: Callable[[str], Iterable[tuple[float, str]]],
    value: Callable[[str, str], float | None],
) -> Drawn:
    """Pairs of size and value by precision and contender; lines without any are left out.

    `cases` takes a precision and returns pairs of a size and the case of that size; `value` takes a
    case and a contender.
    """
    by_precision: Drawn = {}
    for precision in PRECISIONS:
        pairs = list(cases(precision))
        for contender in contenders:
            line = [
                (size, held) for size, case in pairs if (held := value(case, contender)) is not None
            ]
            if line:
                by_precision.setdefault(precision, {})[contender] = line
    return by_precision


def draw_lines(
    drawn: Drawn,
    *,
    across: str,
    up: str,
    height: float = 4,
    columns: int = 4,
    tick: Callable[[float], str] = str,
    style: Callable[[str], str] = lambda contender: "-",
    more: Callable[[Any], None] = lambda panel: None,
) -> Any:
    """Draw them, both axes in powers; `more` draws into each panel what is not a contender's."""
    figure, axes = canvas.precisions(drawn, height=height)
    for precision, panel in axes.items():
        for contender, line in drawn[precision].items():
            panel.plot(
                *zip(*line, strict=True), label=LABELS[contender],
                color=canvas.CONTENDER_COLOURS[contender], marker="o", markersize=4,
                linestyle=style(contender),
            )  # fmt: skip
        sizes = sorted({size for line in drawn[precision].values() for size, _ in line})
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(sizes, [tick(size) for size in sizes])
        more(panel)
        panel.set_xlabel(across)
        panel.set_ylabel(up)
    canvas.legend_below(figure, axes.values(), columns=columns if len(axes) > 1 else 2)
    return figure


def figure_9(records: Records) -> Drawn:
    return lines(
        (OURS, "in_core", "cudnn"),
        lambda precision: ((c, f"fig9-c{c}-{precision}") for c in CHANNELS),
        records.gflops,
    )


def draw_figure_9(drawn: Drawn) -> Any:
    """With the paper's range and values in both panels."""
    stated = [(channels, value) for channels, (_, value) in FIGURE_9.items() if value is not None]

    def papers(panel: Any) -> None:
        panel.axhspan(*CHANNEL_GFLOPS, color=canvas.PAPER, alpha=0.15, linewidth=0,
                      label="the paper's P100, all channels")  # fmt: skip
        panel.plot(
            *zip(*stated, strict=True), color=canvas.PAPER, marker="*", markersize=8, linestyle=""
        )

    return draw_lines(
        drawn, across="channels, one image of 1024 x 1024", up="GFLOPS", height=3.8,
        style=lambda contender: "-" if contender == OURS else "--", more=papers,
    )  # fmt: skip


def figure_14(records: Records) -> Drawn:
    return lines(
        LINES_OF_14,
        lambda precision: (
            (feature_bytes(case), case) for case in names("fig14-") if case.endswith(precision)
        ),
        records.seconds,
    )


draw_figure_14 = partial(
    draw_lines, across="GB of x, and as much of y", up="seconds, host to host",
    tick=lambda nbytes: f"{nbytes / 1e9:.1f}",
    style=lambda contender: ":" if contender == "copy_limit" else "-",
)  # fmt: skip


# Bars --------------------------------------------------------------------------------------------


def table_4(records: Records) -> Drawn:
    """GFLOPS of the library and of the paper by case."""
    return {
        case: [value, CASES[case].paper["GFLOPS"]]
        for case in names("table4-")
        if (value := records.gflops(case)) is not None
    }


def draw_table_4(drawn: Drawn) -> Any:
    """Bars, the paper's beside; from 0, so that their lengths are as their values."""
    figure, axes = canvas.panels(1, 1, width=7, height=3)
    panel = axes[0][0]
    for index, (label, colour) in enumerate(
        (("ooc_cudnn", canvas.CONTENDER_COLOURS[OURS]), ("the paper's P100", canvas.PAPER))
    ):
        positions = [position + 0.2 - 0.4 * index for position in range(len(drawn))]
        bars = panel.barh(positions, [values[index] for values in drawn.values()], 0.38,
                          color=colour, label=label)  # fmt: skip
        panel.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=2)
    panel.set_yticks(range(len(drawn)), list(drawn), fontsize=8)
    panel.margins(x=0.12)
    panel.set_xlabel("GFLOPS")
    canvas.legend(panel, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


def figure_10(records: Records) -> Drawn:
    """Of each case: the calls of both ways, with their stages, and the ratio."""
    by_case = {}
    for case in names("fig10-"):
        ratio = records.ratio(case, "unfused")
        if ratio is not None:
            ways = {
                way: [
                    {"function": call["function"], "seconds": call["seconds_while_profiled"],
                     **stage_seconds(call)}
                    for call in records.details(case, way)["calls"]
                ]
                for way in (OURS, "unfused")
            }  # fmt: skip
            by_case[case] = {"ways": ways, "fused_over_unfused": 1 / ratio}
    return by_case


def draw_figure_10(drawn: Drawn) -> Any:
    """For each call of each way, what its streams were busy with, and how long it took."""
    figure, axes = canvas.panels(1, max(len(drawn), 1), width=11, height=3.6)
    for panel, (case, shown) in zip(axes[0], drawn.items(), strict=True):
        calls = [call for way in shown["ways"].values() for call in way]
        for offset, stage in enumerate(STREAMS):
            positions = [position + 0.26 * (offset - 1) for position in range(len(calls))]
            busy = [call[stage] * 1e3 for call in calls]
            panel.bar(positions, busy, 0.25, **canvas.of_stage(stage))
        panel.plot([call["seconds"] * 1e3 for call in calls], color="#333333", marker="_",
                   markersize=22, linestyle="", label="the call")  # fmt: skip
        panel.set_xticks(
            range(len(calls)), ["fused", "convolution", "bias", "ReLU"][: len(calls)], fontsize=8
        )
        panel.set_title(
            f"{case}: {shown['fused_over_unfused']:.0%} (paper {FUSED_OVER_UNFUSED:.0%})",
            fontsize=9, loc="left",
        )  # fmt: skip
    axes[0][0].set_ylabel("ms")
    canvas.legend_below(figure, axes[0], columns=4)  # within a panel it would hide marks
    return figure


def summary(records: Records) -> Drawn:
    """Seconds of every way for 4.3 GB, if the library's are there."""
    if records.seconds(SUMMARY_CASE) is None:
        return {}
    there = records.found[SUMMARY_CASE]["contenders"]
    bars = {name: records.seconds(SUMMARY_CASE, name) for name in BARS_OF_SUMMARY if name in there}
    return {"bars": bars, "copy_limit": records.seconds(SUMMARY_CASE, "copy_limit")}


def draw_summary(drawn: Drawn) -> Any:
    """One bar for each way; one that did not run says so."""
    figure, axes = canvas.panels(1, 1, width=8, height=2.8)
    panel, bars = axes[0][0], drawn["bars"]
    most, ours = max(filter(None, bars.values())), bars[OURS]
    for position, (contender, seconds) in enumerate(reversed(bars.items())):
        panel.barh(position, seconds or 0, 0.7, color=canvas.CONTENDER_COLOURS[contender])
        told = "did not run" if seconds is None else format_seconds(seconds)
        if seconds is not None and contender != OURS:
            ratio = seconds / ours  # as many decimals as README's table has
            told += f", {ratio:.2f}x" if ratio < 2 else f", {ratio:.1f}x"
        panel.text((seconds or 0) + most / 100, position, told, va="center", fontsize=8)
    labels = LABELS | {OURS: f"{LABELS[OURS]}, pinned"}
    panel.set_yticks(range(len(bars)), [labels[name] for name in reversed(bars)], fontsize=8)
    if drawn["copy_limit"] is not None:
        colour = canvas.CONTENDER_COLOURS["copy_limit"]
        panel.axvline(drawn["copy_limit"], color=colour, linewidth=1.5, linestyle=":")
    panel.set_xlim(0, most * 1.15)
    panel.set_xlabel(
        "seconds: 4.3 GB from host memory, a convolution, 4.3 GB back (dots: raw copies)",
        fontsize=8,
    )
    return figure


# All of them -------------------------------------------------------------------------------------

BY_NAME = {
    name: canvas.Picture(f"docs/images/bench/{name}.png", lambda make=make: make(load()), draw)
    for name, make, draw in (
        ("fig9", figure_9, draw_figure_9),
        ("table4", table_4, draw_table_4),
        ("fig10", figure_10, draw_figure_10),
        ("fig14", figure_14, draw_figure_14),
        ("summary", summary, draw_summary),
    )
}
PICTURES = tuple(BY_NAME.values())
