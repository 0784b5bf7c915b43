"""Host memory of steps: what a plan keeps there is bounded, and named beforehand."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.errors import HostOutOfMemoryError
from ooc_cudnn.memory import pinned
from ooc_cudnn.warnings_once import forget_warnings


class Deep:
    """A network of maps that are alike, which leave for the host where memory is short."""

    def __init__(self):
        net = self.net = ooc_cudnn.Network(seed=1)
        x = y = net.input("x", (4, 8, 16, 16))
        for _ in range(5):
            y = net.activation(net.convolution(y, 8, window=3, padding=1), "tanh")
        target = net.input("target", y.shape)
        self.loss = net.mean_squared_error(y, target)
        random = np.random.default_rng(2)
        self.inputs = {
            name: random.standard_normal(x.shape).astype("f4") for name in ("x", "target")
        }

    def plan(self, host, limit="200KiB", **asked):
        with ooc_cudnn.settings(host_memory_limit=host):
            return self.net.plan(self.loss, memory_limit=limit, machine="h200", **asked)


@pytest.fixture
def deep():
    return Deep()


def test_plans_fit_host_memory(deep):
    """What would be fastest keeps too much there: another one is taken."""
    free = deep.plan(None)
    bounded = deep.plan(free.host_bytes - 1)
    assert bounded.host_bytes < free.host_bytes
    assert bounded.seconds > free.seconds


@pytest.mark.every_case
def test_what_is_missing_is_named_beforehand(deep):
    with pytest.raises(HostOutOfMemoryError) as refused:
        deep.plan(1000)
    error = refused.value
    assert error.available_bytes == error.limit_bytes == 1000
    assert "for what training_step keeps on the host" in str(error)
    assert deep.plan(error.requested_bytes).host_bytes == error.requested_bytes
    for policy in ("offload", "vdnn_dyn"):
        with pytest.raises(HostOutOfMemoryError):
            deep.plan(1000, policy=policy)


def test_steps_hold_what_their_plans_say(deep, host_device):
    """In arrays of pinned memory: nothing before, and beside it but gradients and the loss."""
    held = pinned.room(host_device, None).held_bytes
    step = deep.net.training_step(deep.loss, memory_limit="260KiB", policy="offload")
    with ooc_cudnn.settings(host_memory_limit=held + 2**30):
        step(**deep.inputs)
    taken = pinned.room(host_device, None).held_bytes - held
    assert step.plan.host_bytes > 50_000
    assert taken == pytest.approx(step.plan.host_bytes, abs=pinned.PAGE_BYTES * 20)


def test_a_step_that_host_memory_has_no_room_for(deep, host_device):
    step = deep.net.training_step(deep.loss, memory_limit="260KiB", policy="offload")
    with (
        ooc_cudnn.settings(host_memory_limit=pinned.room(host_device, None).held_bytes + 1000),
        pytest.raises(HostOutOfMemoryError),
    ):
        step(**deep.inputs)
    assert step.gradients == {}
    assert np.isfinite(step(**deep.inputs))


def test_room_counts_what_lies_ready(host_device):
    before = pinned.room(host_device, None)
    array = pinned.allocate(host_device, 2**20, None)
    with_it = pinned.room(host_device, before.held_bytes + 2**21)
    assert with_it.held_bytes == before.held_bytes + 2**20
    assert with_it.available_bytes == 2**20
    del array
    after = pinned.room(host_device, before.held_bytes + 2**21)
    assert after.available_bytes == 2**21


def test_a_step_pins_no_more_than_the_driver_locks(deep, host_device, monkeypatch):
    """What is refused is planned anew, and said once; the result is the same."""
    forget_warnings()
    made = partial(deep.net.training_step, deep.loss, memory_limit="260KiB", policy="offload")
    lock, asked, live = host_device.allocate_pinned, [0], []

    def capped(nbytes):
        asked.append(nbytes)
        held = sum(each().nbytes for each in live if each() is not None)
        if nbytes > pinned.PAGE_BYTES and held + nbytes > cap:
            raise MemoryError("cannot page-lock")
        array = lock(nbytes)
        if nbytes > pinned.PAGE_BYTES:  # gradients are pages, each
            live.append(weakref.ref(array))
        return array

    gc.collect()
    pinned.release(host_device)
    monkeypatch.setattr(host_device, "allocate_pinned", capped)
    cap = 2**30
    step = made()
    expected = step(**deep.inputs)
    cap = max(asked) - pinned.PAGE_BYTES
    del step
    gc.collect()
    pinned.release(host_device)
    step = made()
    with pytest.warns(UserWarning, match=r"planned to pin no more .*`ulimit -l` cap"):
        found = step(**deep.inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert step.plan.host_bytes <= cap
    assert step(**deep.inputs) == found  # in silence
    pinned.release(host_device)
