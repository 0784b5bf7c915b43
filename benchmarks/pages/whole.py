"""Whole images and volumes, of records of ``python -m benchmarks.whole``: tables, and a picture.

On docs/pytorch-volumes.md, docs/diffusers.md and docs/monai.md.
"""

from __future__ import annotations

import zlib
from base64 import b64decode
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import canvas
from benchmarks.pages.blocks import NOT_MEASURED, NOTHING, Block, machine_of
from ooc_cudnn.bench import script
from ooc_cudnn.bench.record import join_paragraphs, load_record, markdown
from ooc_cudnn.plotting import blank_figure
from ooc_cudnn.units import format_bytes, format_seconds

NAME = "whole"
HEAD = ("{}, on one {}", "takes", "memory of the card", "first call")
SEAMS = ("differs from the whole: largest", "mean", "other labels", "wrong labels")
CASES = {
    "seismic": "FaultSeg3D, 1024 x 1024 x 1024",
    "labels": "the largest of 100 classes, 384 x 384 x 384",
    "decoder": "Stable Diffusion's decoder, float16",
    "windows": "a 3-D U-Net, 320 x 320 x 192",
}


def measured(case: str, folder: Path = script.RESULTS) -> Mapping[str, Any] | None:
    """The record of a case at full size whose contents were right; None without one."""
    path = folder / f"{NAME}_{case}.json"
    record: Mapping[str, Any] = load_record(path.stem, folder) if path.exists() else {}
    return record if record and record["verified"] and not record["quick"] else None


def table(case: str, folder: Path = script.RESULTS) -> str:
    """A row for each way of a case; of windows also how far they are from the whole."""
    record = measured(case, folder)
    if record is None:
        return NOT_MEASURED[0].upper() + NOT_MEASURED[1:] + f": `python -m benchmarks.{NAME}`."
    found = record["measurements"]
    ways = {name: row for name, row in found.items() if name.startswith(("ours", "PyTorch"))}
    title = HEAD[0].format(CASES[case], machine_of(record))
    seams = SEAMS if any(name.startswith("seams") for name in found) else ()
    rows = [[*_row(name, row), *_seams(name, found, len(seams))] for name, row in ways.items()]
    return markdown((title, *HEAD[1:], *seams), rows, align="lr")


def _row(name: str, row: Mapping[str, Any]) -> list[str]:
    name = name.replace("ours", "`ooc_cudnn`")
    if "seconds" not in row:
        return [name, row["status"], NOTHING, NOTHING]
    name += f", limit {row['limit']}" if "limit" in row else ""
    seconds = format_seconds(row["seconds"]["median"])
    return [name, seconds, format_bytes(row["peak_bytes"]), format_seconds(row["first_seconds"])]


def _seams(name: str, found: Mapping[str, Any], columns: int) -> list[str]:
    """Of windows, how far they are from the whole; of the whole, its wrong labels."""
    of = name.removeprefix("PyTorch, ")
    apart = found.get(f"seams: {of}")
    if not columns:
        return []
    if apart is None:
        return [NOTHING, NOTHING, NOTHING, f"{found['wrong: whole']:.2%}"]
    return [f"{apart['most']:.2f}", f"{apart['mean']:.4f}", f"{apart['labels']:.2%}",
            f"{found[f'wrong: {of}']:.2%}"]  # fmt: skip


def seams(folder: Path = script.RESULTS) -> str:
    """The picture and the table of windows."""
    record = measured("windows", folder)
    shown = PICTURE.link("Windows beside the whole", "docs/monai.md") if record else ""
    return join_paragraphs((shown, ABOUT if shown else "", table("windows", folder)))


ABOUT = """*A slice of a synthetic volume; what the network makes of the whole of it, as a
probability; and how far windows of two kinds are from that: averaged alike, and by Gaussian
weights.*"""


def drawn(folder: Path = script.RESULTS) -> Any:
    """The slices that are shown; nothing without a record."""
    record = measured("windows", folder)
    return None if record is None else record["measurements"]["pictures"]


def figure_of(slices: Mapping[str, Any]) -> Any:
    """A panel for each slice; differences on one scale."""
    figure = blank_figure(2.9 * len(slices), 3.1)
    panels = figure.subplots(1, len(slices), squeeze=False)[0]
    most = max(each["most"] for name, each in slices.items() if name.startswith("windows"))
    for panel, (name, each) in zip(panels, slices.items(), strict=True):
        steps = np.frombuffer(zlib.decompress(b64decode(each["bytes"])), np.uint8)
        values = each["least"] + (each["most"] - each["least"]) / 255 * steps.astype("float64")
        is_apart = name.startswith("windows")
        scale = {"cmap": "Oranges", "vmin": 0, "vmax": most} if is_apart else {"cmap": "gray"}
        shown = panel.imshow(values.reshape(each["shape"]), interpolation="none", **scale)
        panel.set_title(name, fontsize=9, loc="left")
        panel.set_axis_off()
    figure.colorbar(shown, ax=panels[-1], shrink=0.8)
    return figure


PICTURE = canvas.Picture("docs/images/seams.png", drawn, figure_of)
PICTURES = (PICTURE,)


def _volumes() -> str:
    return join_paragraphs(table(case) for case in ("seismic", "labels"))


BLOCKS = (
    Block("docs/pytorch-volumes.md", "whole", _volumes),
    Block("docs/diffusers.md", "decoder", partial(table, "decoder")),
    Block("docs/monai.md", "windows", seams),
)
