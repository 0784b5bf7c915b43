"""docs/kernels.md, its picture and the comments of kernels: what was measured of kernels."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kernel_cases import POOLING_SHARE, RELAYOUT_SHARE, SOFTMAX_SHARE
from benchmarks.pages import canvas
from benchmarks.pages.blocks import NOT_MEASURED, NOTHING, Block, machine_of
from ooc_cudnn.bench import script
from ooc_cudnn.bench.environment import ROOT
from ooc_cudnn.bench.record import join_paragraphs, load_record, markdown
from ooc_cudnn.plotting import COLOURS

NAME, PAGE = "kernels", "docs/kernels.md"
Row = Mapping[str, Any]
#: How a case's name is taken apart: what it is about, and in which way; and its group's bound.
GROUPS = {
    "relayout": (r"(.+) (\w+ to \w+)", "layer", RELAYOUT_SHARE),
    "softmax": (r"(.+) (forward|backward)", "rows x classes", SOFTMAX_SHARE),
    "pooling": (r"(\w+ [\w+]+) (\w+ (?:forward|backward))", "layer, mode", POOLING_SHARE),
}


def record(folder: Path = script.RESULTS, name: str = NAME) -> Mapping[str, Any] | None:
    """What was measured; None if nothing was."""
    return load_record(name, folder) if (folder / f"{name}.json").exists() else None


def measured_on(found: Mapping[str, Any]) -> str:
    """The card and the day of a record."""
    return f"{machine_of(found)}, {found['environment']['date'][:10]}."


def apart(group: str, row: Row) -> tuple[str, str]:
    """The subject of a case and its way."""
    found = re.fullmatch(GROUPS[group][0], row["name"])
    if found is None:
        raise ValueError(f"{row['name']!r} is no name of a case of {group}")
    return found[1], found[2]


def _cell(row: Row) -> str:
    ratio = row["over_pytorch"]
    times = "" if ratio is None else f", {1 / ratio:.2f} x"
    share = f"{row['share']:.0%}{times}"
    return share if row["holds"] else f"**{share}**"


def pivot(group: str, rows: Sequence[Row], cell: Callable[[Row], str] = _cell) -> str:
    """A line for each subject, a column for each way."""
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        subject, way = apart(group, row)
        cells.setdefault(subject, {})[way] = cell(row)
    ways = list(dict.fromkeys(way for each in cells.values() for way in each))
    lines = [(name, *(each.get(way, NOTHING) for way in ways)) for name, each in cells.items()]
    return markdown((GROUPS[group][1], *ways), lines)


def _short(row: Row) -> str:
    own = f"{1e6 * row['ours']['median']:.1f} us, {row['GB/s']:,.0f} GB/s, {_cell(row)}"
    return own if "public" not in row else f"{own}; called: {1e6 * row['public']:.0f} us"


def figures(folder: Path = script.RESULTS) -> str:
    stored = record(folder)
    if stored is None:
        return f"The kernels were {NOT_MEASURED}: `python -m benchmarks.kernels` does it."
    measured = stored["measurements"]
    parts = [
        f"{measured_on(stored)} A cell has the share of the copy's speed, and PyTorch's time over "
        "ours; bold where a bound is missed.",
        PICTURE.link("Shares of the copy's speed, case by case", PAGE),
    ]
    titles = {"relayout": "Re-layout", "softmax": "Softmax", "pooling": "Pooling"}
    for group, title in titles.items():
        if group not in measured:
            continue
        bound = f"Held to {GROUPS[group][2]:.0%} of the copy's speed at the least."
        cell = _short if group == "softmax" else _cell
        parts += [f"### {title}, measured", bound, pivot(group, measured[group], cell)]
    return join_paragraphs((*parts, *(f"- {note}" for note in stored["notes"])))


# The kernels that are held to no bound -------------------------------------------------------

PASSES = "passes"
#: Memory orders and dtypes, a column each.
COLUMNS = tuple(itertools.product(("NCHW", "NHWC"), ("float32", "float16")))


def passes(folder: Path = script.RESULTS) -> str:
    """A line for each case of `benchmarks.passes`, under its kernel."""
    stored = record(folder, PASSES)
    if stored is None:
        return f"They were {NOT_MEASURED}: `python -m benchmarks.passes` does it."
    lines = []
    for kernel, rows in stored["measurements"].items():
        shares = {row["name"]: row["share"] for row in rows}
        ways = dict.fromkeys(name.removeprefix(f"{kernel} ").rsplit(" ", 2)[0] for name in shares)
        for way in ways:
            columns = (shares.get(f"{kernel} {way} {' '.join(column)}") for column in COLUMNS)
            cells = (NOTHING if share is None else f"{share:.0%}" for share in columns)
            lines.append((f"`{kernel}.cu`", way, *cells))
    head = ("kernel", "case", *(" ".join(column) for column in COLUMNS))
    return join_paragraphs((measured_on(stored), markdown(head, lines)))


# Comments ------------------------------------------------------------------------------------

#: A kernel -> its group, and for each way that its comment tells apart, words of its cases' names.
KERNELS = {
    "relayout.cu": ("relayout", {"": " to "}),
    "softmax.cu": ("softmax", {"forward ": "forward", "backward ": "backward"}),
    "pooling.cu": ("pooling", {f"{o} ": f"{o} forward" for o in ("NCHW", "NHWC", "CHWN")}),
    "pooling_gradient.cu": (
        "pooling", {f"{o} ": f"{o} backward" for o in ("NCHW", "NHWC", "CHWN")}
    ),
}  # fmt: skip


#: A line of a kernel's comment that says it.
REACHED = re.compile(r"^// .* of a copy's speed on an .*$", re.MULTILINE)


def reached(kernel: str, folder: Path = script.RESULTS) -> str:
    """What the comment of a kernel says it reaches; of `KERNELS` where they are held to a share."""
    stored = load_record(NAME if kernel in KERNELS else PASSES, folder)
    if kernel in KERNELS:
        group, ways = KERNELS[kernel]
    else:
        group, ways = kernel.removesuffix(".cu"), {f"{dtype} ": dtype for _, dtype in COLUMNS[:2]}
    said = []
    for way, words in ways.items():
        rows = [row for row in stored["measurements"][group] if words in row["name"]]
        held = [row["share"] for row in rows if row["share_bound"] or kernel not in KERNELS]
        least, most = round(100 * min(held)), round(100 * max(held))
        said.append(f"{way}{least} to {most} %" if least < most else f"{way}{least} %")
    card = stored["environment"]["gpu"]["name"].removeprefix("NVIDIA ").split()[0]
    return f"{', '.join(said)} of a copy's speed on an {card} (docs/kernels.md)."


def comments(
    *, check: bool, sources: Path = ROOT / "kernels", folder: Path = script.RESULTS
) -> int:
    """Write into the kernels' comments what they reach, or say which are out of date: 1 then."""
    stored = record(folder, PASSES)
    known = (*KERNELS, *(f"{group}.cu" for group in (stored["measurements"] if stored else ())))
    old = []
    for path in sources.glob("*.cu"):
        if path.name not in known and REACHED.search(path.read_text("utf-8")):
            raise ValueError(f"{path} says what it reaches, and no record does")
    for kernel in known:
        path = sources / kernel
        before = path.read_text("utf-8")
        after, count = REACHED.subn(f"// {reached(kernel, folder)}", before)
        if count != 1:
            raise ValueError(f"{path} has {count} lines of what the kernel reaches, not one")
        if after == before:
            continue
        old.append(kernel)
        if not check:
            path.write_text(after, "utf-8")
    if check and old:
        print(f"comments are out of date: {', '.join(old)}", file=sys.stderr)
    return int(check and bool(old))


