"""Benchmarks of several workers run at a tiny size, and what they say is looked at."""

import json

import pytest

pytest.importorskip("dask.array", reason="the extra dask is not installed")
pytest.importorskip("distributed", reason="the extra dask is not installed")
pytest.importorskip("zarr", reason="the extra dask is not installed")

from benchmarks import cluster_scaling, dask_scale


@pytest.mark.every_case
def test_a_quick_run_writes_verified_results(tmp_path):
    folder = tmp_path / "results"
    given = ["--quick", "--device", "host", "--output", str(folder), "--scratch", str(tmp_path)]
    assert dask_scale.main(given) == 0
    report = json.loads((folder / "dask_scale.json").read_text())
    assert report["verified"] is True
    assert report["checks"]["2: contents"]["compared"] > 0
    claims = {claim["name"]: claim["value"] for claim in report["claims"]}
    assert 0 < claims["2: workers' time in blocks, of all"] <= 1


def test_more_cards_are_never_slower_by_prediction(tmp_path):
    given = ["--quick", "--device", "host", "--output", str(tmp_path)]
    assert cluster_scaling.main(given) == 0
    report = json.loads((tmp_path / "cluster_scaling.json").read_text())
    assert report["verified"] is True
    for store in (cluster_scaling.OWN, cluster_scaling.ONE):
        one, two = (report["measurements"][f"{count}, {store}"] for count in (1, 2))
        assert two["computing"] < one["computing"]
        assert two["seconds"] <= one["seconds"]
