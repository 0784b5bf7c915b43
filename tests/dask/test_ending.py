"""What ends a run from outside: Ctrl-C at the client, a scheduler that goes away."""

import logging
import os
import signal
import threading
import time

import numpy as np
import pytest

import ooc_cudnn

da = pytest.importorskip("dask.array", reason="the extra dask is not installed")
distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
zarr = pytest.importorskip("zarr", reason="the extra dask is not installed")

import dask  # noqa: E402

import ooc_cudnn.dask as ooc  # noqa: E402

BLOCKS = 64


@pytest.fixture
def client():
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),  # nobody is there
        distributed.LocalCluster(
            processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as local,
        distributed.Client(local) as connected,
    ):  # fmt: skip
        yield connected


def late(block):
    time.sleep(0.02)
    return block


def slowly():
    """An array of ones, of which each block takes a while."""
    ones = da.ones((1, 1, 64, 64), chunks=(1, 1, 8, 8), dtype="float32")
    late_ones = ones.map_blocks(late, dtype="float32", meta=np.empty((0,) * 4, "float32"))
    return ooc.activation_forward(late_ones)


def ended(path, act):
    """Write, and act when some chunks are there; what is raised."""

    def acting():
        until = time.monotonic() + 20
        while time.monotonic() < until and len([*path.glob("c/0/0/*/*")]) < 4:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=acting)
    thread.start()
    try:
        with pytest.raises((KeyboardInterrupt, ooc_cudnn.OocError)) as raised:
            ooc.to_zarr(slowly(), path)
    finally:
        thread.join()
    written = zarr.open_array(path, mode="r")
    there = written.nchunks_initialized
    assert there < BLOCKS
    assert int(np.asarray(written[:]).sum()) == there * 8 * 8  # each is whole
    return raised.value


def completed(path):
    written = ooc.to_zarr(slowly(), path, resume=True)
    return bool((written[:] == 1).all())


def test_ctrl_c_at_the_client_frees_workers_and_leaves_whole_chunks(client, tmp_path):
    found = ended(tmp_path / "a.zarr", lambda: os.kill(os.getpid(), signal.SIGINT))
    assert isinstance(found, KeyboardInterrupt)
    until = time.monotonic() + 10
    while any(client.processing().values()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(client.processing().values())
    assert completed(tmp_path / "a.zarr")


def test_a_scheduler_that_goes_away_is_an_error_and_leaves_whole_chunks(client, tmp_path):
    local = client.cluster
    found = ended(tmp_path / "a.zarr", lambda: local.sync(local.scheduler.close))
    assert "its scheduler has gone away; the chunks that are in the store are whole" in str(found)
