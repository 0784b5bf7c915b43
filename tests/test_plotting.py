"""Pictures where matplotlib is missing, or draws no such file."""

import importlib.util

import numpy as np
import pytest

from ooc_cudnn.pipeline.trace import plot
from ooc_cudnn.plotting import (
    COLOURS,
    PART_COLOURS,
    STREAM_COLOURS,
    check_can_draw,
    panels,
    require_matplotlib,
)


def test_without_matplotlib_the_command_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for draw in (
        require_matplotlib,
        lambda: check_can_draw("never.png"),
        lambda: panels(1, 1, width=1, height=1),
        lambda: plot([], "never.png"),
    ):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'ooc_cudnn\[plot\]'"):
            draw()


def test_what_cannot_be_drawn_is_refused_before_time_is_spent(tmp_path):
    for name in ("plan.png", "plan.PDF", "plan"):
        check_can_draw(str(tmp_path / name))
    with pytest.raises(ValueError, match=r"a picture is no \.foo file; it may be .*png"):
        check_can_draw("plan.foo")
    with pytest.raises(ValueError, match=r"no \.pgf file"):
        check_can_draw("plan.pgf")
    for path in ("", ".", str(tmp_path)):
        with pytest.raises(ValueError, match="needs the name of a file"):
            check_can_draw(path)
    with pytest.raises(ValueError, match="there is no folder"):
        check_can_draw(str(tmp_path / "missing" / "plan.png"))


def test_no_two_colours_are_alike():
    colours = pytest.importorskip("matplotlib.colors")
    for palette in (COLOURS, [dark for dark, _ in {**STREAM_COLOURS, **PART_COLOURS}.values()]):
        drawn = np.array([colours.to_rgb(each) for each in dict.fromkeys(palette)])
        apart = np.linalg.norm(drawn[:, None] - drawn, axis=-1)
        assert apart[~np.eye(len(drawn), dtype=bool)].min() > 0.2
