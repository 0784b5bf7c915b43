"""Steps on arrays wherever they live: the host, the device, files."""

import gc

import numpy as np
import pytest
import torch

import ooc_cudnn

LIMIT = "1MiB"


@pytest.fixture
def made():
    net = ooc_cudnn.Network()
    x = net.input("images", (4, 3, 16, 16), "float64")
    labels = net.input("labels", (4,), "int64")
    h = net.activation(net.batch_normalization(net.convolution(x, 8, window=3, padding=1)))
    h = net.pooling(h, window=2)
    random = np.random.default_rng(0)
    images, classes = random.standard_normal(x.shape), random.integers(0, 10, 4)
    loss = net.softmax_cross_entropy(net.linear(h, 10), labels)
    with ooc_cudnn.settings(device="host", machine="host", memory_limit=LIMIT):
        yield net, h, loss, images, classes


def on_the_device(array):
    made = ooc_cudnn.empty(array.shape, array.dtype)
    made[...] = array
    assert ooc_cudnn.placement(made) == "device"
    return made


def test_a_step_is_the_same_wherever_its_arrays_are(made):
    net, _, loss, images, classes = made
    kept = {name: np.array(net.running[name]) for name in net.running}
    step = net.training_step(loss, memory_limit=LIMIT)
    value = step(images=images, labels=classes)
    gradients = {name: np.array(array) for name, array in step.gradients.items()}
    running = {name: np.array(net.running[name]) for name in net.running}
    for name in net.running:
        net.running[name] = on_the_device(kept[name])
    for name in net.parameters:
        net.parameters[name] = on_the_device(net.parameters[name])
    assert step(images=on_the_device(images), labels=classes) == pytest.approx(value, rel=1e-13)
    for name, expected in gradients.items():
        np.testing.assert_allclose(step.gradients[name], expected, rtol=0, atol=1e-13)
    for name, expected in running.items():
        assert ooc_cudnn.placement(net.running[name]) == "device"
        np.testing.assert_allclose(np.asarray(net.running[name]), expected, rtol=1e-13)


def test_an_optimizer_of_pytorch_trains_a_network_which_is_saved_and_loaded(made, tmp_path):
    net, _, loss, images, classes = made
    weights = {name: torch.nn.Parameter(torch.as_tensor(a)) for name, a in net.parameters.items()}
    net.parameters.update(weights)
    optimizer = torch.optim.Adam(weights.values(), lr=0.01)
    step, losses = net.training_step(loss), []
    for _ in range(3):
        losses.append(step(images=torch.from_numpy(images), labels=torch.from_numpy(classes)))
        for name, weight in weights.items():
            weight.grad = torch.as_tensor(step.gradients[name])
        optimizer.step()
    assert losses == sorted(losses, reverse=True)
    net.save(tmp_path / "net.npz")
    trained = {name: weight.detach().clone() for name, weight in weights.items()}
    with torch.no_grad():
        for weight in weights.values():
            weight.fill_(7)
    net.load(tmp_path / "net.npz")  # into the same memory
    for name, weight in weights.items():
        assert torch.equal(weight, trained[name])


def test_inference_reads_and_writes_files(made, tmp_path):
    net, h, _, images, _ = made
    expected = net.forward(h, images=images, memory_limit=LIMIT)
    source = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", images.dtype, images.shape)
    source[...] = images
    target = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", images.dtype, h.shape)
    target[...] = np.nan
    assert net.forward(h, images=source, out=target, memory_limit="64KiB") is target
    np.testing.assert_allclose(target, expected, rtol=0, atol=1e-13)


def test_parameters_that_are_slices_of_one_array(made):
    """Where they begin is no boundary of 16 bytes: what is computed on them there is wrong."""
    net, _, loss, images, classes = made
    step = net.training_step(loss, memory_limit=LIMIT)
    value = step(images=images, labels=classes)
    expected = {name: np.array(array) for name, array in step.gradients.items()}
    every = on_the_device(np.zeros(1 + sum(array.size for array in net.parameters.values())))
    start = 1
    for name, array in net.parameters.items():
        part = every[start : start + array.size].reshape(array.shape)
        part[...] = array
        net.parameters[name], start = part, start + array.size
    assert step(images=images, labels=classes) == pytest.approx(value, rel=1e-13)
    for name, gradient in expected.items():
        np.testing.assert_allclose(step.gradients[name], gradient, rtol=0, atol=1e-13)


def test_a_crop_of_an_input_on_the_device_begins_anywhere(made):
    net = ooc_cudnn.Network()
    x = net.input("x", (1, 2, 5, 5))
    y = net.convolution(net.crop(x, 1, 3), 2, window=1)
    given = np.random.default_rng(0).standard_normal(x.shape).astype("f4")
    expected = net.forward(y, x=given)
    np.testing.assert_allclose(net.forward(y, x=on_the_device(given)), expected, rtol=1e-6)


def peak_and_plan(step, **inputs):
    with ooc_cudnn.profile() as profiled:
        step(**inputs)
    (call,) = profiled.calls
    return call.peak_device_bytes, step.plan


def test_the_limit_of_a_step_holds_whatever_is_on_the_device(made):
    """It counts running statistics that the step makes anew there, and arrays made since."""
    net, _, loss, images, classes = made
    gc.collect()  # arrays of other tests count as well
    for name in net.running:
        net.running[name] = on_the_device(net.running[name])
    with pytest.raises(ooc_cudnn.PlanInfeasibleError) as refused:
        net.plan(loss, memory_limit=1, policy="keep")
    inputs = {"images": images, "labels": classes}
    least = refused.value.smallest_bytes + sum(array.nbytes for array in net.running.values())
    with pytest.raises(ooc_cudnn.PlanInfeasibleError, match=f"memory_limit={least}"):
        net.training_step(loss, memory_limit=least - 1, policy="keep")(**inputs)
    gc.collect()  # the frames of an error that pytest has looked at hold arrays, in a circle
    step = net.training_step(loss, memory_limit=least, policy="keep")
    assert peak_and_plan(step, **inputs)[0] == least
    assert peak_and_plan(step, **inputs)[0] == least
    limit = 2 * least
    step = net.training_step(loss, memory_limit=limit, policy="keep")
    _, before = peak_and_plan(step, **inputs)
    held = on_the_device(np.zeros(least // 3 // 8))
    peak, after = peak_and_plan(step, **inputs)
    assert before.device_bytes > after.device_bytes
    assert held.nbytes < peak <= limit
    del held
    assert peak_and_plan(step, **inputs)[1] == before


def test_the_limit_of_a_step_goes_before_the_setting(made):
    net, _, loss, images, classes = made
    step = net.training_step(loss, memory_limit="100kB", policy="keep")
    value = step(images=images, labels=classes)
    with ooc_cudnn.settings(memory_limit="10kB"):
        assert step(images=images, labels=classes) == value
