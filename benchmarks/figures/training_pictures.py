"""Pictures of VGG-16's training step: what each shows as plain values, and how it is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contenders.cases import VGG16_BATCHES
from benchmarks.figures import canvas, lines
from benchmarks.figures.records import STAGES, Records
from benchmarks.figures.training_tables import OTHERS, case_of
from benchmarks.figures.words import PRECISIONS
from ooc_cudnn.bench.case import OURS

DIRECTIONS = ("forward", "backward")


def figure_12(records: Records) -> dict[str, Any]:
    """Seconds by precision and contender: pairs of batch and seconds."""
    return lines.collected(
        (OURS, *OTHERS),
        lambda precision: ((batch, case_of(batch, precision)) for batch in VGG16_BATCHES),
        records.seconds,
    )


def draw_figure_12(drawn: dict[str, Any], path: Path) -> None:
    """Seconds of a step over the batch, a panel for each precision."""
    figure, axes = canvas.precisions(drawn, height=4)
    for precision, panel in axes.items():
        lines.plot(panel, drawn[precision], ticks={batch: str(batch) for batch in VGG16_BATCHES})
        panel.set_xlabel("batch, 224 x 224")
        panel.set_ylabel("seconds of a training step")
    canvas.legend_below(figure, axes.values(), columns=3 if len(axes) > 1 else 2)
    canvas.save(figure, path, drawn)


def figure_13(records: Records) -> dict[str, Any]:
    """Of the largest batch measured in each precision: stages of each layer and direction."""
    found = {}
    for precision in PRECISIONS:
        for batch in reversed(VGG16_BATCHES):
            calls = records.details(case_of(batch, precision)).get("calls")
            if calls:
                found[precision] = {"batch": batch, "layers": by_layer(calls)}
                break
    return found


def by_layer(calls: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Sum up calls by direction and layer, in the order of the network.

    Returns
    -------
    dict
        direction -> layer -> seconds of each stage, and ``seconds`` of the calls.
    """
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in DIRECTIONS}
    layers = list(dict.fromkeys(call["layer"] for call in calls))
    for direction in DIRECTIONS:
        for layer in layers:
            its = [c for c in calls if (c["layer"], c["direction"]) == (layer, direction)]
            if its:
                found[direction][layer] = {
                    "seconds": sum(call["seconds"] for call in its),
                    **{name: sum(call["stage_seconds"][name] for call in its) for name in STAGES},
                }
    return found


def draw_figure_13(drawn: dict[str, Any], path: Path) -> None:
    """The stages of every layer on top of each other, and the calls' own seconds."""
    figure, axes = canvas.panels(max(len(drawn), 1), 2, width=10, height=3.2 * max(len(drawn), 1))
    for row, (precision, found) in zip(axes, drawn.items(), strict=True):
        for panel, direction in zip(row, DIRECTIONS, strict=True):
            layers = found["layers"][direction]
            below = [0.0] * len(layers)
            for stage in STAGES:
                busy = [layer[stage] * 1e3 for layer in layers.values()]
                panel.bar(range(len(layers)), busy, 0.8, bottom=below, **canvas.of_stage(stage))
                below = [start + more for start, more in zip(below, busy, strict=True)]
            whole = [layer["seconds"] * 1e3 for layer in layers.values()]
            panel.plot(whole, color="#333333", marker="_", markersize=9, linestyle="",
                       label="the calls, overlapped")  # fmt: skip
            panel.set_xticks(range(len(layers)), list(layers), fontsize=7, rotation=90)
            panel.set_title(
                f"{direction}, {PRECISIONS[precision]}, n={found['batch']}", fontsize=9, loc="left"
            )
        row[0].set_ylabel("ms")
    canvas.legend(axes[0][0])
    canvas.save(figure, path, drawn)
