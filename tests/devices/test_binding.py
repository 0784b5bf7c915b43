"""What a launch is handed is what it was built for, or it does not run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ooc_cudnn.devices.binding import bind, declare_buffers
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.errors import InternalError
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import ConvolutionBackwardData
from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.operations.core.pointwise import Relayout

CONVOLUTION = Convolution.of((2, 3, 6, 5), (4, 3, 1, 1), stride=2)
LAUNCH = Launch(CONVOLUTION, ("x", "w"), "y")
BUFFERS = {
    "x": Buffer((2, 3, 6, 5), "float32", "channels_first"),
    "w": Buffer((4, 3, 1, 1), "float32", "channels_first"),
    "y": Buffer((2, 4, 3, 3), "float32", "channels_first"),
}


class Recorder:
    """A device that notes what it is to run."""

    def __init__(self):
        self.ran = []

    def run(self, launch, views, workspace, stream):
        self.ran.append((launch, views, workspace, stream))


def views(**changes):
    found = {
        name: DeviceView(4096, made.dtype, made.shape, made.strides)
        for name, made in BUFFERS.items()
    }
    return found | {name: replace(found[name], **change) for name, change in changes.items()}


def bound(device, views):
    return bind(device, (LAUNCH,), declare_buffers((LAUNCH,), BUFFERS), views, (0, 0))


def test_what_fits_runs_on_the_stream():
    device, given = Recorder(), views()
    run = bound(device, given)
    assert not device.ran
    run("stream")
    assert device.ran == [(LAUNCH, given, (0, 0), "stream")]


@pytest.mark.parametrize(
    "change",
    [
        {"strides": (108, 36, 5, 1)},  # six of seven rows
        {"strides": (90, 1, 15, 3)},
        {"shape": (2, 3, 5, 5)},
        {"dtype": "float64"},
        {"pointer": 4104},
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_before_anything_runs(change):
    with pytest.raises(InternalError, match=r"x as float32 .* fault of ooc_cudnn"):
        bound(Recorder(), views(x=change))


def test_strides_that_are_never_taken_are_made_those_that_it_was_built_for():
    device = Recorder()
    bound(device, views(w={"strides": (3, 1, 99, 7)}))(None)
    assert device.ran == [(LAUNCH, views(), (0, 0), None)]


def rows(start, of, shape=(2, 3, 6, 5)):
    return Buffer(shape, "float32", "channels_first", "block", (start, of))


def test_rows_of_a_taller_tensor_start_where_the_tensor_is_aligned():
    made = {"from": rows(3, 9), "to": BUFFERS["x"]}
    launch = Launch(Relayout((2, 3, 6, 5), "float32"), ("from",), "to")
    built_for = declare_buffers((launch,), made)
    given = {
        "from": DeviceView(
            4096 + made["from"].offset_bytes, "float32", (2, 3, 6, 5), (135, 45, 5, 1)
        ),
        "to": views()["x"],
    }
    bind(Recorder(), (launch,), built_for, given, (0, 0))
    given["from"] = replace(given["from"], pointer=4096)
    with pytest.raises(InternalError, match="60 bytes after an aligned address"):
        bind(Recorder(), (launch,), built_for, given, (0, 0))


@pytest.mark.parametrize(
    "x",
    [
        rows(0, 9),
        rows(3, 6),
        BUFFERS["x"]._replace(order="channels_last"),
        BUFFERS["x"]._replace(dtype="float16"),
        BUFFERS["x"]._replace(shape=(2, 3, 5, 5)),
    ],
    ids=str,
)
def test_a_graph_is_of_packed_tensors(x):
    with pytest.raises(InternalError, match="convolution_forward is built for a packed"):
        declare_buffers((LAUNCH,), {**BUFFERS, "x": x})


def test_the_result_of_a_gradient_is_checked_too():
    launch = Launch(ConvolutionBackwardData(CONVOLUTION, "float64"), ("w", "y"), "x")
    with pytest.raises(InternalError, match="float64 tensor"):
        declare_buffers((launch,), BUFFERS)