# The picture -------------------------------------------------------------------------------------

#: Memory order that is read -> colour; what reads any is grey.
ORDER_COLOURS = dict(zip(("NCHW", "NHWC", "CHWN"), COLOURS, strict=False))
ANY_ORDER = COLOURS[5]
#: Direction, or memory order that is written -> marker.
MARKERS = {"forward": "^", "backward": "v", "NCHW": "s", "NHWC": "D", "CHWN": "o"}


def drawn(folder: Path = script.RESULTS) -> dict[str, list[list[Any]]]:
    """Group -> [subject, way, share] of each case."""
    stored = record(folder)
    measured = stored["measurements"] if stored else {}
    return {
        group: [[*apart(group, row), round(row["share"], 4)] for row in measured[group]]
        for group in GROUPS
        if group in measured
    }


def draw(drawn: Mapping[str, Sequence[Sequence[Any]]]) -> Any:
    """A panel for each group: a point for each case, and the bound.

    Colours are the memory orders that are read.
    """
    figure, axes = canvas.panels(len(drawn), 1, width=9, height=3.1 * len(drawn))
    for panel, (group, cases) in zip(axes[:, 0], drawn.items(), strict=True):
        subjects = list(dict.fromkeys(subject for subject, _, _ in cases))
        ways = list(dict.fromkeys(way for _, way, _ in cases))
        for way in ways:
            points = [(subjects.index(s), 100 * share) for s, w, share in cases if w == way]
            first, *_, last = way.split() * 2  # of a single word both
            colour = ORDER_COLOURS.get(first, ANY_ORDER)
            panel.plot(*zip(*points, strict=True), marker=MARKERS[last], markersize=4,
                       linestyle="none", color=colour, label=way)  # fmt: skip
        panel.axhline(100 * GROUPS[group][2], color="#333333", linewidth=1, linestyle="--")
        panel.set_xticks(range(len(subjects)), subjects, rotation=60, ha="right", fontsize=7)
        panel.set_ylim(bottom=0)
        panel.set_ylabel("% of the copy's speed", fontsize=8)
        panel.set_title(group, fontsize=10, loc="left")
        panel.legend(fontsize=7, ncols=len(ways), frameon=False, loc="lower left")
    return figure


PICTURE = canvas.Picture("docs/images/kernels/shares.png", drawn, draw)
PICTURES = (PICTURE,)
BLOCKS = (Block(PAGE, "figures", figures), Block(PAGE, "passes", passes))
