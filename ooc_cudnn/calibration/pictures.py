"""A calibration as a picture: what was measured against the lines that were fitted to it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ooc_cudnn.plotting import COLOURS, legend, panels
from perfmodel import MachineModel
from perfmodel.linear import Floats

MEASURED = {"marker": "o", "markersize": 4.5, "linestyle": ""}
HOLLOW = {"markersize": 6, "markerfacecolor": "none"}
DASHED: dict[str, Any] = {"linestyle": "--", "linewidth": 0.8}
GUIDE: dict[str, Any] = {"color": "#999999", "linewidth": 0.8, "zorder": 0}
BOTH_WAYS = {"pinned": "^", "pageable": "s", "disk": "D"}


def draw_calibration(model: MachineModel, path: str | os.PathLike[str]) -> None:
    """Draw a model's samples against its lines, as PNG or whatever the suffix says."""
    calibration_figure(model).savefig(path)


def calibration_figure(model: MachineModel) -> Any:
    """Return the same as a matplotlib figure, as a notebook shows it.

    Above, the speed of copies by their size: dots are measured, curves fitted; hollow marks are
    copies while the other direction was busy, dashed what the slowdown of the pair predicts for
    them. In the middle, predicted over measured seconds of computing. Below, the residuals, in the
    colours of what they are of.

    Raises
    ------
    ValueError
        If the model keeps no samples, as most of the shipped ones.
    ModuleNotFoundError
        If matplotlib is missing: ``pip install 'ooc_cudnn[plot]'``.
    """
    if not model.samples:
        raise ValueError(
            f"machine model {model.name!r} keeps no samples to draw; one that "
            "'ooc-cudnn calibrate' fitted does"
        )
    figure, (top, middle, bottom) = panels(3, 2, width=12, height=12.5, dpi=120)
    colours = _colours(model)
    figure.suptitle(f"{model.name}, calibrated {model.calibrated}", fontweight="bold")
    copies, convolutions, passes = (
        [key for key in model.lines if key in model.samples and key.startswith(start)]
        for start in ("copy_", "convolution", "pointwise")
    )
    for direction, axes in enumerate(top):
        _draw_copies(axes, model, direction, colours)
    _draw_computing(middle[0], model, convolutions, colours, title="convolutions")
    _draw_computing(middle[1], model, passes, colours, title="passes over device memory")
    _draw_residuals(bottom[0], model, copies, colours)
    _draw_residuals(bottom[1], model, convolutions + passes, colours)
    return figure


def _group(key: str) -> str:
    """Group of a line, which has a colour: a placement, a dtype, or a kind of passes."""
    kind, *parts = key.split("/")
    part = 1 if kind.startswith("pointwise") else 0
    return [*parts, "elementwise"][part]


def _colours(model: MachineModel) -> dict[str, str]:
    """Group -> its colour, in all panels."""
    starts = ("copy_", "convolution", "pointwise")
    keys = [key for start in starts for key in model.lines if key.startswith(start)]
    groups = dict.fromkeys(_group(key) for key in keys if key in model.samples)
    return dict(zip(groups, itertools.cycle(COLOURS), strict=False))


def _draw_copies(
    axes: Any, model: MachineModel, direction: int, colours: Mapping[str, str]
) -> None:
    """Rate over size by placement, in (0) or out (1)."""
    way, samples = ("copy_in", "copy_out")[direction], model.samples

    def measured(key: str, **style: Any) -> None:
        rates = np.array(samples[key].work) / samples[key].seconds / 1e9
        axes.plot(samples[key].work, rates, **{**MEASURED, **style})

    keys = [key for key in model.lines if key in samples and key.startswith(way)]
    for key in keys:
        colour = colours[_group(key)]
        measured(key, color=colour)
        sizes = np.geomspace(min(samples[key].work) / 1.5, max(samples[key].work) * 1.5)
        rates, placement = sizes / model.lines[key].seconds(sizes) / 1e9, key.split("/")[1]
        axes.plot(sizes, rates, color=colour, label=placement)
        for pair, slowdown in model.transfer.slowdowns.items():
            of = pair.split("/")
            if of[direction] == placement and (busy := f"duplex/{pair}/{way}") in samples:
                style = {"color": colour, "label": f"in from {of[0]}, out to {of[1]}"}
                measured(busy, marker=BOTH_WAYS[of[1 - direction]], **HOLLOW, **style)
                axes.plot(sizes, rates / getattr(slowdown, way), color=colour, **DASHED)
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.3)  # room for the legend
    _finish(axes, way.replace("_", " "), "bytes of a piece", "GB/s", columns=2)


def _draw_computing(
    axes: Any, model: MachineModel, keys: list[str], colours: Mapping[str, str], *, title: str
) -> None:
    """Predicted over measured seconds."""
    for group, members in _grouped(keys).items():
        axes.plot(*_seconds(model, members), color=colours[group], label=group, **MEASURED)
    if keys:
        ends = np.quantile(_seconds(model, keys)[0], (0, 1))
        axes.loglog(ends, ends, **GUIDE)
    _finish(axes, title, "measured seconds", "predicted seconds")


def _draw_residuals(
    axes: Any, model: MachineModel, keys: list[str], colours: Mapping[str, str]
) -> None:
    """(predicted - measured) / measured over measured seconds."""
    title = "residuals"
    if keys:
        for group, members in _grouped(keys).items():
            shown = np.clip(_residuals(model, members), -1, 1) * 100
            style = {"color": colours[group], "alpha": 0.6}
            axes.semilogx(_seconds(model, members)[0], shown, **style, **MEASURED)
        median, tail = np.quantile(np.abs(_residuals(model, keys)), (0.5, 0.9))
        title += f": {median:.1%} in the median, {tail:.1%} for nine of ten"
    axes.axhline(0, **GUIDE)
    axes.set_ylim(-100, 100)
    _finish(axes, title, "measured seconds", "predicted - measured, in per cent")


def _grouped(keys: list[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for key in keys:
        groups.setdefault(_group(key), []).append(key)
    return groups


def _residuals(model: MachineModel, keys: list[str]) -> Floats:
    """(predicted - measured) / measured."""
    measured, predicted = _seconds(model, keys)
    return predicted / measured - 1.0


def _seconds(model: MachineModel, keys: list[str]) -> tuple[Floats, Floats]:
    """Measured and predicted, of all samples of some lines."""
    measured = np.concatenate([model.samples[key].seconds for key in keys])
    predicted = np.concatenate([model.samples[key].predicted(model.lines[key]) for key in keys])
    return measured, predicted


def _finish(axes: Any, title: str, x: str, y: str, columns: int = 1) -> None:
    axes.set_title(title, fontsize=11, loc="left")
    axes.set(xlabel=x, ylabel=y)
    legend(axes, loc="upper left", ncols=columns)
