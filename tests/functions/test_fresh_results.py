"""Calls without `out`: results come from memory whose arrays are gone, and nothing is made ready
again."""

import threading

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.errors import DeviceOutOfMemoryError
from ooc_cudnn.functions.call import call_cache as prepared_calls
from ooc_cudnn.functions.call.call_cache import forget_calls
from ooc_cudnn.pipeline import execute
from tests.support.refusals import driver_with

SHAPE = (2, 3, 8, 8)
RESULT_BYTES = 2 * 3 * 8 * 8 * 4


def address(array):
    return array.__array_interface__["data"][0]


@pytest.fixture
def x():
    x = ooc_cudnn.empty(SHAPE)
    x[...] = np.arange(x.size, dtype="f4").reshape(SHAPE) - 100
    return x


@pytest.fixture
def allocated(monkeypatch, host_device):
    """Sizes that the driver was asked for."""
    return driver_with(monkeypatch, host_device)


@pytest.fixture
def bound(monkeypatch):
    """Steps that were bound to addresses."""
    steps, action = [], execute.Executor._action
    monkeypatch.setattr(
        execute.Executor, "_action", lambda *arguments: (steps.append(1), action(*arguments))[1]
    )
    return steps


def test_a_repeated_call_allocates_nothing_and_binds_nothing(x, allocated, bound):
    y = ooc_cudnn.activation_forward(x)
    for _ in range(2):  # the old result is alive while the new one is made: two in turns
        y = ooc_cudnn.activation_forward(x)
    warm = len(allocated), len(bound)
    seen = set()
    for value in range(5):
        x[...] = value - 2
        y = ooc_cudnn.activation_forward(x)
        seen.add(address(y))
        assert (np.asarray(y) == max(value - 2, 0)).all()
    assert (len(allocated), len(bound)) == warm
    assert allocated.count(RESULT_BYTES) == len(seen) == 2


def test_results_that_are_held_are_left_alone(x, host_device):
    before = host_device.arena.array_bytes
    held = [ooc_cudnn.activation_forward(x)[:, 1] for _ in range(5)]  # by views alone
    assert len({address(view) for view in held}) == 5
    expected = np.maximum(np.asarray(x), 0)[:, 1]
    x[...] = -1
    ooc_cudnn.activation_forward(x)
    for view in held:
        assert (np.asarray(view) == expected).all()
    assert host_device.arena.array_bytes == before + 5 * RESULT_BYTES


@pytest.mark.parametrize("order", ["channels_first", "channels_last"])
def test_results_have_the_order_of_x_whatever_was_in_their_memory(order):
    x, w = ooc_cudnn.zeros((2, 3, 6, 5), order=order), ooc_cudnn.zeros((4, 3, 3, 3), order=order)
    x[...], w[...] = 1, 1
    for _ in range(4):
        y = ooc_cudnn.convolution_forward(x, w)
        assert (np.asarray(y) == 27).all()
        packed = y if order == "channels_first" else y.transpose(0, 2, 3, 1)
        assert packed.flags.c_contiguous
        y[...] = np.nan


def test_several_results_come_from_memory_that_lies_ready(allocated):
    x, w, y, dy = (ooc_cudnn.zeros(s) for s in ((1, 2, 4, 4), (2, 2, 1, 1), *[(1, 2, 4, 4)] * 2))
    x[...], w[...], y[...], dy[...] = 1, 2, 1, 3
    kept = None
    for turn in range(4):
        kept = ooc_cudnn.convolution_add_activation_backward(x, w, y, dy)
        dx, dw, db = (np.asarray(each) for each in kept)
        assert (dx == 12).all()
        assert (dw == 48).all()
        assert (db == 48).all()
        if turn == 1:
            warm = len(allocated)
    assert len(allocated) == warm


def test_the_block_that_moved_is_bound_anew(x, host_device):
    w = ooc_cudnn.zeros((5, 3, 3, 3))
    w[...] = 1
    expected = np.asarray(ooc_cudnn.convolution_forward(x, w, padding=1)).copy()
    for _ in range(3):
        host_device.release_caches()
        between = host_device.arena.reserve(10**6, 10**9, purpose="a test")
        y = ooc_cudnn.convolution_forward(x, w, padding=1)
        assert (np.asarray(y) == expected).all()
        assert between


def test_the_limit_holds_whatever_lies_ready(x, host_device):
    arena = host_device.arena
    limit = arena.array_bytes + 3 * RESULT_BYTES
    with ooc_cudnn.settings(memory_limit=limit):
        for size in range(1, 60):
            other = ooc_cudnn.malloc(size * 16)
            y = ooc_cudnn.activation_forward(x)
            assert arena.held_bytes <= limit
            assert ooc_cudnn.placement(y) == "device"
            assert (np.asarray(y) == np.maximum(np.asarray(x), 0)).all()
            del y, other
        # A plan may have all that lies ready.
        ooc_cudnn.malloc(3 * RESULT_BYTES)
        assert arena.held_bytes == limit
        host = np.ones(SHAPE, "f4")
        with ooc_cudnn.profile() as p:
            ooc_cudnn.activation_forward(host)
        assert arena.held_bytes <= limit
        assert p.calls[0].plan.device_bytes == 2 * RESULT_BYTES


