"""The benchmark suite on the card: managed memory, and tiny cases with every contender."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import networks
from benchmarks.contenders.cases import CASES
from benchmarks.contenders.managed import HOST, ManagedArray, need_managed_memory, read_every_page
from benchmarks.contenders.suite import run_case
from ooc_cudnn.bench import guards
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.contender import Unavailable
from ooc_cudnn.bench.runner import failed_contenders

cupy = pytest.importorskip("cupy")
#: One of each kind; precisions differ on the card.
NAMES = [
    "fig9-c64-strict", "fig9-c64-tf32", "table4-a-strict", "table4-c-tf32", "fig10-n1-strict",
    "fig10-n64-tf32", "fig14-1gb-tf32", "fig14-9gb-strict", "vgg-conv2-tf32",
    "pathology-slide-tf32", "pageable-4gb-tf32",
]  # fmt: skip


def test_managed_memory_is_seen_from_both_sides():
    need_managed_memory()
    card = cupy.cuda.runtime.getDevice()
    stream = cupy.cuda.Stream(non_blocking=True)
    array = ManagedArray((3, 5, 700))
    try:
        array.host[...] = np.arange(array.host.size).reshape(array.host.shape)
        array.prefetch(card, stream)
        with stream:
            array.device *= 2
        array.prefetch(HOST, stream)
        stream.synchronize()
        np.testing.assert_array_equal(array.host.ravel(), 2 * np.arange(array.host.size))
        assert read_every_page(array.host) == array.host.ravel()[::1024].sum()
    finally:
        array.release()
    assert guards._managed_bytes == 0


def test_managed_memory_beyond_the_card_is_refused():
    floats = cupy.cuda.runtime.memGetInfo()[0] // 4
    with pytest.raises(Unavailable, match="over-subscription is therefore not exercised"):
        ManagedArray((floats,))
    assert guards._managed_bytes == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_case_runs_on_the_card(name):
    record = run_case(CASES[name], quick=True, device="cuda")
    assert record["status"] == "measured"
    assert record["verified"] is True
    assert failed_contenders(record) == []
    for contender, found in record["contenders"].items():
        if found["status"] == "unavailable":
            assert "torch is not installed" in found["reason"], (contender, found)
        else:
            assert found["check"] is None or found["check"]["ok"], (contender, found)
    assert record["contenders"][OURS]["seconds"]["median"] > 0
    assert guards._managed_bytes == 0


@pytest.mark.parametrize("case", networks.CASES)
def test_a_small_network_trains_on_the_card_as_pytorch_does_in_float64(case, tmp_path):
    pytest.importorskip("torch")
    given = ["--quick", "--device", "cuda", "--output", str(tmp_path), "--case", case]
    assert networks.main(given) == 0
