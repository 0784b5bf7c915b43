"""The pictures of docs/model-method.md.

`model-fit.png`: the samples of the shipped H200 against its lines, and their residuals.
`model-accuracy.png`: predicted over measured seconds of every call of `model_accuracy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy_summary import BOUNDS
from benchmarks.pages import canvas
from benchmarks.pages.model import calls_stored, machine_of
from ooc_cudnn.bench import script
from ooc_cudnn.calibration.pictures import calibration_figure
from ooc_cudnn.plotting import COLOURS
from perfmodel import MachineModel, shipped

#: Where the slowest of a call's large operands lies, in the order of their colours.
PLACED = ("pinned", "pageable", "disk", "device")
TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5)


def accuracy(folder: Path = script.RESULTS) -> list[Any]:
    """Return each result's machine, and its calls: where, how long, how well predicted."""
    keys = ("placement", "seconds", "predicted/measured")
    return [
        [
            machine_of(result),
            [[call[key] for key in keys] for call in result["measurements"]["calls"]],
        ]
        for result in calls_stored(folder)
    ]


def draw_accuracy(results: Sequence[Any]) -> Any:
    """Draw predicted over measured seconds of calls, a panel for each result."""
    figure, panels = canvas.panels(1, len(results), width=6 * len(results), height=4.2)
    for axes, (machine, calls) in zip(panels[0], results, strict=True):
        for colour, placement in zip(COLOURS, PLACED, strict=False):
            placed = [call for call in calls if call[0] == placement]
            axes.plot(
                [seconds for _, seconds, _ in placed],
                np.clip([ratio for _, _, ratio in placed], TICKS[0], TICKS[-1]),
                color=colour, marker="o", markersize=4.5, linestyle="", label=placement,
            )  # fmt: skip
        median, tail = BOUNDS["host" if machine.startswith("host") else "cuda"]
        for share, strength in ((median, 0.14), (tail, 0.07)):
            axes.axhspan(1 - share, 1 + share, color="black", alpha=strength, linewidth=0)
        axes.axhline(1.0, color="#999999", linewidth=0.8, zorder=0)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(0.05, 5)
        axes.set_yticks(TICKS, map(str, TICKS))
        axes.set_xlabel("measured seconds of a call")
        axes.set_ylabel("predicted / measured")
        axes.set_title(machine, fontsize=11, loc="left")
        canvas.legend(axes, title="slowest operand", title_fontsize=8)
    return figure


def calibrated() -> dict[str, Any]:
    """Return the shipped H200; nothing of a profile that keeps no samples."""
    model = shipped("h200")
    return model.to_json() if model.samples else {}


PICTURES = (
    canvas.Picture(
        "docs/images/model-fit.png",
        calibrated,
        lambda model: calibration_figure(MachineModel.from_json(model)),
    ),
    canvas.Picture("docs/images/model-accuracy.png", accuracy, draw_accuracy),
)
