"""What the colours of a picture mean, as its legends name them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def meanings(
    figure: Any, meaning: Callable[[str], str] = lambda label: label
) -> dict[str, set[str]]:
    """Colour -> what is drawn in it, over all panels of a figure.

    `meaning` is that of a label: empty of what has another's colour, and a mark of its own.
    """
    from matplotlib.colors import to_hex

    found: dict[str, set[str]] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            if not meaning(label):
                continue
            first = handle.patches[0] if hasattr(handle, "patches") else handle
            own = hasattr(first, "get_facecolor")
            colour = first.get_facecolor() if own else first.get_color()
            # a collection has a row for each of its members
            (drawn,) = (
                {to_hex(one) for one in colour}
                if getattr(colour, "ndim", 1) == 2
                else {to_hex(colour)}
            )
            found.setdefault(drawn, set()).add(meaning(label))
    return found


def check_one_meaning_a_colour(
    figure: Any, meaning: Callable[[str], str] = lambda label: label
) -> None:
    """Raise AssertionError where a colour means two things, or a thing has two colours."""
    found = meanings(figure, meaning)
    assert found, "nothing is named"
    assert all(len(each) == 1 for each in found.values()), found
    assert len(set().union(*found.values())) == len(found), found
