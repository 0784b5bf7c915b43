"""Lines over sizes, one for each contender, in a panel for each precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.figures import canvas
from benchmarks.figures.words import LABELS, PRECISIONS

#: Pairs of a size and a value.
Line = Sequence[tuple[float, float]]


def collected(
    contenders: Sequence[str],
    cases: Callable[[str], Iterable[tuple[float, str]]],
    value: Callable[[str, str], float | None],
) -> dict[str, Any]:
    """Values by precision and contender; lines without any are left out.

    Parameters
    ----------
    contenders : sequence of str
    cases : callable
        Takes a precision, returns pairs of a size and the case of that size.
    value : callable
        Takes a case and a contender; None where that was not measured.
    """
    found: dict[str, Any] = {}
    for precision in PRECISIONS:
        pairs = list(cases(precision))
        for contender in contenders:
            line = [
                (size, held) for size, case in pairs if (held := value(case, contender)) is not None
            ]
            if line:
                found.setdefault(precision, {})[contender] = line
    return found


def plot(
    panel: Any,
    lines: Mapping[str, Line],
    *,
    ticks: Mapping[float, str],
    style: Callable[[str], str] = lambda contender: "-",
) -> None:
    """Draw the lines of one panel, both axes in powers.

    Parameters
    ----------
    lines : mapping from contender to its line
    ticks : mapping from size to its label
    style : callable
        Takes a contender, returns the style of its line.
    """
    for contender, line in lines.items():
        panel.plot(
            *zip(*line, strict=True), label=LABELS[contender],
            color=canvas.CONTENDER_COLOURS[contender], marker="o", markersize=4,
            linestyle=style(contender),
        )  # fmt: skip
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(list(ticks), list(ticks.values()))
