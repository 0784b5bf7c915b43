"""What goes on while nothing can be counted: a line on stderr, drawn by a thread that ends."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import ooc_cudnn
from ooc_cudnn import activity as module
from ooc_cudnn.activity import activity, say


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "APPEARS_SECONDS", 0.0)
    monkeypatch.setattr(module, "REDRAWN_SECONDS", 0.01)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    end = time.monotonic() + 5
    while drawing() and time.monotonic() < end:
        time.sleep(0.01)
    assert not drawing()


def drawing() -> bool:
    return any(each.name == "ooc_cudnn activity" for each in threading.enumerate())


def wait_for(stream: io.StringIO, text: str) -> None:
    end = time.monotonic() + 10
    while text not in stream.getvalue() and time.monotonic() < end:
        time.sleep(0.01)
    assert text in stream.getvalue()


def on_stderr(monkeypatch: pytest.MonkeyPatch, stream: Any) -> Any:
    """Called by the test itself: pytest sets stderr anew between a fixture and its test."""
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


@pytest.mark.usefixtures("_at_once")
def test_a_line_says_what_goes_on_and_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_stderr(monkeypatch, Terminal())
    with activity("planning a step", "auto"):
        wait_for(terminal, "\rplanning a step: ")
        say("best so far 1.12 times all kept")
        wait_for(terminal, ", best so far 1.12 times all kept")
    assert terminal.getvalue().endswith("s, best so far 1.12 times all kept\n")
    before = terminal.getvalue()
    say("nothing goes on")
    time.sleep(0.05)
    assert terminal.getvalue() == before


@pytest.mark.usefixtures("_at_once")
def test_the_innermost_has_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_stderr(monkeypatch, Terminal())
    with activity("planning a step", "auto"):
        wait_for(terminal, "planning")
        with activity("timing convolutions", "auto"):
            say("3 timed")
            wait_for(terminal, "timing convolutions")
        say("done")
        wait_for(terminal, "done")
    lines = terminal.getvalue().split("\n")
    last = [line.rpartition("\r")[2].split(":")[0] for line in lines if line]
    assert last == ["planning a step", "timing convolutions", "planning a step"]


def test_what_is_short_is_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_stderr(monkeypatch, Terminal())
    with activity("planning a step", "auto"):
        pass
    assert terminal.getvalue() == ""


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize(
    ("setting", "stream"),
    [("auto", io.StringIO()), (False, Terminal()), (lambda done, total: None, Terminal())],
    ids=["nobody watches", "off", "callable"],
)
def test_nothing_is_said_unasked(
    setting: Any, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_stderr(monkeypatch, stream)
    with activity("planning a step", setting):
        assert not drawing()
        time.sleep(0.05)
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("_at_once")
def test_another_thread_has_no_line_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_stderr(monkeypatch, Terminal())

    def tell() -> None:
        with activity("planning another one", True):
            say("from there")
            time.sleep(0.05)

    with activity("planning a step", True):
        other = threading.Thread(target=tell)
        other.start()
        other.join()
        wait_for(terminal, "planning a step")
    assert "another" not in terminal.getvalue()
    assert "from there" not in terminal.getvalue()


@pytest.mark.usefixtures("_at_once")
def test_it_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_stderr(monkeypatch, Terminal())

    def plan() -> None:
        with activity("planning a step", "auto"):
            wait_for(terminal, "planning a step")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        plan()
    assert terminal.getvalue().endswith("\n")


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("stream", [None, "closed"])
def test_what_cannot_be_written_disturbs_nothing(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stream == "closed":
        stream = io.StringIO()
        stream.close()
    on_stderr(monkeypatch, stream)
    with activity("planning a step", True):
        time.sleep(0.05)


@pytest.mark.usefixtures("_at_once")
def test_planning_a_step_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_stderr(monkeypatch, Terminal())
    net = ooc_cudnn.Network(seed=0)
    h = net.input("images", (8, 3, 32, 32))
    for channels in (8, 16, 16):
        h = net.activation(net.convolution(h, channels, window=3, padding=1))
    loss = net.mean_squared_error(h, net.input("labels", h.shape))
    with ooc_cudnn.settings(progress="auto", plan_cache=False):
        net.plan(loss, memory_limit=2**19)
    assert "planning training_step: " in terminal.getvalue()
    assert " times all kept" in terminal.getvalue()
