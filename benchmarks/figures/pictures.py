"""Draw docs/images/bench from benchmarks/results/bench: ``python -m benchmarks.figures.pictures``.

`--check` says whether every picture is of what is stored, and draws nothing; a test runs it. A
picture of which nothing was measured yet is not drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.figures import convolution_pictures, records, stamps, training_pictures
from benchmarks.readme import checks
from ooc_cudnn.bench.environment import ROOT

IMAGES = ROOT / "docs" / "images" / "bench"
Drawn = dict[str, Any]

#: Picture -> what it shows, as plain values that are empty where nothing was measured; drawing.
PICTURES: dict[str, tuple[Callable[[records.Records], Drawn], Callable[[Drawn, Path], None]]] = {
    "fig9": (convolution_pictures.figure_9, convolution_pictures.draw_figure_9),
    "table4": (convolution_pictures.table_4, convolution_pictures.draw_table_4),
    "fig10": (convolution_pictures.figure_10, convolution_pictures.draw_figure_10),
    "fig12": (training_pictures.figure_12, training_pictures.draw_figure_12),
    "fig13": (training_pictures.figure_13, training_pictures.draw_figure_13),
    "fig14": (convolution_pictures.figure_14, convolution_pictures.draw_figure_14),
    "summary": (convolution_pictures.summary, convolution_pictures.draw_summary),
}


def shown(found: records.Records) -> dict[str, Drawn]:
    """Return what each picture shows, of those that show anything."""
    values = {name: make(found) for name, (make, _) in PICTURES.items()}
    return {name: drawn for name, drawn in values.items() if drawn}


def stale(found: records.Records, images: Path = IMAGES) -> list[str]:
    """Name the pictures that are missing, of other results, or of none."""
    drawn = shown(found)
    wrong = [name for name in drawn if not stamps.is_current(images / f"{name}.png", drawn[name])]
    return wrong + [name.stem for name in images.glob("*.png") if name.stem not in drawn]


def draw(found: records.Records, images: Path = IMAGES) -> None:
    """Draw all of which anything was measured; remove the others."""
    drawn = shown(found)
    for path in images.glob("*.png"):
        if path.stem not in drawn:
            path.unlink()
    for name, values in drawn.items():
        PICTURES[name][1](values, images / f"{name}.png")


def main(argv: list[str] | None = None) -> int:
    """Draw or check; return the exit status."""
    found = records.load()
    if not checks(__doc__, argv):
        draw(found)
        return 0
    for name in stale(found):
        print(f"{name}.png is out of date: python -m benchmarks.figures.pictures", file=sys.stderr)
    return int(bool(stale(found)))


if __name__ == "__main__":
    sys.exit(main())
