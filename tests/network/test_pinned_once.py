"""Steps take pinned memory when they are made ready: later ones use it again, and take none."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.memory import pinned

SHAPE = (4, 3, 16, 16)


def layers(net, h, *, normalizes):
    for _ in range(3):
        h = net.convolution(h, 8, window=3, padding=1)
        h = net.activation(net.batch_normalization(h) if normalizes else h, "relu")
    return h


def trained(*, normalizes):
    """A network of a few layers, its loss, and inputs in plain memory."""
    net = ooc_cudnn.Network(seed=1)
    h = layers(net, net.input("images", SHAPE), normalizes=normalizes)
    labels = net.input("labels", SHAPE[:1], "int64")
    loss = net.softmax_cross_entropy(net.linear(net.global_average(h), 10), labels)
    return net, loss, {"images": np.ones(SHAPE, "float32"), "labels": np.arange(SHAPE[0])}


@pytest.fixture
def pages(monkeypatch, host_device):
    """The bytes of every array that is pinned from now on."""
    gc.collect()
    pinned.release(host_device)
    found, allocate = [], host_device.allocate_pinned

    def watched(nbytes):
        found.append(nbytes)
        return allocate(nbytes)

    monkeypatch.setattr(host_device, "allocate_pinned", watched)
    return found


def pinned_by(call, pages, count=4):
    """How many arrays each of several calls pins."""
    found = []
    for _ in range(count):
        pages.clear()
        call()
        found.append(len(pages))
    return found


@pytest.mark.parametrize("normalizes", [True, False], ids=["batch norm", "none"])
@pytest.mark.parametrize(
    "asked",
    [
        {"policy": "keep", "memory_limit": "1GiB"},
        {"policy": "offload", "memory_limit": "150KiB"},
        {"policy": "best", "memory_limit": "150KiB"},
        {"policy": "best", "memory_limit": "60KiB"},
    ],
    ids=lambda asked: "{policy} in {memory_limit}".format(**asked),
)
def test_steps_after_the_first_pin_nothing(asked, normalizes, pages, few_plans):
    """Though gradients and running statistics of the step before are held until it has ended."""
    net, loss, inputs = trained(normalizes=normalizes)
    step = net.training_step(loss, **asked)
    first, *later = pinned_by(lambda: step(**inputs), pages)
    assert first > len(net.parameters)
    assert later == [0, 0, 0]


def test_nor_in_micro_batches(pages):
    net, loss, inputs = trained(normalizes=False)
    step = net.training_step(loss, memory_limit="1GiB", policy="keep", micro_batches=2)
    assert pinned_by(lambda: step(**inputs), pages)[1:] == [0, 0, 0]


def test_nor_where_somebody_reads_gradients_between(pages):
    """The optimizer's name for them keeps them no longer than the step itself does."""
    net, loss, inputs = trained(normalizes=True)
    step, seen = net.training_step(loss, policy="keep"), {}

    def call():
        nonlocal seen
        step(**inputs)
        seen = step.gradients

    assert pinned_by(call, pages)[1:] == [0, 0, 0]
    assert set(seen) == set(net.parameters)


def test_a_step_that_is_planned_again_pins_no_third_set(pages):
    net, loss, inputs = trained(normalizes=True)
    step = net.training_step(loss, policy="keep")
    pinned_by(lambda: step(**inputs), pages, 2)
    with ooc_cudnn.settings(deterministic=True):
        assert sum(pinned_by(lambda: step(**inputs), pages)) == 0
    assert step.gradients


def test_steps_that_pause_pin_nothing_after_the_first(pages):
    """But where whoever calls still holds the outputs and gradients of the step before."""
    net = ooc_cudnn.Network(seed=1)
    h = layers(net, net.input("images", SHAPE), normalizes=True)
    step = net.pausing_step(h, memory_limit="150KiB", policy="offload")

    def call():
        paused = step.forward(images=np.ones(SHAPE, "float32"))
        paused.backward([np.ones_like(paused.outputs[0])])

    first, *later = pinned_by(call, pages)
    assert first > 0
    assert later == [0, 0, 0]


def test_without_room_for_two_sets_the_first_step_runs(pages, host_device):
    """What host memory has room for is not asked for more than the step needs."""
    net, loss, inputs = trained(normalizes=True)
    step = net.training_step(loss, policy="keep")
    step(**inputs)
    held = pinned.room(host_device, None).held_bytes
    del net, step
    gc.collect()
    pinned.release(host_device)
    net, loss, inputs = trained(normalizes=True)
    step = net.training_step(loss, policy="keep")
    with ooc_cudnn.settings(host_memory_limit=held + pinned.PAGE_BYTES):
        assert np.isfinite(step(**inputs))
        assert pinned.held_bytes(host_device) <= held + pinned.PAGE_BYTES


def test_gradients_that_were_on_the_device_count_for_none_on_the_host(pages):
    net, loss, inputs = trained(normalizes=False)
    host = dict(net.parameters)
    for name, array in host.items():
        net.parameters[name] = ooc_cudnn.empty(array.shape, array.dtype)
        net.parameters[name][...] = array
    step = net.training_step(loss, policy="keep", memory_limit="1GiB")
    step(**inputs)
    net.parameters.update(host)
    assert pinned_by(lambda: step(**inputs), pages)[1:] == [0, 0, 0]
