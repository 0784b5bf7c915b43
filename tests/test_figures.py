"""Pictures where matplotlib is missing."""

import importlib.util

import pytest

from ooc_cudnn.figures import panels, require_matplotlib
from ooc_cudnn.pipeline.trace import plot


def test_without_matplotlib_the_command_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for draw in (
        require_matplotlib,
        lambda: panels(1, 1, width=1, height=1),
        lambda: plot([], "never.png"),
    ):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'ooc_cudnn\[plot\]'"):
            draw()
