"""Records that disagree with themselves are found, measured again, and never stored."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest

from benchmarks.contenders.cases import CASES
from benchmarks.pages.records import FOLDER
from ooc_cudnn.bench import command
from ooc_cudnn.bench.steadiness import disagreements, disturbances

#: Of `fig10-n64-strict` as it was stored once: the same bytes, at 1.6 times the seconds.
SECONDS = {"convolution_forward": 0.3536, "add_tensor": 0.5640, "activation_forward": 0.5708}
QUIET = {"convolution_forward": 0.3500, "add_tensor": 0.3508, "activation_forward": 0.3497}


def stored():
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def record(calls, *, name="fig10-n64-strict", samples=(0.345, 0.345, 0.346), **more):
    profiled = [
        {"function": function, "seconds_while_profiled": seconds, "binding_stage": "copy_out",
         "bytes_in": 2**34, "bytes_out": 2**34}
        for function, seconds in calls.items()
    ]  # fmt: skip
    found = {
        "status": "measured", "ours": True, "bound": False, "check": {"ok": True},
        "details": {"calls": profiled},
        "seconds": {"median": sorted(samples)[len(samples) // 2], "max": max(samples)},
    }  # fmt: skip
    return {
        "case": {"name": name}, "quick": False, "neighbours_share": 0.01, "status": "measured",
        "contenders": {"unfused": found}, "notes": [], "disturbed": [],
    } | more  # fmt: skip


def test_stored_records_agree_with_themselves():
    found = {name: told for name, each in stored().items() if (told := disturbances(each))}
    assert found == {}


def test_stored_records_agree_in_both_precisions():
    records, pairs, found = stored(), 0, {}
    for name, strict in records.items():
        tf32 = records.get(name.removesuffix("-strict") + "-tf32")
        if name.endswith("-strict") and tf32 is not None:
            pairs += 1
            if told := disagreements(strict, tf32):
                found[name] = told
    assert pairs > 10
    assert found == {}


def test_calls_that_move_as_many_bytes_take_as_long():
    (told,) = disturbances(record(SECONDS))
    assert "activation_forward takes 571 ms and convolution_forward 354 ms" in told
    assert disturbances(record(QUIET)) == []


def test_the_precision_makes_no_difference_to_the_link():
    told = disagreements(record(SECONDS), record(QUIET))
    assert [line.split()[1] for line in told] == ["add_tensor", "activation_forward"]
    assert "564 ms in strict float32 and 351 ms in TF32" in told[0]
    computed = deepcopy(record(SECONDS))
    for call in computed["contenders"]["unfused"]["details"]["calls"]:
        call["binding_stage"] = "compute"
    assert disagreements(computed, record(QUIET)) == []


def test_rounds_that_scatter_and_neighbours_are_told():
    assert "a round took 500 ms" in disturbances(record(QUIET, samples=(0.345, 0.35, 0.5)))[0]
    assert "took 30% of the" in disturbances(record(QUIET, neighbours_share=0.3))[0]
    assert disturbances(record(SECONDS, quick=True, neighbours_share=0.9)) == []


@pytest.mark.parametrize("second", [SECONDS, QUIET])
def test_a_disturbed_case_is_measured_again_and_never_replaces_what_is_stored(
    monkeypatch, tmp_path, second
):
    (tmp_path / "fig10-n64-strict.json").write_text("stored before")
    (tmp_path / "fig10-n64-tf32.json").write_text(json.dumps(record(QUIET)))
    given = [record(SECONDS), record(second)]
    monkeypatch.setattr(command, "run_case", lambda *_, **__: given.pop(0))
    said: list[str] = []
    records = command.run_cases(
        [CASES["fig10-n64-strict"]], quick=True, device="host", machine=None, repeats=None,
        output=tmp_path, say=said.append,
    )  # fmt: skip
    assert given == []
    assert any("measured again" in line for line in said)
    path, complaints = tmp_path / "fig10-n64-strict.json", list[str]()
    status = command.status_of(records, complaints.append)
    if second is QUIET:
        assert json.loads(path.read_text())["contenders"]["unfused"]["details"]
        assert (status, complaints) == (0, [])
    else:
        assert path.read_text() == "stored before"
        assert (tmp_path / "disturbed" / path.name).exists()
        assert status == 1
        assert "DISTURBED, not stored: fig10-n64-strict" in complaints[0]
