"""PyTorch beside the library: its ways to less memory, its flags, and what its errors become."""

from __future__ import annotations

import weakref

import pytest

from benchmarks.contenders import torch_networks, torch_ways
from benchmarks.contenders.torch_ways import pinned_bytes
from benchmarks.networks import CASES, drawn
from ooc_cudnn.bench.contender import Unavailable
from ooc_cudnn.bench.placing import release_pinned
from ooc_cudnn.bench.torch_setup import load_torch, out_of_memory_as, precision


@pytest.fixture(autouse=True)
def _nothing_is_held():
    yield
    release_pinned("host")


def given(case):
    net, _ = case.small()
    return drawn(net), {name: net.parameters[name] for name in net.parameters}


def test_every_way_to_a_step_of_vgg16_gives_the_same_loss_and_gradients():
    torch, case = pytest.importorskip("torch"), CASES["vgg16-n32"]
    inputs, weights = given(case)
    found = []
    for name in case.ways:
        with torch_ways.WAYS[name].twin(case.twin) as twin:
            made = torch_networks.TorchNetwork(torch, twin, weights, cuda=False)
            found.append((made.step(*inputs.values()), made.gradients()))
    made = torch_networks.TorchNetwork(torch, case.twin, weights, cuda=False)
    parts = made.step(*inputs.values(), micro=1), made.gradients()
    (loss, gradients), *others = found
    assert len(gradients) == 32
    for other_loss, other in (*others, parts):
        assert other_loss == pytest.approx(loss, rel=1e-12)
        assert all(abs(other[name] - gradients[name]).max() < 1e-12 for name in gradients)


def test_save_on_cpu_is_refused_where_it_would_exhaust_the_host(monkeypatch):
    torch, case = pytest.importorskip("torch"), CASES["vgg16"]
    inputs, weights = given(case)
    tensors = torch_networks.Tensors(torch, weights, "cpu", last=False)
    placed = tuple(tensors.placed(each.copy()) for each in inputs.values())  # not of pinned memory
    free = 2 * torch_ways.HOST_RESERVE_BYTES
    monkeypatch.setattr(torch_ways, "available_host_bytes", lambda: free)
    torch_ways._check_room(tensors, case.twin, placed)
    free = torch_ways.HOST_RESERVE_BYTES + 1000
    with pytest.raises(Unavailable, match=r"would pin .* of host memory for saved tensors"):
        torch_ways._check_room(tensors, case.twin, placed)


def test_out_of_memory_is_an_error_of_ours_that_holds_no_tensor():
    torch, held = pytest.importorskip("torch"), []

    def refuse():
        tensor = torch.zeros(3)
        held.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 13 GiB.")

    with (
        pytest.raises(MemoryError, match=r"out of memory\. Tried to allocate 13 GiB"),
        out_of_memory_as(torch, MemoryError),
    ):
        refuse()
    assert held[0]() is None


def test_flags_are_put_back():
    torch = pytest.importorskip("torch")
    flags = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [each.allow_tf32 for each in flags]
    with precision(torch, tf32=False):
        assert [each.allow_tf32 for each in flags] == [False, False]
    assert [each.allow_tf32 for each in flags] == before


def test_without_torch_it_is_said(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr("ooc_cudnn.bench.torch_setup.importlib.import_module", missing)
    with pytest.raises(Unavailable, match="PyTorch is not installed"):
        load_torch(cuda=False)


@pytest.mark.parametrize(("nbytes", "taken"), [(0, 0), (1, 1), (3, 4), (2**20, 2**20)])
def test_pinned_memory_of_torch_is_a_power_of_two(nbytes, taken):
    assert pinned_bytes(nbytes) == taken
