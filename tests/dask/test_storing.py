"""Zarr stores: chunks that are there are whole, and are not made again."""

import shutil

import numpy as np
import pytest

da = pytest.importorskip("dask.array", reason="the extra dask is not installed")
zarr = pytest.importorskip("zarr", reason="the extra dask is not installed")

import dask  # noqa: E402

import ooc_cudnn.dask as ooc  # noqa: E402


@pytest.fixture(autouse=True)
def in_this_process():
    with dask.config.set(scheduler="synchronous"):
        yield


CONTENT = np.arange(2 * 3 * 20 * 30, dtype="float32").reshape(2, 3, 20, 30)


def counted(made, chunks=(1, 3, 8, 30)):
    """An array that remembers which of its blocks are made."""

    def block(block_info):
        made.append(block_info[None]["chunk-location"])
        return CONTENT[tuple(slice(*each) for each in block_info[None]["array-location"])]

    grid = tuple(
        tuple(min(size, extent - at) for at in range(0, extent, size))
        for size, extent in zip(chunks, CONTENT.shape, strict=True)
    )
    return da.map_blocks(block, chunks=grid, dtype="float32", meta=np.empty((0,) * 4, "f4"))


def test_a_run_that_ended_is_completed(tmp_path):
    made = []

    def failing(block):
        if len(made) > 3:
            raise OSError("no space left on device")
        return block

    with pytest.raises(OSError, match="no space left"):
        ooc.to_zarr(counted(made).map_blocks(failing, dtype="float32"), tmp_path / "a.zarr")
    there = len(made) - 1
    assert 0 < there < 6
    made.clear()
    written = ooc.to_zarr(counted(made), tmp_path / "a.zarr", resume=True)
    assert len(made) == 6 - there
    np.testing.assert_array_equal(written[:], CONTENT)
    made.clear()
    ooc.to_zarr(counted(made), tmp_path / "a.zarr", resume=True)
    assert made == []


def test_blocks_of_zeros_are_there_too(tmp_path):
    ooc.to_zarr(da.zeros((4, 4), chunks=2), tmp_path / "zeros.zarr")
    assert ooc.to_zarr(
        da.ones((4, 4), chunks=2), tmp_path / "zeros.zarr", resume=True, compute=False
    ) is None  # fmt: skip


def test_another_array_is_not_completed(tmp_path):
    ooc.to_zarr(da.zeros((4, 4), chunks=2), tmp_path / "a.zarr", component="level/0")
    with pytest.raises(ValueError, match=r"holds an array of shape \(4, 4\).*overwrite=True"):
        ooc.to_zarr(
            da.zeros((4, 6), chunks=2), tmp_path / "a.zarr", component="level/0", resume=True
        )
    made = ooc.to_zarr(
        da.ones((4, 6), chunks=2), tmp_path / "a.zarr", component="level/0", overwrite=True
    )
    assert int(made[:].sum()) == 24


def test_a_store_that_cannot_be_written_is_an_error(tmp_path):
    path = tmp_path / "a.zarr"
    ooc.to_zarr(da.zeros((4, 4), chunks=2), path)
    store = zarr.storage.LocalStore(path, read_only=True)
    with pytest.raises(ValueError, match="read-only"):
        ooc.to_zarr(da.zeros((4, 4), chunks=2), store, overwrite=True)


def test_a_task_writes_a_whole_shard(tmp_path):
    """Tasks that write chunks of one shard write over each other; chunks were taken for shards."""
    made = []
    options = {"shards": (1, 3, 16, 30), "resume": True}
    written = ooc.to_zarr(counted(made), tmp_path / "a.zarr", **options)  # of 3 chunks 2 shards
    (tmp_path / "a.zarr" / "c" / "0" / "0" / "0" / "0").unlink()
    made.clear()
    ooc.to_zarr(counted(made), tmp_path / "a.zarr", **options)
    assert sorted(made) == [(0, 0, 0, 0), (0, 0, 1, 0)]
    assert (written.chunks, written.shards) == ((1, 3, 8, 30), (1, 3, 16, 30))
    np.testing.assert_array_equal(written[:], CONTENT)


def test_what_opens_a_store_opens_it_again(tmp_path):
    pytest.importorskip("fsspec")
    url, options = f"file://{tmp_path}/a.zarr", {"storage_options": {"auto_mkdir": True}}
    ooc.to_zarr(da.zeros((4,), chunks=2), url, **options)
    shutil.rmtree(tmp_path / "a.zarr" / "c")
    made = ooc.to_zarr(da.ones((4,), chunks=2), url, resume=True, **options)
    assert int(made[:].sum()) == 4


def test_what_is_no_dask_array_is_refused(tmp_path):
    with pytest.raises(TypeError, match="array must be a dask array, not ndarray"):
        ooc.to_zarr(CONTENT, tmp_path / "a.zarr")
