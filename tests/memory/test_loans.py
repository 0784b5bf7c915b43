"""Memory of arrays that are gone lies ready for new ones: counted, and given back."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.errors import DeviceOutOfMemoryError
from ooc_cudnn.memory.arena import Arena
from ooc_cudnn.memory.loans import Leases
from tests.support.memory_driver import Driver

PLENTY = 10**6


class Numbers:
    """A device of numbers, whose current stream is set by hand."""

    def __init__(self, total_bytes=PLENTY):
        driver = self.driver = Driver(total_bytes)
        self.arena = Arena(
            driver.allocate, lambda: total_bytes - driver.live, lambda: driver.stream
        )

    def array(self, nbytes, limit=PLENTY):
        return self.arena.allocate_array(nbytes, limit)


@pytest.fixture
def device():
    return Numbers()


def test_memory_of_an_array_that_is_gone_is_used_again(device):
    array = device.array(100)
    first = array.pointer
    assert (device.arena.array_bytes, device.arena.ready_bytes) == (100, 0)
    del array
    assert (device.arena.array_bytes, device.arena.ready_bytes) == (0, 100)
    assert device.arena.held_bytes == device.driver.live == 100
    again, other = device.array(100), device.array(100)
    assert again.pointer == first != other.pointer
    assert (device.driver.calls, device.arena.array_bytes, device.arena.ready_bytes) == (2, 200, 0)


def test_only_its_size_and_its_stream_are_served(device):
    device.array(100)
    larger = device.array(101)
    device.driver.stream = "second"
    second = device.array(100)
    assert device.driver.calls == 3
    assert device.arena.ready_bytes == 100  # of the first stream
    del second
    device.driver.stream = 0
    assert device.array(100).nbytes == 100
    assert device.driver.calls == 3
    assert larger.nbytes == 101


def test_a_stream_is_kept_as_long_as_memory_lies_ready_for_it(device):
    class Stream:
        pass

    device.driver.stream = Stream()
    gone = weakref.ref(device.driver.stream)
    device.array(100)
    device.driver.stream = "second"
    device.array(50)
    assert gone() is not None  # else another stream could be given its number
    device.arena.release()
    assert gone() is None


def test_what_lies_ready_makes_way_for_an_array_and_for_the_block(device):
    device.array(400)
    array = device.array(700, 1000)
    assert device.arena.held_bytes == device.driver.live == array.nbytes == 700
    del array
    device.arena.reserve(600, 1000, purpose="a test")
    assert device.arena.held_bytes == device.driver.live == 600
    assert device.arena.ready_bytes == 0


def test_the_block_stays_where_what_lies_ready_makes_room_enough(device):
    device.arena.reserve(300, 1000, purpose="a test")
    device.array(400)
    array = device.array(600, 1000)
    assert (device.arena.block_bytes, device.arena.held_bytes) == (300, 900)
    assert array.nbytes == 600


def test_what_lies_ready_makes_way_under_a_lower_limit(device):
    device.arena.reserve(300, 1000, purpose="a test")
    device.array(400)
    held = device.array(200)
    device.arena.reserve(100, 600, purpose="a test")
    assert (device.arena.held_bytes, device.driver.live, device.driver.calls) == (500, 500, 3)
    del held
    again = device.array(200, 400)  # taken, though the block must go for it
    assert (device.arena.held_bytes, device.driver.live, device.driver.calls) == (200, 200, 3)
    assert again.nbytes == 200


def test_memory_that_lies_ready_serves_no_limit_below_its_size(device):
    device.array(400)
    with pytest.raises(DeviceOutOfMemoryError) as caught:
        device.array(400, 399)
    assert (caught.value.requested_bytes, caught.value.available_bytes) == (400, 399)
    assert device.arena.held_bytes == device.driver.live == 0


@pytest.mark.parametrize("ask", ["array", "block"])
def test_what_lies_ready_makes_way_where_the_driver_has_no_more(ask):
    device = Numbers(1000)
    device.arena.reserve(200, PLENTY, purpose="a test")
    device.array(500)
    if ask == "array":
        array = device.array(900)
        assert array.nbytes == 900
    else:
        device.arena.reserve(900, PLENTY, purpose="a test")
    assert device.arena.held_bytes == device.driver.live == 900
    with pytest.raises(DeviceOutOfMemoryError) as caught:
        device.array(1001)
    assert caught.value.held_bytes == device.driver.live


def test_no_more_lies_ready_than_the_device_has_free_for_others():
    device = Numbers(1000)
    device.array(550)
    small = device.array(10)  # 450 are free
    assert device.arena.held_bytes == device.driver.live == small.nbytes == 10
    device.array(400)
    other = device.array(20)  # 590 are free
    assert (device.arena.ready_bytes, device.driver.live) == (400, 430)
    assert other.nbytes == 20


def test_release_gives_back_all_but_arrays(device):
    device.arena.reserve(300, PLENTY, purpose="a test")
    device.array(400)
    held = device.array(200)
    device.arena.release()
    assert device.arena.held_bytes == device.driver.live == held.nbytes == 200


def test_the_peak_counts_what_is_used_not_what_lies_ready(device):
    device.array(400)
    device.arena.reset_peak()
    held = device.array(100)
    device.arena.reserve(50, PLENTY, purpose="a test")
    assert device.arena.peak_bytes == 150
    assert device.arena.held_bytes == 550
    assert held.nbytes == 100


class Noticed(Leases):
    """Lets go of an array in the middle of whatever is done with loans."""

    def __init__(self):
        super().__init__()
        self.garbage = []

    def take(self, nbytes, stream):
        self.garbage.clear()
        return super().take(nbytes, stream)

    def lend(self, memory, holder, stream):
        self.garbage.clear()
        return super().lend(memory, holder, stream)

    def collect(self):
        super().collect()
        self.garbage.clear()


def test_an_array_may_be_dropped_at_any_point_of_the_thread_that_holds_the_lock(device):
    loans = device.arena._loans = Noticed()
    for _ in range(20):
        loans.garbage.append(device.array(100))
        with device.arena.lock:
            array = device.array(100)
            loans.garbage.append(device.array(200))
        device.arena.reserve(10, PLENTY, purpose="a test")
        loans.garbage.append(array)
        del array
        assert device.arena.held_bytes == device.driver.live
    loans.garbage.clear()
    assert device.arena.array_bytes == 0
    assert device.arena.ready_bytes == device.driver.live - 10 <= 500


def test_an_array_dropped_by_another_thread_waits_for_no_lock(device):
    arrays = [device.array(100) for _ in range(3)]
    with device.arena.lock:
        thread = threading.Thread(target=arrays.clear)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
    assert (device.arena.array_bytes, device.arena.ready_bytes) == (0, 300)


def test_an_array_in_a_cycle_of_garbage_comes_back(device):
    cycle = [device.array(100)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert (device.arena.array_bytes, device.arena.ready_bytes) == (0, 100)


def test_what_is_counted_survives_an_interruption_at_every_call(device):
    """As Ctrl-C would: at each call of taking, lending and collecting in turn."""

    def use(block_bytes):
        device.array(100)
        array = device.array(100)
        device.arena.reserve(block_bytes, PLENTY, purpose="a test")
        return array

    for line in range(1, 200):
        left = line

        def interrupt(frame, event, argument):
            nonlocal left
            if not frame.f_code.co_filename.endswith(("loans.py", "arena.py")):
                return None
            # Ctrl-C is heard when a function is entered, and after it has called another.
            if event == "call":
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return interrupt

        sys.settrace(interrupt)
        try:
            use(50 + line)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert device.arena.held_bytes == device.driver.live
        assert device.arena.array_bytes == 0
        if left > 0:
            break
    else:
        pytest.fail("never ran to its end")
    assert line > 10


def test_threads_that_make_and_drop_arrays(device):
    limit, wrong = 5000, []

    def work(seed):
        random, mine = np.random.default_rng(seed), []
        for _ in range(300):
            nbytes = int(random.integers(1, 5)) * 100
            try:
                mine.append(device.array(nbytes, limit))
            except DeviceOutOfMemoryError:
                mine.clear()
            if len(mine) > 4:
                del mine[int(random.integers(len(mine)))]
            with device.arena.lock:
                if not device.arena.held_bytes == device.driver.live <= limit:
                    wrong.append((device.arena.held_bytes, device.driver.live))
        pointers = [array.pointer for array in mine]
        assert len(set(pointers)) == len(pointers)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not wrong
    assert device.arena.array_bytes == 0
    device.arena.release()
    assert device.driver.live == 0


# Arrays of the library --------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["slice", "dlpack", "torch"])
def test_memory_is_not_used_again_while_any_view_lives(host_device, view):
    array = ooc_cudnn.zeros((16, 16))
    address = array.__array_interface__["data"][0]
    if view == "slice":
        kept = array[3:5].T
    elif view == "dlpack":
        kept = np.from_dlpack(array)
    else:
        kept = pytest.importorskip("torch").from_dlpack(array)
    del array
    gc.collect()
    other = ooc_cudnn.empty((16, 16))
    other[...] = 7
    assert float(kept.sum()) == 0
    assert host_device.arena.array_bytes == 2 * 1024
    del kept
    gc.collect()
    assert host_device.arena.array_bytes == host_device.arena.ready_bytes == 1024
    again = ooc_cudnn.empty((16, 16))
    assert again.__array_interface__["data"][0] == address


def test_release_gives_back_what_lies_ready(host_device):
    held = ooc_cudnn.zeros((8, 8))
    ooc_cudnn.zeros((64, 64))
    assert host_device.arena.ready_bytes == 64 * 64 * 4
    ooc_cudnn.memory.release()
    assert host_device.arena.held_bytes == 8 * 8 * 4
    assert not held.any()
