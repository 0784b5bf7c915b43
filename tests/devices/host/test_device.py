"""The host as a device: its contract, copies, elementwise passes, memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ooc_cudnn.devices import get_device, loaded_devices
from ooc_cudnn.devices.host import chunks
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.core.activation_modes import MODES
from ooc_cudnn.operations.core.launch import Launch
from ooc_cudnn.operations.core.pointwise import Pointwise, Relayout
from ooc_cudnn.operations.elementwise.activation import check_mode
from ooc_cudnn.tensor import packed_strides
from tests.support import reference


def view(array, dtype=None):
    return DeviceView(
        array.__array_interface__["data"][0],
        dtype or array.dtype.name,
        array.shape,
        tuple(s // array.itemsize for s in array.strides),
    )


def test_one_device_of_a_name(host_device):
    assert get_device("host") is host_device
    assert host_device in loaded_devices()
    assert host_device.kind == "host"
    assert host_device.identity()["numpy"] == np.__version__
    assert host_device.free_bytes() > 2**20
    assert set(host_device.layouts("float32")) == {"channels_first", "channels_last"}


@pytest.mark.parametrize("index", [
    (slice(None),) * 3,
    (slice(None, None, -1), slice(None), slice(None, None, 2)),
    (slice(1, 2), slice(None, None, -2), slice(3, 0, -1)),
    (slice(0, 0), slice(None), slice(None)),
])  # fmt: skip
def test_copies_of_any_strides(host_device, random, index):
    memory = random.standard_normal((3, 4, 5)).astype("f4")
    outside = random.standard_normal(memory[index].shape).astype("f4")
    before = memory.copy()
    expected = memory[index].copy()
    back = np.full(outside.shape, np.nan, "f4")
    host_device.copy_out(back, view(memory[index]), None)
    assert np.array_equal(back, expected)
    host_device.copy_in(view(memory[index]), outside, None)
    before[index] = outside
    assert np.array_equal(memory, before)
    host_device.copy_in(view(memory[index]), view(back), None)
    assert np.array_equal(memory[index], expected)


@pytest.mark.parametrize("chunk", [1, 7, 2**18])
@pytest.mark.parametrize(
    ("addend", "shift", "beta"), [*itertools.product([False, True], [False, True], [0.0, -0.5])]
)
def test_pointwise(monkeypatch, host_device, random, chunk, addend, shift, beta):
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", chunk)
    shape = (2, 3, 4, 2)
    value, more, old = (random.standard_normal(shape).astype("f4") for _ in range(3))
    b = random.standard_normal(3).astype("f4")
    out = old.copy() if beta else np.full(shape, np.nan, "f4")
    mode, coef = check_mode("elu", 0.7)
    operation = Pointwise(shape, "float32", "float32", mode, coef, 2.0, beta, addend, shift)
    inputs = ("value", "more" if addend else "", "b" if shift else "", "out" if beta else "")
    views = {"value": view(value), "more": view(more), "b": view(b), "out": view(out)}
    host_device.run(Launch(operation, inputs, "out"), views, (0, 0), None)
    total = value.astype("f8") + more * addend + b.reshape(-1, 1, 1) * shift
    expected = 2 * reference.ACTIVATIONS["elu"](total, 0.7) + (beta * old if beta else 0)
    assert np.allclose(out, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_pointwise_in_place_and_narrowing(host_device, random, mode):
    mode, coef = check_mode(mode, None)
    value = random.standard_normal((2, 3, 50)).astype("f4")
    out = np.full(value.shape, np.nan, "f2")
    operation = Pointwise(value.shape, "float32", "float16", mode, coef)
    views = {"value": view(value), "out": view(out)}
    host_device.run(Launch(operation, ("value", "", "", ""), "out"), views, (0, 0), None)
    expected = reference.ACTIVATIONS[mode](value.astype("f8"), coef)
    assert np.allclose(out, expected, rtol=2**-10, atol=1e-6)
    same = Pointwise(value.shape, "float32", "float32", mode, coef)
    views = {"value": view(value)}
    host_device.run(Launch(same, ("value", "", "", ""), "value"), views, (0, 0), None)
    assert np.allclose(value, expected, rtol=1e-5, atol=1e-6)


def test_relayout(host_device, random):
    x = random.standard_normal((2, 3, 4, 5)).astype("f4")
    memory = np.full(x.size, np.nan, "f4")
    strides = packed_strides(x.shape, "channels_last")
    last = DeviceView(memory.ctypes.data, "float32", x.shape, strides)
    host_device.run(
        Launch(Relayout(x.shape, "float32"), ("x",), "y"), {"x": view(x), "y": last}, (0, 0), None
    )
    assert np.array_equal(memory.reshape(2, 4, 5, 3), x.transpose(0, 2, 3, 1))


def test_workspace(host_device):
    launch = Launch(Convolution.of((1, 3, 8, 8), (4, 3, 3, 3)), ("x", "w"), "y")
    needed, names = host_device.workspace([(launch, {})], None)
    assert needed > 0
    assert names
    aligned = -(-needed // 256) * 256
    assert host_device.workspace([(launch, {})], aligned) == (needed, names)
    assert host_device.workspace([(launch, {})], aligned - 1) is None
    assert host_device.workspace([], None) == (0, ())


def test_pins(host_device):
    host_device.pin(4096, 100)
    try:
        assert host_device.is_pinned(4096, 100)
        assert host_device.is_pinned(4100, 90)
        assert not host_device.is_pinned(4096, 101)
        assert not host_device.is_pinned(4095, 10)
    finally:
        host_device.unpin(4096)
    assert not host_device.is_pinned(4096, 1)


def test_device_memory_is_aligned(host_device):
    for nbytes in (1, 100, 4097):
        allocation = host_device.arena.allocate_array(nbytes, 2**30)
        assert allocation.pointer % 64 == 0
        array = host_device.as_array(allocation, (nbytes,), "uint8")
        array[...] = 1
        assert array.ctypes.data == allocation.pointer
