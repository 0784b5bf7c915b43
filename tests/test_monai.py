"""MONAI's whole-image inferer, beside the network itself (pip install --no-deps monai einops)."""

import importlib

import numpy as np
import pytest
import torch

from tests.support import sampling

pytest.importorskip("monai")
from monai.data import MetaTensor, decollate_batch, list_data_collate
from monai.inferers import SlidingWindowInferer

import ooc_cudnn.torch as ooc
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.monai import WholeImageInferer
from ooc_cudnn.torch.errors import UnsupportedModelError

pytestmark = [
    pytest.mark.usefixtures("fewest_plans"),
    pytest.mark.filterwarnings("ignore:::monai"),
]

VOLUME = {"spatial_dims": 3, "in_channels": 1, "out_channels": 3}
STRIDED = {"kernel_size": [3] * 3, "strides": [1, 2, 2], "upsample_kernel_size": [2, 2]}
WINDOWS = {"depths": (1,) * 4, "num_heads": (1, 2, 2, 2), "window_size": 2}
NETWORKS = {
    "UNet": {**VOLUME, "channels": (4, 8, 8), "strides": (2, 2), "norm": "batch"},
    "SegResNet": {**VOLUME, "init_filters": 8, "blocks_down": (1, 1), "blocks_up": (1,)},
    "DynUNet": {**VOLUME, **STRIDED, "filters": [4, 8, 8]},
    "SwinUNETR": {"in_channels": 1, "out_channels": 3, "feature_size": 12, "spatial_dims": 2}
    | WINDOWS,
}


def network_of(name):
    if name == "SwinUNETR":
        pytest.importorskip("einops")
    torch.manual_seed(0)
    network = getattr(importlib.import_module("monai.networks.nets"), name)(**NETWORKS[name])
    with torch.no_grad():  # running statistics that are not 0 and 1
        network.train()(torch.randn(2, *shape_of(name)[1:]))
    return network.eval()


def shape_of(name):
    return (1, 1, 64, 64) if name == "SwinUNETR" else (1, 1, 24, 16, 16)


def volumes(*affines, shape=(1, 24, 16, 16)):
    """A batch of MONAI's loader."""
    torch.manual_seed(1)
    items = [
        MetaTensor(torch.randn(shape), affine=at * torch.eye(4), meta={"filename_or_obj": str(at)})
        for at in affines
    ]
    return list_data_collate([{"image": each} for each in items])["image"]


def within_the_least(network, inputs, **options):
    """What is made of inputs under the least limit that there is a plan for."""
    limit = 1024
    for _ in range(3):  # what PyTorch computes within a limit is counted once it has some
        try:
            return WholeImageInferer(limit, **options)(inputs, network)
        except PlanInfeasibleError as error:
            limit = error.smallest_bytes
    raise AssertionError(f"no plan within {limit} bytes either")


@pytest.mark.parametrize("name", list(NETWORKS)[: sampling.number(1, of=len(NETWORKS))])
def test_it_is_the_network_on_the_whole_volume(name):
    network, inputs = network_of(name).double(), torch.randn(shape_of(name), dtype=torch.float64)
    with torch.no_grad():
        expected = network(inputs)
    found = within_the_least(network, inputs)
    assert type(found) is torch.Tensor
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-10)
    labels = within_the_least(network, inputs, reduce="argmax")
    assert labels.dtype == torch.uint8
    assert torch.equal(labels.long(), expected.argmax(1, keepdim=True))


def test_it_is_not_what_windows_make():
    network, inputs = network_of("UNet"), volumes(1.0)
    with torch.no_grad():
        expected = network(inputs)
        windows = SlidingWindowInferer((8, 8, 8), overlap=0.25)(inputs, network)
    found = WholeImageInferer("1MiB")(inputs, network)
    assert torch.allclose(found, expected, atol=1e-5)
    assert (windows - expected).abs().max() > 1e-2


def test_metadata_of_a_batch_are_kept():
    network, inputs = network_of("UNet"), volumes(1.0, 2.0)
    found = WholeImageInferer("1MiB", reduce="argmax")(inputs, network)
    assert isinstance(found, MetaTensor)
    assert found.shape == (2, 1, 24, 16, 16)
    assert found.is_batch
    assert [float(each.affine[0, 0]) for each in decollate_batch(found)] == [1.0, 2.0]
    assert found.meta["filename_or_obj"] == ["1.0", "2.0"]


