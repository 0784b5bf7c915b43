"""The notebooks' pictures: small PNGs that say in words where their figures are from."""

from __future__ import annotations

import io
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from ooc_cudnn import Plan
from ooc_cudnn.plotting import STREAM_COLOURS

if TYPE_CHECKING:
    from notebooks.occupancy import Held
    from ooc_cudnn.network.ir.plan import NetworkPlan
    from ooc_cudnn.network.ir.tensor import Tensor
    from ooc_cudnn.network.network import Network
    from ooc_cudnn.profiling import Profile
    from perfmodel import MachineModel

DPI = 80
WIDTH_INCHES = 9.0
#: In a line below the title.
SOURCE_CHARACTERS = 90
#: The library first; told apart by those who see no red.
COLOURS = ("#2a7f3f", "#3b6ea5", "#e07b39", "#8a63c4", "#b0a030", "#c94f7c", "#555555", "#39a0b0")
STAGES = {name: dark for name, (dark, _) in STREAM_COLOURS.items()}
PHASES = {
    "filled": STAGES["copy_in"], "waiting": "#d8d8d8", "used": STAGES["compute"],
    "emptied": STAGES["copy_out"],
}  # fmt: skip


class Picture:
    """A PNG that a notebook shows.

    Parameters
    ----------
    png : bytes
    about : str
        What it shows, for those who cannot see it.
    """

    def __init__(self, png: bytes, about: str) -> None:
        self.png, self.about = png, about

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return f"[picture: {self.about}]"


def streams(profile: Profile) -> Picture:
    """Draw the three streams of every recorded call, as `Profile.plot` does, in a smaller size.

    Parameters
    ----------
    profile : Profile
    """
    small = _drawn(profile.plot)
    calls = "; ".join(str(call) for call in profile.calls)
    return Picture(_png(small), f"copy in, compute and copy out over time. {calls}")


def step(
    net: Network, loss: Tensor, plan: NetworkPlan, *, machine: MachineModel | str | None = None
) -> Picture:
    """Draw a step of a network as `Network.plot` does, in a smaller size.

    Parameters
    ----------
    net : Network
    loss : Tensor
    plan : NetworkPlan
    machine : MachineModel or str, optional
        As the plan was made with.
    """
    small = _drawn(lambda path: net.plot(loss, plan, path, machine=machine))
    first = plan.explain().splitlines()[0]
    return Picture(
        _png(small), f"three streams, and what device memory holds, over a step. {first}"
    )


def stored(path: Path, about: str) -> Picture:
    """Return a picture of the repository in the notebooks' size.

    Parameters
    ----------
    path : Path
    about : str
    """
    return Picture(_png(_small(path)), about)


