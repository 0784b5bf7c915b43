"""What launches would compile is collected without launching, and compiled by several threads."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import compile_ahead, compiling, launch, relayout
from ooc_cudnn.devices.kernels.compile_ahead import collect, collected, compile_collected
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.settings import settings


@pytest.fixture
def card(monkeypatch):
    """A card whose compiler notes kernels and their threads, and whose kernels note launches."""
    made = SimpleNamespace(compiled=[], threads=set(), launched=[], used=[])
    known = {}

    def function(device, source, expression, nbytes=0):
        made.compiled.append((source, expression, nbytes))
        made.threads.add(threading.current_thread())
        known[device, source, expression] = True
        return lambda *args, stream: made.launched.append((source, expression))

    monkeypatch.setattr(compiling, "function", function)
    monkeypatch.setattr(compiling, "current_device", lambda: 0)
    monkeypatch.setattr(compiling, "_compiled", known)
    monkeypatch.setattr(launch, "_prepared", {})
    return made


def launched(expression):
    geometry = np.zeros(1, [("extent", "i8")])
    planned = launch.Launch("some.cu", expression, (1,), geometry)
    launch.launch(expression, [DeviceView(256, "float32", (4,), (1,))], lambda: planned, (), None)


def test_launches_are_collected_and_not_run(card):
    with collect() as made:
        for expression in ("one", "two", "one"):
            launched(expression)
        relayout.fill_zero(256, 64, 1, 64)
        inner = collected()
    assert inner is made
    assert collected() is None
    kernels = {("some.cu", "one"): 8, ("some.cu", "two"): 8}
    zeros = [name for name in made.kernels if name[0] == "relayout.cu"]
    assert made.kernels == kernels | dict.fromkeys(zeros, 0)
    assert len(zeros) == 1
    assert card.compiled == card.launched == []
    compile_collected(made, lambda: card.used.append(threading.current_thread()))
    assert {(source, name): nbytes for source, name, nbytes in card.compiled} == made.kernels
    assert threading.current_thread() not in card.threads
    assert card.threads <= set(card.used), "the device is current on each thread"
    launched("one")
    assert card.launched == [("some.cu", "one")]


def test_what_was_compiled_is_not_again(card):
    launched("one")
    launched("two")
    with collect() as made:
        launched("one")
        launched("two")
    compile_collected(made, lambda: None)
    assert len(card.compiled) == len(card.launched) == 2


def test_one_thread_builds_all_engines(card):
    """cuDNN's handle is one thread's at a time."""
    built, made = [], compile_ahead.Collected({("some.cu", "one"): 8})
    made.engines = {
        at: lambda at=at: built.append((at, threading.current_thread())) for at in range(5)
    }
    compile_collected(made, lambda: None)
    assert [at for at, _ in built] == [*range(5)]
    assert len({thread for _, thread in built}) == 1


def test_settings_of_the_caller_hold_in_threads_and_errors_reach_it(card, monkeypatch):
    seen = []

    def function(device, source, expression, nbytes=0):
        from ooc_cudnn.settings import current

        seen.append(current().memory_limit)
        raise RuntimeError("does not compile")

    monkeypatch.setattr(compiling, "function", function)
    made = compile_ahead.Collected({("some.cu", name): 8 for name in ("one", "two")})
    with settings(memory_limit="3GiB"), pytest.raises(RuntimeError, match="does not compile"):
        compile_collected(made, lambda: None)
    assert set(seen) == {3 * 2**30}
