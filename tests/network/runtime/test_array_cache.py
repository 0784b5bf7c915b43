"""What a network holds is looked at once, and again where it has moved."""

import gc

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.arrays.making import empty_in
from ooc_cudnn.devices import get_device
from ooc_cudnn.network.runtime import array_cache as module
from ooc_cudnn.network.runtime.array_cache import ArrayCache
from tests.support.on_device import on_the_device


@pytest.fixture
def host():
    with ooc_cudnn.settings(device="host"):
        yield get_device("host")


@pytest.fixture
def looked_at(monkeypatch):
    """The names of what was looked at."""
    names = []

    def wrap(array, device, *, name):
        names.append(name)
        return real(array, device, name=name)

    real = module.array_ref
    monkeypatch.setattr(module, "array_ref", wrap)
    return names


def test_what_is_on_the_device_is_looked_at_again_where_it_has_changed(host, looked_at):
    wrapping = ArrayCache()
    array = on_the_device(np.zeros((2, 3, 4), "float32"))
    first = wrapping("w", array, host)
    assert wrapping("w", array, host) == first
    assert wrapping("w", array[:], host).array is not array
    assert looked_at == ["w"]
    for other in (array[:, :2], array.view("int32"), array.transpose(0, 2, 1), array.copy()):
        found = wrapping("w", other, host)
        assert found.array is other
        assert found.spec.shape == other.shape
        assert found.pointer == other.__array_interface__["data"][0]
    assert looked_at == ["w"] * 5


def test_nothing_on_the_device_is_kept_alive(host):
    wrapping = ArrayCache()
    before = host.arena.array_bytes
    wrapping("w", on_the_device(np.zeros((2, 3, 4), "float32")), host)
    gc.collect()
    assert host.arena.array_bytes == before


def test_memory_of_the_host_is_asked_for_each_time(host, looked_at):
    """It may be pinned now, and not any more later; what the library made stays as it is."""
    wrapping = ArrayCache()
    array = np.zeros((64, 1024), "float32")
    assert wrapping("w", array, host).spec.placement == "pageable"
    with ooc_cudnn.pin(array):
        assert wrapping("w", array, host).spec.placement == "pinned"
    assert wrapping("w", array, host).spec.placement == "pageable"
    made = empty_in(host, "pinned", (2, 3), "float32", "channels_first")
    spec = ooc_cudnn.TensorSpec((2, 3), "float32", "pinned")
    wrapping.note("running", made, spec, host)
    assert wrapping("running", made, host).spec is spec
    assert looked_at == ["w"] * 3
    assert wrapping("running", np.zeros((2, 3), "float32"), host).spec.placement == "pageable"


def test_running_statistics_that_are_replaced_are_read(host):
    """Those of the last step are not taken for the new ones."""
    net = ooc_cudnn.Network()
    x = net.input("x", (4, 3, 5), "float64")
    loss = net.mean_squared_error(
        net.batch_normalization(x, name="bn"), net.input("t", x.shape, "float64")
    )
    step = net.training_step(loss, memory_limit="1MiB")
    random = np.random.default_rng(0)
    given = {name: random.standard_normal(x.shape) for name in ("x", "t")}
    step(**given)
    first = {name: np.array(each) for name, each in net.running.items()}
    step(**given)
    assert any(not np.array_equal(first[name], net.running[name]) for name in first)
    for name, each in net.running.items():
        net.running[name] = np.zeros_like(each) if name.endswith("mean") else np.ones_like(each)
    step(**given)
    for name, each in first.items():
        np.testing.assert_allclose(net.running[name], each, rtol=1e-13)


def test_running_statistics_that_are_changed_in_shape_or_dtype_are_refused(host):
    """In place: the array is the one that the step before has made."""
    net = ooc_cudnn.Network()
    x = net.input("x", (4, 3, 5), "float64")
    normalised = net.batch_normalization(x, name="bn")
    loss = net.mean_squared_error(normalised, net.input("t", x.shape, "float64"))
    step = net.training_step(loss, memory_limit="1MiB")
    random = np.random.default_rng(0)
    given = {name: random.standard_normal(x.shape) for name in ("x", "t")}
    step(**given)
    array = next(iter(net.running.values()))
    array.shape = (1, 3)
    with pytest.raises(ValueError, match="must have shape"):
        step(**given)
    array.shape = (3,)
    array.dtype = np.int64
    with pytest.raises(TypeError, match="must be float64"):
        step(**given)
