"""A record names the files that it is of; one that is older than they are is marked so."""

from __future__ import annotations

import json

import pytest

from benchmarks import regenerate
from benchmarks.pages import trials
from ooc_cudnn.bench import sources
from ooc_cudnn.bench.environment import ROOT, SOURCES
from ooc_cudnn.bench.record import RESULTS

RECORDS = {
    path.relative_to(RESULTS).with_suffix("").as_posix(): record
    for path in sorted(RESULTS.rglob("*.json"))
    if "environment" in (record := json.loads(path.read_text(encoding="utf-8")))
}


def test_every_record_names_the_files_that_the_table_gives_it():
    for name, record in RECORDS.items():
        assert tuple(record["files"]) == sources.sources_of(name) != (), name


def test_what_the_table_names_is_there():
    named = json.loads(SOURCES.read_text(encoding="utf-8"))["of"]
    for record, of in named.items():
        assert [path for path in of if not (ROOT / path).exists()] == [], record


def test_records_that_are_older_than_what_they_measure_are_named(capsys):
    assert regenerate.main(["--older"]) == 0
    rows = {row.split(" | ")[0].strip("| "): row for row in capsys.readouterr().out.splitlines()}
    for name, record in RECORDS.items():
        older = sources.changed_sources(record["files"])
        named = bool(older) and not sources.is_closed(name)
        assert (name in rows) == named, name
        if named:
            assert rows[name].rstrip("| ").endswith(", ".join(older)), name


def test_a_page_has_every_record_and_does_not_change_with_the_sources(monkeypatch):
    before = trials.records_table()
    assert {row.split("`")[1] for row in before.splitlines()[2:]} == set(RECORDS)
    monkeypatch.setattr(sources, "digests", lambda files, *_: dict.fromkeys(files))
    assert trials.records_table() == before


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "one.py").write_text("1")
    (tmp_path / "kernel.cu").write_text("2")
    return tmp_path


def test_a_change_of_a_file_or_within_a_folder_is_found(tree):
    of = ("room", "kernel.cu")
    files = sources.digests(of, tree)
    assert sources.changed_sources(files, tree) == []
    (tree / "room" / "notes.txt").write_text("no source")
    assert sources.changed_sources(files, tree) == []
    (tree / "room" / "two.py").write_text("")
    assert sources.changed_sources(files, tree) == ["room"]
    (tree / "kernel.cu").write_text("// what it reaches\n2")
    assert sources.changed_sources(files, tree) == ["room"]
    (tree / "kernel.cu").unlink()
    assert sources.changed_sources(files, tree) == list(of)


def test_what_nobody_knows_is_taken_to_have_changed(tree):
    assert sources.digests(("gone.py",), tree) == {"gone.py": None}
    assert sources.changed_sources({"kernel.cu": None}, tree) == ["kernel.cu"]


def test_the_first_pattern_counts_and_a_package_without_a_table_names_nothing(tmp_path):
    table = tmp_path / "sources.json"
    assert sources.sources_of("bench/fig9", table) == ()
    named = {"closed": ["b*"], "of": {"bench/fig9": ["a"], "bench/*": ["b"]}}
    table.write_text(json.dumps(named))
    assert sources.sources_of("bench/fig9", table) == ("a",)
    assert sources.sources_of("bench/fig10", table) == ("b",)
    assert sources.is_closed("bench/fig9", table)
    assert not sources.is_closed("kernels", table)
