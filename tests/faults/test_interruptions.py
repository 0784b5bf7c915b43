"""Ctrl-C: at every point where Python may run its handler, once and twice; where it hung before.

After each the call has raised KeyboardInterrupt (or ended, if that came first), nothing of it is
left behind, its inputs are what they were, and the next call is right. `make faults` presses it at
every single point of a repeated call, and at hundreds of a first one. `tests.fuzz.interruptions`
presses Ctrl-C at random moments instead, as often as one likes.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import interrupts
from ooc_cudnn.devices.latch import Latch
from ooc_cudnn.devices.worker import WorkerRun
from ooc_cudnn.functions.call.call_cache import forget_calls
from ooc_cudnn.memory import pinned
from ooc_cudnn.pipeline import lookahead
from tests.fuzz import interruptions
from tests.support.left_behind import left_behind
from tests.support.points import Pressed

# The module, not the function of the same name.
settings_module = importlib.import_module("ooc_cudnn.settings")

LIMIT = "64KiB"


@pytest.fixture(autouse=True)
def as_python_has_it():
    """Ctrl-C raises KeyboardInterrupt, whatever runs the tests.

    Python drops what is raised in a callback of its garbage collector. Hypothesis has one, in
    which Ctrl-C would be lost: the tests run without.
    """
    before, callbacks = signal.signal(signal.SIGINT, signal.default_int_handler), gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks
    signal.signal(signal.SIGINT, before)


class Case:
    """A call of several pieces, and what it has to return."""

    def __init__(self, x=(4, 4, 24, 16), filters=5, **settings):
        random = np.random.default_rng(3)
        self.x = random.standard_normal(x).astype(np.float32)
        self.w = random.standard_normal((filters, x[1], 3, 3)).astype(np.float32)
        self.b = random.standard_normal(filters).astype(np.float32)
        self.kept = [each.copy() for each in (self.x, self.w, self.b)]
        self.settings = {"memory_limit": LIMIT} | settings
        self.before = None
        self.expected = self.call()

    def call(self):
        if self.before is not None:
            self.before()
        with ooc_cudnn.settings(**self.settings):
            return ooc_cudnn.convolution_add_activation_forward(
                self.x, self.w, self.b, padding=1, activation="relu"
            )

    def points(self):
        self.call()
        with Pressed() as none:
            self.call()
        return none.visited

    def press(self, at, again_after=-1):
        """Press Ctrl-C, and return what is wrong then."""
        try:
            with Pressed(at, again_after):
                self.call()
        except KeyboardInterrupt:
            pass
        wrong = left_behind()
        if not np.array_equal(self.call(), self.expected):
            wrong.append("the next call's result")
        for array, kept in zip((self.x, self.w, self.b), self.kept, strict=True):
            if not np.array_equal(array, kept):
                wrong.append("an input")
        return wrong


def sweep(case, presses, again_after=-1, *, least=1):
    """Press Ctrl-C at so many points of those `least` at least, evenly; with FAULTS=all at fifty
    times as many."""
    found, points = {}, case.points()
    assert points > least
    presses *= 50 if os.environ.get("FAULTS") == "all" else 1
    step = max(1, points // presses)
    for at in range(1, points + 1, step):
        if wrong := case.press(at, again_after):
            found[at] = wrong
    return found


@pytest.mark.parametrize("overlap", [True, False])
def test_at_every_point_of_a_repeated_call(overlap):
    assert not sweep(Case(overlap=overlap), 60, least=300)


def test_at_points_of_a_first_call():
    """Of a small call, cut as well: every point before Ctrl-C is traced, and planning has many."""
    case = Case((2, 2, 12, 8), 2, memory_limit="6KiB")
    case.before = forget_calls
    with ooc_cudnn.profile() as p:
        case.call()
    assert p.calls[0].plan.pieces > 1
    assert not sweep(case, 10, least=5000)


def test_a_second_time_while_the_first_is_seen_to():
    case = Case()
    for again_after in (1, 7, 40):
        assert not sweep(case, 15, again_after)


def test_with_a_result_on_the_device_and_arrays_dropped():
    """What counts arrays that are gone is no Python code that Ctrl-C could cut short."""
    case = Case(memory_limit="1MiB")

    def drop():
        array = ooc_cudnn.empty((4, 4))
        array[...] = 1
        with ooc_cudnn.settings(memory_limit=1):
            assert ooc_cudnn.placement(ooc_cudnn.empty((4, 4))) == "pinned"

    case.before = drop
    assert not sweep(case, 40)


def test_pinned_memory_comes_back_when_its_array_goes_while_ctrl_c_is_pressed(host_device):
    def drop():
        array = pinned.allocate(host_device, 100, None)
        del array

    with Pressed() as none:
        drop()
    for at in range(1, none.visited + 1):
        try:
            with Pressed(at):
                drop()
        except KeyboardInterrupt:
            pass
        assert left_behind() == []


def test_where_it_hung_before(monkeypatch):
    """KeyboardInterrupt in ``Condition.__enter__``, or out of a wait, held a lock workers need."""
    gate, entered = threading.Event(), threading.Condition.__enter__
    main = threading.get_ident()

    def interrupted(condition):
        caller = sys._getframe(1)
        names = set()
        while caller is not None:
            names.add(caller.f_code.co_name)
            caller = caller.f_back
        got = entered(condition)
        if threading.get_ident() == main and "synchronize" in names:
            raise KeyboardInterrupt
        return got

    run = WorkerRun(overlap=True)
    event = run.submit("compute", (), lambda _: gate.wait(600), signals=True)
    monkeypatch.setattr(threading.Condition, "__enter__", interrupted)
    timer = threading.Timer(0.2, gate.set)
    timer.start()
    run.synchronize(event)  # asks no condition, so nothing interrupts it
    monkeypatch.undo()
    run.finish()
    timer.join()


def test_a_latch_outlives_a_waiter_that_took_its_token():
    latch = Latch()
    latch.open()
    latch._tokens.get()  # and the thread is interrupted before it puts it back
    assert latch.wait(600)
    late = Latch()
    thread = threading.Thread(target=late.wait)
    thread.start()
    late.is_open = True  # and whoever took the token is gone
    thread.join(600)
    assert not thread.is_alive()


def test_signals_are_noted_and_heard_in_order():
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        with interrupts.defer_signals():
            signal.raise_signal(signal.SIGUSR1)
            assert heard == []
            with interrupts.defer_signals():
                interrupts.hear()
            assert heard == [signal.SIGUSR1]
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
        assert heard == [signal.SIGUSR1] * 3
        block = interrupts.defer_signals()
        block.__enter__()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            block.__exit__(None, None, None)
        interrupts.hear()  # the second was not kept for later
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_raises_at_once_leaves_no_block_open():
    """A signal that comes while handlers are replaced or put back finds one of the two."""

    def use():
        with interrupts.defer_signals():
            pass

    with Pressed() as none:
        use()
    for at in range(1, none.visited + 1):
        with pytest.raises(KeyboardInterrupt), Pressed(at):
            use()
        assert interrupts._active is None
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_are_left_alone():
    """Handlers run on the main thread: what another thread does there defers nothing."""
    opened = []

    def work():
        with interrupts.defer_signals():
            opened.append(interrupts._active)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert opened == [None]


def test_settings_let_go_of_lose_no_ctrl_c(capsys):
    """A ``__del__`` in Python swallowed it, with "Exception ignored in"."""

    def use():
        ooc_cudnn.settings(verify=0)
        with ooc_cudnn.settings(verify=0):
            pass
        gc.collect()

    use()
    with Pressed() as none:
        use()
    for at in range(1, none.visited + 1):
        with pytest.raises(KeyboardInterrupt), Pressed(at):
            use()
    assert capsys.readouterr().err == ""


def test_it_is_prompt(monkeypatch):
    """A call of many pieces is given up after the piece at work, not at its end."""
    monkeypatch.setattr(lookahead, "RUN_AHEAD_SECONDS", 0.0)  # the pieces take microseconds
    case, seen = Case(memory_limit="24KiB"), []

    def press(done, total):
        if not seen:
            signal.raise_signal(signal.SIGINT)
        seen.append((done, total))

    case.settings["progress"] = press
    with pytest.raises(KeyboardInterrupt):
        case.call()
    assert len(seen) == 1
    assert seen[0][1] > 10


def test_from_the_keyboard():
    """A process of its own, interrupted from outside while it computes, ends as Python's do."""
    code = """if True:
        import numpy, ooc_cudnn, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
        ooc_cudnn.settings(device="host", machine="host", memory_limit="256KiB")
        x, w = numpy.ones((64, 8, 64, 64), "f4"), numpy.ones((8, 8, 3, 3), "f4")
        ooc_cudnn.convolution_forward(x, w, padding=1)
        print("ready", flush=True)
        while True:
            ooc_cudnn.convolution_forward(x, w, padding=1)
    """
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert errors.rstrip().endswith(b"KeyboardInterrupt"), errors.decode()
    assert b"ignored" not in errors
    assert process.returncode in (-signal.SIGINT, 130)


