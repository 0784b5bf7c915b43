"""The benchmark of a slide on several workers runs at a tiny size, and checks its contents."""

import json

import pytest

pytest.importorskip("dask.array", reason="the extra dask is not installed")
pytest.importorskip("distributed", reason="the extra dask is not installed")
pytest.importorskip("zarr", reason="the extra dask is not installed")

from benchmarks import dask_scale


def test_a_quick_run_writes_verified_results(tmp_path):
    folder = tmp_path / "results"
    given = ["--quick", "--device", "host", "--output", str(folder), "--scratch", str(tmp_path)]
    assert dask_scale.main(given) == 0
    report = json.loads((folder / "dask_scale.json").read_text())
    assert report["verified"] is True
    assert report["checks"]["2: contents"]["compared"] > 0
    claims = {claim["name"]: claim["value"] for claim in report["claims"]}
    assert 0 < claims["2: workers' time in blocks, of all"] <= 1
