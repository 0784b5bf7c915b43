"""Seconds over memory as a picture: a line for each policy, and the bound below them."""

from __future__ import annotations

import os
from typing import Any

from ooc_cudnn.network.tradeoff.curve import Trade
from ooc_cudnn.plotting import COLOURS, legend, panels

#: A policy that takes so many times what the fastest takes is left to the table.
SLOWEST = 8.0
MARKERS = "os^Dv<>PX*hd"


def draw_trade(trade: Trade, path: str | os.PathLike[str]) -> None:
    """Draw seconds over memory, as PNG or whatever the suffix says.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    """
    figure_of(trade).savefig(path)


def figure_of(trade: Trade) -> Any:
    """The picture, not written yet.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    """
    figure, axes = panels(1, 1, width=9, height=5.5)
    over = axes[0, 0]
    planned = [point.plan.seconds for point in trade.points if point.plan is not None]
    fastest = min([*planned, *trade.bounds.values()], default=1.0)
    scale, unit = (1e3, "ms") if fastest < 1 else (1.0, "s")
    for index, policy in enumerate(trade.policies):
        curve = [
            (point.limit_bytes / 2**30, point.plan.seconds * scale)
            for point in trade.of(policy)
            if point.plan is not None
        ]
        over.plot(
            *zip(*sorted(curve), strict=True) if curve else ([], []),
            color=COLOURS[index],
            marker=MARKERS[index % len(MARKERS)],
            markersize=5,
            linewidth=2.2 if index == 0 else 1.1,
            zorder=3 - index / len(trade.policies),  # the first lies on top
            label=policy,
        )
    bounds = sorted((limit / 2**30, seconds * scale) for limit, seconds in trade.bounds.items())
    if bounds:
        over.plot(*zip(*bounds, strict=True), color="black", linestyle="--", label="bound")
    over.set_yscale("log")
    slowest = min(max(planned, default=fastest), SLOWEST * min(planned, default=fastest))
    low, high = 0.92 * fastest * scale, 1.08 * slowest * scale
    over.set_ylim(low, high)
    _ticks(over, low, high)
    over.set_xlim(left=0)
    over.set_xlabel("memory limit in GiB")
    over.set_ylabel(f"predicted step in {unit}")
    over.set_title(trade.title, loc="left", fontweight="bold")
    legend(over, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _ticks(axes: Any, low: float, high: float) -> None:
    """Plain numbers on a logarithmic axis, about eight of them."""
    steps = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8]
    ticks = [
        step * 10.0**power
        for power in range(-6, 7)
        for step in steps
        if low <= step * 10.0**power <= high
    ]
    axes.set_yticks(ticks, [f"{value:g}" for value in ticks])
    axes.minorticks_off()
