"""`benchmarks.amp`: every network in every way at a tiny size; what fails is a row that says so."""

import json
import subprocess

import pytest

from benchmarks.pages import amp as page
from ooc_cudnn.bench.record import load_record
from tests.support.sampling import EVERY
from tests.support.torchvision_models import models

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.usefixtures("fewest_plans"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # PyTorch's own
]
#: The first is none of theirs: cheap, it stands for the others in `make test`.
NETWORKS = (
    "small", "vit_b16", "resnet50", "unet", "convnext_t", "swin_t", "efficientnet_v2_s",
    "deeplabv3", "r3d_18", "nnunet", "regnet_y_8gf", "densenet121", "swin_unetr", "diffusion",
    "nnunet-512", "unet-8192", "segresnet-384",
)  # fmt: skip


def small():
    """Two convolutions and a linear layer."""
    from torch import nn

    blocks = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()]
    return nn.Sequential(nn.Sequential(*blocks), nn.Flatten(), nn.Linear(8 * 28 * 28, 3))


@pytest.fixture
def amp(monkeypatch):
    models()  # torchvision is there, or the test is skipped
    from benchmarks import amp

    shapes = ((8, 3, 32, 32), (2, 3, 32, 32), (4, 3, 32, 32))
    case = amp.Case("small", small, small, *shapes, 3, ("Conv2d",))
    monkeypatch.setitem(amp.CASES, "small", case)
    return amp


def run(amp, folder, *words):
    given = ["--quick", "--device", "host", "--output", str(folder), "--tune-seconds", "0"]
    return amp.main([*given, "--seconds", "900", *words])


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_is_trained_in_every_way(network, amp, tmp_path):
    assert set(NETWORKS) == set(amp.CASES)
    ways = amp.WAYS if EVERY else ("compile", "ours, 1/4")
    asked = [word for way in ways for word in ("--way", way)]
    assert run(amp, tmp_path, "--network", network, *asked) == 0
    record = load_record(f"amp_{network}_bfloat16", tmp_path)
    assert record["verified"]
    rows = record["measurements"]["rows"]
    assert set(rows) >= set(ways)
    failed = {name: row["reason"] for name, row in rows.items() if row["status"] != "measured"}
    assert set(failed) <= {"ours, 1/8", "ours, 1/4", "ours, 1/2"}, failed
    assert all("PlanInfeasibleError" in reason for reason in failed.values()), failed
    assert len(list(page.rows_of(record))) == len(rows)
    for name, row in rows.items():
        if name.startswith("ours") and name not in failed:
            assert row["plan"]["device_bytes"] <= row["limit_bytes"]
            assert row["memory"]["total"] <= row["limit_bytes"]
            assert row["planning_seconds"] < row["first_seconds"]
            assert "ms" in (tmp_path / row["explain"]).read_text()
            assert row["tasks"]


