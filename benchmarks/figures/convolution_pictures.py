"""Pictures of single convolutions: what each shows as plain values, and how it is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.contenders.cases import CASES, LOOPS, UNIFIED_MEMORY
from benchmarks.figures import canvas, lines
from benchmarks.figures.records import STAGES, Records, feature_bytes, names, stage_seconds
from benchmarks.figures.words import LABELS
from benchmarks.paper_figures import CHANNEL_GFLOPS, CHANNELS, FUSED_OVER_UNFUSED
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.cases import FIGURE_9
from ooc_cudnn.units import format_seconds

LINES_OF_14 = (OURS, *UNIFIED_MEMORY, *LOOPS, "torch_in_core", "copy_limit")
BARS_OF_SUMMARY = (
    OURS,
    *LOOPS[1:],
    "torch_in_core",
    *reversed(UNIFIED_MEMORY),
    "naive_loop",
)
SUMMARY_CASE = "fig14-4gb-tf32"
FEW, MANY = "fig10-n1", "fig10-n64"


def figure_9(records: Records) -> dict[str, Any]:
    """GFLOPS by precision and contender: pairs of channels and value."""
    return lines.collected(
        (OURS, "in_core", "cudnn"),
        lambda precision: ((c, f"fig9-c{c}-{precision}") for c in CHANNELS),
        records.gflops,
    )


def draw_figure_9(drawn: dict[str, Any], path: Path) -> None:
    """A panel for each precision, the paper's range and values in both."""
    figure, axes = canvas.precisions(drawn, height=3.8)
    stated = [(channels, value) for channels, (_, value) in FIGURE_9.items() if value is not None]
    for precision, panel in axes.items():
        lines.plot(
            panel, drawn[precision],
            ticks={channels: str(channels) for channels in CHANNELS},
            style=lambda contender: "-" if contender == OURS else "--",
        )  # fmt: skip
        panel.axhspan(*CHANNEL_GFLOPS, color=canvas.PAPER, alpha=0.15, linewidth=0,
                      label="the paper's P100, all channels")  # fmt: skip
        panel.plot(
            *zip(*stated, strict=True), color=canvas.PAPER, marker="*", markersize=8, linestyle=""
        )
        panel.set_xlabel("channels, one image of 1024 x 1024")
        panel.set_ylabel("GFLOPS")
    canvas.legend_below(figure, axes.values(), columns=4 if len(axes) > 1 else 2)
    canvas.save(figure, path, drawn)


def table_4(records: Records) -> dict[str, Any]:
    """GFLOPS of the library and of the paper by case."""
    return {
        case: [value, CASES[case].paper["GFLOPS"]]
        for case in names("table4-")
        if (value := records.gflops(case)) is not None
    }


