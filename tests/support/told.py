"""What a person at a terminal would be told of, were it slow."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from ooc_cudnn import activity


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def labels_told(monkeypatch: pytest.MonkeyPatch, stream: Any = None) -> list[str]:
    """Make stderr a terminal, or this stream; return where labels of activities are added.

    Called by the test itself: pytest sets stderr anew between a fixture and its test.
    """
    monkeypatch.setattr(sys, "stderr", Terminal() if stream is None else stream)
    labels: list[str] = []
    begin = activity._line.begin

    def noted(begun: Any) -> bool:
        is_told = begin(begun)
        if is_told:
            labels.append(begun.label)
        return is_told

    monkeypatch.setattr(activity._line, "begin", noted)
    return labels
