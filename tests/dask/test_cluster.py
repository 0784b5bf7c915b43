"""Two workers on this machine: the same numbers, their own settings, and workers that die."""

import os
import random
import signal
import threading
import time

import numpy as np
import pytest

import ooc_cudnn
from tests.dask.test_networks import of_whole_numbers

da = pytest.importorskip("dask.array", reason="the extra dask is not installed")
distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
pytest.importorskip("zarr", reason="the extra dask is not installed")

import ooc_cudnn.dask as ooc  # noqa: E402

#: How often a worker is killed: ten times where all faults are asked for (`make faults`).
KILLS = 10 if os.environ.get("FAULTS") == "all" else 2
LIMIT = "512KiB"


@pytest.fixture(scope="module")
def client():
    with (
        ooc.cluster(
            2, device="host", machine="host", memory_limit=LIMIT, dashboard_address=None,
            threads_per_worker=1,
        ) as local,
        distributed.Client(local) as connected,
    ):  # fmt: skip
        yield connected


def test_each_worker_says_what_it_is(client):
    found = ooc.workers(client)
    assert len(found) == 2
    assert {(each.kind, each.memory_limit, each.machine.name) for each in found} == {
        ("host", 2**19, "host")
    }
    assert len({each.address for each in found}) == 2


def test_a_chunk_larger_than_the_limit_runs_out_of_core_on_its_worker(client):
    x = np.random.default_rng(0).integers(-3, 4, (2, 4, 160, 300)).astype("float64")
    w = np.random.default_rng(1).integers(-3, 4, (4, 4, 3, 3)).astype("float64")
    cut = da.from_array(x, chunks=(1, 4, 160, 150))
    assert cut.blocks[0, 0, 0, 0].nbytes > 2**19
    made = ooc.pooling_forward(ooc.convolution_forward(cut, w, padding=1), window=2)
    expected = ooc_cudnn.pooling_forward(ooc_cudnn.convolution_forward(x, w, padding=1), window=2)
    np.testing.assert_array_equal(made.compute(), expected)
    assert "convolution_forward" in {
        distributed.utils.key_split(key) for key in made.dask.to_dict()
    }


def test_a_worker_that_dies_is_replaced_and_its_chunks_are_made_again(client, tmp_path):
    net = ooc_cudnn.Network()
    image = net.input("image", (1, 1, 96, 96), "float64")
    y = net.convolution(net.activation(net.convolution(image, 2, window=3)), 2, window=3)
    of_whole_numbers(net)
    x = np.random.default_rng(0).integers(0, 5, image.shape).astype("float64")
    slowly = da.from_array(x, chunks=(1, 1, 16, 16)).map_blocks(_late, dtype="float64")
    made = ooc.forward(net, y, image=slowly)
    drawn, stop, killed = random.Random(0), threading.Event(), []

    def kill():
        while len(killed) < KILLS and not stop.wait(0.5):
            pids = [pid for pid in client.run(os.getpid).values() if pid not in killed]
            if pids:
                killed.append(drawn.choice(pids))
                os.kill(killed[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        while len(killed) < KILLS:
            written = ooc.to_zarr(made, tmp_path / "y.zarr", overwrite=True)
    finally:
        stop.set()
        killer.join()
    np.testing.assert_array_equal(written[:], net.forward(y, image=x))


def _late(block):
    time.sleep(0.05)
    return block
