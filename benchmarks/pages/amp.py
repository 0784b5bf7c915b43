"""docs/pytorch.md: training steps of its users, of records of ``python -m benchmarks.amp``.

A table, and a picture of seconds over memory, both in shares of eager's: a panel a network. A row
for each network is in README.md.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import canvas
from benchmarks.pages.blocks import NOT_MEASURED, NOTHING, Block
from ooc_cudnn.bench import script
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.record import join_paragraphs, load_record, markdown
from ooc_cudnn.units import format_seconds

NAME, PAGE = "amp", "docs/pytorch.md"
HEAD = ("network", "way", "a step, ms", "of eager", "of compile", "peak, GiB", "first step, s",
        "planning, s", "predicted / measured")  # fmt: skip
#: PyTorch's ways, and whose colours and marks they have.
THEIRS = {
    "eager": ("torch_in_core", "o"), "compile": ("torch_compile", "^"),
    "compile, budget 0.5": ("torch_compile_0.5", "v"), "checkpoint": ("torch_checkpoint", "s"),
}  # fmt: skip
COLUMNS = 4


def rows_of(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row for each way of a record; of one that was not measured the reason comes last."""
    rows = record["measurements"]["rows"]
    medians = {name: row["seconds"]["median"] for name, row in rows.items() if "seconds" in row}
    for name, row in rows.items():
        title = record["measurements"]["network"], name
        if name not in medians:
            yield *title, row["status"], *[""] * 5, row.get("reason", "")[:72]
            continue
        takes, planned = medians[name], row.get("plan")
        beside = [
            f"{takes / medians[of]:.2f}" if of in medians else "" for of in ("eager", "compile")
        ]
        yield (
            *title, f"{takes * 1e3:.4g}", *beside, f"{row['peak_bytes'] / 2**30:.2f}",
            f"{row['first_seconds']:.1f}",
            f"{row['planning_seconds']:.1f}" if planned else "",
            f"{planned['seconds'] / takes:.2f}" if planned else "",
        )  # fmt: skip


def records(folder: Path = script.RESULTS) -> list[Mapping[str, Any]]:
    """Records of full size whose gradients were right."""
    stored = [load_record(path.stem, folder) for path in sorted(folder.glob(f"{NAME}_*.json"))]
    return [each for each in stored if each["verified"] and not each["quick"]]


def section(folder: Path = script.RESULTS) -> str:
    """The picture, and a table for each dtype."""
    found = records(folder)
    if not found:
        return f"Steps under autocast are {NOT_MEASURED}: `python -m benchmarks.{NAME}`."
    parts = [PICTURE.link("Seconds over memory", PAGE)]
    for dtype in dict.fromkeys(each["measurements"]["dtype"] for each in found):
        of = [each for each in found if each["measurements"]["dtype"] == dtype]
        cards = ", ".join(dict.fromkeys(each["environment"]["gpu"]["name"] for each in of))
        rows = [row for each in of for row in rows_of(each)]
        parts.append(join_paragraphs((f"{dtype}, {cards}:", markdown(HEAD, rows, align="llr"))))
    return join_paragraphs(parts)


#: Of README's table: PyTorch by itself, compiled, and ours with a quarter of the memory.
SHORT_HEAD = ("a training step of", "PyTorch", "its memory", "torch.compile", "`ooc_cudnn`",
              "its memory", "first steps (PyTorch, compiled, ours)")  # fmt: skip
QUARTER = "ours, 1/4"


