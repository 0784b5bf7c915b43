"""What `tests.gpu.shards` makes of what compute-sanitizer says; a stand-in says it here."""

from pathlib import Path

import pytest

from tests.gpu import shards

CLEAN = "========= ERROR SUMMARY: 0 errors"


@pytest.mark.parametrize(
    ("said", "status", "expected", "failed"),
    [
        (f"12 passed\n{CLEAN}", 0, 0, 0),
        (f"1 failed, 11 passed\n{CLEAN}", 1, 1, 2),
        ("12 passed\n===== RACECHECK SUMMARY: 3 hazards displayed (0 errors, 3 warnings)", 0, 1, 0),
        ("12 passed\n===== Target application terminated before first instrumented call", 0, 1, 2),
        (f"no tests ran\n{CLEAN}", 5, 1, 0),
    ],
    ids=["clean", "a test fails", "only warnings", "no summary", "no tests"],
)
def test_the_verdict(said, status, expected, failed, tmp_path, monkeypatch, capsys):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit {status}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(shards, "sanitizer", lambda name: [str(tool), name])
    assert shards.main(["2", "--sanitizer", "racecheck"]) == expected
    assert f"2 shards, {failed} failed" in capsys.readouterr().out


def test_a_shard_that_hangs_is_ended_with_all_that_it_runs(tmp_path, monkeypatch):
    tool, child = tmp_path / "compute-sanitizer", tmp_path / "child"
    tool.write_text(f"#!/bin/sh\nsleep 600 & echo $! > {child}; wait\n")
    tool.chmod(0o755)
    _, failed = shards.run([str(tool)], 1, 1.0)
    assert failed == {0}
    stat = Path(f"/proc/{child.read_text().strip()}/stat")
    assert not stat.exists() or stat.read_text().split()[2] in "ZX"


def test_a_record_is_of_all_tests(capsys):
    with pytest.raises(SystemExit):
        shards.main(["2", "--record", "found.json"])
    with pytest.raises(SystemExit):
        shards.main(["2", "--sanitizer", "memcheck", "--record", "found.json", "-k", "softmax"])
    assert "all of its tests" in capsys.readouterr().err


def test_each_shard_has_one_of_the_cards(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    says = ["sh", "-c", "echo $OOC_TESTS_SHARD on $CUDA_VISIBLE_DEVICES"]
    said, _ = shards.run(says, 3, 10.0)
    assert [each.strip() for each in said] == ["0/3 on 2", "1/3 on 5", "2/3 on 2"]
