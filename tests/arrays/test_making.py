"""`empty`, `zeros`, `malloc`."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.errors import HostOutOfMemoryError
from ooc_cudnn.memory.pinned import held_bytes, release


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("order", ["channels_first", "channels_last"])
@pytest.mark.parametrize("limit", [2**20, 100])
def test_empty_by_the_papers_rule(dtype, order, limit):
    pytest.importorskip("ml_dtypes")
    with ooc_cudnn.settings(memory_limit=limit):
        x = ooc_cudnn.empty((2, 3, 4, 5), dtype, order)
        zero = ooc_cudnn.zeros((2, 3, 4, 5), dtype, order)
    assert ooc_cudnn.placement(x) == ("device" if limit > 100 else "pinned")
    assert x.shape == (2, 3, 4, 5)
    assert x.dtype.name == dtype
    packed = x if order == "channels_first" else x.transpose(0, 2, 3, 1)
    assert packed.flags.c_contiguous
    x[...] = 7
    assert (x == 7).all()
    assert not zero.astype("f4").any()


def test_exactly_the_limit_fits_and_one_byte_more_does_not(host_device):
    arena = host_device.arena
    with ooc_cudnn.settings(memory_limit=4096):
        first = ooc_cudnn.empty((1024,))
        assert ooc_cudnn.placement(first) == "device"
        assert arena.held_bytes == 4096
        second = ooc_cudnn.malloc(1)
        assert ooc_cudnn.placement(np.zeros(2, "f4")) == "pageable"
        assert arena.held_bytes == 4096
        del first
        gc.collect()
        assert (arena.array_bytes, arena.ready_bytes) == (0, 4096)
        third = ooc_cudnn.empty((1024,))
        assert ooc_cudnn.placement(third) == "device"
    assert second.nbytes == 1


def test_memory_lives_as_long_as_its_last_view(host_device):
    x = ooc_cudnn.empty((64, 64))
    view = x[3:5].T
    del x
    gc.collect()
    assert host_device.arena.array_bytes == 64 * 64 * 4
    view[...] = 1
    assert view.sum() == 128
    del view
    gc.collect()
    assert host_device.arena.array_bytes == 0


def test_pinned_memory_lives_as_long_as_its_last_view(host_device):
    with ooc_cudnn.settings(memory_limit=1):
        x = ooc_cudnn.empty((64, 64))
        view = x[3:5]
        view[...] = 5
        del x
        others = [ooc_cudnn.empty((64, 64)) for _ in range(8)]
        for other in others:
            other[...] = 0
    assert (view == 5).all()
    assert ooc_cudnn.placement(view) == "pinned"


def test_pinned_memory_is_limited_and_given_back(host_device):
    release(host_device)
    gc.collect()
    before = held_bytes(host_device)
    limit = before + 8192
    with ooc_cudnn.settings(memory_limit=1, host_memory_limit=limit):
        x = ooc_cudnn.empty((1024,))
        y = ooc_cudnn.malloc(4096)
        with pytest.raises(HostOutOfMemoryError, match="host_memory_limit") as caught:
            ooc_cudnn.empty((1,))
        assert caught.value.limit_bytes == limit
        del x
        gc.collect()
        # Memory that no array uses makes way, whatever its size was.
        z = ooc_cudnn.empty((1000,))
    assert y.nbytes + z.nbytes == 8096
    del y, z
    gc.collect()
    release(host_device)
    assert held_bytes(host_device) == before


@pytest.mark.parametrize("shape", [(), 0, (0,), (2, -1), (2.0,), (True,), "3", None])
def test_shapes_that_are_none(shape):
    with pytest.raises((TypeError, ValueError)) as caught:
        ooc_cudnn.empty(shape)
    assert "shape" in str(caught.value) or shape is None


@pytest.mark.parametrize("dtype", ["int32", "complex64", "float", int, "f3", None.__class__])
def test_dtypes_that_are_not_supported(dtype):
    if dtype == "float":
        assert ooc_cudnn.empty(3, dtype).dtype == "f8"
        return
    with pytest.raises(TypeError, match="dtype must be one of"):
        ooc_cudnn.empty(3, dtype)


def test_orders_and_sizes_that_are_none():
    with pytest.raises(ValueError, match="order must be one of"):
        ooc_cudnn.empty((1, 1, 1), order="NCHW")
    for nbytes in (0, -1, 1.5, True, "1"):
        with pytest.raises(ValueError, match="nbytes must be a positive integer"):
            ooc_cudnn.malloc(nbytes)
    assert ooc_cudnn.empty(np.int64(3)).shape == (3,)
    assert ooc_cudnn.empty([2, np.int32(3)]).shape == (2, 3)


def test_release_keeps_what_is_held(host_device):
    x, w = np.ones((1, 1, 4, 4), "f4"), np.ones((1, 1, 1, 1), "f4")
    held = ooc_cudnn.zeros((3,))
    ooc_cudnn.convolution_forward(x, w)
    assert host_device.arena.block_bytes > 0
    host_device.release_caches()
    assert host_device.arena.block_bytes == 0
    assert not held.any()
