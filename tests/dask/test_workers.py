"""What workers say of themselves, and what is refused or warned of."""

import importlib.metadata

import numpy as np
import pytest

import ooc_cudnn
from perfmodel import shipped

da = pytest.importorskip("dask.array", reason="the extra dask is not installed")
pytest.importorskip("distributed", reason="the extra dask is not installed")

import ooc_cudnn.dask as ooc  # noqa: E402
from ooc_cudnn.dask.chunks import join  # noqa: E402
from ooc_cudnn.dask.versions import check_version, version  # noqa: E402

HERE = version()
CARD = ("cuda:0", "cuda", 2**30, shipped("h200"), HERE)
HOST = ("host", "host", 2**30, shipped("host"), HERE)


class Said:
    """A client whose workers say this."""

    def __init__(self, *workers):
        self.workers = {f"tcp://{at}": told for at, told in enumerate(workers)}

    def run(self, function):
        return self.workers


def test_workers_are_described():
    first, second = ooc.workers(Said(CARD, CARD))
    assert (first.address, second.address) == ("tcp://0", "tcp://1")
    assert (first.device, first.memory_limit, first.machine.name) == ("cuda:0", 2**30, "h200")


def test_a_worker_without_a_card_among_others_is_said():
    with pytest.warns(UserWarning, match="1 of 2 workers have no card and are slower: tcp://1"):
        found = ooc.workers(Said(CARD, HOST))
    assert [each.kind for each in found] == ["cuda", "host"]
    assert [each.kind for each in ooc.workers(Said(HOST))] == ["host"]


def test_different_versions_are_refused():
    with pytest.raises(ooc_cudnn.OocError, match=r"different versions.*tcp://1 has 0.0.1"):
        ooc.workers(Said(CARD, (*CARD[:4], "0.0.1")))
    y = ooc.activation_forward(da.zeros((1, 1, 4, 4), chunks=(1, 1, 2, 4)))
    (work,) = (each for each in y.dask.to_dict().values() if hasattr(each, "version"))
    object.__setattr__(work, "version", "0.0.1")
    with pytest.raises(ooc_cudnn.OocError, match=r"this worker runs ooc_cudnn .* with 0.0.1"):
        y.compute(scheduler="synchronous")


def test_chunks_of_different_frameworks_are_named():
    torch = pytest.importorskip("torch")
    assert join([[np.zeros((1, 2))], [np.ones((1, 2))]]).tolist() == [[0, 0], [1, 1]]
    with pytest.raises(TypeError, match="arrays of numpy and of torch: make them alike"):
        join([[np.zeros((1, 2))], [torch.zeros(1, 2)]])


def test_a_cluster_is_of_processes_on_a_known_device():
    with pytest.raises(ValueError, match="processes=False is no cluster"):
        ooc.cluster(1, processes=False)
    with pytest.raises(ValueError, match="device must be 'auto', 'cuda' or 'host', not 'tpu'"):
        ooc.cluster(1, device="tpu")


def test_a_clone_on_the_path_will_do(monkeypatch):
    def missing(_):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", missing)
    check_version(version())
    with pytest.raises(ooc_cudnn.OocError, match="that is not installed, but"):
        check_version("0.0.1")
