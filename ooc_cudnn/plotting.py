"""Plotting that all pictures share: colours, and panels of matplotlib, which is not required."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

#: Each is a colour that those who see no red tell apart.
COLOURS = ("#2a78d6", "#e07b39", "#3f9e6e", "#8a63c4", "#b0a030", "#555555", "#c94f7c", "#39a0b0")


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
