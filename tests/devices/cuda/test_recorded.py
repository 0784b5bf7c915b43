"""A run that is recorded as a CUDA graph: what is asked of the driver, and when."""

import gc
import sys
import types
import weakref

import pytest

from ooc_cudnn.devices.cuda import cuda_graphs
from ooc_cudnn.devices.cuda.cuda_graphs import CudaGraph
from ooc_cudnn.devices.cuda.run import identity_of
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.errors import InternalError
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.tensor import packed_strides
from tests.support.engines_device import EnginesDevice
from tests.support.fake_cudnn import FakeEngine
from tests.support.fake_runtime import Stream, fake_cupy
from tests.support.tuned import W, X


class Device:
    """A card on which each stream waits, records and is captured by name."""

    def __init__(self, monkeypatch):
        self.asked, self.events, self.last_compute = [], ([], []), None
        self.copy_streams = Stream("theirs"), Stream("theirs, too")
        self.users = Stream("user")
        cupy = fake_cupy(self.asked)
        self.runtime = cupy.cuda.runtime
        vars(self.runtime).update(
            streamWaitEvent=lambda stream, event: self.asked.append(("wait", stream)),
            streamBeginCapture=lambda stream, mode: self.asked.append(("begin", stream)),
            streamEndCapture=lambda stream: self.asked.append(("end", stream)) or "graph",
            graphInstantiate=lambda graph: "instance of " + graph,
            graphDestroy=lambda graph: self.asked.append(("destroy", graph)),
            graphExecDestroy=lambda graph: self.asked.append(("destroy", graph)),
            CUDARuntimeError=type("CUDARuntimeError", (RuntimeError,), {}),
            graphLaunch=lambda graph, stream: self.asked.append(("launch", graph, stream)),
        )
        cupy.cuda.get_current_stream = lambda: self.users
        cupy.cuda.Stream = types.SimpleNamespace
        monkeypatch.setitem(sys.modules, "cupy", cupy)

    def use(self):
        pass


@pytest.fixture
def device(monkeypatch):
    return Device(monkeypatch)


OWN = [Stream("compute"), Stream("in"), Stream("out")]


def two_steps(run):
    copied = run.submit("copy_in", (), lambda stream: None, signals=True)
    run.submit("compute", (copied,), lambda stream: None, signals=False)


def test_steps_are_recorded_on_streams_of_their_own(device):
    CudaGraph(device, OWN, two_steps, overlap=True)
    assert device.asked[:6] == [
        ("begin", "compute"), ("record", "compute"),
        ("wait", "in"), ("record", "in"),  # behind the beginning; and its end
        ("wait", "compute"), ("record", "in"),  # the copies are joined
    ]  # fmt: skip
    assert ("end", "compute") in device.asked
    assert device.last_compute is None  # nothing has run


def test_it_is_launched_behind_the_last_run_and_is_the_last(device):
    graph = CudaGraph(device, OWN, two_steps, overlap=True)
    device.last_compute = identity_of(Stream("another")), "its end"
    device.asked.clear()
    graph.launch()
    assert device.asked == [
        ("wait", "user"), ("launch", "instance of graph", "user"), ("record", "user")
    ]  # fmt: skip
    assert device.last_compute[0] == identity_of(device.users)
    graph.launch()
    graph.wait()
    assert device.asked[-1] == ("synchronize", "user")


def reading(run):
    run.submit("copy_in", (), lambda stream: None, signals=False)
    run.note_read("copy_in")
    run.submit("compute", (), lambda stream: None, signals=False)


def test_each_launch_tells_when_the_callers_memory_was_read(device, monkeypatch):
    recorded = []

    def record(event, stream):
        recorded.append((event, stream))
        return 0

    monkeypatch.setattr(cuda_graphs, "record_external", record)
    graph = CudaGraph(device, OWN, reading, overlap=True)
    ((event, stream),) = recorded
    assert stream == "in"
    graph.launch()
    graph.wait_until_read()
    assert device.asked[-1] == ("wait for", event)
    asked = [*device.asked]
    CudaGraph(device, OWN, two_steps, overlap=True).wait_until_read()  # reads nothing of theirs
    assert [each for each in device.asked if each[0] == "wait for"] == asked[-1:]


def test_a_driver_that_cannot_tell_records_nothing(device, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "record_external", lambda event, stream: 801)
    with pytest.raises(device.runtime.CUDARuntimeError):
        CudaGraph(device, OWN, reading, overlap=True)
    assert ("destroy", "graph") in device.asked


def test_it_goes_with_the_last_who_holds_it(device):
    graph = CudaGraph(device, OWN, two_steps, overlap=True)
    assert ("destroy", "graph") in device.asked
    del graph
    assert device.asked[-1] == ("destroy", "instance of graph")


def test_what_it_needs_is_kept_as_long_as_it_is(device, random, monkeypatch):
    """A plan of cuDNN takes its kernels along, and other engines may be chosen in the meantime."""
    card = EnginesDevice([FakeEngine(3, 0.0)], monkeypatch)
    x, w, y = (random.standard_normal(shape).astype("f4") for shape in (X.shape, W.shape, X.shape))
    views = [
        DeviceView(each.ctypes.data, "float32", each.shape, packed_strides(each.shape))
        for each in (x, w, y)
    ]

    def run(stream):
        operation = Convolution.of(X.shape, W.shape, padding=1)
        card.convolutions.run(operation, tuple(views[:2]), views[2], (0, 0), Stream(0))

    def issue(recording):
        recording.submit("compute", (), run, signals=False)

    with card.convolutions.collect_plans() as plans:
        graph = CudaGraph(device, OWN, issue, overlap=True, needs=plans)
    (plan,) = plans
    plan = weakref.ref(plan.graph)
    del plans
    run(None)  # nobody collects it any longer
    card.convolutions._forget_choices()
    gc.collect()
    assert plan() is not None
    del graph
    gc.collect()
    assert plan() is None


def test_a_copy_that_is_staged_is_refused_and_recording_ends(device):
    def issue(run):
        run.submit("copy_in", (), lambda stream: "a future", signals=False)

    with pytest.raises(InternalError, match="staged"):
        CudaGraph(device, OWN, issue, overlap=True)
    assert device.asked[-2:] == [("end", "compute"), ("destroy", "graph")]


@pytest.mark.parametrize("joined", [True, False], ids=["joined", "unjoined"])
def test_what_ends_a_recording_is_heard(device, joined):
    """Streams that were not joined make the end of a recording fail, too: Ctrl-C came first."""
    error = device.runtime.CUDARuntimeError

    def end(stream):
        device.asked.append(("end", stream))
        if not joined:
            raise error("unjoined")
        return "graph"

    device.runtime.streamEndCapture = end

    def issue(run):
        run.submit("copy_in", (), lambda stream: None, signals=True)
        raise KeyboardInterrupt

    free = len(device.events[0])
    with pytest.raises(KeyboardInterrupt):
        CudaGraph(device, OWN, issue, overlap=True)
    assert ("end", "compute") in device.asked
    assert (("destroy", "graph") in device.asked) == joined
    assert len(device.events[0]) == free + 2  # that of the beginning, and the copy's
