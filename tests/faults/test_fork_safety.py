"""A forked child: it has none of its parent's threads, and finds every lock free."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import devices
from ooc_cudnn.devices import helpers
from ooc_cudnn.devices.host import blas
from ooc_cudnn.errors import DeviceUnavailableError
from perfmodel.cached import cached_property

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    # Python 3.12 and later: a fork beside threads may go wrong. That is what is tested.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]
SECONDS = 600


def in_child(work):
    """Run something in a forked child; return what it raised there, as text, or None."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        found = b""
        try:
            work()
        except BaseException:
            found = traceback.format_exc().encode()
        os.write(write, found)
        os._exit(0)
    os.close(write)
    deadline = time.monotonic() + SECONDS
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read)
            return "the child hangs"
        time.sleep(0.01)
    with os.fdopen(read, "rb") as stream:
        return stream.read().decode() or None


@pytest.fixture
def call(random, monkeypatch):
    """A call that is shared out to helper threads, and what it returns."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    x = random.standard_normal((2, 32, 64, 64)).astype(np.float32)
    w = random.standard_normal((32, 32, 3, 3)).astype(np.float32)

    def run(**settings):
        with ooc_cudnn.settings(memory_limit="2MiB", **settings):
            return ooc_cudnn.convolution_forward(x, w, padding=1)

    return run


@pytest.mark.parametrize("overlap", [True, False])
def test_a_child_calls_after_its_parent_did(call, overlap):
    expected = call(overlap=overlap)
    assert helpers.helpers._started > 0

    def work():
        assert helpers.helpers._started == 0
        for _ in range(2):
            assert np.array_equal(call(overlap=overlap), expected)
        assert helpers.helpers._started > 0

    assert in_child(work) is None
    assert np.array_equal(call(overlap=overlap), expected)


def test_a_child_of_a_child_calls_too(call):
    expected = call()

    def work():
        assert np.array_equal(call(), expected)
        assert in_child(lambda: np.testing.assert_array_equal(call(), expected)) is None

    assert in_child(work) is None


def test_multiprocessing_in_pythons_own_way(call):
    call()
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        found = pool.map_async(_sum_of_ones, [4, 5, 6]).get(timeout=SECONDS)
    assert found == [4 * 9, 5 * 9, 6 * 9]


def _sum_of_ones(channels):
    x, w = np.ones((1, channels, 3, 3), np.float32), np.ones((1, channels, 3, 3), np.float32)
    return int(ooc_cudnn.convolution_forward(x, w).sum())


def test_a_fork_while_another_thread_calls(call, host_device):
    """Its locks are held at that moment, its call at work, products made by one thread."""
    expected, entered, gate = call(), threading.Event(), threading.Event()

    def progress(done, total):
        entered.set()
        gate.wait(SECONDS)

    thread = threading.Thread(target=lambda: call(progress=progress))
    thread.start()
    try:
        assert entered.wait(SECONDS)
        assert host_device.arena.is_at_work

        def work():
            assert not host_device.arena.is_at_work
            assert blas._users == 0
            assert np.array_equal(call(), expected)

        assert in_child(work) is None
    finally:
        gate.set()
        thread.join()


def test_a_fork_inside_a_progress_callable(call):
    """What `multiprocessing` does there: the child runs its own work, and ends."""
    expected, found = call(), []

    def work():
        assert np.array_equal(call(progress=False), expected)  # or it would have a child, too

    def progress(done, total):
        if not found:
            found.append(in_child(work))

    assert np.array_equal(call(progress=progress), expected)
    assert found == [None]


class Gpu:
    """A device of which only the kind is asked."""

    kind, name = "cuda", "cuda:0"


@pytest.mark.parametrize("setting", ["cuda", "cuda:0", "cuda:1", "auto"])
def test_a_gpu_of_the_parent_is_refused_with_the_remedy(monkeypatch, setting):
    """Even "auto" does not turn to the host in silence: arrays on the card could not be read."""
    monkeypatch.setattr(devices, "_devices", devices._devices | {"cuda:0": Gpu()})
    monkeypatch.setattr(devices, "_resolved", {"auto": Gpu()})
    x = np.ones((1, 1, 3, 3), np.float32)

    def work():
        with (
            ooc_cudnn.settings(device=setting),
            pytest.raises(DeviceUnavailableError, match="spawn"),
        ):
            ooc_cudnn.convolution_forward(x, x)
        with ooc_cudnn.settings(device="host"):
            assert ooc_cudnn.convolution_forward(x, x).item() == 9
        ooc_cudnn.memory.release()

    assert in_child(work) is None


class Slow:
    """Has a property that takes as long as it is told."""

    def __init__(self, at_it=None, until=None):
        self.at_it, self.until = at_it, until

    @cached_property
    def value(self):
        if self.at_it is not None:
            self.at_it.set()
            self.until.wait(SECONDS)
        return 7


def test_a_child_computes_a_property_that_another_thread_was_at():
    """Python 3.11 held a lock of all instances meanwhile, and the child waited for it."""
    at_it, until = threading.Event(), threading.Event()
    slow = Slow(at_it, until)
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert at_it.wait(SECONDS)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        os._exit(0 if Slow().value == 7 else 1)
    _, status = os.waitpid(child, 0)
    until.set()
    thread.join()
    assert status == 0
    assert slow.value == 7


def test_no_property_of_ours_has_the_lock():
    """Every module takes the one that a forked child can use."""
    root = Path(ooc_cudnn.__file__).parents[1]
    for package in ("ooc_cudnn", "perfmodel"):
        for path in (root / package).rglob("*.py"):
            if path.name != "cached.py":
                assert "from functools import cached_property" not in path.read_text("utf-8"), path