def draw_table_4(drawn: dict[str, Any], path: Path) -> None:
    """Bars, the paper's beside; from 0, so that their lengths are as their values."""
    figure, axes = canvas.panels(1, 1, width=7, height=3)
    panel = axes[0][0]
    for index, (label, colour) in enumerate(
        (("ooc_cudnn", canvas.CONTENDER_COLOURS[OURS]), ("the paper's P100", canvas.PAPER))
    ):
        at = [position + 0.2 - 0.4 * index for position in range(len(drawn))]
        bars = panel.barh(at, [values[index] for values in drawn.values()], 0.38,
                          color=colour, label=label)  # fmt: skip
        panel.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=2)
    panel.set_yticks(range(len(drawn)), list(drawn), fontsize=8)
    panel.margins(x=0.12)
    panel.set_xlabel("GFLOPS")
    canvas.legend(panel, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    canvas.save(figure, path, drawn)


def figure_10(records: Records) -> dict[str, Any]:
    """Of each case: the calls of both ways, with their stages, and the ratio."""
    found = {}
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
            found[case] = {"ways": ways, "fused_over_unfused": 1 / ratio}
    return found


def draw_figure_10(drawn: dict[str, Any], path: Path) -> None:
    """For each call of each way, what its streams were busy with, and how long it took."""
    figure, axes = canvas.panels(1, max(len(drawn), 1), width=11, height=3.6)
    for panel, (case, found) in zip(axes[0], drawn.items(), strict=True):
        calls = [call for way in found["ways"].values() for call in way]
        for offset, stage in enumerate(STAGES):
            at = [position + 0.26 * (offset - 1) for position in range(len(calls))]
            busy = [call[stage] * 1e3 for call in calls]
            panel.bar(at, busy, 0.25, **canvas.of_stage(stage))
        panel.plot([call["seconds"] * 1e3 for call in calls], color="#333333", marker="_",
                   markersize=22, linestyle="", label="the call")  # fmt: skip
        panel.set_xticks(
            range(len(calls)), ["fused", "convolution", "bias", "ReLU"][: len(calls)], fontsize=8
        )
        panel.set_title(
            f"{case}: {found['fused_over_unfused']:.0%} (paper {FUSED_OVER_UNFUSED:.0%})",
            fontsize=9, loc="left",
        )  # fmt: skip
    axes[0][0].set_ylabel("ms")
    canvas.legend_below(figure, axes[0], columns=4)  # within a panel it would hide marks
    canvas.save(figure, path, drawn)


def figure_14(records: Records) -> dict[str, Any]:
    """Seconds by precision and contender: pairs of bytes of x and seconds."""
    return lines.collected(
        LINES_OF_14,
        lambda precision: (
            (feature_bytes(case), case) for case in names("fig14-") if case.endswith(precision)
        ),
        records.seconds,
    )


def draw_figure_14(drawn: dict[str, Any], path: Path) -> None:
    """Seconds over the size of the features, a panel for each precision."""
    figure, axes = canvas.precisions(drawn, height=4)
    for precision, panel in axes.items():
        sizes = sorted({nbytes for line in drawn[precision].values() for nbytes, _ in line})
        lines.plot(
            panel, drawn[precision],
            ticks={nbytes: f"{nbytes / 1e9:.1f}" for nbytes in sizes},
            style=lambda contender: ":" if contender == "copy_limit" else "-",
        )  # fmt: skip
        panel.set_xlabel("GB of x, and as much of y")
        panel.set_ylabel("seconds, host to host")
    canvas.legend_below(figure, axes.values(), columns=4 if len(axes) > 1 else 2)
    canvas.save(figure, path, drawn)


def summary(records: Records) -> dict[str, Any]:
    """Seconds of every way for 4.3 GB, if the library's are there."""
    if records.seconds(SUMMARY_CASE) is None:
        return {}
    there = records.found[SUMMARY_CASE]["contenders"]
    bars = {name: records.seconds(SUMMARY_CASE, name) for name in BARS_OF_SUMMARY if name in there}
    return {"bars": bars, "copy_limit": records.seconds(SUMMARY_CASE, "copy_limit")}


def _times(ratio: float) -> str:
    """As many decimals as README's table has."""
    return f", {ratio:.2f}x" if ratio < 2 else f", {ratio:.1f}x"


def draw_summary(drawn: dict[str, Any], path: Path) -> None:
    """One bar for each way; one that did not run says so."""
    figure, axes = canvas.panels(1, 1, width=8, height=2.8)
    panel, bars = axes[0][0], drawn["bars"]
    most, ours = max(filter(None, bars.values())), bars[OURS]
    for position, (contender, seconds) in enumerate(reversed(bars.items())):
        panel.barh(position, seconds or 0, 0.7, color=canvas.CONTENDER_COLOURS[contender])
        told = (
            "did not run"
            if seconds is None
            else format_seconds(seconds) + ("" if contender == OURS else _times(seconds / ours))
        )
        panel.text((seconds or 0) + most / 100, position, told, va="center", fontsize=8)
    labels = LABELS | {OURS: f"{LABELS[OURS]}, pinned"}
    panel.set_yticks(range(len(bars)), [labels[name] for name in reversed(bars)], fontsize=8)
    if drawn["copy_limit"] is not None:
        panel.axvline(drawn["copy_limit"], color="#333333", linewidth=1, linestyle=":")
    panel.set_xlim(0, most * 1.15)
    panel.set_xlabel(
        "seconds: 4.3 GB from host memory, a convolution, 4.3 GB back (dots: raw copies)",
        fontsize=8,
    )
    canvas.save(figure, path, drawn)
