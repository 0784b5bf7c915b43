"""A run whose steps are issued on the caller's thread: what it waits for, and when."""

import sys
import threading
from concurrent.futures import Future

import pytest

from ooc_cudnn.devices.cuda.run import CudaRun, StagedCudaRun, follow_last_run, identity_of
from tests.support.fake_runtime import Stream, fake_cupy


class Device:
    """Streams that do their work at once."""

    def __init__(self):
        self.events = [], []
        self.copy_streams = Stream(1), Stream(3)
        self.last_compute = None
        if "cupy" in sys.modules:
            self.runtime = sys.modules["cupy"].cuda.runtime


@pytest.fixture
def log(monkeypatch):
    """What is asked of the driver, in order."""
    asked = []
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(asked))
    return asked


def opened():
    return CudaRun(Device(), Stream(2), overlap=True, timed=False)


def test_a_copy_waits_for_nothing_that_the_run_computes_without_being_told(log):
    run = opened()
    run.submit("compute", (), lambda stream: log.append("computed"), signals=False)
    run.submit("copy_in", (), lambda stream: log.append("copied"), signals=False)
    assert log == [("record", 2), "computed", "copied"]


@pytest.mark.parametrize("wait", [True, False])
def test_who_does_not_wait_waits_until_the_callers_memory_was_read(log, wait):
    run = opened()
    run.submit("copy_in", (), lambda stream: None, signals=False)
    run.note_read("copy_in")
    assert log[-1] == ("record", 1)
    read = run._read
    run.submit("compute", (), lambda stream: None, signals=False)
    run.finish(wait=wait)
    assert (("wait for", read) in log) is not wait
    assert (("synchronize", 2) in log) is wait


def futures(count):
    return [Future() for _ in range(count)]


def resolved_later(future):
    timer = threading.Timer(0.05, future.set_result, (None,))
    timer.start()
    return timer


def test_what_is_staged_out_holds_nothing_up_until_the_end(log):
    run, written = opened(), Future()
    run.submit("copy_out", (), lambda stream: written, signals=True)
    run.submit("copy_in", (), lambda stream: None, signals=True)
    assert not written.done()
    resolved_later(written)
    run.finish(wait=True)
    assert written.done()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("kind", [CudaRun, StagedCudaRun])
@pytest.mark.parametrize("way", ["copy_in", "copy_out"])
def test_what_a_task_left_is_written_before_another_one_takes_it(log, way, kind, overlap):
    device = Device()
    device.use = lambda: None
    run, first, last, seen = kind(device, Stream(2), overlap=overlap, timed=False), *futures(2), []
    run.submit("copy_out", (), lambda stream: first, signals=False)
    left = run.submit("copy_out", (), lambda stream: last, signals=True)
    last.set_result(None)
    timer = resolved_later(first)
    run.submit(way, (left,), lambda stream: seen.append(first.done()), signals=False)
    run.finish(wait=True)
    timer.join()
    assert seen == [True]


def test_what_the_device_itself_leaves_is_there_before_a_thread_reads_it(log):
    run = opened()
    left = run.submit("copy_out", (), lambda stream: None, signals=True)
    log.clear()
    run.submit("copy_in", (left,), lambda stream: log.append("read"), signals=False)
    assert log.index(("wait for", left.stop)) < log.index("read")


def test_what_is_staged_in_is_on_its_stream_before_its_event(log):
    run, staged = opened(), Future()
    log.clear()
    staged.add_done_callback(lambda _: log.append("staged"))
    resolved_later(staged)
    run.submit("copy_in", (), lambda stream: staged, signals=True)
    assert log.index("staged") < len(log) - 1
    assert log[-1] == ("record", 1)


def test_the_end_raises_what_a_writing_thread_met(log):
    run, written = opened(), Future()
    run.submit("copy_out", (), lambda stream: written, signals=True)
    written.set_exception(OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        run.finish(wait=True)


def test_a_run_that_is_cancelled_leaves_no_thread_writing(log):
    run, written = opened(), Future()
    run.submit("copy_out", (), lambda stream: written, signals=False)
    resolved_later(written)
    run.cancel()
    assert written.done()
    assert ("synchronize", 3) in log


class Waiting(Device):
    """A device that notes which streams wait for which events."""

    def __init__(self):
        super().__init__()
        self.waits = []
        self.runtime = self

    def streamWaitEvent(self, stream, event):
        self.waits.append((stream, event))


def test_memory_goes_to_another_stream_behind_the_last_run_alone():
    device, first, second = Waiting(), Stream(7), Stream(8)
    follow_last_run(device, first)
    device.last_compute = identity_of(first), "its end"
    follow_last_run(device, first)
    assert not device.waits
    follow_last_run(device, second)
    assert device.waits == [(8, "its end")]


def test_the_per_thread_stream_of_another_thread_is_another_stream():
    device, stream = Waiting(), Stream(2)  # cudaStreamPerThread
    thread = threading.Thread(
        target=lambda: setattr(device, "last_compute", (identity_of(stream), "its end"))
    )
    thread.start()
    thread.join()
    follow_last_run(device, stream)
    assert device.waits == [(2, "its end")]
    device.last_compute = identity_of(stream), "mine"
    follow_last_run(device, stream)
    assert len(device.waits) == 1
