"""The CUDA kernels, against NumPy in float64.

Outputs are filled with NaN (or a pattern) before each run, and every byte of an operand's memory
that its view does not cover must come back unchanged.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import launch, launch_geometry
from ooc_cudnn.devices.kernels.convolution_direct import run as run_direct
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.devices.kernels.pointwise import pointwise
from ooc_cudnn.devices.kernels.relayout import fill_zero, relayout
from ooc_cudnn.devices.kernels.spin import spin
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.core.activation_modes import MODES
from ooc_cudnn.tensor import ACCUMULATOR
from tests.support import activation_modes
from tests.support.card import ON_CARD, cupy
from tests.support.device_operand import DTYPES, EPSILON, NUMPY, Operand, assert_close, random

COEFFICIENTS = {"clipped_relu": 1.5, "elu": 0.7, "swish": 1.3, "leaky_relu": 0.1}


def channel_vector(values, dtype, offset=0):
    device = cupy.asarray(
        np.concatenate([np.zeros(offset), values]).astype(NUMPY[dtype]).view(np.uint8)
    )
    view = DeviceView(device.data.ptr + offset * NUMPY[dtype].itemsize, dtype, (len(values),), (1,))
    wide = np.asarray(values).astype(NUMPY[dtype]).astype(np.float64)
    return SimpleNamespace(device=device, view=view, wide=wide)


def along_channels(vector, rank):
    return vector.reshape(1, -1, *([1] * (rank - 2)))


def check_pointwise(
    value, destination, *, addend=None, scale=None, shift=None, old=None, alpha=1.0, beta=0.0,
    mode="identity", dtype=None, stream=None,
):  # fmt: skip
    """Run the kernel and compare with the formula in float64."""
    rank = len(value.view.shape)
    coef = COEFFICIENTS.get(mode)
    with np.errstate(all="ignore"):
        x = value.wide
        if addend is not None:
            x = x + addend.wide
        size = np.abs(x)
        if scale is not None:
            x = x * along_channels(scale.wide, rank)
            size = size * np.abs(along_channels(scale.wide, rank))
        if shift is not None:
            x = x + along_channels(shift.wide, rank)
            size = size + np.abs(along_channels(shift.wide, rank))
        reference = alpha * activation_modes.MODES[mode].value(x, coef)
        size = (size + 1) * abs(alpha) * 1.5
        if beta:
            reference = reference + beta * old.wide
            size = size + np.abs(beta * old.wide)
    pointwise(
        destination.view,
        value.view,
        addend=addend and addend.view,
        scale=scale and scale.view,
        shift=shift and shift.view,
        old=old and old.view,
        alpha=alpha,
        beta=beta,
        mode=mode,
        coef=coef,
        dtype=dtype,
        stream=stream,
    )
    real = ACCUMULATOR[destination.view.dtype]
    size[~np.isfinite(size)] = 0
    assert_close(destination.result(), reference, destination.view.dtype, 8 * EPSILON[real] * size)


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("dtype", DTYPES)
def test_pointwise_modes_in_place(dtype, mode, layout):
    shape = (2, 16, 6, 8)
    data = 3 * random(shape)
    data[0, 0, 0, :6] = np.nan, np.inf, -np.inf, 0.0, -0.0, 1e4
    data[1, 3, 2, 1] = -1e4
    x = Operand(shape, dtype, layout, data=data)
    scale = channel_vector(random(16, 1), dtype)
    shift = channel_vector(random(16, 2), dtype)
    # finite where x is not: infinity minus infinity would test nothing
    check_pointwise(x, x, scale=scale, shift=shift, alpha=0.5, mode=mode)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_propagates_and_infinity_saturates(dtype):
    data = np.array([np.nan, np.inf, -np.inf, -1.0, 2.0]).reshape(1, 5, 1)
    expected = {
        "relu": [np.nan, np.inf, 0, 0, 2],
        "clipped_relu": [np.nan, 1.5, 0, 0, 1.5],
        "sigmoid": [np.nan, 1, 0, 1 / (1 + math.e), 1 / (1 + math.exp(-2))],
        "tanh": [np.nan, 1, -1, math.tanh(-1), math.tanh(2)],
        "elu": [np.nan, np.inf, -0.7, 0.7 * math.expm1(-1), 2],
        "leaky_relu": [np.nan, np.inf, -np.inf, -0.1, 2],
    }
    for mode, values in expected.items():
        x = Operand((1, 5, 1), dtype, data=data)
        pointwise(x.view, x.view, mode=mode, coef=COEFFICIENTS.get(mode))
        real = ACCUMULATOR[dtype]
        assert_close(x.result().ravel(), np.array(values), dtype, 4 * EPSILON[real])


MIXED = [
    ("float16", "float32", "float16"),
    ("float16", "float16", "float32"),
    ("float16", "float32", "float32"),
    ("bfloat16", "float32", "bfloat16"),
    ("float16", "float16", "float16"),
    ("float32", "float32", "float32"),
    ("float64", "float64", "float64"),
]


@pytest.mark.parametrize("layout", ["first", "last", "first_rows", "last_rows"])
@pytest.mark.parametrize(("dtype", "value_dtype", "destination_dtype"), MIXED)
def test_pointwise_all_terms_and_types(dtype, value_dtype, destination_dtype, layout):
    shape = (2, 24, 5, 16)
    real = ACCUMULATOR[dtype]
    value = Operand(shape, value_dtype, layout, data=random(shape, 1))
    addend = Operand(shape, real, layout, data=random(shape, 2))
    old = Operand(shape, destination_dtype, layout, data=random(shape, 3))
    fresh = Operand(shape, destination_dtype, layout)
    scale = channel_vector(random(24, 4), dtype)
    shift = channel_vector(random(24, 5), dtype)
    terms = {"scale": scale, "shift": shift, "addend": addend, "mode": "relu", "dtype": dtype}
    check_pointwise(value, fresh, old=old, alpha=0.75, beta=-1.5, **terms)
    check_pointwise(value, old, old=old, alpha=0.75, beta=-1.5, **terms)  # over the old values
    if destination_dtype == real:  # over the partial sum
        check_pointwise(value, addend, **terms)


SHAPES = [
    (1, 1, 1, 1), (2, 3, 5, 7), (1, 33, 1, 1), (5, 1, 1, 1), (3, 64, 7, 7), (2, 1, 9, 9),
    (2, 130, 3, 5), (1, 5, 1000), (2, 3, 4, 5, 6), (70_000, 2, 3, 1), (1, 2, 66_000, 1),
    (2, 2, 20_001, 1), (1, 3, 100, 100), (2, 320, 2, 2),
]  # fmt: skip


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    "layouts",
    ["first first", "last last", "first_rows first", "last last_rows", "first last"],
)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pointwise_shapes_and_layouts(shape, dtype, layouts, offset):
    layout, other = layouts.split()
    value = Operand(shape, dtype, layout, data=random(shape), offset=offset)
    destination = Operand(shape, dtype, other)
    shift = channel_vector(random(shape[1], 1), dtype, offset=offset)
    check_pointwise(value, destination, shift=shift, mode="relu")
    check_pointwise(value, value, mode="relu")


def test_old_is_not_read_when_beta_is_zero():
    shape = (1, 4, 5)
    value = Operand(shape, "float32", data=random(shape))
    destination = Operand(shape, "float32")  # all NaN
    pointwise(destination.view, value.view, old=destination.view, beta=0.0, mode="tanh")
    assert_close(destination.result(), np.tanh(value.wide), "float32", 1e-6)


def test_half_overflows_to_infinity_and_keeps_nan_free():
    value = Operand((1, 2, 2), "float32", data=np.array([[[7e4, -7e4], [6e4, 1e-8]]]))
    destination = Operand((1, 2, 2), "float16")
    pointwise(destination.view, value.view)
    assert destination.result().ravel().tolist() == [np.inf, -np.inf, 6e4, 0.0]


def test_arguments_that_would_be_ignored_are_refused():
    x = Operand((1, 2, 3), "float32", data=random((1, 2, 3)))
    with pytest.raises(ValueError, match="no old"):
        pointwise(x.view, x.view, beta=1.0)
    with pytest.raises(ValueError, match="needs coef"):
        pointwise(x.view, x.view, mode="elu")
    with pytest.raises(ValueError, match="takes no coef"):
        pointwise(x.view, x.view, mode="relu", coef=1.0)


def test_empty_tensors_do_nothing():
    empty = DeviceView(0, "float32", (0, 2, 3), (6, 3, 1))
    pointwise(empty, empty)
    relayout(empty, empty)
    fill_zero(0, 0, 5, 16)
    convolution_direct(empty, DeviceView(0, "float32", (2, 2, 1), (2, 1, 1)), empty)


def test_work_goes_to_the_stream_given():
    stream = cupy.cuda.Stream(non_blocking=True)
    shape = (4, 8, 1000)
    x = Operand(shape, "float32", data=random(shape))
    y = Operand(shape, "float32", "last")
    stream.wait_event(cupy.cuda.get_current_stream().record())
    pointwise(x.view, x.view, mode="relu", stream=stream)
    relayout(y.view, x.view, stream)
    stream.synchronize()
    assert_close(y.result(), np.maximum(x.wide, 0), "float32")


# -- relayout -----------------------------------------------------------------------------------

RELAYOUT_SHAPES = [
    (2, 1, 5, 7), (2, 3, 5, 7), (1, 3, 200, 33), (3, 5, 64, 1), (2, 32, 16, 16), (1, 33, 9, 9),
    (2, 64, 20, 10), (1, 100, 7, 7), (2, 130, 1, 3), (1, 257, 2, 2), (3, 2, 3000), (1, 48, 4, 5, 6),
    (2, 64, 1, 1), (67, 3, 5, 7), (128, 1, 6, 6), (64, 40, 3, 3), (37, 131, 3, 1),
    (300, 2, 2, 2, 3), (1, 5, 4, 4), (0, 3, 4, 4), (3, 64, 5, 1), (2, 37, 13, 13), (3, 67, 67, 1),
]  # fmt: skip
LAYOUTS = ["first", "last", "images", "first_rows", "last_rows", "images_rows"]


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", RELAYOUT_SHAPES, ids=str)
def test_relayout_moves_every_bit(shape, dtype, offset):
    bits = np.random.default_rng(0).integers(0, 256, (math.prod(shape), NUMPY[dtype].itemsize))
    data = bits.astype(np.uint8).view(NUMPY[dtype]).reshape(shape)  # NaN payloads among them
    for source, target in itertools.product(LAYOUTS, repeat=2):
        value = Operand(shape, dtype, source, data=data, offset=offset)
        destination = Operand(shape, dtype, target)
        relayout(destination.view, value.view)
        result = np.ascontiguousarray(destination.result()).view(np.uint8)
        assert np.array_equal(result, np.ascontiguousarray(data).view(np.uint8)), (source, target)


@pytest.mark.parametrize(("channels", "tile_bytes"), [(32, 4096), (64, 8192)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_relayout_is_right_for_any_tile(dtype, channels, tile_bytes, monkeypatch):
    monkeypatch.setattr(launch_geometry, "TRANSPOSE_CHANNELS", channels)
    monkeypatch.setattr(launch_geometry, "TRANSPOSE_TILE_BYTES", tile_bytes)
    launch._prepared.clear()
    for shape in [(2, 192, 40, 8), (1, 3, 2000), (2, 100, 7, 12), (1, 131, 131), (130, 3, 70)]:
        data = random(shape)
        for source, target in itertools.permutations(("first", "last", "images"), 2):
            value = Operand(shape, dtype, source, data=data)
            destination = Operand(shape, dtype, target)
            relayout(destination.view, value.view)
            assert np.array_equal(destination.result(), value.array), (shape, source)
    launch._prepared.clear()


def test_relayout_between_strides_that_are_contiguous_nowhere():
    data = random((2, 4, 6))
    value = Operand((2, 8, 12), "float32", data=random((2, 8, 12)))
    n, c, s = value.view.strides
    every_other = DeviceView(value.view.pointer, "float32", (2, 4, 6), (n, 2 * c, 2 * s))
    destination = Operand(data.shape, "float32", "last")
    relayout(destination.view, every_other)
    assert np.array_equal(destination.result(), value.array[:, ::2, ::2])


@pytest.mark.parametrize(
    ("offset", "width", "count", "pitch"),
    [(0, 64, 5, 256), (16, 48, 7, 80), (2, 6, 3, 10), (1, 3, 4, 7), (8, 8, 9, 24), (0, 4096, 1, 0),
     (0, 32, 4, 32), (3, 1, 1, 1)],
)  # fmt: skip
def test_fill_zero(offset, width, count, pitch):
    memory = np.random.default_rng(0).integers(1, 256, offset + width * count + pitch * count + 99)
    memory = memory.astype(np.uint8)
    device = cupy.asarray(memory)
    fill_zero(device.data.ptr + offset, width, count, pitch)
    for row in range(count):
        memory[offset + row * pitch : offset + row * pitch + width] = 0
    assert np.array_equal(cupy.asnumpy(device), memory)


# -- convolution --------------------------------------------------------------------------------


def convolution_direct(x, w, y, *, padding=0, stride=1, dilation=1, groups=1):
    """Convolve views; after the last row there are as many zero rows as y asks for."""
    outputs = y.shape[2:]
    padding, stride, dilation = (
        (option,) * len(outputs) if isinstance(option, int) else option
        for option in (padding, stride, dilation)
    )
    pairs = tuple(
        (p, (o - 1) * s + (k - 1) * d + 1 - p - extent)
        for p, o, s, k, d, extent in zip(
            padding, outputs, stride, w.shape[2:], dilation, x.shape[2:], strict=True
        )
    )
    operation = Convolution(x.shape, w.shape, pairs, stride, dilation, groups, x.dtype, y.dtype)
    assert operation.output_shape == y.shape
    run_direct(operation, Call((x, w), y))


def reference_convolution(x, w, outputs, padding, stride, dilation, groups):
    """One tap at a time, in float64, on x padded with zeros as far as the outputs reach."""
    axes = len(outputs)
    reach = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in
             zip(outputs, stride, w.shape[2:], dilation, strict=True)]  # fmt: skip
    after = [max(r - p - e, 0) for r, p, e in zip(reach, padding, x.shape[2:], strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *zip(padding, after, strict=True)])
    n, channels = x.shape[:2]
    k = w.shape[0]
    y = np.zeros((n, k, *outputs))
    for tap in itertools.product(*map(range, w.shape[2:])):
        cut = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s)
            for t, d, o, s in zip(tap, dilation, outputs, stride, strict=True)
        )
        window = padded[(slice(None), slice(None), *cut)]
        for g in range(groups):
            cs = slice(g * channels // groups, (g + 1) * channels // groups)
            ks = slice(g * k // groups, (g + 1) * k // groups)
            y[:, ks] += np.einsum("nc...,kc->nk...", window[:, cs], w[(ks, slice(None), *tap)])
    assert axes == y.ndim - 2
    return y


CONVOLUTIONS = {
    "3x3": ((2, 5, 9, 8), (7, 5, 3, 3), 1, 1, 1, 1, (9, 8)),
    "1x1": ((2, 5, 3, 3), (4, 5, 1, 1), 0, 1, 1, 1, (3, 3)),
    "stride": ((1, 3, 17, 15), (8, 3, 5, 3), (2, 0), (3, 2), 1, 1, (6, 7)),
    "dilation": ((1, 4, 20, 20), (5, 4, 3, 3), (4, 1), 1, (3, 5), 1, (22, 12)),
    "groups": ((2, 6, 7, 7), (9, 2, 3, 3), 1, 1, 1, 3, (7, 7)),
    "many per group": ((1, 4, 6, 6), (70, 2, 3, 3), 1, 1, 1, 2, (6, 6)),
    "depthwise": ((2, 37, 8, 8), (37, 1, 3, 3), 1, 2, 1, 37, (4, 4)),
    "1d": ((3, 4, 50), (6, 4, 7), 3, 2, 1, 1, (25,)),
    "3d": ((1, 3, 5, 6, 7), (4, 3, 3, 2, 3), (1, 0, 1), (1, 2, 1), 1, 1, (5, 3, 7)),
    "beyond": ((1, 2, 4, 4), (3, 2, 3, 3), (5, 1), 1, 1, 1, (14, 9)),
}


@pytest.mark.parametrize("layouts", ["first first first", "last last last", "first_rows last last"])
@pytest.mark.parametrize("case", list(CONVOLUTIONS))
@pytest.mark.parametrize(
    ("dtype", "y_dtype"),
    [("float16", "float16"), ("float16", "float32"), ("bfloat16", "bfloat16"),
     ("float32", "float32"), ("float64", "float64")],
)  # fmt: skip
def test_convolution_direct(dtype, y_dtype, case, layouts):
    x_shape, w_shape, padding, stride, dilation, groups, outputs = CONVOLUTIONS[case]
    x_layout, w_layout, y_layout = layouts.split()
    x = Operand(x_shape, dtype, x_layout, data=random(x_shape, 1))
    w = Operand(w_shape, dtype, w_layout, data=random(w_shape, 2))
    y = Operand((x_shape[0], w_shape[0], *outputs), y_dtype, y_layout)
    convolution_direct(
        x.view, w.view, y.view, padding=padding, stride=stride, dilation=dilation, groups=groups
    )

    def each(option):
        return (option,) * len(outputs) if isinstance(option, int) else option

    options = (each(padding), each(stride), each(dilation), groups)
    reference = reference_convolution(x.wide, w.wide, outputs, *options)
    size = reference_convolution(np.abs(x.wide), np.abs(w.wide), outputs, *options)
    real = ACCUMULATOR[dtype]
    assert_close(y.result(), reference, y_dtype, 8 * EPSILON[real] * size)


def test_convolution_direct_on_columns_cut_off_the_rows():
    shape = (2, 3, 6, 9)
    x = Operand(shape, "float32", data=random(shape, 1))
    w = Operand((4, 3, 3, 3), "float32", data=random((4, 3, 3, 3), 2))
    y = Operand((2, 4, 4, 5), "float32")
    cut = DeviceView(x.view.pointer + 4, "float32", (2, 3, 6, 7), x.view.strides)
    convolution_direct(cut, w.view, y.view)
    reference = reference_convolution(x.wide[..., 1:8], w.wide, (4, 5), (0, 0), (1, 1), (1, 1), 1)
    assert_close(y.result(), reference, "float32", 1e-4)


# -- beyond 2**31 elements ----------------------------------------------------------------------

HASH = """
    unsigned long long h = (unsigned long long)i * 0x9E3779B97F4A7C15ULL;
    y = (unsigned short)(h >> 40) & mask