def _compiled_memory(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the least and the most that torch.compile takes of eager's peak, in percent."""
    both = [each["measurements"]["rows"] for each in found]
    shares = [
        100 * rows["compile"]["peak_bytes"] / rows["eager"]["peak_bytes"]
        for rows in both
        if all("peak_bytes" in rows.get(way, {}) for way in ("compile", "eager"))
    ]
    return f"{min(shares):.0f} to {max(shares):.0f} %" if shares else "nearly all"


def short_rows(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row for a network, where eager and ours were measured."""
    rows = record["measurements"]["rows"]
    timed = {name: row for name, row in rows.items() if "seconds" in row}
    if not {"eager", QUARTER} <= timed.keys():
        return
    takes = {name: row["seconds"]["median"] for name, row in timed.items()}

    def beside(name: str) -> str:
        return f"{takes[name] / takes['eager']:.2f}x" if name in takes else NOTHING

    def gigabytes(name: str) -> str:
        return f"{timed[name]['peak_bytes'] / 2**30:.2f} GiB"

    firsts = (
        f"{timed[name]['first_seconds']:.0f}" if name in timed else NOTHING
        for name in ("eager", "compile", QUARTER)
    )
    yield (
        record["measurements"]["network"], format_seconds(takes["eager"]), gigabytes("eager"),
        beside("compile"), beside(QUARTER), gigabytes(QUARTER), f"{', '.join(firsts)} s",
    )  # fmt: skip


def summary(folder: Path = script.RESULTS) -> str:
    """README's table: bfloat16 under autocast."""
    found = [each for each in records(folder) if each["measurements"]["dtype"] == "bfloat16"]
    if not found:
        return f"Steps under autocast are {NOT_MEASURED}: `python -m benchmarks.{NAME}`."
    cards = ", ".join(dict.fromkeys(each["environment"]["gpu"]["name"] for each in found))
    told = (
        f"Training steps of PyTorch's models under bfloat16 autocast, on one {cards}. `ooc_cudnn` "
        "has a quarter of the memory that PyTorch takes; the model's outputs and the loss are not "
        "counted. 1.00x is PyTorch's time. torch.compile is faster where its memory fits: it takes "
        f"{_compiled_memory(found)} of PyTorch's. A first step plans, or compiles; all of it is "
        "counted."
    )
    rows = [row for each in found for row in short_rows(each)]
    return join_paragraphs((textwrap.fill(told, 120), markdown(SHORT_HEAD, rows, align="lr")))


def drawn(folder: Path = script.RESULTS) -> dict[str, dict[str, list[float]]]:
    """Memory and seconds of each way that was measured, over eager's, by network."""
    shown = {}
    for record in records(folder):
        measured = record["measurements"]
        rows = {name: row for name, row in measured["rows"].items() if "seconds" in row}
        if "eager" in rows:
            eager = rows["eager"]
            shown[f"{measured['network']}, {measured['dtype']}"] = {
                name: [
                    row["peak_bytes"] / eager["peak_bytes"],
                    row["seconds"]["median"] / eager["seconds"]["median"],
                ]
                for name, row in rows.items()
            }
    return shown


def draw(values: Mapping[str, Mapping[str, list[float]]]) -> Any:
    """Ours as a line, PyTorch's ways as points."""
    rows = -(-len(values) // COLUMNS)
    figure, axes = canvas.panels(rows, COLUMNS, width=11, height=2.6 * rows + 0.5)
    for panel in axes.flat[len(values) :]:
        panel.set_axis_off()
    for panel, (network, ways) in zip(axes.flat, values.items(), strict=False):
        panel.set_title(network, fontsize=7, loc="left")
        ours = sorted(at for name, at in ways.items() if name not in THEIRS)
        panel.plot(*zip(*ours, strict=True), color=canvas.CONTENDER_COLOURS[OURS], marker=".",
                   label="ooc_cudnn") if ours else None  # fmt: skip
        for name, (contender, marker) in THEIRS.items():
            if name in ways:
                panel.plot(*ways[name], color=canvas.CONTENDER_COLOURS[contender], marker=marker,
                           linestyle="none", label=name)  # fmt: skip
        panel.set_xlim(0, None)
        panel.set_ylim(0, None)
        panel.set_xlabel("peak memory, of eager's", fontsize=7)
        panel.set_ylabel("a step, of eager's", fontsize=7)
    canvas.legend_below(figure, axes.flat, columns=5)
    return figure


PICTURE = canvas.Picture("docs/images/networks/amp.png", drawn, draw)
PICTURES = (PICTURE,)
BLOCKS = (Block(PAGE, "autocast", section), Block("README.md", "autocast", summary))