def test_a_lower_limit_gives_back_what_lies_ready(x, host_device):
    arena = host_device.arena
    for _ in range(3):
        ooc_cudnn.malloc(10**5 * (_ + 1))
    assert arena.ready_bytes == 6 * 10**5
    limit = arena.array_bytes + 2 * RESULT_BYTES
    with ooc_cudnn.settings(memory_limit=limit):
        y = ooc_cudnn.activation_forward(x)
    assert arena.held_bytes <= limit
    assert y.shape == SHAPE


def test_the_profile_counts_what_is_used_and_not_what_lies_ready(x, host_device):
    ooc_cudnn.malloc(10**6)
    before = host_device.arena.array_bytes
    with ooc_cudnn.profile() as p:
        y = ooc_cudnn.activation_forward(x)
    (done,) = p.calls
    assert done.peak_device_bytes == before + y.nbytes + done.plan.device_bytes
    assert host_device.arena.held_bytes >= 10**6


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_driver_that_refuses_a_result_is_asked_again(x, host_device, monkeypatch, failing):
    """Once what is kept went back; and again after CuPy's pool and all other caches, too."""
    ooc_cudnn.malloc(4096)
    asked = driver_with(monkeypatch, host_device, 0, failures=failing)
    released, release = [], host_device.release_caches
    monkeypatch.setattr(host_device, "release_caches", lambda: (released.append(1), release())[1])
    y = ooc_cudnn.activation_forward(x)
    assert (np.asarray(y) == np.maximum(np.asarray(x), 0)).all()
    assert asked == [RESULT_BYTES] * (failing + 1)
    assert len(released) == (failing == 2)


def test_a_driver_with_no_memory_at_all_is_told_of_and_the_next_call_works(
    x, host_device, monkeypatch
):
    before = host_device.arena.array_bytes
    with monkeypatch.context() as patched:
        driver_with(patched, host_device, 0)
        with pytest.raises(DeviceOutOfMemoryError):
            ooc_cudnn.activation_forward(x)
    y = ooc_cudnn.activation_forward(x)
    assert (np.asarray(y) == np.maximum(np.asarray(x), 0)).all()
    assert host_device.arena.array_bytes == before + RESULT_BYTES


def test_only_so_many_addresses_are_kept(x, monkeypatch):
    monkeypatch.setattr(execute, "BOUND_ADDRESSES", 4)
    held = [ooc_cudnn.activation_forward(x) for _ in range(11)]
    (prepared,) = prepared_calls._prepared.values()
    assert 1 <= len(prepared.executor._bound) <= 4
    for y in held:
        assert (np.asarray(y) == np.maximum(np.asarray(x), 0)).all()


def test_running_averages_are_as_they_were_if_the_first_launch_fails(monkeypatch):
    x = ooc_cudnn.zeros((2, 3, 4, 4))
    scale, shift, mean, variance = (ooc_cudnn.zeros((3,)) for _ in range(4))
    mean[...] = variance[...] = 5
    device = ooc_cudnn.devices.get_device("host")
    forget_calls()
    run, launched = device.run, []

    def failing(*arguments):
        launched.append(1)
        run(*arguments)
        mean[...] = 0
        raise RuntimeError("a launch failed")

    monkeypatch.setattr(device, "run", failing)
    with pytest.raises(RuntimeError, match="a launch failed"):
        ooc_cudnn.batch_normalization_forward_training(
            x, scale, shift, running_mean=mean, running_variance=variance
        )
    assert launched
    assert (np.asarray(mean) == 5).all()
    assert (np.asarray(variance) == 5).all()


def test_threads_that_drop_each_others_results(x, host_device):
    expected, wrong = np.maximum(np.asarray(x), 0), []
    before = host_device.arena.array_bytes
    shared = [None] * 4

    def work(seed):
        random = np.random.default_rng(seed)
        with ooc_cudnn.settings(device="host", machine="host", progress=False):
            for _ in range(40):
                y = ooc_cudnn.activation_forward(x)
                shared[int(random.integers(4))] = y  # drops another thread's
                other = shared[int(random.integers(4))]
                if other is not None and not (np.asarray(other) == expected).all():
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared.clear()
    assert not wrong
    assert host_device.arena.array_bytes == before


def test_torch_tensors_keep_their_memory_and_give_it_back(host_device):
    torch = pytest.importorskip("torch")
    x = torch.from_dlpack(ooc_cudnn.zeros(SHAPE))
    before = host_device.arena.array_bytes
    w = ooc_cudnn.zeros((4, 3, 1, 1))
    y = torch.from_dlpack(ooc_cudnn.convolution_forward(ooc_cudnn.zeros(SHAPE), w))
    kept = y[0]
    del y
    again = ooc_cudnn.convolution_forward(ooc_cudnn.zeros(SHAPE), w)
    assert address(again) != kept.data_ptr()
    del kept, again, w
    assert host_device.arena.array_bytes == before
    assert x.shape == SHAPE
