"""Draw the pictures of docs/model-method.md: ``python -m benchmarks.pages.model_pictures``.

`model-fit.png`: the samples of the shipped H200 against its lines, and their residuals.
`model-accuracy.png`: predicted over measured seconds of every call of `model_accuracy`.
`--check` says whether they are of what is stored, and draws nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.accuracy_summary import BOUNDS
from benchmarks.pages.model import calls_stored, machine_of
from benchmarks.pages.stamps import is_current, stamp
from ooc_cudnn.bench.environment import ROOT
from ooc_cudnn.calibration.pictures import COLOURS, draw_calibration, require_matplotlib
from ooc_cudnn.devices.machines import named_machine

IMAGES = ROOT / "docs" / "images"
FIT, ACCURACY = "model-fit.png", "model-accuracy.png"
#: Where the slowest of a call's large operands lies, in the order of their colours.
PLACED = ("pinned", "pageable", "disk", "device")
TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5)


def draw_accuracy(stored: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw predicted over measured seconds of calls, a panel for each stored result.

    Parameters
    ----------
    stored : sequence of mapping
        Results of `model_accuracy`, with their calls.
    path : Path
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * max(len(stored), 1), 4.2), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(stored), squeeze=False)[0]
    for axes, result in zip(panels, stored, strict=True):
        calls = result["measurements"]["calls"]
        for colour, placement in zip(COLOURS, PLACED, strict=False):
            there = [call for call in calls if call["placement"] == placement]
            axes.plot(
                [call["seconds"] for call in there],
                np.clip([call["predicted/measured"] for call in there], TICKS[0], TICKS[-1]),
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
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.legend(fontsize=8, frameon=False, title="slowest operand", title_fontsize=8)
    figure.savefig(path)


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


def main(argv: list[str] | None = None) -> int:
    """Draw both; 1 where the machine keeps no samples, so that its picture stays as it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--machine", default="h200", help="a profile or a file, with its samples")
    parser.add_argument("--results", type=Path, default=common.RESULTS, help="folder of the calls")
    parser.add_argument("--output", type=Path, default=IMAGES)
    parser.add_argument("--check", action="store_true", help="draw nothing; fail if out of date")
    arguments = parser.parse_args(argv)
    stored, model = calls_stored(arguments.results), named_machine(arguments.machine)
    fit, accuracy = arguments.output / FIT, arguments.output / ACCURACY
    if arguments.check:
        stale = [path for path, of in ((accuracy, stored and shown(stored)),
                                       (fit, model.samples and model.to_json()))
                 if of and not is_current(path, of)]  # fmt: skip
        for path in stale:
            print(
                f"{path.name} is out of date: python -m benchmarks.pages.model_pictures",
                file=sys.stderr,
            )
        return int(bool(stale))
    if stored:
        draw_accuracy(stored, accuracy)
        stamp(accuracy, shown(stored))
    if not model.samples:
        print(f"{model.name} keeps no samples: {FIT} is left as it is", file=sys.stderr)
        return 1
    draw_calibration(model, fit)
    stamp(fit, model.to_json())
    return 0


if __name__ == "__main__":
    common.main(main)
