"""Memory that is refused: at every allocation of a call in turn, once, and for good from there on.

The call then ends with the right result, on less memory or at its second attempt, or it raises the
library's own error; nothing of it is left, and the next call is right.
"""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import operations
from ooc_cudnn.arrays import making
from ooc_cudnn.errors import DeviceOutOfMemoryError, HostOutOfMemoryError, PlanInfeasibleError
from ooc_cudnn.functions.call.call_cache import forget_calls
from ooc_cudnn.memory import release
from tests.support.left_behind import left_behind
from tests.support.refusals import Refusing

pytestmark = pytest.mark.usefixtures("plans_are_kept")
OWN = DeviceOutOfMemoryError, HostOutOfMemoryError, PlanInfeasibleError


def _calls():
    random = np.random.default_rng(7)
    x = random.standard_normal((4, 4, 24, 16)).astype(np.float32)
    w = random.standard_normal((4, 4, 3, 3)).astype(np.float32)
    layers = [
        operations.Convolution(w, padding=1),
        operations.Activation("relu"),
        operations.Convolution(w, padding=1, dilation=1),
    ]

    def arrays():
        array = ooc_cudnn.empty((4, 4))
        array[...] = 3
        large = ooc_cudnn.zeros((64, 64, 8))
        return np.array(array), np.array(large)

    def averages():
        mean, variance = np.ones(4, np.float32), np.ones(4, np.float32)
        found = ooc_cudnn.batch_normalization_forward_training(
            x, np.ones(4, "f4"), np.zeros(4, "f4"), running_mean=mean, running_variance=variance
        )
        return *map(np.array, found), mean, variance

    return {
        "pageable": (lambda: ooc_cudnn.convolution_forward(x, w, padding=1), "64KiB"),
        "device": (lambda: ooc_cudnn.convolution_forward(_on_device(x), w, padding=1), "1MiB"),
        "chain": (lambda: ooc_cudnn.chain_forward(x, layers), "64KiB"),
        "arrays": (arrays, "64KiB"),
        "averages": (averages, "64KiB"),
        "pinned": (lambda: ooc_cudnn.convolution_forward(_pinned(x), w, padding=1), "64KiB"),
    }


def _on_device(x):
    array = ooc_cudnn.empty(x.shape)
    array[...] = x
    return array


def _pinned(x):
    with ooc_cudnn.settings(memory_limit=1):
        return _on_device(x)


CALLS = _calls()


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("name", list(CALLS))
def test_every_allocation_is_refused_in_turn(monkeypatch, host_device, name, for_good):
    call, limit = CALLS[name]

    def fresh():
        """From nothing: no block, no call, nothing ready; planning allocates nothing of these."""
        forget_calls()
        release()
        with ooc_cudnn.settings(memory_limit=limit):
            found = call()
            return [np.array(each) for each in (found if isinstance(found, tuple) else (found,))]

    expected = fresh()
    memory = Refusing(
        monkeypatch,
        (host_device.arena, "_allocate"),
        (host_device, "allocate_pinned"),
        (making, "_pageable"),
    )
    fresh()
    count = memory.asked
    assert count > 0
    raised = 0
    for at in range(count):
        memory.begin(range(at, 10**9 if for_good else at + 1))
        try:
            found = fresh()
        except OWN:
            raised += 1
        except MemoryError as error:
            raised += 1
            if str(error) != "_pageable":  # plain NumPy memory: its error is handed on as it is
                raise
        else:
            assert all(map(np.array_equal, found, expected)), at
            del found
        memory.begin(range(0))
        assert left_behind() == [], at
        assert all(map(np.array_equal, fresh(), expected)), at
    if for_good:
        assert raised > 0
