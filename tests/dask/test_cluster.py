"""Two workers on this machine: the same numbers, their own settings, and workers that die."""

import importlib
import importlib.machinery
import os
import random
import signal
import sys
import time
import types

import numpy as np
import pytest

import ooc_cudnn
from tests.dask.test_networks import of_whole_numbers
from tests.support.sampling import number

da = pytest.importorskip("dask.array", reason="the extra dask is not installed")
distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
zarr = pytest.importorskip("zarr", reason="the extra dask is not installed")

import ooc_cudnn.dask as ooc  # noqa: E402

#: How often a worker is killed.
KILLS = number(1, of=10)


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
    expected = net.forward(y, image=x)
    drawn, killed = random.Random(0), []
    for _ in range(4 * KILLS):
        running = client.compute(
            ooc.to_zarr(made, tmp_path / "y.zarr", overwrite=True, compute=False)
        )
        while not running.done():
            time.sleep(0.4)
            alive = [nanny.pid for nanny in client.cluster.workers.values() if nanny.pid]
            if len(killed) < KILLS and alive and not running.done():
                killed.append(drawn.choice(alive))
                os.kill(killed[-1], signal.SIGKILL)
        running.result()
        written = zarr.open_array(tmp_path / "y.zarr", mode="r")
        np.testing.assert_array_equal(written[:], expected)
        if len(killed) >= KILLS:
            break
    assert len(killed) == KILLS


def test_workers_on_cards_have_one_each(monkeypatch):
    workers = importlib.import_module("ooc_cudnn.dask.workers")  # the package has a function so
    monkeypatch.setattr(workers, "driver_facts", lambda load: {"gpus": [{}, {}]})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    assert workers._cards() == ("5", "3")
    with workers.CardCluster(("5", "3"), env={"A": "b"}, dashboard_address=":0") as local:
        found = [next(iter(local.new_worker_spec().values()))["options"] for _ in range(2)]
        local.worker_spec[0] = local.new_spec
        found.append(next(iter(local.new_worker_spec().values()))["options"])
        del local.worker_spec[0]
    assert [each["env"] for each in found] == [
        {"A": "b", "CUDA_VISIBLE_DEVICES": card} for card in ("5", "5", "3")
    ]
    monkeypatch.setattr(workers, "driver_facts", lambda load: {})
    with pytest.raises(ooc_cudnn.OocError, match="the driver shows none"):
        ooc.cluster(device="cuda")


def test_workers_of_dask_cuda_have_the_settings_that_were_asked_for(monkeypatch):
    """It replaces the environment of each worker by the card that it sees."""

    class LocalCUDACluster(distributed.LocalCluster):
        def __init__(self, **options):
            super().__init__(**{**options, "n_workers": 0})

        def new_worker_spec(self):
            spec = {**self.new_spec, "options": dict(self.new_spec["options"])}
            spec["options"]["env"] = {"CUDA_VISIBLE_DEVICES": "0"}
            return {0: spec}

    module = types.ModuleType("dask_cuda")
    module.__spec__ = importlib.machinery.ModuleSpec("dask_cuda", None)
    module.LocalCUDACluster = LocalCUDACluster
    monkeypatch.setitem(sys.modules, "dask_cuda", module)
    workers = importlib.import_module("ooc_cudnn.dask.workers")
    monkeypatch.setattr(workers, "driver_facts", lambda load: {"gpus": [{}]})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with ooc.cluster(memory_limit="1GiB", env={"A": "b"}, dashboard_address=":0") as local:
        assert isinstance(local, LocalCUDACluster)
        env = local.new_worker_spec()[0]["options"]["env"]
    assert (env["CUDA_VISIBLE_DEVICES"], env["A"]) == ("0", "b")
    assert (env["OOC_CUDNN_MEMORY_LIMIT"], env["OOC_CUDNN_DEVICE"]) == ("1GiB", "cuda")


def _late(block):
    time.sleep(0.05)
    return block