def test_at_random_moments(tmp_path):
    arguments = ["--device", "host", "--count", "25", "--quick", "--output", str(tmp_path)]
    assert interruptions.main(arguments) == 0
    report = json.loads((tmp_path / "interruptions_host.json").read_text())
    assert report["verified"]
    assert report["claims"][0]["value"] == 25


@pytest.mark.parametrize("what", ["make", "enter", "leave"])
def test_a_settings_block_that_is_interrupted_leaves_nothing_set(what):
    """Ctrl-C at each point of making, entering and leaving a block: nothing of it stays.

    Not at the very beginning of entering and of leaving, where nothing in Python could help.
    """
    kept = settings_module.current().memory_limit
    at = 1 if what == "make" else 2
    while True:
        made = None if what == "make" else ooc_cudnn.settings(memory_limit=4321)
        if what == "leave":
            made.__enter__()
        heard = False
        pressed = Pressed(at)
        try:
            with pressed:
                if what == "make":
                    made = ooc_cudnn.settings(memory_limit=4321)
                elif what == "enter":
                    made.__enter__()
                else:
                    made.__exit__(None, None, None)
        except KeyboardInterrupt:
            heard = True
        if not heard:
            break
        made = None
        left, blocks = settings_module.current().memory_limit, settings_module._blocks.get()
        settings_module._forget()
        assert (left, blocks) == (kept, None), f"point {at}"
        at += 1
    settings_module._forget()
    assert at > 4
