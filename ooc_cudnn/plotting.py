"""Plotting that all pictures share: colours, and panels of matplotlib, which is not required."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

#: Colours in the order in which pictures take them; no two of them are alike.
COLOURS = (
    "#2a78d6", "#e07b39", "#3f9e6e", "#8a63c4", "#b0a030", "#555555", "#c94f7c", "#39a0b0",
    "#1b2a80", "#7a3b12", "#a6e36a", "#f0b6d0", "#f2cc0c", "#c00d1e", "#3f6b00", "#9fb8ee",
    "#e545e0",
)  # fmt: skip
#: Stream -> its colours: of most bars, and of every other one where neighbours are told apart.
STREAM_COLOURS = {
    "copy_in": ("#3b6ea5", "#8fb3d9"),
    "compute": ("#2a7f3f", "#86c193"),
    "copy_out": ("#c8504b", "#eba29e"),
}
#: Part of a network's step -> the colours of what is computed in it.
PART_COLOURS = {
    "forward": STREAM_COLOURS["compute"],
    "backward": ("#d9a514", "#f0d890"),
    "recomputing": ("#8a63c4", "#c6b2e3"),
}


def require_matplotlib() -> None:
    """Raise ModuleNotFoundError, with the command that installs it, where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError(
            "a picture needs matplotlib: pip install 'ooc_cudnn[plot]'", name="matplotlib"
        )


def check_can_draw(path: str) -> None:
    """Raise where no picture could be drawn to a file: before time is spent on what it shows.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is missing.
    ValueError
        If that names no file, a file in no folder, or one of a suffix that is not drawn.
    """
    file = Path(path)
    if not file.name or file.is_dir():
        raise ValueError(f"a picture needs the name of a file, not {path!r}")
    if not file.parent.is_dir():
        raise ValueError(f"there is no folder {str(file.parent)!r} for a picture")
    known = blank_figure(1, 1).canvas.get_supported_filetypes().keys() - {"pgf"}  # wants LaTeX
    suffix = file.suffix.removeprefix(".").lower()
    if suffix and suffix not in known:
        raise ValueError(f"a picture is no .{suffix} file; it may be {', '.join(sorted(known))}")


def blank_figure(width: float, height: float, *, dpi: int = 120) -> Any:
    """Return a figure of so many inches that no window shows."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=dpi)
    FigureCanvasAgg(figure)
    return figure


def panels(
    rows: int, columns: int, *, width: float, height: float, dpi: int = 100
) -> tuple[Any, Any]:
    """Return a figure and its axes, rows by columns; inches."""
    figure = blank_figure(width, height, dpi=dpi)
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat:
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    return figure, axes


def legend(axes: Any, **where: Any) -> None:
    """Name what is drawn, if anything is."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False, **where)
