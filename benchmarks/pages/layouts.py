"""docs/kernels.md: what `benchmarks.layouts` measured, and a picture like Li et al.'s figure 14."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.kernel_cases import LAYOUTS
from benchmarks.layouts import BOUND, cells, short
from benchmarks.pages import canvas
from benchmarks.pages.blocks import NOT_MEASURED, NOTHING, Block, joined, markdown, stored
from ooc_cudnn.bench.environment import ROOT
from ooc_cudnn.figures import COLOURS

NAME, PAGE = "layouts", "docs/kernels.md"
IMAGE = ROOT / "docs" / "images" / "kernels" / "layouts.png"
#: Bars of a network: sequences of layouts.
WAYS = {"NCHW": "NCHW", "NHWC": "NHWC", "CHWN": "CHWN", "rule": "Li et al.'s rule",
        "library": "cheapest without CHWN", "chosen": "cheapest"}  # fmt: skip


def record(folder: Path = common.RESULTS) -> Mapping[str, Any] | None:
    """What was measured; None if nothing was."""
    return stored(NAME, folder) if (folder / f"{NAME}.json").exists() else None


def layer_rows(layers: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A line for each layer: by layout, what was chosen from either side, and how it fared."""
    rows = []
    for name, row in layers.items():
        chosen = []
        for source in ("NCHW", "NHWC"):
            ratio = row[source]["ratio"]
            cell = f"{row[source]['chosen']}, {ratio:.2f}"
            chosen.append(cell if ratio <= BOUND else f"**{cell}**")
        rows.append(
            (name, *(each or NOTHING for each in cells(row)), *chosen, row["rule"] or NOTHING)
        )
    return rows


def network_rows(networks: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A line for each network: milliseconds of each sequence."""
    return [
        (
            name,
            *(f"{1e3 * row['took'][way]:.3f}" if way in row["took"] else NOTHING for way in WAYS),
            f"{row['over the best throughout']:.2f}",
            short(row["layouts"]["chosen"]),
        )
        for name, row in networks.items()
    ]


def figures(folder: Path = common.RESULTS) -> str:
    found = record(folder)
    if found is None:
        return f"Layouts were {NOT_MEASURED}: `python -m benchmarks.layouts` does it."
    measured, environment = found["measurements"], found["environment"]
    card = environment["gpu"]["name"] if environment["gpu"] else "host device"
    rules = ", ".join(
        f"Ct {rule['Ct']} and {'no' if rule['Nt'] is None else rule['Nt']} Nt in {name}"
        for name, rule in measured["rules"].items()
        if rule["profile"]
    )
    head = ("layer", *LAYOUTS, "from NCHW", "from NHWC", "rule")
    return joined(
        (
            f"{card}, {environment['date'][:10]}. The rule, calibrated: {rules}.",
            "![Forward passes in chosen layouts and in one](images/kernels/layouts.png)",
            "Milliseconds of a forward pass; *over best* is the cheapest sequence over the best "
            "layout throughout.",
            markdown(
                ("network", *WAYS.values(), "over best", "sequence"),
                network_rows(measured["networks"]),
            ),
            "Milliseconds of a convolution by cuDNN's best engine that was tried, and after a "
            "stroke by the direct convolution; then what was chosen for an operand that arrives "
            "in NCHW or in NHWC, and its time over the best layout's, re-layout included.",
            markdown(head, layer_rows(measured["layers"])),
            *(f"- {note}" for note in found["notes"]),
        )
    )


BLOCKS = (Block(PAGE, NAME, figures),)


def shown(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Network -> way -> how many times as fast as in NCHW throughout."""
    return {
        name: {
            way: round(row["took"]["NCHW"] / row["took"][way], 4)
            for way in WAYS
            if way in row["took"]
        }
        for name, row in found["measurements"]["networks"].items()
        if "NCHW" in row["took"]
    }


def draw(drawn: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """A group of bars for each network."""
    figure, axes = canvas.panels(1, 1, width=9, height=3.4)
    panel, width = axes[0, 0], 0.8 / len(WAYS)
    for number, (way, label) in enumerate(WAYS.items()):
        bars = [(at, speeds[way]) for at, speeds in enumerate(drawn.values()) if way in speeds]
        places = [at + (number - (len(WAYS) - 1) / 2) * width for at, _ in bars]
        panel.bar(places, [speed for _, speed in bars], width, color=COLOURS[number], label=label)
    panel.set_xticks(range(len(drawn)), list(drawn), fontsize=8)
    panel.set_ylabel("speed, NCHW = 1", fontsize=8)
    panel.axhline(1, color="#333333", linewidth=1, linestyle="--")
    panel.legend(fontsize=7, ncols=len(WAYS), frameon=False, loc="upper left")
    panel.margins(y=0.15)
    canvas.save(figure, path, drawn)


def picture(*, check: bool, image: Path = IMAGE, folder: Path = common.RESULTS) -> int:
    """Draw it if it is out of date, or say so; 1 where it was said."""
    found = record(folder)
    return canvas.redrawn(image, found and shown(found), draw, check=check)
