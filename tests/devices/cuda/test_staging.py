"""Staging, on a device whose memory is the host's: what arrives, by which threads, what fails."""

import itertools
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from ooc_cudnn.devices.cuda import staging
from ooc_cudnn.devices.cuda.staging import Staging
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.tensor import packed_strides
from tests.support.fake_runtime import Stream, fake_cupy

CHUNK, SLAB = 2**10, 2**12
ORDERS = ("channels_first", "channels_last")


@pytest.fixture
def staged(monkeypatch):
    """Staging with slabs of a few kilobytes, and none of its threads left behind."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy([]))
    monkeypatch.setattr(staging, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(staging, "SLAB_BYTES", SLAB)
    monkeypatch.setattr(staging, "AT_ONCE_BYTES", CHUNK // 4)
    made = Staging(lambda nbytes: np.empty(nbytes, np.uint8), lambda: None)
    yield made
    made.close()


def on_device(shape, dtype, order):
    """A packed piece in a memory order: what it holds, as an array, and the view of it."""
    strides = packed_strides(shape, order)
    memory = np.zeros(int(np.prod(shape)), dtype)
    view = DeviceView(memory.ctypes.data, dtype, shape, strides)
    steps = [stride * memory.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(memory, shape, steps), view


@pytest.mark.parametrize(
    ("order", "lying", "dtype"), list(itertools.product(ORDERS, ORDERS, ["float16", "float64"]))
)
@pytest.mark.parametrize("sites", [(1, 1), (3, 5), (40, 33)])
def test_regions_arrive_whatever_their_order_and_size(staged, random, order, lying, dtype, sites):
    shape = (3, 5, *sites)
    axes = (0, 1, 2, 3) if lying == "channels_first" else (0, 3, 1, 2)
    whole = random.standard_normal([4, 6, sites[0] + 2, sites[1]]).astype(dtype)
    whole = np.ascontiguousarray(whole.transpose(np.argsort(axes))).transpose(axes)
    region = whole[1:, :5, 1:-1]
    held, view = on_device(shape, dtype, order)
    staged.copy_in(view, region, Stream(1)).result()
    assert np.array_equal(held, region)
    target = np.zeros_like(whole)
    staged.copy_out(target[1:, :5, 1:-1], view, Stream(3)).result()
    assert np.array_equal(target[1:, :5, 1:-1], region)
    assert np.count_nonzero(target) == np.count_nonzero(region)


def test_what_is_tiny_waits_for_no_thread(staged, random, monkeypatch):
    def refused(task):
        raise AssertionError("a thread was asked")

    monkeypatch.setattr(staged._pool, "put", refused)
    values = random.standard_normal(CHUNK // 16).astype("f4")
    held, view = on_device(values.shape, "float32", "channels_first")
    assert staged.copy_in(view, values, Stream(1)).done()
    assert np.array_equal(held, values)
    target = np.zeros_like(values)
    staged.copy_out(target, view, Stream(3)).result()
    assert np.array_equal(target, values)


@pytest.mark.parametrize("size", [8, 4 * SLAB])
def test_what_cannot_be_written_is_told(staged, size):
    values = np.ones(size, np.float32)
    values.flags.writeable = False
    _, view = on_device(values.shape, "float32", "channels_first")
    with pytest.raises(ValueError, match="read-only"):
        staged.copy_out(values, view, Stream(3)).result()
    # and the slabs are free again
    held, view = on_device((8 * SLAB,), "float32", "channels_first")
    staged.copy_in(view, np.ones(8 * SLAB, np.float32), Stream(1)).result()
    assert held.all()


@pytest.mark.parametrize("way", ["in", "out"])
def test_nothing_is_kept_of_what_was_copied(staged, way):
    # a file would stay mapped, and in the page cache, until the next call that stages
    values = np.ones(4 * SLAB, np.float32)
    kept = weakref.ref(values)
    _, view = on_device(values.shape, "float32", "channels_first")
    if way == "in":
        staged.copy_in(view, values, Stream(1)).result()
    else:
        staged.copy_out(values, view, Stream(3)).result()
    del values
    while kept() is not None:  # threads let go a moment after they tell
        time.sleep(0.001)


def test_closing_gives_back_every_slab_at_once(monkeypatch):
    """Threads that end a moment later held one: 16 MiB stayed pinned after a release."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy([]))
    monkeypatch.setattr(staging, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(staging, "SLAB_BYTES", SLAB)
    monkeypatch.setattr(staging, "AT_ONCE_BYTES", CHUNK // 4)
    slabs = []

    def allocate(nbytes):
        array = np.empty(nbytes, np.uint8)
        slabs.append(weakref.ref(array))
        return array

    threads = threading.active_count()
    for _ in range(10):
        made = Staging(allocate, lambda: None)
        values = np.ones(2 * SLAB, np.float32)
        _, view = on_device(values.shape, "float32", "channels_first")
        made.copy_in(view, values, Stream(1)).result()
        made.copy_out(values, view, Stream(3)).result()
        made.close()
        assert threading.active_count() == threads
        assert not any(slab() is not None for slab in slabs)
