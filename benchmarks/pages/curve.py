"""README.md's first picture: seconds of ResNet-50's step over the memory that it takes.

The picture has every way that was measured, the table four of them; docs/performance.md has all.
Of the records of ``python -m benchmarks.networks --case resnet50``; there is none while so few
limits are measured that they make no curve.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.pages import canvas, steps
from benchmarks.pages.blocks import Block
from ooc_cudnn.bench import script
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.record import join_paragraphs, markdown
from ooc_cudnn.units import format_bytes, format_seconds

CASE = "resnet50"
#: Limits of ours that make a curve.
FEWEST = 4
MARKERS = "sD^vP*Xd"
#: Limits of ours that the table shows: about a quarter and an eighth of what PyTorch takes.
SHOWN = ("limit 16 GiB", "limit 8 GiB")
#: Where the axes have numbers.
GIB = (4, 8, 16, 32, 64)
SECONDS = (0.2, 0.25, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0)


def measured(folder: Path = script.RESULTS) -> list[steps.Way]:
    """Return every way to a step whose memory is known; nothing where there is no curve."""
    record = steps.records(folder).get(CASE)
    ways = [] if record is None else list(steps.ways(CASE, record))
    ours = [way for way in ways if way.contender == OURS]
    return ways if len(ours) >= FEWEST else []


def section(folder: Path = script.RESULTS) -> str:
    """Return the picture, what it shows, and four rows; empty without a curve."""
    ways = measured(folder)
    if not ways:
        return ""
    where = steps.records(folder)[CASE]["environment"]
    head = ("a training step by", *steps.HEAD[2:])
    rows = [steps.row(steps.TRAINED[CASE], way)[1:] for way in in_table(ways)]
    return join_paragraphs(
        (
            PICTURE.link("Seconds over memory", "README.md"),
            ABOUT.format(steps.TRAINED[CASE], where["gpu"]["name"]),
            markdown(head, rows, align="lr"),
            _beside_table(ways),
        )
    )


def in_table(found: list[steps.Way]) -> list[steps.Way]:
    """Two limits of ours, PyTorch's fastest way, and the one of its that takes least memory."""
    ours = [way for way in found if way.label.endswith(SHOWN)]
    theirs = [way for way in found if way.contender != OURS]
    fastest = min(theirs, key=lambda way: way.seconds)
    smallest = min(theirs, key=lambda way: way.device_bytes or 0)
    return [*ours, *(way for way in theirs if way in (fastest, smallest))]


def _beside_table(ways: list[steps.Way]) -> str:
    """Say what PyTorch takes in core, what the least limit costs, and where all rows are."""
    core = next(way for way in ways if way.contender == "torch_in_core")
    least = min(
        (way for way in ways if way.contender == OURS), key=lambda way: way.device_bytes or 0
    )
    return BESIDE.format(
        format_seconds(core.seconds),
        format_bytes(core.device_bytes or 0),
        least.label.split("limit ")[1],
        f"{least.ratio or 0:.2f}x",
    )


BESIDE = (
    "PyTorch with all of it on the card takes {} and {}. Under {}, copies set the time: a step\n"
    "takes {}. [All rows](docs/performance.md#training-steps-planned-whole) are on another page."
)
ABOUT = (
    "*{}, a training step on one {} (TF32, batch norm over the whole batch) with less\n"
    "and less memory: ours as one curve, PyTorch's ways to less memory beside it.*"
)


def drawn(folder: Path = script.RESULTS) -> list[list[Any]]:
    """Return what the picture shows: contender, label, seconds and bytes of each way."""
    return [
        [way.contender, way.label.replace("`", ""), way.seconds, way.device_bytes]
        for way in measured(folder)
    ]


def draw(values: list[list[Any]]) -> Any:
    """Ours as a line, PyTorch's ways as points; both axes are logarithmic."""
    figure, axes = canvas.panels(1, 1, width=8, height=4.2)
    over, ours = axes[0, 0], sorted((held, took) for who, _, took, held in values if who == OURS)
    over.plot(
        [held / 2**30 for held, _ in ours], [took for _, took in ours],
        color=canvas.CONTENDER_COLOURS[OURS], marker="o", linewidth=2.2, label="ooc_cudnn",
    )  # fmt: skip
    theirs = [value for value in values if value[0] != OURS]
    for marker, (who, label, took, held) in zip(MARKERS, theirs, strict=False):
        over.plot(
            held / 2**30, took, linestyle="none", marker=marker, markersize=8,
            color=canvas.CONTENDER_COLOURS[who], label=label,
        )  # fmt: skip
    over.set_xscale("log")
    over.set_yscale("log")
    over.set_xticks(GIB, [f"{held} GiB" for held in GIB], minor=False)
    over.set_yticks(SECONDS, [format_seconds(took) for took in SECONDS], minor=False)
    over.minorticks_off()
    over.set_xlim(min(GIB) * 0.8, max(GIB) * 1.3)
    over.set_xlabel("memory of the card, at most", fontsize=8)
    over.set_ylabel("a training step", fontsize=8)
    every = [took for *_, took, _ in values]
    over.set_ylim(0.85 * min(every), 1.2 * max(every))
    canvas.legend(over)
    return figure


PICTURE = canvas.Picture("docs/images/networks/curve.png", drawn, draw)
PICTURES = (PICTURE,)
BLOCKS = (Block("README.md", "curve", section),)
