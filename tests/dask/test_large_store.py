"""3 GB in Zarr through a chain, by two workers that may hold 1 GB of memory each."""

import os
import sys

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.operations import Activation, Convolution, Pooling

da = pytest.importorskip("dask.array", reason="the extra dask is not installed")
distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
zarr = pytest.importorskip("zarr", reason="the extra dask is not installed")

import ooc_cudnn.dask as ooc  # noqa: E402

SIDE, CHUNK = 20_000, 2_000
#: The image repeats it, so its result does, but for borders; and it takes little on the disk.
PATTERN = np.random.default_rng(0).integers(-3, 4, (8, 8)).astype("float64")
#: Rows of the result at a border that are told apart, and of a small image's result.
BORDER, SMALL = 8, 24
WORKER_BYTES = 10**9


def layers():
    w = np.random.default_rng(1).integers(-2, 3, (1, 1, 3, 3)).astype("float64")
    return [Activation("relu"), Pooling(2), Convolution(w, padding=1)]


def repeated(block_info):
    rows, columns = (stop - start for start, stop in block_info[None]["array-location"][2:])
    return np.tile(PATTERN, (rows // 8, columns // 8))[None, None]


def place(start, stop):
    """Where rows of the result are in that of a small image."""
    rows, extent = np.arange(start, stop), SIDE // 2
    inner = np.where(rows < BORDER, rows, BORDER + (rows - BORDER) % 4)
    return np.where(rows >= extent - BORDER, rows - extent + SMALL, inner)


def wrong(block, small, block_info):
    """How many elements of a block of the result are not those of the small one."""
    rows, columns = (place(*each) for each in block_info[0]["array-location"][2:])
    return np.array((block[0, 0] != small[np.ix_(rows, columns)]).sum()).reshape(1, 1, 1, 1)


def peak():
    """Which process a worker is, and how many bytes it has held at most.

    What `getrusage` says begins with what the process that started it held then.
    """
    with open("/proc/self/status") as file:
        (held,) = (line.split()[1] for line in file if line.startswith("VmHWM:"))
    return os.getpid(), int(held) * 1024


@pytest.mark.every_case
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what a process held")
def test_a_store_of_3_gb_by_workers_of_1_gb(tmp_path):
    chunks = da.core.normalize_chunks((1, 1, CHUNK, CHUNK), (1, 1, SIDE, SIDE), dtype="float64")
    image = da.map_blocks(repeated, chunks=chunks, dtype="float64", meta=np.empty((0,) * 4, "f8"))
    assert image.nbytes > 3 * 10**9
    small = np.tile(PATTERN, (SMALL // 4, SMALL // 4))[None, None]
    expected = ooc_cudnn.chain_forward(small, layers())[0, 0]
    with (
        ooc.cluster(
            2, device="host", machine="host", memory_limit="8MiB", host_memory=WORKER_BYTES,
            threads_per_worker=1, dashboard_address=":0",
        ) as local,
        distributed.Client(local) as client,
    ):  # fmt: skip
        before = {process for process, _ in client.run(peak).values()}
        ooc.to_zarr(image, tmp_path / "x.zarr")
        stored = da.from_zarr(str(tmp_path / "x.zarr"))
        ooc.to_zarr(ooc.chain_forward(stored, layers()), tmp_path / "y.zarr")
        made = da.from_zarr(str(tmp_path / "y.zarr"))
        assert made.shape == (1, 1, SIDE // 2, SIDE // 2)
        found = made.map_blocks(wrong, expected, dtype="int64", chunks=(1, 1, 1, 1))
        assert int(found.sum().compute()) == 0
        peaks = dict(client.run(peak).values())
    assert set(peaks) == before  # dask starts a worker anew that holds too much
    assert max(peaks.values()) <= WORKER_BYTES, peaks
