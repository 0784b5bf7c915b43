"""`infer` from and to arrays of Zarr and HDF5, files, and arrays of other byte orders."""

import numpy as np
import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from ooc_cudnn.network.tiled import infer
from tests.support.torch_checks import close
from tests.support.torch_models import UNet

pytestmark = pytest.mark.usefixtures("fewest_plans")

LIMIT = "300KiB"


@pytest.fixture
def model():
    torch.manual_seed(0)
    return UNet(norm="Batch").double().eval()


class Permuted(nn.Module):
    """A model whose result PyTorch makes of the network's."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).permute(0, 2, 3, 1)


STORES = {
    "zarr": lambda path, shape, dtype: pytest.importorskip("zarr").create_array(
        path / "x.zarr", shape=shape, dtype=dtype, chunks=(1,) * (len(shape) - 2) + (16, 16)
    ),
    "hdf5": lambda path, shape, dtype: (
        pytest.importorskip("h5py").File(path / "x.h5", "w").create_dataset("x", shape, dtype)
    ),
    "memmap": lambda path, shape, dtype: np.lib.format.open_memmap(
        path / "x.npy", "w+", dtype, shape
    ),
    "big-endian": lambda path, shape, dtype: np.lib.format.open_memmap(
        path / "x.npy", "w+", np.dtype(dtype).newbyteorder(">"), shape
    ),
}


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("limit", ["64MiB", "420KiB"])  # whole, and in blocks
def test_stores_are_read_and_written(kind, limit, tmp_path, monkeypatch):
    monkeypatch.setattr(infer, "MUCH_HALO", 1e9)  # on the host, links cost nothing
    monkeypatch.setattr(infer, "CUTS", (2,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).double().eval()
    image = np.random.default_rng(0).standard_normal((1, 2, 100, 84))
    for folder in ("in", "scores", "labels", "kept"):
        (tmp_path / folder).mkdir()
    source = STORES[kind](tmp_path / "in", image.shape, "float64")
    source[...] = image
    plan = ooc.plan_infer(model, source, memory_limit=limit, machine="host")
    assert (plan.count > 1) == (limit == "420KiB")
    with torch.no_grad():
        expected = model(torch.from_numpy(image))
    scores = STORES[kind](tmp_path / "scores", tuple(expected.shape), "float64")
    assert ooc.infer(model, source, out=scores, memory_limit=limit) is scores
    found = torch.from_numpy(np.asarray(scores[...]).astype("float64"))
    close(found, expected, "scores")
    numbers, dtype = expected.argmax(1).numpy(), "uint16"
    for folder, shape in (("labels", numbers.shape), ("kept", (1, *numbers.shape))):
        labels = STORES[kind](tmp_path / folder, shape, dtype)
        made = ooc.infer(model, source, out=labels, memory_limit=limit, reduce="argmax")
        assert made is labels
        np.testing.assert_array_equal(np.asarray(labels[...]).reshape(numbers.shape), numbers)
    close(ooc.infer(model, source, memory_limit=limit), expected, "without out")
    permuted = Permuted(model).eval()  # which PyTorch makes
    (tmp_path / "last").mkdir()
    last = STORES[kind](tmp_path / "last", tuple(permuted(torch.from_numpy(image)).shape), "f8")
    ooc.infer(permuted, source, out=last, memory_limit=limit)
    close(torch.from_numpy(np.asarray(last[...]).astype("f8")),
          expected.permute(0, 2, 3, 1), "permuted")  # fmt: skip


def test_a_path_is_a_new_file(model, tmp_path):
    x = torch.randn(1, 2, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        expected = model(x)
    for path in (tmp_path / "y.npy", str(tmp_path / "y.npy")):  # made anew
        made = ooc.infer(model, x, out=path, memory_limit=LIMIT)
        assert isinstance(made, np.memmap)
        close(torch.from_numpy(np.load(path)), expected, "in the file")
    ooc.infer(model, x, out=tmp_path / "labels.npy", reduce="argmax", memory_limit=LIMIT)
    found = np.load(tmp_path / "labels.npy")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected.argmax(1).numpy())
    with pytest.raises(ValueError, match=r"a \.zarr folder, not 'y\.h5': of HDF5 give the array"):
        ooc.infer(model, x, out="y.h5")
    with pytest.raises(TypeError, match=r"^out must be an array, or .* \.zarr folder, not list$"):
        ooc.infer(model, x, out=[1.0])


def test_a_path_of_zarr_is_a_new_array(model, tmp_path):
    zarr = pytest.importorskip("zarr")
    x = torch.randn(1, 2, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        expected = model(x)
    for path in (tmp_path / "y.zarr", str(tmp_path / "y.zarr")):  # made anew
        made = ooc.infer(model, x, out=path, memory_limit=LIMIT)
        assert isinstance(made, zarr.Array)
        close(torch.from_numpy(zarr.open(path)[...]), expected, "in the file")
    labels = ooc.infer(model, x, out=path, reduce="argmax", memory_limit=LIMIT)
    assert labels.dtype == np.uint8
    np.testing.assert_array_equal(labels[...], expected.argmax(1).numpy())


@pytest.mark.parametrize("kind", ["numpy", "zarr", "hdf5", "memmap", "big-endian"])
def test_an_out_that_is_read_only_is_named(kind, model, tmp_path):
    x, shape = torch.randn(1, 2, 32, 32, dtype=torch.float64), (1, 3, 32, 32)
    if kind == "numpy":
        out = np.empty(shape)
        out.flags.writeable = False
    else:
        made = STORES[kind](tmp_path, shape, "float64")
        if kind == "hdf5":
            made.file.close()
            out = pytest.importorskip("h5py").File(tmp_path / "x.h5", "r")["x"]
        elif kind == "zarr":
            out = pytest.importorskip("zarr").open_array(tmp_path / "x.zarr", mode="r")
        else:
            out = np.load(tmp_path / "x.npy", mmap_mode="r")
    said = "give an array that can be written" if kind == "numpy" else r"open .*mode 'r\+'"
    with pytest.raises(ValueError, match=rf"^out is read-only \({said}"):
        ooc.infer(model, x, out=out, memory_limit=LIMIT)


def test_what_infer_takes_can_be_planned(model):
    for image in (np.zeros((1, 2, 32, 32)), torch.zeros(1, 2, 32, 32, dtype=torch.float64)):
        shapes = (image, image.shape)
        one, two = (ooc.plan_infer(model, each, memory_limit=LIMIT) for each in shapes)
        assert one.device_bytes == two.device_bytes
        one, two = (ooc.plan(model, each, memory_limit="1MiB") for each in shapes)
        assert one.device_bytes == two.device_bytes
        assert ooc.output_shape(model, image) == (1, 3, 32, 32)


def test_of_another_byte_order_a_call_under_a_limit_says_what_to_write():
    own, image = ooc.limit(nn.Conv2d(2, 3, 3), LIMIT), np.zeros((1, 2, 8, 8), ">f4")
    with pytest.raises(TypeError, match=r"argument 0 is of >f4.*array\.dtype\.newbyteorder"):
        own(image)
