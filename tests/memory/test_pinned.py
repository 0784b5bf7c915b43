"""Pinned memory: exact, counted, used again, given back."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from ooc_cudnn.errors import HostOutOfMemoryError
from ooc_cudnn.memory.pinned import PAGE_BYTES, allocate, have_ready, held_bytes, release, room


class Locked:
    """A device that only locks pages, and says how many it could."""

    def __init__(self, name, total_bytes=10**9):
        self.name, self.total_bytes, self.asked, self.kept = name, total_bytes, [], []

    def keep(self, memory):
        self.kept.append(memory)

    def drop_kept(self):
        self.kept.clear()

    def allocate_pinned(self, nbytes):
        live = sum(r().nbytes for r in self.asked if r() is not None)
        if live + nbytes > self.total_bytes:
            raise MemoryError
        array = np.empty(nbytes, "u1")
        self.asked.append(weakref.ref(array))
        return array


@pytest.fixture
def device(request):
    made = Locked(request.node.name)
    yield made
    gc.collect()
    release(made)


def test_pages_not_powers_of_two(device):
    array = allocate(device, 3 * PAGE_BYTES + 1, None)
    assert array.shape == (3 * PAGE_BYTES + 1,)
    assert held_bytes(device) == 4 * PAGE_BYTES


def test_used_again_by_arrays_of_the_same_pages(device):
    array = allocate(device, 5000, None)
    pointer = array.ctypes.data
    del array
    again = allocate(device, 8192, None)
    assert again.ctypes.data == pointer
    assert len(device.asked) == 1
    other = allocate(device, 8192, None)
    assert other.ctypes.data != pointer
    assert held_bytes(device) == 2 * 8192


def test_what_a_run_still_reads_is_nobody_elses_before_it_has_ended(device):
    """Who wants pinned memory waits for runs that nobody waited for: to pin more takes longer."""
    array = allocate(device, 5000, None)
    pointer, seen = array.ctypes.data, []
    device.keep(array)
    end = device.drop_kept
    device.drop_kept = lambda: (seen.append(len(device.kept)), end())
    del array
    gc.collect()
    again = allocate(device, 5000, None)
    assert seen == [1]
    assert again.ctypes.data == pointer


def test_limit(device):
    first = allocate(device, PAGE_BYTES, 2 * PAGE_BYTES)
    with pytest.raises(HostOutOfMemoryError) as caught:
        allocate(device, PAGE_BYTES + 1, 2 * PAGE_BYTES, purpose="a slab")
    error = caught.value
    assert (error.available_bytes, error.held_bytes) == (PAGE_BYTES, PAGE_BYTES)
    assert error.purpose == "a slab"
    del first
    # What lies ready is given back for an array of another size.
    assert allocate(device, 2 * PAGE_BYTES, 2 * PAGE_BYTES).nbytes == 2 * PAGE_BYTES


def test_the_machine_has_no_more(device):
    device.total_bytes = 3 * PAGE_BYTES
    array = allocate(device, PAGE_BYTES, None)
    with pytest.raises(HostOutOfMemoryError):
        allocate(device, 3 * PAGE_BYTES, None)
    del array
    # ... but for memory that lies ready, which goes back first.
    assert allocate(device, 3 * PAGE_BYTES, None).nbytes == 3 * PAGE_BYTES
    assert held_bytes(device) == 3 * PAGE_BYTES


def test_release(device):
    kept, gone = allocate(device, 100, None), allocate(device, 9000, None)
    del gone
    assert held_bytes(device) == 4 * PAGE_BYTES
    release(device)
    assert held_bytes(device) == PAGE_BYTES
    kept[...] = 3
    assert (kept == 3).all()


def test_what_is_ready_is_pinned_once(device):
    have_ready(device, [100, 5000, 100], None)
    assert held_bytes(device) == 4 * PAGE_BYTES
    arrays = [allocate(device, nbytes, None) for nbytes in (200, 8000, 300)]
    assert len(device.asked) == 3
    have_ready(device, [100], None)  # the others are in use
    assert held_bytes(device) == 5 * PAGE_BYTES
    del arrays


def test_without_room_nothing_is_ready(device):
    array = allocate(device, PAGE_BYTES, None)
    have_ready(device, [PAGE_BYTES, 1], 2 * PAGE_BYTES)
    assert held_bytes(device) == PAGE_BYTES
    device.total_bytes = 2 * PAGE_BYTES  # it has less than the machine says
    have_ready(device, [PAGE_BYTES, 1], None)
    assert held_bytes(device) <= 2 * PAGE_BYTES
    del array


def test_what_the_driver_refuses_bounds_the_room_from_then_on(monkeypatch):
    """As where WSL or `ulimit -l` caps what may be locked, whatever the machine has free."""
    monkeypatch.setattr("ooc_cudnn.memory.pinned.available_host_bytes", lambda: 10**9)
    device = Locked("a capped driver", total_bytes=100 * PAGE_BYTES)
    kept = allocate(device, 20 * PAGE_BYTES, None)
    assert room(device, None).available_bytes == 10**9
    with pytest.raises(HostOutOfMemoryError) as refused:
        allocate(device, 160 * PAGE_BYTES, None)
    assert 70 * PAGE_BYTES <= refused.value.available_bytes <= 80 * PAGE_BYTES
    found = room(device, None)
    assert found.available_bytes == refused.value.available_bytes
    assert allocate(device, found.available_bytes, None).size == found.available_bytes
    assert kept.size == 20 * PAGE_BYTES
    release(device)
    assert room(device, None).available_bytes == 10**9
