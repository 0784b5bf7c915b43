"""The table of seconds of planning: a quick run, and what the table is made of."""

from __future__ import annotations

import pytest

from ooc_cudnn.bench.record import load_record

pytest.importorskip("torch")


def small():
    """Two convolutions."""
    from torch import nn

    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU())


@pytest.fixture
def quick(tmp_path, monkeypatch):
    from benchmarks import planning_models

    model = planning_models.Model(small, ((64, 3, 32, 32),), small, ((8, 3, 32, 32),))
    monkeypatch.setitem(planning_models.MODELS, "small", model)
    monkeypatch.setattr(planning_models, "SMALL", ("small",))

    def run(*words):
        given = ["--quick", "--device", "host", "--output", str(tmp_path), *words]
        assert planning_models.main(given) == 0
        return load_record(planning_models.NAME, tmp_path)["checks"]

    return run


def test_rows_join_those_that_are_stored(quick, tmp_path):
    from benchmarks import planning_models

    assert planning_models.table(tmp_path) == "not measured yet"
    quick("--model", "small", "--share", "1/2", "1/4")
    rows = quick("--model", "small", "--share", "1/4")
    assert list(rows) == ["small: all", "small: 1/2", "small: 1/4"]
    keep = rows["small: all"]
    for share in (2, 4):
        row = rows[f"small: 1/{share}"]
        assert row["limit_bytes"] == keep["device_bytes"] // share
        assert row["ok"]
        assert row["planning_seconds"] > 0 < row["capture_seconds"]
    (line,) = planning_models.table(tmp_path).splitlines()[2:]
    assert line.startswith("| small: 64x3x32x32 |")


def test_a_limit_without_a_plan_says_the_least(quick, monkeypatch):
    from benchmarks import planning_models

    monkeypatch.setattr(planning_models, "SHARES", ("1/1000",))
    row = quick("--model", "small", "--share", "1/1000")["small: 1/1000"]
    assert row["ok"]
    assert row["smallest_bytes"] > row["limit_bytes"]


def test_weights_of_models_at_real_size_are_not_drawn():
    from benchmarks.models_of_today import MODELS, make_undrawn

    model = make_undrawn(MODELS["wavenet"])
    assert model.training
    assert sum(p.numel() for p in model.parameters()) > 10**6
