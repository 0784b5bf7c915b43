"""``ooc-cudnn bench``: what it runs, writes, prints and exits with."""

from __future__ import annotations

import json

import pytest

from ooc_cudnn import cli
from ooc_cudnn.bench import command
from ooc_cudnn.bench.cases import CASES
from ooc_cudnn.bench.command import select


def run(capsys, *arguments):
    status = cli.main(["bench", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_list_names_every_case(capsys):
    status, out, err = run(capsys, "--list")
    assert (status, err) == (0, "")
    lines = out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == list(CASES)


def test_list_as_json(capsys):
    _, out, _ = run(capsys, "--list", "--json", "--case", "fig9-c64-*")
    listed = json.loads(out)
    assert [case["name"] for case in listed] == ["fig9-c64-strict", "fig9-c64-tf32"]
    assert listed[0]["paper"] == {"GFLOPS": 4332.0}


def test_a_pattern_takes_the_suites_order():
    chosen = [case.name for case in select(["table4-*-tf32", "fig10-n1-strict"], CASES)]
    assert chosen == ["table4-a-tf32", "table4-b-tf32", "table4-c-tf32", "fig10-n1-strict"]
    assert select([], CASES) == list(CASES.values())


@pytest.mark.parametrize(
    ("typo", "nearest"),
    [("fig9-c65-tf32", "fig9-c64-tf32"), ("FIG14-4gb-tf23", "fig14-4gb-tf32"),
     ("tabel4-a-strict", "table4-a-strict"), ("vgg-conv", "vgg-conv2-tf32")],
)  # fmt: skip
def test_a_typo_suggests_the_nearest(capsys, typo, nearest):
    status, out, err = run(capsys, "--quick", "--case", typo)
    assert status == 1
    assert out == ""
    assert err.count("\n") == 1
    assert f"no case is named {typo!r}; did you mean {nearest!r}?" in err


def test_what_resembles_nothing_points_to_the_list(capsys):
    status, _, err = run(capsys, "--case", "zzz*")
    assert status == 1
    assert "did you mean" not in err
    assert "bench --list" in err


def test_without_a_card_only_the_tiny_sizes_run(capsys):
    status, _, err = run(capsys, "--case", "fig9-c64-tf32")
    assert status == 1
    assert "bench --quick" in err


def test_a_quick_run_prints_a_table_and_writes_records(capsys, tmp_path):
    status, out, err = run(
        capsys, "--quick", "--case", "fig14-1gb-tf32", "--output", str(tmp_path / "new"),
        "--repeats", "4",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert "[1/1] fig14-1gb-tf32" in out
    assert "the times mean nothing" in out
    (path,) = (tmp_path / "new").iterdir()
    record = json.loads(path.read_text())
    assert path.name == "fig14-1gb-tf32.json"
    assert record["case"]["repeats"] == 4
    assert len(record["contenders"]["serial"]["seconds"]["samples"]) == 4
    assert record["settings"]["device"] == "host"
    assert record["environment"]["device"] == "host"


def test_json_goes_to_stdout_alone(capsys):
    status, out, err = run(capsys, "--quick", "--json", "--case", "fig10-n1-tf32")
    assert status == 0
    (record,) = json.loads(out)
    assert record["verified"] is True
    assert "fig10-n1-tf32" in err


def made_up(**more):
    contender = {"status": "measured", "ours": True, "check": {"ok": True}, "ratio": None,
                 "GFLOPS": 1.0, "seconds": {"median": 1.0, "min": 1.0, "max": 2.0}}  # fmt: skip
    record = {"case": {"name": "a"}, "quick": False, "status": "measured", "notes": [],
              "disturbed": [], "contenders": {"ooc_cudnn": contender | more}}  # fmt: skip
    return [record]


@pytest.mark.parametrize(
    ("more", "status", "word"),
    [({}, 0, "verified"), ({"check": {"ok": False}}, 1, "WRONG"),
     ({"check": {"ok": False}, "ours": False}, 0, "WRONG"), ({"check": None}, 0, "a bound")],
)  # fmt: skip
def test_wrong_contents_of_the_library_exit_with_1(capsys, monkeypatch, more, status, word):
    monkeypatch.setattr(command, "run_case", lambda *args, **kwargs: made_up(**more)[0])
    got, out, err = run(capsys, "--quick", "--case", "fig10-n1-tf32")
    assert got == status
    assert word in out
    assert ("WRONG CONTENTS: ooc_cudnn in a" in err) is bool(status)


def test_a_case_that_could_not_run_is_in_the_table(capsys, monkeypatch):
    record = {"case": {"name": "a"}, "quick": False, "status": "unavailable", "disturbed": [],
              "reason": "too little host memory", "contenders": {}, "notes": []}  # fmt: skip
    monkeypatch.setattr(command, "run_case", lambda *args, **kwargs: record)
    status, out, _ = run(capsys, "--quick", "--case", "fig10-n1-tf32")
    assert status == 1
    assert "not run: too little host memory" in out
