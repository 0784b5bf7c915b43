"""The networks that ship: as many parameters as the papers count, and the steps of PyTorch."""

import numpy as np
import pytest

from examples import twins
from ooc_cudnn import networks
from tests.support.network_checks import check_network

#: Name: (arguments of a small one, its twin).
SMALL = {
    "alexnet": ({"image": 67, "width": 1 / 16, "dropout": 0}, twins.alexnet),
    "overfeat": ({"image": 95, "width": 1 / 32, "dropout": 0}, twins.overfeat),
    "googlenet": ({"image": 224, "width": 1 / 16, "dropout": 0, "batch": 1}, twins.googlenet),
    "vgg16": ({"image": 32, "width": 1 / 16, "dropout": 0}, twins.vgg(*twins.VGG16)),
    "vgg19": ({"image": 32, "width": 1 / 16, "dropout": 0}, twins.vgg(2, 2, 4, 4, 4)),
    "resnet50": ({"image": 64, "width": 1 / 16, "batch": 3}, twins.resnet(3, 4, 6, 3)),
    "resnet152": ({"image": 64, "width": 1 / 32, "batch": 4}, twins.resnet(3, 8, 36, 3)),
    "densenet121": ({"image": 64, "width": 1 / 8, "batch": 3}, twins.densenet121),
    "unet": ({"image": 188, "width": 1 / 32, "dropout": 0, "batch": 1}, twins.unet),
    "unet_3d": ({"image": 16, "width": 1 / 16, "stages": 4}, twins.unet_3d),
}

#: Parameters as published (with 1000 classes), or as torchvision counts them.
PARAMETERS = {
    "alexnet": 60_965_224,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "densenet121": 7_978_856,
    "unet": 31_030_658,
}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_one_is_its_twin(name):
    options, twin = SMALL[name]
    net, loss = getattr(networks, name)(**{"batch": 2, **options, "dtype": "float64", "classes": 4})
    for (
        each
    ) in net.parameters:  # whole ones enlarge PyTorch's own rounding a hundred thousand times
        if each.endswith("bn3.scale"):
            net.parameters[each] *= 0.2
    shape = net.graph.tensors["labels"].shape
    labels = np.random.default_rng(0).integers(0, 4, shape)

    def loss_of(t):
        return twin(t, t["images"], t["labels"])

    step = check_network(net, loss, loss_of, inputs={"labels": labels}, inference=False)
    assert set(step.gradients) == set(net.parameters)


@pytest.mark.parametrize("name", PARAMETERS)
def test_there_are_as_many_parameters_as_published(name):
    net, _ = getattr(networks, name)()
    assert sum(np.prod(t.shape) for t in net.parameters.tensors.values()) == PARAMETERS[name]


@pytest.mark.parametrize("layers", [116, 216, 316, 416])
def test_deeper_ones_have_twenty_more_in_each_group(layers):
    net, loss = getattr(networks, f"vgg{layers}")(image=32)
    convolutions = [name for name in net.graph.nodes if name.startswith("conv") and "." not in name]
    assert len(convolutions) == layers - 3
    groups = [sum(name.startswith(f"conv{g}_") for name in convolutions) for g in range(1, 6)]
    more = (layers - 16) // 5
    assert groups == [2 + more, 2 + more, 3 + more, 3 + more, 3 + more]
    assert net.graph.tensors["images"].shape == (32, 3, 32, 32)
    assert len(net.training_phases(loss).gradients) == 2 * layers


def test_what_is_dense_is_one_buffer():
    """Nothing is copied: a block's layers write where the concatenation is."""
    net, loss = networks.densenet121(batch=1, image=32, width=1 / 8)
    step = net.training_phases(loss)
    assert [phase.name for phase in step.phases if "copy" in phase.name] == []
    last = "features.denseblock1.denselayer6"
    assert step.base("features.denseblock1.denselayer1.conv2") == last
    assert step.base("features.pool0") == last


@pytest.mark.parametrize("name", ["googlenet", "resnet50", "unet_3d"])
def test_they_stand_for_other_sizes_and_come_back_from_files(name, tmp_path):
    options = {"width": 1 / 16, "batch": 2, **({"image": 16, "stages": 3} if "3d" in name else {})}
    net, loss = getattr(networks, name)(**options)
    tensors = net.graph.tensors
    shapes = {each: (1, *tensors[each].shape[1:]) for each in ("images", "labels")}
    one = net.resized(**shapes)
    assert list(one.graph.tensors) == list(tensors)
    phases = [phase.name for phase in net.training_phases(loss).phases]
    assert [p.name for p in one.training_phases(one.graph.tensors["loss"]).phases] == phases
    net.save(tmp_path / "net.npz")
    other, _ = getattr(networks, name)(**options, seed=1)
    other.load(tmp_path / "net.npz")
    for mine, its in ((net.parameters, other.parameters), (net.running, other.running)):
        assert all(np.array_equal(mine[each], its[each]) for each in mine)


def test_images_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="image must be 188"):
        networks.unet(image=256)
    with pytest.raises(ValueError, match=r"pool1: .*window"):
        networks.alexnet(image=15)
