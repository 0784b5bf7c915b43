"""The package's own cases: one of each family at its tiny size on the host device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.contenders.cases import CASES as ALL
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.runner import SUITE, failed_contenders, run_case
from ooc_cudnn.units import parse_limit

OWN = {"copy_limit", "cudnn", "in_core", "serial", "unfused"}


@pytest.mark.parametrize(
    "name",
    ["fig9-c64-strict", "table4-a-tf32", "fig10-n1-tf32", "fig14-1gb-tf32", "pageable-4gb-tf32"],
)
def test_a_tiny_case_is_right_without_anything_but_the_package(name):
    record = run_case(SUITE.cases[name], quick=True, device="host", machine="host", repeats=1)
    assert record["verified"] is True
    assert failed_contenders(record) == []
    assert set(record["contenders"]) == {OURS, *SUITE.cases[name].baselines}


def test_every_baseline_is_the_packages_own():
    named = {name for case in SUITE.cases.values() for name in case.baselines}
    assert named == OWN
    assert {case.workload for case in SUITE.cases.values()} == set(SUITE.workloads)


def test_every_case_is_well_formed():
    for name, case in {**SUITE.cases, **ALL}.items():
        assert name == case.name == case.name.lower()
        assert " " not in name
        assert set(case.tiny) <= set(case.sizes)
        assert len({OURS, *case.baselines}) == 1 + len(case.baselines)
        assert case.repeats >= 1
        for limit in (case.memory_limit, case.tiny_memory_limit):
            assert parse_limit(limit, name="memory_limit")


def test_the_suite_needs_no_checkout(tmp_path):
    """With the package alone on the path: no examples, no benchmarks, no PyTorch."""
    root = Path(__file__).resolve().parents[2]
    for package in ("ooc_cudnn", "perfmodel", "kernels"):
        (tmp_path / package).symlink_to(root / package)
    run = (
        "import sys; sys.modules['torch'] = None; from ooc_cudnn.cli import main;"
        "status = main(['bench', '--quick', '--device', 'host', '--case', 'table4-c-tf32']);"
        "assert not {'examples', 'benchmarks'} & set(sys.modules); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", run], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "verified" in done.stdout
