"""Steps are bound once: what touches nothing that has moved is not bound again."""

import gc
import weakref

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.calibration.calls import plan_in_images
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.measuring import Bench, WatchedDevice
from ooc_cudnn.pipeline import bound_steps, execute
from ooc_cudnn.tensor import TensorSpec

SHAPE = (2, 3, 8, 8)


@pytest.fixture(autouse=True)
def on_the_host():
    with ooc_cudnn.settings(device="host", machine="host"):
        yield


@pytest.fixture
def bound(monkeypatch):
    """Steps that were bound to addresses."""
    steps, action = [], execute.Executor._action
    monkeypatch.setattr(
        execute.Executor,
        "_action",
        lambda self, device, index, step, sources: (
            steps.append(index),
            action(self, device, index, step, sources),
        )[1],
    )
    return steps


def on_device(array):
    made = ooc_cudnn.empty(array.shape, array.dtype)
    made[...] = array
    assert ooc_cudnn.placement(made) == "device"
    return made


def network(*, there):
    """A network, with its parameters on the device or on the host."""
    net = ooc_cudnn.Network(seed=1)
    x = net.input("x", SHAPE)
    h = net.activation(net.batch_normalization(net.convolution(x, 8, window=3, padding=1)))
    y = net.linear(net.global_average(h), 4)
    if there:
        for held in (net.parameters, net.running):
            for name, array in held.items():
                held[name] = on_device(array)
    return net, y


def images(seed):
    return np.random.default_rng(seed).standard_normal(SHAPE, dtype="float32")


def test_only_what_touches_another_array_is_bound_again(bound):
    net, y = network(there=True)
    step = net.forward_step(y)
    x = on_device(images(0))
    expected = np.array(step.run({"x": x}).outputs[0])
    first = len(bound)
    bound.clear()
    again = step.run({"x": x}).outputs[0]
    assert len(bound) < first
    bound.clear()
    step.run({"x": x})
    same = len(bound)
    bound.clear()
    np.testing.assert_array_equal(again, expected)
    # another x, and another weight: bound anew, and read
    other = np.array(step.run({"x": on_device(images(1))}).outputs[0])
    assert same < len(bound) < first
    assert not np.array_equal(other, expected)
    net.parameters["linear_1.w"] = on_device(2 * np.asarray(net.parameters["linear_1.w"]))
    net.parameters["linear_1.b"][...] = 0
    np.testing.assert_allclose(step.run({"x": x}).outputs[0], 2 * expected, rtol=1e-5)


def test_another_block_binds_everything_anew(bound):
    net, y = network(there=True)
    step = net.forward_step(y)
    x = on_device(images(0))
    expected = np.array(step.run({"x": x}).outputs[0])
    first = len(bound)
    larger = images(0).repeat(64, 0)
    ooc_cudnn.activation_forward(larger)  # the block grows, and moves
    bound.clear()
    np.testing.assert_array_equal(step.run({"x": x}).outputs[0], expected)
    assert len(bound) == first


def test_arrays_of_the_host_are_let_go_of():
    net, y = network(there=False)
    step = net.forward_step(y)
    x = images(0)
    gone = weakref.ref(x)
    step.run({"x": x})
    del x
    gc.collect()
    assert gone() is None


def test_of_long_programs_nothing_is_kept(bound, monkeypatch):
    monkeypatch.setattr(bound_steps, "MOST_STEPS", 2)
    net, y = network(there=True)
    step, x = net.forward_step(y), on_device(images(0))
    expected = np.array(step.run({"x": x}).outputs[0])
    first = len(bound)
    np.testing.assert_array_equal(step.run({"x": x}).outputs[0], expected)
    assert len(bound) == 2 * first


def test_another_device_sees_what_is_launched():
    """Calibration runs steps on a device, then on one that watches it: it saw no launch."""
    device = get_device("host")
    bench = Bench(device, 2**20, batches=1, batch_seconds=0.01)
    plan, run = plan_in_images(bench, TensorSpec((4, 8, 2, 8), "float32", "pinned"))
    arrays = {name: np.ones(spec.shape, spec.dtype) for name, spec in plan.operands}
    run(device, arrays)
    watched = WatchedDevice(device)
    run(watched, arrays)
    assert len(watched.seconds) == plan.pieces