@pytest.mark.parametrize("reduce", [None, "argmax"])
@pytest.mark.parametrize("ending", ["npy", "zarr"])
def test_a_file_for_each_volume(reduce, ending, tmp_path):
    if ending == "zarr":
        pytest.importorskip("zarr")
    network = network_of("UNet")
    inferer = WholeImageInferer(
        "1MiB", reduce=reduce, out=lambda x: tmp_path / f"{x.meta['filename_or_obj'][0]}.{ending}"
    )
    for affine in (1.0, 2.0):
        inputs = volumes(affine)
        found = inferer(inputs, network)
        with torch.no_grad():
            expected = network(inputs).numpy()
        if reduce:
            expected = expected.argmax(1).astype("uint8")
        path = tmp_path / f"{affine}.{ending}"
        stored = np.load(path) if ending == "npy" else importlib.import_module("zarr").open(path)
        assert stored.dtype == expected.dtype
        assert np.allclose(stored[...], expected, atol=1e-5)
        if ending == "npy":
            assert isinstance(found, MetaTensor)
            assert float(found.affine[0, 0, 0]) == affine
            assert np.array_equal(found.numpy().reshape(stored.shape), stored)


def test_an_array_to_write_keeps_its_shape_and_dtype():
    network, inputs = network_of("UNet"), volumes(1.0)
    for shape in ((1, 24, 16, 16), (1, 1, 24, 16, 16)):
        labels = np.empty(shape, "int64")
        found = WholeImageInferer("1MiB", reduce="argmax", out=labels)(inputs, network)
        assert found.shape == shape
        assert found.dtype == torch.int64
        found += 1
        assert labels.min() >= 1


class Conditioned(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Conv3d(2, 3, 3, padding=1)

    def forward(self, x, other, *, factor=1, mask=None):
        y = self.net(torch.cat([x, other], 1)) * factor
        return {"scores": y if mask is None else y * mask, "first": y[:, :1]}


def test_other_arguments_and_several_results():
    network, inputs = Conditioned().eval(), volumes(3.0)
    other, mask = torch.randn(inputs.shape), (torch.rand(inputs.shape) > 0.5).float()
    with torch.no_grad():
        expected = network(inputs, other, factor=2, mask=mask)
    found = WholeImageInferer("1MiB")(inputs, network, other, factor=2, mask=mask)
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        assert torch.allclose(found[name], each, atol=1e-6)
        assert torch.equal(found[name].affine, each.affine)


def test_the_limit_of_a_network_counts_where_there_is_no_other():
    network = ooc.limit(network_of("UNet"), "2KiB")
    with pytest.raises(PlanInfeasibleError, match=r"2\.00 KiB"):
        WholeImageInferer()(volumes(1.0), network)
    assert WholeImageInferer("1MiB")(volumes(1.0), network).shape == (1, 3, 24, 16, 16)


class TestRefusals:
    def test_of_the_inferer(self):
        with pytest.raises(ValueError, match="reduce must be None or argmax, not 'median'"):
            WholeImageInferer(reduce="median")
        with pytest.raises(ValueError, match="memory_limit"):
            WholeImageInferer("8 bananas")
        with pytest.raises(TypeError, match="scale must be a number"):
            WholeImageInferer(scale="1")

    def test_of_a_function(self):
        with pytest.raises(TypeError, match=r"network must be a torch\.nn\.Module, not function"):
            WholeImageInferer("1MiB")(volumes(1.0), lambda x: x)

    def test_of_a_network_in_training(self):
        with pytest.raises(UnsupportedModelError, match=r"call model\.eval\(\) first"):
            WholeImageInferer("1MiB")(volumes(1.0), network_of("UNet").train())

    def test_of_images_of_other_dimensions(self):
        with pytest.raises((TypeError, ValueError, RuntimeError), match=r"3D|5D|Conv"):
            WholeImageInferer("1MiB")(torch.randn(1, 1, 8, 8, 8, 8), network_of("UNet"))

    def test_of_several_results_to_reduce(self):
        inferer = WholeImageInferer("1MiB", reduce="argmax")
        with pytest.raises(TypeError, match="labels are made of one result"):
            inferer(volumes(1.0), Conditioned().eval(), volumes(2.0))

    def test_of_heads_that_are_kept_and_what_to_do(self):
        """As docs/monai.md has it."""
        torch.manual_seed(0)
        dynunet = importlib.import_module("monai.networks.nets").DynUNet
        heads = {"deep_supervision": True, "deep_supr_num": 1}
        supervised = dynunet(**NETWORKS["DynUNet"], **heads).eval()
        plain = dynunet(**NETWORKS["DynUNet"]).eval()
        assert not plain.load_state_dict(supervised.state_dict(), strict=False).missing_keys
        with torch.no_grad():
            expected = supervised(volumes(1.0))
        inferer = WholeImageInferer("1MiB", reduce="argmax")
        with pytest.raises(TypeError, match="labels are made of one result"):
            inferer(volumes(1.0), supervised)
        assert torch.equal(inferer(volumes(1.0), plain).long(), expected.argmax(1, keepdim=True))
        found = WholeImageInferer("1MiB")(volumes(1.0), supervised)
        assert torch.allclose(found, expected, atol=1e-4)

    def test_of_another_path(self):
        with pytest.raises(ValueError, match=r"the path of a \.npy file or a \.zarr folder"):
            WholeImageInferer("1MiB", out="labels.nii.gz")(volumes(1.0), network_of("UNet"))
