"""Every case of the suite at its tiny size on the host device, with its contents asserted."""

from __future__ import annotations

import functools
import importlib.util
import math
import re
import sys
from pathlib import Path

import pytest

from benchmarks.contenders.__main__ import main
from benchmarks.contenders.suite import SUITE, run_case
from ooc_cudnn.bench import guards
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.runner import failed_contenders
from ooc_cudnn.devices import get_device
from ooc_cudnn.memory.pinned import held_bytes
from ooc_cudnn.units import parse_limit

CASES = SUITE.cases
pytestmark = pytest.mark.usefixtures("plans_are_kept")
NEED_A_CARD = {
    "double_buffered_cupy",
    "cudnn",
    "unified_memory",
    "unified_memory_prefetch",
    "unified_memory_prefetch_split",
}
NEED_TORCH = {"double_buffered_torch", "naive_loop", "torch_in_core"}
CONVOLUTIONS = [name for name, case in CASES.items() if case.workload == "convolution"]


def distinct():
    """One of all cases that are the same at their tiny size, on a host that knows no TF32."""
    forms = {}
    for name, case in CASES.items():
        tiny = case.at_tiny_size()
        sizes = tuple(tiny.sizes.items())
        forms.setdefault((case.workload, sizes, tiny.memory_limit, case.baselines), name)
    return list(forms.values())


@functools.cache
def tiny(name):
    """The record of a case at its tiny size, and what was said meanwhile."""
    said: list[str] = []
    record = run_case(
        CASES[name], quick=True, device="host", machine="host", say=said.append, repeats=1
    )
    return record, said


@pytest.mark.parametrize("name", distinct())
def test_a_tiny_case_runs_on_the_host_and_its_contents_are_right(name):
    has_torch = importlib.util.find_spec("torch") is not None
    case = CASES[name]
    record, said = tiny(name)
    device = get_device("host")
    assert (held_bytes(device), device.arena.held_bytes) == (0, 0)  # all is given back
    assert record["status"] == "measured"
    assert record["verified"] is True
    assert failed_contenders(record) == []
    assert set(record["contenders"]) == {OURS, *case.baselines}
    for contender, found in record["contenders"].items():
        if contender in NEED_A_CARD:
            assert found["status"] == "unavailable"
            assert "NVIDIA GPU" in found["reason"]
        elif contender in NEED_TORCH and not has_torch:
            assert found["reason"] == "torch is not installed"
        else:
            assert found["status"] == "measured", found
            assert found["check"] is None or found["check"]["ok"], found
            assert found["seconds"]["median"] > 0
            assert found["ratio"]["low"] <= found["ratio"]["of_medians"] <= found["ratio"]["high"]
    assert not any("WRONG" in line for line in said)
    ours = record["contenders"][OURS]
    if case.workload == "convolution":
        (call,) = ours["details"]["calls"]
        assert call["pieces"] > 1
        # Where memory is short, a chain may run as two; then the features between travel, too.
        assert call["bytes_out"] % feature_bytes(case.at_tiny_size())[1] == 0
        assert record["contenders"].get("copy_limit", {"check": None})["check"] is None


def feature_bytes(case):
    sizes = case.sizes
    plane = 4 * sizes["n"] * sizes["height"] * sizes["width"]
    return plane * sizes["c_x"], plane * sizes["c_y"]


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_limit_is_below_the_data_at_both_sizes(name):
    for case in (CASES[name], CASES[name].at_tiny_size()):
        assert parse_limit(case.memory_limit, name="limit") < sum(feature_bytes(case))


def test_names_and_workloads():
    assert all(name == case.name for name, case in CASES.items())
    assert {case.workload for case in CASES.values()} == set(SUITE.workloads)
    families = {name.partition("-")[0] for name in CASES}
    assert {"fig9", "fig10", "fig14", "table4"} <= families


def test_the_papers_figures_are_those_that_it_reports():
    from benchmarks import paper_figures

    for name, case in CASES.items():
        if name.startswith("table4"):
            shape = tuple(case.sizes[axis] for axis in ("n", "c_x", "height", "width"))
            assert case.paper == {"GFLOPS": paper_figures.TABLE_4[shape]}
        if name.startswith("fig10"):
            assert case.paper == {"fused_over_unfused": paper_figures.FUSED_OVER_UNFUSED}
        if name.startswith("fig9") and case.paper:
            span = paper_figures.CHANNEL_GFLOPS
            assert span.least <= case.paper["GFLOPS"] <= span.most
    channels = [case.sizes["c_x"] for name, case in CASES.items() if name.startswith("fig9")]
    assert tuple(dict.fromkeys(channels)) == paper_figures.CHANNELS


def test_figure_14_begins_with_the_sizes_of_the_issue():
    for name, gigabytes in (("fig14-4gb-tf32", 4.3), ("fig14-9gb-tf32", 8.6)):
        assert math.isclose(feature_bytes(CASES[name])[0] / 1e9, gigabytes, rel_tol=0.01)


def test_the_operations_are_counted_as_the_paper_does():
    record, _ = tiny("table4-c-strict")
    n, c, h, w = 8, 8, 16, 16
    ours = record["contenders"][OURS]
    assert ours["GFLOPS"] * ours["seconds"]["median"] * 1e9 == pytest.approx(
        2 * n * c * c * 9 * h * w
    )


def test_without_pytorch_its_baselines_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    record = run_case(CASES["pageable-4gb-tf32"], quick=True, device="host", machine="host")
    found = record["contenders"]
    for name in ("naive_loop", "double_buffered_torch", "torch_in_core"):
        assert found[name]["reason"] == "torch is not installed"
    assert record["verified"] is True


def test_too_little_host_memory_for_a_case_is_said(monkeypatch):
    monkeypatch.setattr(guards, "available_host_bytes", lambda: 6 * 2**30)
    case = CASES["fig14-4gb-tf32"]
    record = run_case(case, quick=False, device="host", machine="host")
    assert record["status"] == "unavailable"
    assert "x and y would take 8.00 GiB of host memory" in record["reason"]


def test_over_subscription_is_said_not_to_be_exercised():
    record, _ = tiny("fig14-1gb-tf32")
    assert any("over-subscription was not exercised" in note for note in record["notes"])


def test_the_page_names_every_contender_and_family():
    page = (Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md").read_text()
    contenders = {name for case in CASES.values() for name in case.baselines}
    assert [name for name in contenders if f"`{name}`" not in page] == []
    families = {re.sub(r"-(strict|tf32)$", "", name) for name in CASES}
    # A range names its ends.
    within = re.compile(r"(fig9-c|fig14-)\d+(gb)?")
    missing = [name for name in families if name not in page and not within.fullmatch(name)]
    assert missing == []


def test_the_command_runs_them_beside_the_library(capsys, tmp_path):
    given = ["--quick", "--case", "fig14-1gb-tf32", "--output", str(tmp_path), "--device", "host"]
    assert main(given) == 0
    assert "not run: CUDA Unified Memory needs an NVIDIA GPU" in capsys.readouterr().out
    assert (tmp_path / "fig14-1gb-tf32.json").exists()
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == list(CASES)
    assert main(["--case", "zzz*"]) == 1
    assert "no case is named 'zzz*'" in capsys.readouterr().err
