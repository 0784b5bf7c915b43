"""The pictures of docs/model-method.md.

`model-fit.png`: the samples of the shipped H200 against its lines, and their residuals.
`model-accuracy.png`: predicted over measured seconds of every call of `model_accuracy`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy_summary import BOUNDS
from benchmarks.pages import canvas
from benchmarks.pages.canvas import is_current, stamp
from benchmarks.pages.model import calls_stored, machine_of
from ooc_cudnn.bench import script
from ooc_cudnn.bench.environment import ROOT
from ooc_cudnn.calibration.pictures import draw_calibration
from ooc_cudnn.plotting import COLOURS
from perfmodel.named import named_machine

IMAGES = ROOT / "docs" / "images"
FIT, ACCURACY = "model-fit.png", "model-accuracy.png"
#: Where the slowest of a call's large operands lies, in the order of their colours.
PLACED = ("pinned", "pageable", "disk", "device")
TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5)


def draw_accuracy(stored: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw predicted over measured seconds of calls, a panel for each stored result."""
    figure, panels = canvas.panels(1, len(stored), width=6 * len(stored), height=4.2)
    for axes, result in zip(panels[0], stored, strict=True):
        calls = result["measurements"]["calls"]
        for colour, placement in zip(COLOURS, PLACED, strict=False):
            placed = [call for call in calls if call["placement"] == placement]
            axes.plot(
                [call["seconds"] for call in placed],
                np.clip([call["predicted/measured"] for call in placed], TICKS[0], TICKS[-1]),
                color=colour, marker="o", markersize=4.5, linestyle="", label=placement,
            )  # fmt: skip
        median, tail = BOUNDS["host" if result["environment"]["device"] == "host" else "cuda"]
        for share, strength in ((median, 0.14), (tail, 0.07)):
            axes.axhspan(1 - share, 1 + share, color="#3f9e6e", alpha=strength, linewidth=0)
        axes.axhline(1.0, color="#999999", linewidth=0.8, zorder=0)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(0.05, 5)
        axes.set_yticks(TICKS, map(str, TICKS))
        axes.set_xlabel("measured seconds of a call")
        axes.set_ylabel("predicted / measured")
        axes.set_title(machine_of(result), fontsize=11, loc="left")
        canvas.legend(axes, title="slowest operand", title_fontsize=8)
    canvas.save(figure, path, shown(stored))


def shown(stored: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return what `draw_accuracy` shows of calls, as plain values."""
    keys = ("placement", "seconds", "predicted/measured")
    return [
        [
            machine_of(result),
            [[call[key] for key in keys] for call in result["measurements"]["calls"]],
        ]
        for result in stored
    ]


def generate(
    *,
    check: bool,
    machine: str = "h200",
    results: Path = script.RESULTS,
    output: Path = IMAGES,
) -> int:
    """Draw both, or say which is not of what is stored; 1 where one is not.

    So it is of a machine, a profile or a file, that keeps no samples: its picture stays as it is.
    """
    stored, model = calls_stored(results), named_machine(machine)
    accuracy = output / ACCURACY, stored and shown(stored)
    fit = output / FIT, model.samples and model.to_json()
    if check:
        stale = [path.name for path, of in (accuracy, fit) if of and not is_current(path, of)]
        for name in stale:
            print(f"{name} is out of date: make figures", file=sys.stderr)
        return int(bool(stale))
    if stored:
        draw_accuracy(stored, accuracy[0])
    if not model.samples:
        print(f"{model.name} keeps no samples: {FIT} is left as it is", file=sys.stderr)
        return 1
    draw_calibration(model, fit[0])
    stamp(*fit)
    return 0
