"""A convolution, its bias and its ReLU as one launch: by one graph, or the one after the other."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import FusedConvolution, is_faster_fused
from ooc_cudnn.operations.core.pointwise import Pointwise
from ooc_cudnn.operations.elementwise.activation import Activation
from ooc_cudnn.operations.elementwise.binary import AddTensor
from ooc_cudnn.tensor import packed_strides
from tests.support.engines_device import EnginesDevice
from tests.support.every_split import check_every_split, rounded
from tests.support.fake_cudnn import FakeEngine
from tests.support.fake_runtime import Stream

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")


def chain_of(dtype="float32", mode="relu", **scales):
    convolution = Convolution.of((2, 3, 7, 5), (4, 3, 3, 3), padding=1, dtype=dtype)
    shape = convolution.output_shape
    operations = [convolution, AddTensor(shape, dtype)]
    if mode:
        operations.append(Activation(shape, mode, 0.0, dtype))
    return Chain(tuple(operations), dtype, **scales)


def launched(chain, layout="channels_last"):
    orders = dict.fromkeys(chain.operands, layout)
    launches, _ = chain.launches(chain.whole_piece(), layout=layout, orders=orders)
    return [type(launch.operation) for launch in launches]


def test_where_it_is_one_launch():
    for mode in ("relu", ""):
        assert launched(chain_of(mode=mode)) == [FusedConvolution]
    apart = [Convolution, Pointwise]
    assert launched(chain_of(mode="tanh")) == apart
    assert launched(chain_of(), "channels_first") == apart
    assert launched(chain_of("float64")) == apart
    assert launched(chain_of(alpha=2.0)) == apart
    assert launched(chain_of("float16")) == [FusedConvolution]
    assert launched(chain_of("bfloat16")) == apart  # three channels


@pytest.mark.parametrize(
    ("channels", "groups", "faster"),
    [(3, 1, "tf32 float16 float32"), (16, 1, "tf32 float16 bfloat16"), (12, 3, "tf32 float16"),
     (64, 16, "tf32 float16 bfloat16"), (64, 64, "")],
)  # fmt: skip
def test_what_a_card_was_faster_at(channels, groups, faster):
    """Images' channels, depthwise windows, and what tensor cores take whole."""
    found = []
    for precision in ("tf32", "float16", "bfloat16", "float32", "float64"):
        made = Convolution.of(
            (2, channels, 9, 9), (64 // groups * groups, channels // groups, 3, 3), groups=groups,
            dtype="float32" if precision == "tf32" else precision, allow_tf32=precision == "tf32",
        )  # fmt: skip
        assert made.precision == precision
        if is_faster_fused(made, "channels_last"):
            found.append(precision)
            assert not is_faster_fused(replace(made, x_shape=(2, channels, 3, 3)), "channels_last")
    assert found == faster.split()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_under_every_split(random, dtype):
    """Sums over pieces of cX are passed over afterwards, as ever."""
    x, x64 = rounded(random.standard_normal((2, 3, 7, 5)), dtype)
    w, w64 = rounded(random.standard_normal((4, 3, 3, 3)) / 5, dtype)
    b, b64 = rounded(random.standard_normal(4), dtype)
    y = torch.nn.functional.conv2d(*map(torch.tensor, (x64, w64, b64)), padding=1)
    size = 2 * np.abs(x64).max() * np.abs(w64).max() * 27
    wide = 1 if dtype == "float32" else 2.0**14  # it is rounded before the bias is added
    check_every_split(chain_of(dtype), {"x": x, "w": w, "b": b},
                      {"y": torch.relu(y).numpy()}, sizes={"y": np.full(y.shape, size)},
                      terms=8 * wide, most=20)  # fmt: skip


def view(array, layout="channels_last"):
    strides = packed_strides(array.shape, layout) if array.ndim > 1 else (1,)
    return DeviceView(array.ctypes.data, array.dtype.name, array.shape, strides)


def last(array):
    """The same numbers with channels last."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("mode", ["relu", "identity"])
@pytest.mark.parametrize("way", ["fuses", "declines", "fails"])
def test_by_one_graph_or_in_two(random, monkeypatch, way, mode):
    engine = FakeEngine(3, 0.0, workspace=64)
    device = EnginesDevice([engine], monkeypatch, fuses=way != "declines")
    convolution = Convolution.of((2, 3, 7, 5), (4, 3, 3, 3), padding=1)
    operation = FusedConvolution(replace(convolution, layout="channels_last"), mode)
    x, w = (last(random.standard_normal(s).astype("f4")) for s in ((2, 3, 7, 5), (4, 3, 3, 3)))
    b, y = random.standard_normal(4).astype("f4"), last(np.full((2, 4, 7, 5), np.nan, "f4"))
    scratch = np.zeros(1024, np.uint8)
    convolutions, seen = device.convolutions, []
    launched = convolutions._launch
    if way == "fails":  # with a bias alone

        def launch(found, inputs, output, pointer, stream):
            engine.fails = len(inputs) == 3
            seen.append(len(inputs))
            launched(found, inputs, output, pointer, stream)

        monkeypatch.setattr(convolutions, "_launch", launch)
    operands, room = (view(x), view(w), view(b)), (scratch.ctypes.data, scratch.nbytes)
    for once in range(2):
        y[...] = np.nan
        says = way == "fails" and not once
        with pytest.warns(UserWarning, match="eng3, fused failed") if says else nullcontext():
            convolutions.run(operation, operands, view(y), room, Stream(0))
        expected = operation.reference(x, w, b)
        assert np.abs(y - expected).max() <= 1e-5 * np.abs(expected).max()
    if way == "fails":
        assert seen == [3, 2, 2], "what failed is not tried again"
    assert engine.launched == 2
