"""docs/kernels.md: convolutions by measured engines beside PyTorch's, and their picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.engines import DIRECTIONS, MOST, PRECISIONS, is_as_exact
from benchmarks.engines import SETS as LAYERS
from benchmarks.pages import canvas
from benchmarks.pages.blocks import NOT_MEASURED, NOTHING, Block
from ooc_cudnn.bench import script
from ooc_cudnn.bench.record import join_paragraphs, load_record, markdown
from ooc_cudnn.plotting import COLOURS

PAGE = "docs/kernels.md"
SETS = {"vgg16": "VGG-16", "resnet50": "ResNet-50", "unet_3d": "3-D U-Net"}
#: By its letter in a cell: why a ratio says little of the engine.
HOST, EXACT = "h", "e"


class Problem(NamedTuple):
    """A layer in a precision and a direction: ours over PyTorch's, and what marks it."""

    layer: str
    precision: str
    direction: str
    ratio: float
    marks: str


def problems(found: Mapping[str, Any]) -> Iterator[Problem]:
    """What a record has measured, in its order."""
    for name, row in found["measurements"].items():
        layer, precision, direction = name.rsplit(" ", 2)
        theirs = _least(row["measured"], "PyTorch")
        is_host_bound = min(_of(row["host, one call"], "ours")) > theirs
        errors = row["errors"]
        is_alike = is_as_exact(errors["PyTorch"], errors["ours"], precision)
        marks = HOST * is_host_bound + EXACT * (not is_alike)
        yield Problem(layer, precision, direction, row["ours over PyTorch"]["measured"], marks)


def _of(ways: Mapping[str, Any], who: str) -> list[Any]:
    return [each for way, each in ways.items() if way.startswith(who)]


def _least(ways: Mapping[str, Any], who: str) -> float:
    return min(timing["median"] for timing in _of(ways, who))


def records(folder: Path = script.RESULTS) -> dict[str, Mapping[str, Any]]:
    """The sets that were measured."""
    there = (key for key in SETS if (folder / f"engines_{key}.json").exists())
    return {key: load_record(f"engines_{key}", folder) for key in there}


def _cell(problem: Problem | None) -> str:
    if problem is None:
        return NOTHING
    text = f"{problem.ratio:.2f}{problem.marks}"
    return f"**{text}**" if problem.ratio > MOST else text


def figures(folder: Path = script.RESULTS) -> str:
    """A table for each set: a line for each layer and precision, a column for each direction."""
    by_set = records(folder)
    if not by_set:
        return f"Convolutions were {NOT_MEASURED}: `python -m benchmarks.engines` does it."
    parts = [
        "Ours over PyTorch's in benchmark mode, each in the better of two memory orders, after "
        f"engines were measured. Bold is more than {MOST}. *{HOST}*: the host takes longer to "
        "issue one call of ours than PyTorch's takes on the card. "
        f"*{EXACT}*: PyTorch's error is more than ten times ours.",
        _overall([problem for record in by_set.values() for problem in problems(record)]),
        PICTURE.link("Ours over PyTorch's, convolution by convolution", PAGE),
    ]
    for key, record in by_set.items():
        grid = {(p.layer, p.precision, p.direction): p for p in problems(record)}
        layers = list(dict.fromkeys((layer, precision) for layer, precision, _ in grid))
        rows = [
            (f"{layer} {precision}", *(_cell(grid.get((layer, precision, d))) for d in DIRECTIONS))
            for layer, precision in layers
        ]
        claims = {claim["name"]: claim["value"] for claim in record["claims"]}
        means = [
            f"{claims[name]:.2f} in {precision}"
            for precision in PRECISIONS
            if (name := f"{precision}: ours over PyTorch, geometric mean") in claims
        ]
        unbound = [p.ratio for p in grid.values() if HOST not in p.marks]
        if unbound:
            mean = statistics.geometric_mean(unbound)
            means.append(f"{mean:.2f} in the {len(unbound)} that the host does not bind")
        environment = record["environment"]
        asked = len(LAYERS[key]) * len(PRECISIONS) * len(DIRECTIONS)
        said = (
            f"{environment['gpu']['name']}, {environment['date'][:10]}; there was time for "
            f"{len(grid)} of {asked} problems. Geometric means: {', '.join(means)}."
        )
        head = ("layer", *(direction.replace("_", " ") for direction in DIRECTIONS))
        parts += [f"### {SETS[key]}'s convolutions, measured", said, markdown(head, rows)]
    return join_paragraphs(parts)


def _overall(of: Sequence[Problem]) -> str:
    """One line of all sets: the mean, and how many of the slow ones no mark explains."""
    mean = statistics.geometric_mean(problem.ratio for problem in of)
    slow = [problem for problem in of if problem.ratio > MOST]
    unmarked = sum(not problem.marks for problem in slow)
    return (
        f"Over all {len(of)} problems of all sets the geometric mean is {mean:.2f}. {len(slow)} "
        f"are above {MOST}, {unmarked} of these without a mark: the host does not bind them, and "
        "the errors are alike."
    )


# The picture -------------------------------------------------------------------------------------


def drawn(folder: Path = script.RESULTS) -> dict[str, list[list[Any]]]:
    """Set -> [layer, precision, direction, ratio, marks] of each problem."""
    return {
        SETS[key]: [[*p[:3], round(p.ratio, 3), p.marks] for p in problems(record)]
        for key, record in records(folder).items()
    }


def draw(drawn: Mapping[str, Sequence[Sequence[Any]]]) -> Any:
    """A panel for each set: a point for each problem, hollow where its ratio says little."""
    figure, axes = canvas.panels(len(drawn), 1, width=9, height=3.4 * len(drawn))
    for panel, (title, cases) in zip(axes[:, 0], drawn.items(), strict=True):
        places = list(dict.fromkeys((layer, direction) for layer, _, direction, _, _ in cases))
        for precision, colour in zip(PRECISIONS, COLOURS, strict=False):
            for is_marked in (False, True):
                points = [
                    (places.index((layer, direction)), ratio)
                    for layer, kind, direction, ratio, marks in cases
                    if kind == precision and bool(marks) == is_marked
                ]
                if points:
                    panel.plot(*zip(*points, strict=True), marker="o", markersize=4,
                               linestyle="none", color=colour, markerfacecolor="none" if is_marked
                               else colour, label=None if is_marked else precision)  # fmt: skip
        for height, style in ((1.0, "-"), (MOST, "--")):
            panel.axhline(height, color="#333333", linewidth=1, linestyle=style)
        names = [f"{layer}\n{direction.replace('_', ' ')}" for layer, direction in places]
        panel.set_xticks(range(len(places)), names, rotation=60, ha="right", fontsize=6)
        panel.set_ylim(bottom=0)
        panel.set_ylabel("ours over PyTorch's", fontsize=8)
        panel.set_title(
            f"{title}; hollow: bound by the host, or not as exact", fontsize=10, loc="left"
        )
        panel.legend(fontsize=7, ncols=len(PRECISIONS), frameon=False, loc="upper left")
    return figure


PICTURE = canvas.Picture("docs/images/kernels/engines.png", drawn, draw)
PICTURES = (PICTURE,)
BLOCKS = (Block(PAGE, "engines", figures),)
