"""Streams made of threads: order, waits, errors, cancelling."""

from __future__ import annotations

import threading
import time

import pytest

from ooc_cudnn.devices.base import STREAMS
from ooc_cudnn.devices.worker import WorkerRun

HANG = 600  # seconds, after which a test that would never end fails

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.mark.parametrize("overlap", [True, False])
def test_actions_of_a_stream_run_in_order_with_its_handle(overlap):
    run, seen = WorkerRun(overlap=overlap, handles={s: s.upper() for s in STREAMS}), []
    for index in range(50):
        stream = STREAMS[index % 3]
        run.submit(stream, (), lambda handle, i=index: seen.append((handle, i)), signals=False)
    run.finish(wait=True)
    for number, stream in enumerate(STREAMS):
        mine = [i for handle, i in seen if handle == stream.upper()]
        assert mine == list(range(number, 50, 3))
    if not overlap:
        assert [i for _, i in seen] == list(range(50))


def test_overlap_really_overlaps():
    """Two streams meet at a barrier: one by one, they would never."""
    run, barrier = WorkerRun(overlap=True), threading.Barrier(2, timeout=HANG)
    for stream in STREAMS[:2]:
        run.submit(stream, (), lambda handle: barrier.wait(), signals=False)
    run.finish()


def test_without_overlap_everything_runs_on_the_callers_thread():
    run, threads = WorkerRun(overlap=False), []
    run.submit("compute", (), lambda _: threads.append(threading.current_thread()), signals=True)
    assert threads == [threading.current_thread()]
    run.finish()


def test_waits():
    run, seen = WorkerRun(overlap=True), []

    def slow(handle):
        time.sleep(0.05)
        seen.append("first")

    first = run.submit("copy_in", (), slow, signals=True)
    second = run.submit("compute", (first,), lambda _: seen.append("second"), signals=True)
    run.submit("copy_out", (first, second), lambda _: seen.append("third"), signals=True)
    run.finish()
    assert seen == ["first", "second", "third"]
    assert 0 <= first.interval[0] < first.interval[1] <= second.interval[0]
    assert first.interval[1] - first.interval[0] >= 0.05


def test_synchronize_waits_for_one_step():
    run, gate = WorkerRun(overlap=True), threading.Event()
    first = run.submit("copy_in", (), lambda _: None, signals=True)
    run.submit("compute", (), lambda _: gate.wait(HANG), signals=True)
    run.synchronize(first)
    assert first.done.is_open
    gate.set()
    run.finish()


@pytest.mark.parametrize("stream", STREAMS)
def test_the_first_error_stops_the_run(stream):
    run, after = WorkerRun(overlap=True), []

    def fail(handle):
        raise ValueError("the first")

    bad = run.submit(stream, (), fail, signals=True)
    later = [
        run.submit(each, (bad,), lambda _: after.append(1), signals=True)
        for each in STREAMS
        for _ in range(5)
    ]
    with pytest.raises(ValueError, match="the first"):
        run.synchronize(later[-1])
    with pytest.raises(ValueError, match="the first"):
        run.finish()
    run.cancel()
    assert not after


def test_cancel_drops_what_has_not_started():
    run, gate, seen = WorkerRun(overlap=True), threading.Event(), []
    started = threading.Event()

    def hold(handle):
        started.set()
        gate.wait(HANG)
        seen.append("held")

    held = run.submit("copy_in", (), hold, signals=True)
    for _ in range(100):
        run.submit("copy_in", (), lambda _: seen.append("dropped"), signals=False)
        run.submit("compute", (held,), lambda _: seen.append("dropped"), signals=False)
    started.wait(HANG)

    def release():
        while not run._stopped:
            time.sleep(0.001)
        gate.set()

    releasing = threading.Thread(target=release)
    releasing.start()
    run.cancel()
    releasing.join()
    # What had started ended; nothing else ran.
    assert seen == ["held"]
    run.cancel()


def test_an_interrupt_inside_an_action_reaches_the_caller():
    run = WorkerRun(overlap=True)

    def interrupt(handle):
        raise KeyboardInterrupt

    run.submit("compute", (), interrupt, signals=False)
    with pytest.raises(KeyboardInterrupt):
        run.finish()


def test_prepare_runs_first_on_each_thread():
    seen = []
    run = WorkerRun(overlap=True, prepare=lambda: seen.append(threading.current_thread().name))
    run.finish()
    assert sorted(seen) == sorted(f"ooc_cudnn {stream}" for stream in STREAMS)


def test_prepare_that_fails_is_an_error_not_a_hang():
    def fail():
        raise OSError("no device")

    run = WorkerRun(overlap=True, prepare=fail)
    event = run.submit("compute", (), lambda _: None, signals=True)
    with pytest.raises(OSError, match="no device"):
        run.synchronize(event)
    with pytest.raises(OSError, match="no device"):
        run.finish()
