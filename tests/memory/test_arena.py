"""The arena: every byte counted, one byte more refused; against a driver made of numbers."""

from __future__ import annotations

import gc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ooc_cudnn.errors import DeviceOutOfMemoryError
from ooc_cudnn.memory.arena import Arena
from tests.support.memory_driver import Driver


def make(total_bytes=10**6):
    driver = Driver(total_bytes)
    return driver, Arena(
        driver.allocate, lambda: driver.total_bytes - driver.live, lambda: driver.stream
    )


def test_one_byte_more_is_refused():
    driver, arena = make()
    assert arena.reserve(1000, 1000, purpose="a test")
    array = arena.allocate_array(400, 1000)  # the kept block makes way
    assert (arena.block_bytes, arena.array_bytes, driver.live) == (0, 400, 400)
    assert arena.reserve(600, 1000, purpose="a test")
    with pytest.raises(DeviceOutOfMemoryError) as caught:
        arena.reserve(601, 1000, purpose="a ring")
    error = caught.value
    assert (error.requested_bytes, error.available_bytes, error.limit_bytes) == (601, 600, 1000)
    assert error.purpose == "a ring"
    with pytest.raises(DeviceOutOfMemoryError):
        arena.allocate_array(601, 1000)
    assert arena.reserve(600, 1000, purpose="a test")
    assert array.nbytes == 400


def test_the_block_is_kept_and_grown():
    driver, arena = make()
    first = arena.reserve(1000, 10**6, purpose="a test")
    assert arena.reserve(10, 10**6, purpose="a test") == first
    assert driver.calls == 1
    assert arena.reserve(1001, 10**6, purpose="a test") != first
    assert driver.live == arena.held_bytes == 1001
    # Under a lower limit the kept block is exchanged.
    arena.reserve(500, 800, purpose="a test")
    assert driver.live == arena.held_bytes == 500
    arena.release_block()
    assert driver.live == arena.held_bytes == 0
    assert arena.reserve(0, 0, purpose="nothing") == 0


def test_the_peak_is_what_is_used_not_what_is_kept():
    _, arena = make()
    arena.reserve(1000, 10**6, purpose="a test")
    arena.reset_peak()
    assert arena.peak_bytes == 0
    arena.reserve(300, 10**6, purpose="a test")
    assert arena.peak_bytes == 300
    array = arena.allocate_array(50, 10**6)
    arena.reserve(100, 10**6, purpose="a test")
    assert arena.peak_bytes == 300
    arena.reserve(400, 10**6, purpose="a test")
    assert arena.peak_bytes == 450
    del array
    arena.reset_peak()
    assert arena.peak_bytes == 0


def test_another_allocator_serves_it_and_nothing_goes_back_to_it_before_it_is_done_with():
    driver, arena = make()
    arena.reserve(1000, 10**6, purpose="a test")
    old = arena.allocate_array(100, 10**6)
    other, settled = Driver(10**6), []
    for _ in range(2):
        arena.allocate_by(other.allocate, lambda: settled.append(other.live))
    assert driver.live == arena.held_bytes == 100  # the kept block went back, the array stays
    arena.reserve(500, 10**6, purpose="a test")
    array = arena.allocate_array(50, 10**6)
    assert (driver.live, other.live, arena.held_bytes) == (100, 550, 650)
    assert arena.shared_bytes == 650
    del array
    gc.collect()
    assert settled == []
    arena.release()  # the block, and what lies ready
    assert settled == [550, 50]
    assert (other.live, arena.held_bytes, old.nbytes) == (0, 100, 100)


def test_the_driver_has_less_than_the_limit():
    driver, arena = make(500)
    with pytest.raises(DeviceOutOfMemoryError) as caught:
        arena.reserve(501, 10**6, purpose="a test")
    assert caught.value.available_bytes == 500
    assert isinstance(caught.value, MemoryError)
    arena.reserve(400, 10**6, purpose="a test")
    # The idle block makes way for an array that the driver has no other room for.
    array = arena.allocate_array(200, 10**6)
    assert arena.held_bytes == driver.live == array.nbytes == 200
    with pytest.raises(DeviceOutOfMemoryError):
        arena.allocate_array(301, 10**6)
    assert arena.held_bytes == driver.live == 200


class Machine(RuleBasedStateMachine):
    """Any order of reserving, allocating and freeing, on two streams: counts are the driver's."""

    LIMIT = 1000

    def __init__(self):
        super().__init__()
        self.driver, self.arena = make(1200)
        self.arrays = []

    @rule(nbytes=st.integers(0, 1200))
    def reserve(self, nbytes):
        fits = sum(a.nbytes for a in self.arrays) + nbytes <= self.LIMIT
        try:
            self.arena.reserve(nbytes, self.LIMIT, purpose="a test")
            assert fits
            assert self.arena.block_bytes >= nbytes
        except DeviceOutOfMemoryError:
            assert not fits

    @rule(nbytes=st.integers(1, 600))
    def allocate(self, nbytes):
        fits = sum(a.nbytes for a in self.arrays) + nbytes <= self.LIMIT
        try:
            self.arrays.append(self.arena.allocate_array(nbytes, self.LIMIT))
            assert fits
        except DeviceOutOfMemoryError:
            assert not fits

    @precondition(lambda self: self.arrays)
    @rule(data=st.data())
    def free(self, data):
        del self.arrays[data.draw(st.integers(0, len(self.arrays) - 1))]
        gc.collect(0)

    @rule()
    def release_block(self):
        self.arena.release_block()

    @rule()
    def release(self):
        self.arena.release()

    @rule(stream=st.integers(0, 1))
    def change_stream(self, stream):
        self.driver.stream = stream

    @invariant()
    def counted(self):
        assert self.arena.array_bytes == sum(a.nbytes for a in self.arrays)
        assert len({array.pointer for array in self.arrays}) == len(self.arrays)
        assert self.arena.held_bytes == self.driver.live <= self.LIMIT


TestArena = Machine.TestCase
TestArena.settings = settings(max_examples=60, stateful_step_count=25)
