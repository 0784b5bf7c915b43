"""VGG-16 written on the library: every gradient against PyTorch's, out of core."""

import json

import numpy as np
import pytest

import ooc_cudnn
from examples.vgg16 import VGG16, main
from examples.vgg16_report import Report

TINY = {"image": 32, "classes": 5, "channels_scale": 1 / 16}
#: Of the largest element of each gradient; sums of float32 over 16 layers.
TOLERANCE = {"float32": 2e-4, "float64": 1e-11}


def on_host(array):
    found = np.empty(array.shape, array.dtype)
    ooc_cudnn.memcpy(found, array)
    return found


def with_torch(network, images, labels):
    """Loss and gradients by PyTorch's autograd, in float64, from the network's parameters."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional

    def leaf(array):
        return torch.tensor(on_host(array), dtype=torch.float64, requires_grad=True)

    leaves = {name: leaf(parameter.value) for name, parameter in network.parameters.items()}
    x = leaves["images"] = leaf(images)
    for layer in network.layers:
        if layer.name.startswith("pool"):
            x = functional.max_pool2d(x, 2)
        elif layer.name == "softmax":
            x = functional.log_softmax(x, dim=1)
        else:
            w, b = leaves[f"{layer.name}.w"], leaves[f"{layer.name}.b"]
            x = functional.conv2d(x, w, b, padding=1 if layer.name.startswith("conv") else 0)
            x = x if layer.name == "fc8" else torch.relu(x)
    loss = functional.nll_loss(x.flatten(1), torch.tensor(labels))
    loss.backward()
    return float(loss.detach()), {name: each.grad.numpy() for name, each in leaves.items()}


@pytest.mark.parametrize("order", ["channels_first", "channels_last"])
@pytest.mark.parametrize(("dtype", "batch"), [("float32", 3), ("float64", 2)])
def test_every_gradient_is_that_of_autograd(dtype, batch, order, random):
    images = random.standard_normal((batch, 3, 32, 32)).astype(dtype)
    labels = random.integers(5, size=batch)
    report = Report()
    limit = 96 * 1024 * np.dtype(dtype).itemsize // 4
    with ooc_cudnn.settings(memory_limit=limit):
        network = VGG16(batch, dtype=dtype, order=order, watch=report.watch, **TINY)
        for map_ in network.maps:  # what is not written must show
            ooc_cudnn.memcpy(map_, np.full(map_.shape, np.nan, dtype))
        network.forward(images)
        loss, gradients = network.loss(labels), network.backward(labels)
    expected_loss, expected = with_torch(network, images, labels)
    assert loss == pytest.approx(expected_loss, rel=TOLERANCE[dtype])
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        error = np.abs(on_host(gradient) - expected[name]).max() / np.abs(expected[name]).max()
        assert error < TOLERANCE[dtype], name
    # The case is worth something only if it is out of core, from device and pinned memory alike.
    rows = {(row.layer, row.direction): row for row in report.rows}
    assert len(rows) == 2 * len(network.layers)
    functions = {row.function for row in report.rows if row.direction == "backward"}
    assert {"convolution_add_activation_backward", "convolution_backward_data"} <= functions
    for layer in ("conv1_1", "conv1_2", "fc7"):
        for direction in ("forward", "backward"):
            assert rows[layer, direction].pieces > 1, (layer, direction)
    used = {place for row in report.rows for place in row.placements.values()}
    assert {"device", "pinned"} <= used
    assert max(row.peak_device_bytes for row in report.rows) <= limit


def test_gradients_of_maps_share_two_buffers():
    network = VGG16(2, **TINY)
    pool = network.gradient_pool
    largest = max(int(np.prod(map_.shape)) for map_ in network.maps)
    assert [buffer.size for buffer in pool.buffers] == [largest, largest]
    first, second, third = (pool.take((2, 3, 4, 4)) for _ in range(3))
    assert not np.shares_memory(first, second)
    assert np.shares_memory(first, third)


def test_training_lowers_the_loss(random):
    images = random.standard_normal((2, 3, 33, 33), dtype="float32")
    labels = [1, 4]
    network = VGG16(2, **{**TINY, "image": 33})
    losses = []
    for _ in range(4):
        network.forward(images)
        losses.append(network.loss(labels))
        network.backward(labels)
        network.descend(0.02)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize(
    ("labels", "error", "said"),
    [
        ([0.0, 1.0], TypeError, "integers, not float64"),
        ([True, False], TypeError, "integers, not bool"),
        ([0], ValueError, r"shape \(2,\)"),
        ([[0], [1]], ValueError, r"shape \(2,\)"),
        ([0, 5], ValueError, "from 0 to 4, not 0 to 5"),
        ([-1, 0], ValueError, "from 0 to 4, not -1 to 0"),
    ],
)
def test_bad_labels_say_what_is_wrong(labels, error, said, random):
    network = VGG16(2, **TINY)
    network.images = network.images_shape  # as if a forward pass had been
    with ooc_cudnn.profile() as recorded, pytest.raises(error, match=said):
        network.backward(labels)
    assert recorded.calls == []


def test_bad_images_and_sizes_say_what_is_wrong():
    network = VGG16(2, **TINY)
    with pytest.raises(ValueError, match="call forward"):
        network.backward([0, 1])
    with pytest.raises(ValueError, match=r"shape \(2, 3, 32, 32\), not \(1, 3, 32, 32\)"):
        network.forward(np.zeros((1, 3, 32, 32), "float32"))
    with pytest.raises(TypeError, match="float32, not float64"):
        network.forward(np.zeros((2, 3, 32, 32)))
    with pytest.raises(ValueError, match="image=31 at least 32"):
        VGG16(2, 31)


ARGUMENTS = [
    "--batch=2", "--image=32", "--classes=5", "--channels-scale=0.0625", "--memory-limit=160KiB",
    "--device=host", "--steps=2", "--order=channels_last",
]  # fmt: skip


def test_the_command_prints_what_ran_where(capsys):
    assert main(ARGUMENTS) == 0
    printed = capsys.readouterr().out
    assert "step 2: loss" in printed
    rows = [line.split()[:2] for line in printed.splitlines()]
    assert ["conv1_1", "convolution_add_activation_forward"] in rows
    assert ["conv1_1", "convolution_add_activation_backward"] in rows
    assert ["pool5", "pooling_backward"] in rows
    assert "what binds" in printed


def test_the_command_prints_json(capsys):
    assert main([*ARGUMENTS, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["steps"]) == 2
    assert len({(row["layer"], row["direction"]) for row in printed["calls"]}) == 2 * 22
    first = printed["calls"][0]
    assert (first["layer"], first["direction"]) == ("conv1_1", "forward")
    assert set(first["split"]) == {"d_n", "d_cY", "d_cX", "d_hY"}
    assert first["binds"] in first["stage_seconds"]
