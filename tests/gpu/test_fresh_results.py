"""Results on the card whose memory lies ready again while the card still works on what it held.

A slow kernel holds a stream, so that everything after it is queued when the host lets go of an
array and asks for the next one.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.errors import DeviceOutOfMemoryError
from tests.support.refusals import driver_with

cupy = pytest.importorskip("cupy")
SHAPE = (4, 8, 32, 32)
#: Far longer than it takes to issue what a test queues behind it.
HELD_SECONDS = 1.0


@pytest.fixture
def device(cuda_device):
    gc.collect()
    cuda_device.release_caches()
    cuda_device.spin(0.0, cupy.cuda.Stream.null)  # compiled before anything is queued
    yield cuda_device
    cuda_device.synchronize()


@pytest.fixture
def allocated(monkeypatch, device):
    """Sizes that the driver was asked for."""
    return driver_with(monkeypatch, device)


def numbers(random):
    values = random.standard_normal(SHAPE).astype("f4")
    array = cupy.asarray(values)
    cupy.cuda.get_current_stream().synchronize()  # other streams read it
    return values, array


def relu(values):
    return np.maximum(values, 0)


def warm(x):
    """Plans and kernels: nothing below shall wait for any of these."""
    for _ in range(2):
        y = ooc_cudnn.activation_forward(x)
        cupy.multiply(y, 2, out=y)
        y[...] = -1
        del y
    cupy.cuda.get_current_stream().synchronize()


def test_a_repeated_call_asks_the_driver_for_nothing(random, device, allocated):
    values, x = numbers(random)
    filters = random.standard_normal((16, 8, 3, 3)).astype("f4")
    w = cupy.asarray(filters)
    for _ in range(3):
        y = ooc_cudnn.convolution_forward(x, w, padding=1)
    expected, warm_calls = y.get(), len(allocated)
    for factor in (2, 4, 8, 16):
        x[...] = cupy.asarray(values * factor)
        y = ooc_cudnn.convolution_forward(x, w, padding=1)
        assert np.array_equal(y.get(), expected * factor)  # powers of two: the same bits
    assert len(allocated) == warm_calls
    assert allocated.count(y.nbytes) == 2


def test_memory_is_lent_again_behind_the_work_that_is_queued_on_its_stream(random, device):
    (one, x), (two, other) = numbers(random), numbers(random)
    results = [cupy.empty_like(x) for _ in range(8)]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        warm(x)
        device.spin(HELD_SECONDS, stream)
        addresses = set()
        for at, result in enumerate(results):
            y = ooc_cudnn.activation_forward(other if at % 2 else x)
            addresses.add(y.data.ptr)
            cupy.multiply(y, 2, out=result)
            del y
        assert not stream.done, "the host waited for the card"
        stream.synchronize()
        assert len(addresses) == 1
    for at, result in enumerate(results):
        assert np.array_equal(result.get(), 2 * relu(two if at % 2 else one))


def test_another_stream_gets_other_memory(random, device):
    (one, x), (two, other) = numbers(random), numbers(random)
    doubled = cupy.empty_like(x)
    first, second = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    for stream in (first, second):
        with stream:
            warm(x)
    with first:
        y = ooc_cudnn.activation_forward(x)
        address = y.data.ptr
        device.spin(HELD_SECONDS, first)
        cupy.multiply(y, 2, out=doubled)
        del y
    with second:
        y = ooc_cudnn.empty(SHAPE)
        y[...] = -1  # at once: nothing orders this behind the first stream
        second.synchronize()
        assert not first.done
        assert y.data.ptr != address
        again = ooc_cudnn.activation_forward(other)
    with first:
        assert ooc_cudnn.empty(SHAPE).data.ptr == address
    device.synchronize()
    assert np.array_equal(doubled.get(), 2 * relu(one))
    assert np.array_equal(again.get(), relu(two))


def test_what_a_call_reads_on_another_stream_is_not_overwritten(random, device):
    values, x = numbers(random)
    first, second = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    for stream in (first, second):
        with stream:
            warm(x)
    with first:
        y = ooc_cudnn.activation_forward(x)
        address = y.data.ptr
    with second:
        device.spin(HELD_SECONDS, second)
        result = ooc_cudnn.activation_forward(y)
        del y
    with first:
        y = ooc_cudnn.empty(SHAPE)
        assert y.data.ptr == address
        y[...] = -1  # CuPy's own work: only `empty` could order it behind the call
        assert not second.done
    device.synchronize()
    assert np.array_equal(result.get(), relu(values))


def test_a_stream_that_is_gone_lends_its_number_to_no_other(random, device):
    _, x = numbers(random)
    numbers_seen = set()
    for _ in range(8):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            ooc_cudnn.activation_forward(x)
            numbers_seen.add(stream.ptr)
        stream.synchronize()
        del stream
    assert len(numbers_seen) == 8  # each is kept for the memory that lies ready for it
    device.release_caches()


@pytest.mark.parametrize("failing", [1, 2])
def test_a_driver_that_refuses_a_result_is_asked_again(random, device, monkeypatch, failing):
    values, x = numbers(random)
    ooc_cudnn.malloc(4096)
    asked = driver_with(monkeypatch, device, 0, failures=failing)
    y = ooc_cudnn.activation_forward(x)
    assert np.array_equal(y.get(), relu(values))
    assert asked == [x.nbytes] * (failing + 1)
    assert device.arena.held_bytes == device.arena.array_bytes >= y.nbytes


def test_a_driver_with_no_memory_is_told_of_and_the_next_call_works(random, device, monkeypatch):
    values, x = numbers(random)
    with monkeypatch.context() as patched:
        driver_with(patched, device, 0)
        with pytest.raises(DeviceOutOfMemoryError):
            ooc_cudnn.activation_forward(x)
    assert np.array_equal(ooc_cudnn.activation_forward(x).get(), relu(values))


def test_release_gives_the_driver_its_memory_back(device):
    nbytes = 256 * 2**20
    ooc_cudnn.malloc(nbytes)
    assert device.arena.ready_bytes >= nbytes
    ooc_cudnn.memory.release()
    assert device.arena.held_bytes == device.arena.array_bytes


def test_torch_tensors_on_a_stream_of_their_own(random, device):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch without CUDA")
    one, two = (random.standard_normal(SHAPE).astype("f4") for _ in range(2))
    x, other = (torch.from_numpy(values).cuda() for values in (one, two))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            y = ooc_cudnn.activation_forward(x)
            y = y * 2
        del y
        stream.synchronize()
        torch.cuda._sleep(10**9)  # about half a second
        results = []
        for _ in range(4):
            results.append((ooc_cudnn.activation_forward(x) * 2, one))
            results.append((ooc_cudnn.activation_forward(other) * 2, two))
        assert not stream.query(), "the host waited for the card"
        stream.synchronize()
    for result, values in results:
        assert np.array_equal(result.cpu().numpy(), 2 * relu(values))
