"""Threads that do not start, and threads that call at once."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices.helpers import Helpers, helpers
from ooc_cudnn.devices.worker import WorkerRun
from ooc_cudnn.errors import DeviceUnavailableError, OocError
from tests.support.left_behind import left_behind


@pytest.fixture
def call(random, monkeypatch):
    """A call with three streams and helpers, and what it returns."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    x = random.standard_normal((2, 32, 64, 64)).astype(np.float32)
    w = random.standard_normal((32, 32, 3, 3)).astype(np.float32)

    def run(**settings):
        with ooc_cudnn.settings(**({"memory_limit": "2MiB"} | settings)):
            return ooc_cudnn.convolution_forward(x, w, padding=1)

    return run


class Starting:
    """Counts threads of the library that start, and refuses those from some number on."""

    def __init__(self, monkeypatch):
        self.asked, self.refused_from = 0, 10**9
        start = threading.Thread.start

        def counted(thread):
            if thread.name.startswith("ooc_cudnn"):
                at, self.asked = self.asked, self.asked + 1
                if at >= self.refused_from:
                    raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", counted)


def test_threads_that_do_not_start(monkeypatch, call):
    """The first three are streams, an error; then helpers, and the call does without them."""
    expected = call()
    starting = Starting(monkeypatch)
    helpers._forget()
    call()
    assert starting.asked > 3
    for at in range(starting.asked):
        helpers._forget()
        starting.asked, starting.refused_from = 0, at
        if at < 3:
            with pytest.raises(DeviceUnavailableError, match=r"no more threads.*overlap=False"):
                call()
        else:
            assert np.array_equal(call(), expected)
        starting.refused_from = 10**9
        assert left_behind() == []
        assert np.array_equal(call(), expected)


def test_without_overlap_no_thread_is_needed(monkeypatch, call):
    expected = call(overlap=False)
    starting = Starting(monkeypatch)
    helpers._forget()
    starting.refused_from = 0
    assert np.array_equal(call(overlap=False), expected)


@pytest.mark.parametrize("at", range(3))
def test_streams_that_started_end_if_another_does_not(monkeypatch, at):
    starting = Starting(monkeypatch)
    starting.refused_from = at
    with pytest.raises(OocError):
        WorkerRun(overlap=True)
    assert left_behind() == []


def test_shares_are_all_done_once_with_any_number_of_helpers():
    for most in (0, 1, 3, 8):
        made, done = Helpers(most), []
        made.share(done.append, 20)
        assert sorted(done) == list(range(20))


def test_an_error_of_a_share_is_raised_when_all_have_ended():
    made, ended = Helpers(3), []
    both = threading.Barrier(2, timeout=600)

    def work(at):
        if at < 2:
            both.wait()
        if at == 1:
            raise ValueError("of a share")
        ended.append(at)

    with pytest.raises(ValueError, match="of a share"):
        made.share(work, 2)
    assert ended == [0]


def test_eight_threads_call_at_once(random):
    """Each gets its own results, under one limit, whatever the others do."""
    x = random.standard_normal((8, 4, 6, 24, 16)).astype(np.float32)
    w = random.standard_normal((8, 5, 6, 3, 3)).astype(np.float32)

    def call(at, limit):
        with ooc_cudnn.settings(memory_limit=limit):
            y = ooc_cudnn.convolution_forward(x[at], w[at], padding=1)
            return np.array(ooc_cudnn.pooling_forward(y, window=2))

    limits = ["64KiB", "96KiB", "128KiB", "1MiB"]
    expected = [[call(at, limit) for limit in limits] for at in range(8)]
    wrong, together = [], threading.Barrier(8, timeout=600)

    def work(at):
        together.wait()
        for turn in range(12):
            limit = (at + turn) % len(limits)
            try:
                if not np.array_equal(call(at, limits[limit]), expected[at][limit]):
                    wrong.append((at, turn))
            except BaseException as error:
                wrong.append((at, turn, error))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert left_behind() == []
