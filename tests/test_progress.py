"""Progress: which reporter is chosen, and what each shows."""

from __future__ import annotations

import importlib.util
import io
import sys
import time
import types
from typing import Any

import pytest

from ooc_cudnn import progress
from ooc_cudnn.progress import (
    CallableReporter,
    Reporter,
    TextReporter,
    TqdmReporter,
    reporter,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class BrokenPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def closed_stream() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


def as_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Called by the test itself: pytest sets stderr anew between a fixture and its test."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


@pytest.fixture
def without_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tqdm" else find(name)
    )


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = type("ZMQInteractiveShell", (), {})()
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ipywidgets" else find(name)
    )


def choose(setting: Any, predicted_seconds: float = 10.0) -> type[Reporter]:
    with reporter(
        setting, total=4, label="pooling_forward", predicted_seconds=predicted_seconds
    ) as chosen:
        return type(chosen)


def test_auto_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    as_terminal(monkeypatch)
    pytest.importorskip("tqdm")
    assert choose("auto", 2.01) is TqdmReporter
    assert choose("auto", float("inf")) is TqdmReporter
    for short in (0.0, 2.0, float("nan")):
        assert choose("auto", short) is Reporter


def test_auto_without_tqdm_shows_text(monkeypatch: pytest.MonkeyPatch, without_tqdm: None) -> None:
    terminal = as_terminal(monkeypatch)
    assert choose("auto", 2.0) is Reporter
    assert terminal.getvalue() == ""
    assert choose("auto") is TextReporter
    assert terminal.getvalue().startswith("\rpooling_forward [")


def test_auto_where_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (io.StringIO(), closed_stream(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert choose("auto") is Reporter


def test_auto_in_a_notebook(monkeypatch: pytest.MonkeyPatch, notebook: None) -> None:
    pytest.importorskip("tqdm")
    stream = io.StringIO()  # a notebook's stderr is no terminal
    monkeypatch.setattr(sys, "stderr", stream)
    assert choose("auto") is TqdmReporter
    assert "pooling_forward" in stream.getvalue()


def test_true_always_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with reporter(True, total=4, label="pooling_forward", predicted_seconds=0) as report:
        assert type(report) is TqdmReporter
        report.update(3)
        report.update(4)
    assert "pooling_forward: 100%" in stream.getvalue()
    assert "4/4" in stream.getvalue()


def test_true_without_tqdm_shows_text(monkeypatch: pytest.MonkeyPatch, without_tqdm: None) -> None:
    terminal = as_terminal(monkeypatch)
    with reporter(True, total=4, label="pooling_forward", predicted_seconds=0) as report:
        assert type(report) is TextReporter
        report.update(2)
    last = terminal.getvalue().rpartition("\r")[2]
    assert last.startswith(f"pooling_forward [{'#' * 15}{'.' * 15}]  50% ")
    assert last.endswith("\n")


@pytest.mark.parametrize(
    "stream", [None, closed_stream(), BrokenPipe()], ids=["none", "closed", "pipe"]
)
@pytest.mark.parametrize("has_tqdm", [True, False])
def test_bar_that_cannot_be_written_is_silent(
    stream: io.StringIO | None, has_tqdm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_has_tqdm", lambda: has_tqdm)
    monkeypatch.setattr(sys, "stderr", stream)
    with reporter(True, total=2, label="pooling_forward", predicted_seconds=0) as report:
        report.update(1)
        report.update(2)


def test_false_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    with reporter(False, total=4, label="pooling_forward", predicted_seconds=99) as report:
        report.update(4)
    assert type(report) is Reporter
    assert terminal.getvalue() == ""


def test_callable_gets_done_and_total_and_may_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    seen = []

    def stop_at_two(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 2:
            raise LookupError("enough")

    with reporter(stop_at_two, total=4, label="pooling_forward", predicted_seconds=99) as report:
        assert type(report) is CallableReporter
        report.update(1)
        with pytest.raises(LookupError, match="enough"):
            report.update(2)
    assert seen == [(1, 4), (2, 4)]
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("setting", ["yes", None, 1])
def test_anything_else_is_refused(setting: Any) -> None:
    with pytest.raises(TypeError, match="progress="):
        reporter(setting, total=4, label="pooling_forward", predicted_seconds=0)


@pytest.mark.parametrize("kind", [TextReporter, TqdmReporter])
def test_closed_on_error_where_it_stood_and_only_once(
    kind: type[TextReporter | TqdmReporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = as_terminal(monkeypatch)
    if kind is TqdmReporter:
        pytest.importorskip("tqdm")

    def interrupted(report: Reporter) -> None:
        with report:
            report.update(3)
            raise KeyboardInterrupt

    report = kind(10, "pooling_forward")
    with pytest.raises(KeyboardInterrupt):
        interrupted(report)
    shown = terminal.getvalue()
    assert "30" in shown
    assert "100" not in shown
    assert shown.endswith("\n")
    report.close()
    assert terminal.getvalue() == shown


def test_text_is_redrawn_ten_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with TextReporter(100, "pooling_forward") as report:
        for done in range(100):  # 10 ms a piece: a second in all
            now += 0.01
            report.update(done + 1)
    lines = terminal.getvalue().split("\r")[1:]
    assert 10 <= len(lines) <= 12
    assert "  0%" in lines[0]
    assert "100% 1.00 s" in lines[-1]


def test_text_of_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    TextReporter(0, "pooling_forward").close()
    assert "100%" in terminal.getvalue()
