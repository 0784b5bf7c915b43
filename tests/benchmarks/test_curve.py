"""README's curve: there is one where enough limits are measured, with PyTorch's ways beside it."""

import json
from copy import deepcopy

import pytest

from benchmarks.contenders import torch_networks, torch_ways
from benchmarks.networks import CASES, drawn
from benchmarks.pages import curve
from ooc_cudnn.bench import script


@pytest.fixture
def folder(tmp_path):
    """Records of six limits and, in another file, of some of PyTorch's ways; all made up."""
    record = json.loads((script.RESULTS / "networks_resnet50.json").read_text())
    measured = {  # of PyTorch in core alone
        key: value
        for key, value in record["measurements"].items()
        if "PyTorch" not in key or ": in core" in key
    }
    measured["resnet50: in core: PyTorch, seconds"] = {"median": 0.24}
    record["measurements"], alone = measured, deepcopy(record)
    for limit in ("64GiB", "32GiB", "24GiB", "8GiB", "4GiB"):
        for kind in (measured, record["checks"]):
            of_16 = {key: value for key, value in kind.items() if "16GiB" in key}
            kind |= {key.replace("16GiB", limit): deepcopy(value) for key, value in of_16.items()}
    (tmp_path / "networks_resnet50.json").write_text(json.dumps(record))
    alone["environment"]["date"] = "9999"
    alone["measurements"] = {
        f"resnet50: {way}: PyTorch, {what}": value
        for way, gib in (("checkpoint", 20), ("compile", 30))
        for what, value in (("seconds", {"median": 0.32}), ("peak", gib * 2**30))
    }
    (tmp_path / "networks_resnet50_pytorch.json").write_text(json.dumps(alone))
    return tmp_path


def test_it_has_our_limits_and_each_of_pytorchs_ways_that_was_measured(folder):
    rows = [line for line in curve.section(folder).splitlines() if line.startswith("| ")][1:]
    assert len(curve.drawn(folder)) == 6 + 3
    assert sum(way == "ooc_cudnn" for way, *_ in curve.drawn(folder)) == 6
    assert [row.split(" | ")[0] for row in rows] == [
        "| `ooc_cudnn`, limit 16 GiB",
        "| `ooc_cudnn`, limit 8 GiB",
        "| PyTorch, checkpoint of each block",
        "| PyTorch, all of it on the card",
    ]
    assert "| PyTorch, checkpoint of each block | 320 ms | 20.00 GiB | 1.33x |" in rows[2]
    assert "PyTorch with all of it on the card takes 240 ms and " in curve.section(folder)


def test_without_limits_enough_there_is_none(folder):
    (folder / "networks_resnet50.json").unlink()
    assert curve.section(folder) == ""
    assert curve.drawn(folder) == []


def test_pytorchs_ways_compute_what_it_computes_in_core():
    torch, case = pytest.importorskip("torch"), CASES["resnet50"]
    net, _ = case.small()
    inputs, weights = drawn(net), {name: net.parameters[name] for name in net.parameters}
    losses = []
    for name in ("in core", "checkpoint", "save_on_cpu"):  # a compiler takes half a minute
        with torch_ways.WAYS[name].twin(case.twin) as twin:
            made = torch_networks.TorchNetwork(torch, twin, weights, cuda=False)
            losses.append(made.step(*inputs.values()))
    assert losses[0] == losses[1] == losses[2]
