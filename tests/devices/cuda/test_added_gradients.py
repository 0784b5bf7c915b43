"""A data gradient that is added to another one: by one graph of cuDNN, or by a pass after it."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from ooc_cudnn.devices.convolution_forms import KINDS
from ooc_cudnn.devices.engine_kinds import CheckedKind, problems
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.errors import CudnnError
from ooc_cudnn.operations.convolution.data_gradient import DataGradientCall, is_added_at_once
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_gradients import FusedGradientCall
from ooc_cudnn.operations.convolution.gradients import (
    AddedBackwardData,
    ConvolutionBackwardData,
    input_shapes,
)
from ooc_cudnn.operations.core.pointwise import Pointwise
from ooc_cudnn.pipeline.exactness import ExpectedResult
from ooc_cudnn.tensor import packed_strides
from perfmodel import ComputeModel, Line
from tests.support.engines_device import EnginesDevice
from tests.support.every_split import check_every_split, rounded
from tests.support.fake_cudnn import FakeEngine
from tests.support.fake_runtime import Stream

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

SHAPES = (2, 8, 7, 5), (16, 8, 3, 3)


def convolution(dtype="bfloat16", shapes=SHAPES, **options):
    return Convolution.of(*shapes, **{"padding": 1, "dtype": dtype, **options})


def launched(call, layout="channels_last"):
    orders = dict.fromkeys(call.operands, layout)
    launches, _ = call.launches(call.whole_piece(), layout=layout, orders=orders)
    return [type(launch.operation) for launch in launches]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_where_it_is_one_launch(dtype):
    def call(beta=1.0, alpha=1.0, **options):
        return DataGradientCall(convolution(dtype, **options), alpha=alpha, beta=beta)

    apart = [ConvolutionBackwardData, Pointwise]
    assert launched(call()) == [AddedBackwardData]
    assert launched(call(), "channels_first") == apart
    assert launched(call(beta=0.0)) == apart[:1]
    for other in (call(beta=0.5), call(alpha=2.0)):
        assert launched(other) == apart
    assert launched(call(shapes=((2, 8, 7, 5), (16, 4, 3, 3)), groups=2)) == apart
    assert launched(call(shapes=((2, 12, 7, 5), (16, 12, 3, 3)))) == apart
    for wide in ("float32", "float64"):
        assert not is_added_at_once(convolution(wide, allow_tf32=False), "channels_last")


def test_behind_an_activation_it_is_one_launch():
    call = FusedGradientCall(convolution(), "relu", 0.0, beta=1.0)
    assert AddedBackwardData in launched(call)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_under_every_split(random, dtype):
    """Pieces of cY are summed in float32, and the sum is added, as ever."""
    forward = convolution(dtype)
    w, w64 = rounded(random.standard_normal(forward.w_shape) / 5, dtype)
    dy, dy64 = rounded(random.standard_normal(forward.output_shape), dtype)
    dx = torch.nn.grad.conv2d_input(
        forward.x_shape, torch.tensor(w64), torch.tensor(dy64), padding=1
    )
    old, _ = rounded(random.standard_normal(forward.x_shape), dtype)
    size = np.full(forward.x_shape, np.abs(w64).max() * np.abs(dy64).max() * 16 * 9)
    check_every_split(DataGradientCall(forward, beta=1.0), {"w": w, "dy": dy},
                      {"dx": dx.numpy()}, sizes={"dx": size}, old={"dx": old},
                      terms=8, most=20)  # fmt: skip


def test_it_is_rounded_once():
    """1 and a sum of 2**-8 and 2**-16: rounded before they are added, they would be 1."""
    forward = convolution(shapes=((1, 8, 1, 1), (8, 8, 1, 1)), padding=0)
    w, dy = np.zeros(forward.w_shape), np.zeros(forward.output_shape)
    w[0], w[1] = 2.0**-8, 2.0**-16
    dy[:, :2], dx = 1.0, np.ones(forward.x_shape)
    found = AddedBackwardData(forward, "bfloat16").reference(w, dy, dx)
    assert (rounded(found, "bfloat16")[1] == 1 + 2.0**-7).all()


def test_its_seconds_are_those_of_the_gradient_where_it_was_not_measured():
    forward = replace(convolution(), layout="channels_last")
    alone = ConvolutionBackwardData(forward, "bfloat16").work()
    added = AddedBackwardData(forward, "bfloat16").work()
    model = ComputeModel({
        alone.key: Line(1e-12, 0.0),
        "convolution/bfloat16/channels_last": Line(1e-9, 0.0),
    })  # fmt: skip
    assert model.nearest_key(added.key) == alone.key
    assert added.kind != alone.kind
    none = replace(forward, x_shape=(2, 8, 1, 5), padding=((0, 0), (1, 1)))
    with pytest.raises(ValueError, match="nothing to add"):
        AddedBackwardData(none, "bfloat16").work()


def test_engines_are_checked_for_it_with_small_problems():
    forward = replace(convolution(), layout="channels_last")
    kind = CheckedKind.of(AddedBackwardData(forward, "bfloat16"))
    (small,) = problems(kind)
    assert isinstance(small, AddedBackwardData)
    assert CheckedKind.of(small) == kind
    assert len(input_shapes(small)) == 3
    assert KINDS[kind.function] is AddedBackwardData
    expected = ExpectedResult.of(small)
    right = small.reference(*expected.inputs)
    assert expected.compared(right).is_admitted
    assert not expected.compared(small.alone.reference(*expected.inputs[:2])).is_admitted


def last(array):
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)).transpose(0, 3, 1, 2)


def view(array):
    strides = packed_strides(array.shape, "channels_last")
    return DeviceView(array.ctypes.data, array.dtype.name, array.shape, strides)


@pytest.mark.parametrize("way", ["fuses", "declines", "fails", "fails without room"])
def test_by_one_graph_or_in_two(random, monkeypatch, way):
    engine = FakeEngine(3, 0.0, workspace=64)
    device = EnginesDevice([engine], monkeypatch, fuses=way != "declines")
    forward = replace(convolution("float32"), layout="channels_last")
    operation = AddedBackwardData(forward, "float32")
    w, dy, old = (
        last(random.standard_normal(shape).astype("f4")) for shape in input_shapes(operation)
    )
    room = 0 if way == "fails without room" else operation.alone_bytes + 256
    scratch = np.zeros(64 + room, np.uint8)
    convolutions, seen = device.convolutions, []
    launch_plan = convolutions._launch
    if way.startswith("fails"):  # with a third input alone

        def launch(found, inputs, output, pointer, stream):
            engine.fails = len(inputs) == 3
            seen.append(len(inputs))
            launch_plan(found, inputs, output, pointer, stream)

        monkeypatch.setattr(convolutions, "_launch", launch)
    place = scratch.ctypes.data, scratch.nbytes
    dx = old.copy("K")  # in place
    raises = pytest.raises(CudnnError, match="bytes of workspace")
    with warnings.catch_warnings(), nullcontext() if room else raises:
        warnings.simplefilter("ignore")  # of the engine that failed
        convolutions.run(operation, (view(w), view(dy), view(dx)), view(dx), place, Stream(0))
    if not room:
        assert np.array_equal(dx, old)
        return
    expected = operation.reference(w, dy, old)
    assert np.abs(dx - expected).max() <= 1e-5 * np.abs(expected).max()
    if way == "fails":
        assert seen == [3, 2]