"""


def hashed(count, mask):
    """`count` device words whose value follows from their index, and that function on the host."""
    memory = cupy.empty(count, np.uint16)
    cupy.ElementwiseKernel("uint16 mask", "uint16 y", HASH, "hash_index")(np.uint16(mask), memory)

    def word(index):
        with np.errstate(over="ignore"):
            product = index.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return (product >> np.uint64(40)).astype(np.uint16) & np.uint16(mask)

    return memory, word


def sample(count):
    index = np.random.default_rng(0).integers(0, count, 200_000)
    edges = np.concatenate(
        [np.arange(5000), count - 1 - np.arange(5000), 2**31 - 50 + np.arange(99)]
    )
    return np.concatenate([index, edges])


@pytest.mark.parametrize("layout", ["first", "last"])
def test_pointwise_beyond_two_to_the_31(layout):
    n, c, s = 1, 2, 1_100_000_003
    if cupy.cuda.runtime.memGetInfo()[0] < 3 * n * c * s:
        pytest.skip("needs 6.6 GB of device memory")
    memory, word = hashed(n * c * s, 0x3BFF)  # float16 in [0, 1)
    strides = (c * s, s, 1) if layout == "first" else (c * s, 1, c)
    view = DeviceView(memory.data.ptr, "float16", (n, c, s), strides)
    shift = channel_vector(np.array([-0.5, 0.25]), "float16")
    pointwise(view, view, shift=shift.view, mode="relu")
    index = sample(n * c * s)
    channel = index // s if layout == "first" else index % c
    before = word(index).view(np.float16).astype(np.float64)
    reference = np.maximum(before + shift.wide[channel], 0)
    result = cupy.asnumpy(memory[cupy.asarray(index)]).view(np.float16)
    assert_close(result, reference, "float16")


@pytest.mark.parametrize("first_to_last", [True, False])
def test_relayout_beyond_two_to_the_31(first_to_last):
    c, s = 64, 2**25 + 3
    if cupy.cuda.runtime.memGetInfo()[0] < 5 * c * s:
        pytest.skip("needs 11 GB of device memory")
    source, word = hashed(c * s, 0xFFFF)
    target = cupy.zeros(c * s, np.uint16)
    first = (c * s, s, 1)
    last = (c * s, 1, c)
    to, of = (last, first) if first_to_last else (first, last)
    relayout(
        DeviceView(target.data.ptr, "float16", (1, c, s), to),
        DeviceView(source.data.ptr, "float16", (1, c, s), of),
    )
    index = sample(c * s)
    channel, place = (index % c, index // c) if first_to_last else (index // s, index % s)
    came_from = channel * of[1] + place * of[2]
    assert np.array_equal(cupy.asnumpy(target[cupy.asarray(index)]), word(came_from))


@pytest.mark.skipif(not ON_CARD, reason="looks at the card's clock")
@pytest.mark.parametrize("seconds", [5e-4, 4e-3])
def test_a_stream_is_held_for_so_long(seconds):
    stream = cupy.cuda.Stream(non_blocking=True)
    spin(1e-6, stream)  # compiles
    began, ended = cupy.cuda.Event(), cupy.cuda.Event()
    began.record(stream)
    spin(seconds, stream)
    ended.record(stream)
    ended.synchronize()
    assert seconds <= cupy.cuda.get_elapsed_time(began, ended) / 1e3 < seconds + 2e-3
