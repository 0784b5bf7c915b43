"""Steps that are recorded as CUDA graphs do what the same steps do that are issued one by one."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.arrays.making import empty_in
from ooc_cudnn.devices import get_device
from ooc_cudnn.pipeline import graph_replay
from tests.support.on_device import fetched, on_the_device

cupy = pytest.importorskip("cupy")
ROUNDS = 10


def network():
    """Its parameters are on the card: what is in ordinary memory is staged."""
    net = ooc_cudnn.Network(seed=3)
    x = net.input("x", (8, 16, 30, 30), "float32")
    for at in range(6):
        y = net.activation(net.batch_normalization(net.convolution(x, 16, window=3, padding=1)))
        x = net.add(x, y) if at % 2 else y
    loss = net.mean_squared_error(x, net.input("target", x.shape, "float32"))
    for name in net.parameters:
        net.parameters[name] = on_the_device(net.parameters[name])
    return net, loss


def drawn(seed, place):
    random = np.random.default_rng(seed)
    found = {}
    for name in ("x", "target"):
        array = random.standard_normal((8, 16, 30, 30)).astype(np.float32)
        if place == "device":
            found[name] = on_the_device(array, "channels_first")
        else:
            shape = array.shape
            device = get_device("cuda")
            found[name] = empty_in(device, "pinned", shape, "float32", "channels_first")
            found[name][...] = array
    return found


def steps(limit, policy, place, rounds=ROUNDS):
    """What every step of a network makes, as its inputs change where they lie."""
    net, loss = network()
    step = net.training_step(loss, memory_limit=limit, policy=policy)
    given, made = drawn(0, place), []
    for at in range(rounds):
        for name, array in drawn(at, "pinned").items():
            if place == "device":
                ooc_cudnn.memcpy(given[name], array)
            else:
                given[name][...] = array
        value = step(**given)
        made.append((value, {n: fetched(g).copy() for n, g in step.gradients.items()}))
    running = {name: np.array(array) for name, array in net.running.items()}
    return made, running


@pytest.mark.parametrize("place", ["pinned", "device"])
@pytest.mark.parametrize(("limit", "policy"), [("1GiB", "keep"), ("9MiB", "offload")])
def test_recorded_steps_make_what_issued_ones_make(monkeypatch, recorded, limit, policy, place):
    with ooc_cudnn.settings(deterministic=True):
        found, running = steps(limit, policy, place)
        assert recorded
        assert None not in recorded
        count = len(recorded)
        monkeypatch.setattr(graph_replay, "FEWEST_TASKS", 10**9)
        expected, others = steps(limit, policy, place)
        assert len(recorded) == count
    for (loss, gradients), (value, these) in zip(found, expected, strict=True):
        assert loss == value
        for name, gradient in gradients.items():
            np.testing.assert_array_equal(gradient, these[name])
    for name, array in running.items():
        np.testing.assert_array_equal(array, others[name])


def test_a_graph_follows_what_the_callers_stream_did_before(recorded):
    net, loss = network()
    step = net.training_step(loss, memory_limit="1GiB", policy="keep")
    given = drawn(0, "device")
    ones = drawn(1, "device")
    expected = step(**ones)
    with cupy.cuda.Stream(non_blocking=True):
        for _ in range(ROUNDS):
            step(**given)
        assert recorded
        for name, array in given.items():
            array[...] = ones[name]  # on this stream
        assert step(**given) == pytest.approx(expected, rel=1e-6)
