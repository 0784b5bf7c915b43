"""Images from HDF5 and from pyramids of TIFF, by the readers that users of dask have."""

import numpy as np
import pytest

import ooc_cudnn

da = pytest.importorskip("dask.array", reason="the extra dask is not installed")

import dask  # noqa: E402

import ooc_cudnn.dask as ooc  # noqa: E402

SITES = (90, 70)
W = np.random.default_rng(1).integers(-3, 4, (2, 1, 3, 3)).astype("float32")


@pytest.fixture(autouse=True)
def in_this_process():
    with dask.config.set(scheduler="synchronous"):
        yield


def image(dtype):
    random = np.random.default_rng(0)
    return random.integers(0, np.iinfo(dtype).max, SITES, dtype=dtype, endpoint=True)


def check(read, content):
    """The result of what was read is that of one call; what is read stays of its type."""
    assert read.dtype == content.dtype
    y = ooc.convolution_forward(read, W, padding=1)
    assert y.dtype == np.float32
    whole = content.astype("float32")[None, None]
    expected = ooc_cudnn.convolution_forward(whole, W, padding=1)
    np.testing.assert_array_equal(y.compute(), expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16"])
def test_a_data_set_of_hdf5(tmp_path, dtype):
    h5py = pytest.importorskip("h5py")
    content = image(dtype)
    with h5py.File(tmp_path / "slide.h5", "w") as file:
        file.create_dataset("slide", data=content[None, None], chunks=(1, 1, 32, 32))
    with h5py.File(tmp_path / "slide.h5", "r") as file:
        check(da.from_array(file["slide"], chunks=(1, 1, 64, 32)), content)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_a_level_of_a_tiff_pyramid(tmp_path, dtype):
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip("zarr")
    content = image(dtype)
    levels = [content, content[::2, ::2]]
    with tifffile.TiffWriter(tmp_path / "slide.tif") as file:
        file.write(levels[0], subifds=1, tile=(32, 32))
        file.write(levels[1], subfiletype=1, tile=(32, 32))
    for level, expected in enumerate(levels):
        with tifffile.imread(tmp_path / "slide.tif", aszarr=True, level=level) as store:
            read = da.from_zarr(store)
            assert read.chunksize == (32, 32)
            check(read[None, None], expected)


def test_pages_of_a_tiff_are_the_depth_of_a_volume(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip("zarr")
    content = np.random.default_rng(0).integers(0, 256, (6, 20, 30), dtype="uint8")
    tifffile.imwrite(tmp_path / "volume.tif", content, photometric="minisblack")
    with tifffile.imread(tmp_path / "volume.tif", aszarr=True) as store:
        volume = da.from_zarr(store)
        assert volume.chunksize == (1, 20, 30)
        found = ooc.pooling_forward(volume[None, None], window=2)
        whole = content.astype("float32")[None, None]
        expected = ooc_cudnn.pooling_forward(whole, window=2)
        np.testing.assert_array_equal(found.compute(), expected)