def _drawn(draw: Callable[[Path], object]) -> Any:
    """What is drawn to a file, as an image of the notebooks' width."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.png"
        draw(path)
        return _small(path)


def _small(path: Path) -> Any:
    """Image of a file, of the notebooks' width."""
    with Image.open(path) as whole:
        pixels = round(WIDTH_INCHES * DPI)
        return whole.convert("RGB").resize((pixels, whole.height * pixels // whole.width))


def bars(
    groups: Mapping[str, Mapping[str, float]], *, title: str, source: str, unit: str,
    lower: float | None = None,
) -> Picture:  # fmt: skip
    """Draw bars side by side.

    Parameters
    ----------
    groups : mapping of str to mapping of str to float
        Group -> bar -> height. A bar keeps its colour in all groups; where a group lacks one, its
        place stays empty.
    title, source, unit : str
    lower : float, optional
        Where given, the axis is logarithmic and begins there.
    """
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    figure, axes = _axes(title, source, height=3.4)
    width = 0.84 / max(len(names), 1)
    for at, name in enumerate(names):
        heights = [(x, group[name]) for x, group in enumerate(groups.values()) if name in group]
        places = [x + (at - (len(names) - 1) / 2) * width for x, _ in heights]
        axes.bar(places, [y for _, y in heights], width * 0.94, color=_colour(at), label=name)
        for place, (_, height) in zip(places, heights, strict=True):
            written = f"{height:.3g}" if height < 1000 else f"{height:.0f}"
            axes.annotate(
                written, (place, height), xytext=(0, 2), textcoords="offset points", ha="center",
                fontsize=7, rotation=90 if len(names) * len(groups) > 16 else 0,
            )  # fmt: skip
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylabel(unit)
    if lower is not None:
        axes.set_yscale("log")
        highest = max((max(group.values()) for group in groups.values() if group), default=lower)
        axes.set_ylim(lower, 5 * max(highest, lower))  # room for the figures
    else:
        axes.margins(y=0.18)
    _legend(figure, axes)
    return _finish(figure, f"{title} ({source})")


def stacks(
    columns: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    *,
    title: str,
    source: str,
    unit: str,
    line: tuple[str, Sequence[float]] | None = None,
) -> Picture:
    """Draw a stack of parts for each column.

    Parameters
    ----------
    columns : sequence of str
    parts : mapping of str to sequence of float
        Part -> its height in each column. The three stages have the colours of the timeline.
    title, source, unit : str
    line : pair of str and sequence of float, optional
        Marks over the stacks.
    """
    figure, axes = _axes(title, source, height=3.6)
    bottom = np.zeros(len(columns))
    for at, (name, heights) in enumerate(parts.items()):
        colour = STAGES.get(name, _colour(at))
        axes.bar(range(len(columns)), heights, 0.78, bottom, color=colour, label=_spoken(name))
        bottom += np.asarray(heights, dtype=float)
    if line is not None:
        name, values = line
        axes.plot(range(len(columns)), values, "D", color="#111111", markersize=4, label=name)
    long = max(map(len, columns), default=0) * len(columns) > 80
    axes.set_xticks(range(len(columns)), columns, rotation=60 if long else 0, fontsize=8)
    axes.set_ylabel(unit)
    _legend(figure, axes)
    return _finish(figure, f"{title} ({source})")


def curves(
    drawn: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    title: str,
    source: str,
    x: str,
    y: str,
    dots: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    log: str = "",
    marks: Mapping[str, float] | None = None,
) -> Picture:
    """Draw lines, and dots beside them.

    Parameters
    ----------
    drawn, dots : mapping of str to (xs, ys)
        What is drawn as a line, and what as dots. Dots take the colour of the line of their name.
    title, source, x, y : str
    log : str
        The axes that are logarithmic: "", "x", "y" or "xy".
    marks : mapping of str to float, optional
        Vertical lines.
    """
    figure, axes = _axes(title, source)
    colours = {name: _colour(at) for at, name in enumerate([*drawn, *(dots or {})])}
    for name, (xs, ys) in drawn.items():
        axes.plot(xs, ys, color=colours[name], linewidth=1.6, label=name)
    for name, (xs, ys) in (dots or {}).items():
        label = None if name in drawn else name
        axes.plot(xs, ys, "o", color=colours[name], markersize=3.5, alpha=0.7, label=label)
    for name, at in (marks or {}).items():
        axes.axvline(at, color="#777777", linewidth=0.9, linestyle="--")
        axes.annotate(
            name, (at, 1), xytext=(3, -3), xycoords=("data", "axes fraction"),
            textcoords="offset points", fontsize=8, color="#555555", va="top",
        )  # fmt: skip
    if "x" in log:
        axes.set_xscale("log", base=2)
    if "y" in log:
        axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    _legend(figure, axes)
    return _finish(figure, f"{title} ({source})")


def grid(
    values: Any, xs: Sequence[int], ys: Sequence[int], *, title: str, source: str, x: str, y: str,
    unit: str, stars: Mapping[str, tuple[int, int]],
) -> Picture:  # fmt: skip
    """Draw a table of numbers as colours.

    Parameters
    ----------
    values : array, shape (len(ys), len(xs))
        NaN is left white.
    xs, ys : sequence of int
        What the columns and rows stand for.
    title, source, x, y, unit : str
    stars : mapping of str to (x, y)
        Cells to mark, with a letter each in the legend's order.
    """
    figure, axes = _axes(title, source, height=4.0)
    shown = axes.imshow(values, aspect="auto", origin="lower", cmap="viridis_r")
    figure.colorbar(shown, ax=axes, label=unit)
    best = np.nanmin(values)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            light = value > best + 0.5 * (np.nanmax(values) - best)
            axes.text(
                column, row, f"{value:.3g}", ha="center", va="center", fontsize=6.5,
                color="white" if light else "#222222",
            )  # fmt: skip
    for at, (name, (column, row)) in enumerate(stars.items()):
        axes.plot(
            xs.index(column), ys.index(row), "os^"[at % 3], markersize=19 - 3 * at, label=name,
            markerfacecolor="none", markeredgecolor="#d03030", markeredgewidth=1.8, linestyle="",
        )  # fmt: skip
    axes.set_xticks(range(len(xs)), [str(each) for each in xs])
    axes.set_yticks(range(len(ys)), [str(each) for each in ys])
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=False)
    _legend(figure, axes)
    return _finish(figure, f"{title} ({source})")


def arena(
    seconds: Sequence[float],
    nbytes: Mapping[str, Sequence[int]],
    plan: Plan,
    *,
    source: str,
    until_seconds: float | None = None,
) -> Picture:
    """Draw the bytes that each purpose holds over time, stacked.

    Parameters
    ----------
    seconds, nbytes
        As `occupancy.in_use` returns them.
    plan : Plan
        What it reserves is the line above.
    source : str
    until_seconds : float, optional
        How much of the beginning to show; all of it when left out.
    """
    title = f"device memory of {plan.function}, by what it holds"
    figure, axes = _axes(title, source, height=3.6)
    times = np.asarray(seconds) * 1e3
    named = {purpose: counts for purpose, counts in nbytes.items() if any(counts)}
    axes.stackplot(
        times, *(np.asarray(counts) / 2**20 for counts in named.values()), labels=list(named),
        colors=[_colour(at + 1) for at in range(len(named))], step="post", linewidth=0,
    )  # fmt: skip
    axes.axhline(plan.device_bytes / 2**20, color="#111111", linewidth=1.4, label="reserved")
    axes.axhline(
        plan.memory_limit / 2**20, color="#c8504b", linewidth=1.4, linestyle="--", label="limit"
    )
    axes.set_xlim(0, times[-1] if until_seconds is None else until_seconds * 1e3)
    axes.set_xlabel("time in ms")
    axes.set_ylabel("MiB")
    _legend(figure, axes)
    return _finish(figure, f"{title} ({source})")


def slots(found: Sequence[Held], *, title: str, source: str, until_seconds: float) -> Picture:
    """Draw what happens to each block of the arena: filled, waiting, used, emptied.

    Parameters
    ----------
    found : sequence of Held
    title, source : str
    until_seconds : float
        How much of the beginning to show.
    """
    blocks = list(dict.fromkeys(each.block for each in found))
    figure, axes = _axes(title, source, height=1.3 + 0.26 * len(blocks))
    for phase, colour in PHASES.items():
        label: str | None = phase
        for row, block in enumerate(blocks):
            spans = [
                (each.start_seconds * 1e3, (each.stop_seconds - each.start_seconds) * 1e3)
                for each in found
                if (each.block, each.phase) == (block, phase)
            ]
            axes.broken_barh(spans, (row - 0.4, 0.8), color=colour, linewidth=0, label=label)
            label = None
    axes.set_yticks(range(len(blocks)), blocks)
    axes.set_ylim(len(blocks) - 0.4, -0.6)
    axes.set_xlim(0, until_seconds * 1e3)
    axes.set_xlabel("time in ms")
    _legend(figure, axes)
    return _finish(figure, f"{title} ({source})")


def shown(figure: Any, about: str) -> Picture:
    """Return a figure that the library drew, in the notebooks' size.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    about : str
    """
    figure.set_dpi(DPI * WIDTH_INCHES / figure.get_size_inches()[0])
    return _finish(figure, about)


def _axes(title: str, source: str, height: float = 3.2) -> tuple[Any, Any]:
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained", dpi=DPI)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    lines = textwrap.wrap(source, SOURCE_CHARACTERS)
    axes.set_title(title, fontsize=11, fontweight="bold", loc="left", pad=9 + 11 * len(lines))
    said = axes.annotate(
        "\n".join(lines), (0, 1), xytext=(0, 6), xycoords="axes fraction",
        textcoords="offset points", fontsize=8.5, color="#555555",
    )  # fmt: skip
    said.set_in_layout(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1 or (labels and not labels[0].startswith("_")):
        figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False)


def _finish(figure: Any, about: str) -> Picture:
    whole = io.BytesIO()
    figure.savefig(whole, format="png", dpi=figure.get_dpi())
    with Image.open(whole) as image:
        return Picture(_png(image.convert("RGB")), about)


def _png(image: Any) -> bytes:
    """Few colours: a smaller file."""
    small = io.BytesIO()
    few = image.quantize(256, kmeans=1, dither=Image.Dither.NONE)
    few.save(small, format="png", optimize=True)
    return small.getvalue()


def _colour(at: int) -> str:
    return COLOURS[at % len(COLOURS)]


def _spoken(name: str) -> str:
    return name.replace("_", " ")
