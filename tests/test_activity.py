"""What goes on while nothing can be counted: a line on stderr, drawn by a thread that ends."""

from __future__ import annotations

import io
import math
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import activity as module
from ooc_cudnn import cli, progress
from ooc_cudnn.activity import activity, make_way, say
from ooc_cudnn.devices.kernels import compiling
from ooc_cudnn.pipeline.execute import Executor
from ooc_cudnn.progress import shows
from tests.support.told import Terminal, labels_told


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


@pytest.mark.usefixtures("_at_once", "few_plans")
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


@pytest.mark.usefixtures("_at_once")
def test_one_that_holds_the_line_tells_of_those_within(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_stderr(monkeypatch, Terminal())
    with activity("planning in blocks", "auto", holds_line=True):
        say("3 of 9")
        wait_for(terminal, "planning in blocks: 1 s, 3 of 9")
        with activity("planning forward", "auto"):
            wait_for(terminal, "planning in blocks: 1 s, 3 of 9; planning forward: 1 s")
            assert not shows("auto", math.inf)
            assert not shows(True, math.inf)
            assert shows(print, 0.0)  # a callable is told of calls as ever
    assert shows("auto", math.inf)
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().endswith("\n")


@pytest.mark.usefixtures("_at_once")
def test_a_line_is_no_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal = on_stderr(monkeypatch, Terminal())
    with activity("planning a step", "auto"):
        say("best so far 1.12 times all kept, of 99 plans")
        wait_for(terminal, "best so far")
    lines = terminal.getvalue().removesuffix("\n").split("\r")[1:]
    assert {len(line) for line in lines} == {39}  # the first one hides a bar that may stand there


@pytest.mark.usefixtures("_at_once")
def test_a_line_makes_way_for_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_stderr(monkeypatch, Terminal())
    make_way()
    with activity("measuring engines", "auto"):
        wait_for(terminal, "measuring")
        make_way()
        terminal.write("a table\n")
    assert "\na table\n" in terminal.getvalue()


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("setting", ["auto", False])
def test_a_first_run_is_told_of(monkeypatch: pytest.MonkeyPatch, setting: Any) -> None:
    terminal = on_stderr(monkeypatch, Terminal())
    real = Executor._issue

    def slow(*given: Any, **named: Any) -> Any:
        time.sleep(0.05)
        return real(*given, **named)

    monkeypatch.setattr(Executor, "_issue", slow)
    x = np.ones((2, 3, 9, 9), "f4")
    with ooc_cudnn.settings(progress=setting, device="host", machine="host"):
        for _ in range(3):
            ooc_cudnn.pooling_forward(x, window=3)
    expected = int(setting == "auto")
    assert terminal.getvalue().count("\n") == expected
    assert terminal.getvalue().count("pooling_forward, first run: 1 s") >= expected


def small_network() -> tuple[ooc_cudnn.Network, Any]:
    net = ooc_cudnn.Network(seed=0)
    h = net.input("images", (4, 3, 16, 16))
    for channels in (8, 8):
        h = net.activation(net.convolution(h, channels, window=3, padding=1))
    return net, net.mean_squared_error(h, net.input("y", h.shape))


def train() -> None:
    net, loss = small_network()
    given = {"images": np.ones((4, 3, 16, 16), "f4"), "y": np.ones((4, 8, 16, 16), "f4")}
    with ooc_cudnn.settings(memory_limit="96KiB"):
        net.training_step(loss)(**given)


def plan_with_bound() -> None:
    net, loss = small_network()
    net.plan(loss, memory_limit="96KiB", machine="h200", bound=True)


def run_a_command(*extra: str) -> None:
    small = ("network", "vgg16", "--batch", "1", "--image", "32", "--width", "0.0625")
    assert cli.main([*small, "--machine", "h200", *extra]) == 0


LONG: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "a step": (train, ("planning training_step", "training_step, first run")),
    "a plan": (plan_with_bound, ("planning training_step", "a lower bound for training_step")),
    "a command": (lambda: run_a_command("--limit", "4MiB"), ("planning training_step",)),
    "a sweep": (
        lambda: run_a_command("--sweep", "--limits", "0.8", "--policy", "keep"), ("plans of vgg16",)
    ),
}  # fmt: skip


@pytest.mark.usefixtures("few_plans")
@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("watched", ["terminal", "notebook"])
def test_long_things_are_told_of(kind: str, watched: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = labels_told(monkeypatch, io.StringIO() if watched == "notebook" else None)
    if watched == "notebook":
        monkeypatch.setattr(progress, "_in_notebook", lambda: True)
    run, labels = LONG[kind]
    with ooc_cudnn.settings(device="host", plan_cache=False, progress="auto"):
        run()
    assert set(labels) <= set(told)


@pytest.mark.usefixtures("few_plans")
@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize(("stream", "setting"), [(io.StringIO, "auto"), (Terminal, False)])
def test_long_things_are_silent_in_a_pipe_and_where_that_is_asked_for(
    kind: str, stream: Any, setting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = stream()
    told = labels_told(monkeypatch, written)
    with ooc_cudnn.settings(device="host", plan_cache=False, progress=setting):
        LONG[kind][0]()
    assert told == []
    assert written.getvalue() == ""


def test_compiling_a_kernel_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    told = labels_told(monkeypatch)
    fake = types.ModuleType("cupy")
    kernel = types.SimpleNamespace(kernel="the kernel")
    fake.RawModule = lambda **given: types.SimpleNamespace(  # type: ignore[attr-defined]
        get_function=lambda name: kernel
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(compiling, "_compiled", {})
    with ooc_cudnn.settings(progress="auto"):
        for _ in range(2):
            assert compiling.function(0, "pooling.cu", "tried") == "the kernel"
    assert told == ["compiling pooling.cu"]


def test_a_first_step_ends_with_a_line_of_what_was_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = on_stderr(monkeypatch, Terminal())
    net = ooc_cudnn.Network()
    x = net.input("x", (4, 3, 16, 16))
    loss = net.mean_squared_error(net.convolution(x, 3, window=3, padding=1), x)
    here = {"device": "host", "machine": "host", "memory_limit": "32KiB"}
    with ooc_cudnn.settings(**here, progress="auto"):
        step = net.training_step(loss)
        for _ in range(2):
            step(x=np.ones(x.shape, "float32"))
    said = stream.getvalue()
    assert said.count("training_step: first run after ") == 1
    assert step.plan is not None
    assert step.plan.decisions in said
    assert " of 32.00 KiB on the device" in said
    assert " kept (" in said
    quiet = on_stderr(monkeypatch, Terminal())
    with ooc_cudnn.settings(**here, progress=False):
        net.training_step(loss)(x=np.ones(x.shape, "float32"))
    assert not quiet.getvalue()


def test_a_pausing_step_says_so_behind_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = on_stderr(monkeypatch, io.StringIO())
    net = ooc_cudnn.Network()
    step = net.pausing_step(net.convolution(net.input("x", (2, 3, 8, 8)), 4, window=3))
    with ooc_cudnn.settings(device="host", machine="host", memory_limit="64KiB", progress=True):
        paused = step.forward(x=np.ones((2, 3, 8, 8), "float32"))
        assert "first run" not in stream.getvalue()
        paused.backward([np.ones_like(paused.outputs[0])])
    assert stream.getvalue().count("training_step: first run after ") == 1