def test_a_way_that_fails_or_has_no_time_is_a_row_that_says_so(amp, tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise MemoryError("CUDA out of memory. Tried to allocate 13 GiB.")

    from ooc_cudnn.bench import torch_step

    monkeypatch.setattr(torch_step, "checkpoint_blocks", refuse)
    ways = [word for way in ("checkpoint", "ours, 1/4") for word in ("--way", way)]
    words = ["--network", "small", *ways, "--dtype", "float16"]
    monkeypatch.setitem(amp.WAYS, "ours, 1/4", amp.Way(share=1e-3))
    assert run(amp, tmp_path, *words) == 0
    record = load_record("amp_small_float16", tmp_path)
    rows = record["measurements"]["rows"]
    assert {name: row["status"] for name, row in rows.items()} == {
        "eager": "measured", "checkpoint": "failed", "ours, 1/4": "failed",
    }  # fmt: skip
    assert "13 GiB" in rows["checkpoint"]["reason"]
    assert "PlanInfeasibleError" in rows["ours, 1/4"]["reason"]
    assert "13 GiB" in capsys.readouterr().out.splitlines()[-1]
    monkeypatch.setattr(amp, "SHARE_OF_TURNS", 2)
    run(amp, tmp_path, *words)
    (eager, *_) = page.rows_of(load_record("amp_small_float16", tmp_path))
    assert eager[2:] == ("not measured", *[""] * 5, "the 900 s were over")


def test_a_row_for_the_readme_is_eager_compile_and_ours_at_a_quarter():
    def row(seconds, gigabytes, first):
        return {
            "seconds": {"median": seconds}, "peak_bytes": gigabytes * 2**30,
            "first_seconds": first,
        }  # fmt: skip

    rows = {"eager": row(0.1, 16, 4.4), "ours, 1/4": row(0.125, 4, 15.6)}
    record = {"measurements": {"network": "Net", "rows": rows}}
    shown = ("Net", "100 ms", "16.00 GiB", "-", "1.25x", "4.00 GiB", "4, -, 16 s")
    assert list(page.short_rows(record)) == [shown]
    rows["compile"] = row(0.08, 15, 40)
    (compiled,) = page.short_rows(record)
    assert compiled[3] == "0.80x"
    assert compiled[-1] == "4, 40, 16 s"
    del rows["ours, 1/4"]["seconds"]
    assert list(page.short_rows(record)) == []


def test_several_networks_are_a_process_each_and_one_table(amp, tmp_path, monkeypatch, capsys):
    asked = []

    def start(command, timeout, **_):
        asked.append((command[-1], timeout))
        if command[-1] == "unet":
            raise subprocess.TimeoutExpired(command, timeout)
        rows = {"eager": {"status": "failed", "reason": "no card"}}
        record = {"measurements": {"network": "ConvNeXt-T", "rows": rows}}
        (tmp_path / f"amp_{command[-1]}_tf32.json").write_text(json.dumps(record))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", start)
    words = ["--network", "unet", "convnext_t", "--dtype", "tf32", "--seconds", "100"]
    assert amp.main([*words, "--output", str(tmp_path)]) == 1
    assert asked == [("unet", 210), ("convnext_t", 210)]
    *_, missing, failed = capsys.readouterr().out.splitlines()
    assert missing.split()[-2:] == ["not", "measured"]
    assert failed.split() == ["ConvNeXt-T", "eager", "failed", "no", "card"]


def record(network, **ways):
    """A record, made up: (seconds, GiB) of each way."""
    rows = {
        name: {"status": "measured", "seconds": {"median": seconds}, "first_seconds": 1.0,
               "peak_bytes": gib * 2**30}
        for name, (seconds, gib) in ways.items()
    }  # fmt: skip
    rows["ours, 1/2"] |= {"plan": {"seconds": 0.1}, "planning_seconds": 0.5}
    rows["compile"] = {"status": "failed", "reason": "RuntimeError: no compiler"}
    return {
        "verified": True, "quick": False, "environment": {"gpu": {"name": "a card"}},
        "measurements": {"network": network, "dtype": "bfloat16", "rows": rows},
    }  # fmt: skip


def test_the_page_and_the_picture_are_of_what_is_stored(tmp_path):
    assert "not measured yet" in page.section(tmp_path)
    assert page.drawn(tmp_path) == {}
    for network in ("one", "two"):
        found = record(network, eager=(0.1, 8), **{"ours, 1/2": (0.125, 4)})
        (tmp_path / f"amp_{network}_bfloat16.json").write_text(json.dumps(found))
    section = page.section(tmp_path)
    assert "bfloat16, a card:" in section
    assert "| one | ours, 1/2 | 125 | 1.25 |  | 4.00 | 1.0 | 0.5 | 0.80 |" in section
    assert "| two | compile | failed |  |  |  |  |  | RuntimeError: no compiler |" in section
    assert page.drawn(tmp_path)["two, bfloat16"]["ours, 1/2"] == [0.5, 1.25]
