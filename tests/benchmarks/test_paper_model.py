"""The paper's figures come out of the simulation, and the page shows what was stored."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import paper_model
from benchmarks.paper_figures import Size, Span
from ooc_cudnn.bench import script

DOCS = Path(__file__).parents[2] / "docs"


def gflops(n, channels, height, width, **placed):
    call = paper_model.convolution(Size(n, channels, height, width), **placed)
    return 2 * n * channels**2 * 9 * height * width / call.seconds / 1e9, call


@pytest.mark.parametrize(
    ("size", "paper"),
    [((1, 64, 8192, 4096), 2574), ((1, 256, 1024, 1024), 6787), ((512, 64, 256, 256), 2681)],
)
def test_table_4(size, paper):
    found, call = gflops(*size)
    assert found == pytest.approx(paper, rel=0.08)
    assert [spec.placement for _, spec in call.plan.operands] == ["pinned", "device", "pinned"]
    assert call.plan.memory_limit < 16e9


@pytest.mark.parametrize(
    ("channels", "on_host", "paper"), [(64, 0, 4332), (2048, 1, 7455), (4096, 2, 7455)]
)
def test_figure_9(channels, on_host, paper):
    found, call = gflops(1, channels, 1024, 1024, features_on_host=False)
    placements = [spec.placement for _, spec in call.plan.operands]
    assert placements.count("pinned") == on_host
    assert found == pytest.approx(paper, rel=0.08)


def test_fusing_saves_what_the_paper_saves():
    assert paper_model.fused_ratio(Size(1, 256, 1024, 1024)) == pytest.approx(0.42, rel=0.08)
    # three passes over the link become one
    assert paper_model.fused_ratio(Size(512, 64, 256, 256)) == pytest.approx(1 / 3, rel=0.01)


def test_searches_find_what_they_should():
    found = paper_model.searched(Size(2, 8, 64, 64), starts=3)
    assert 0 <= found.ordered <= 0.034
    assert 0 <= found.local.least <= found.local.most


@pytest.fixture
def no_search(monkeypatch):
    """Runs without the exhaustive search, which takes a minute and more."""
    found = paper_model.Searched(0.0, Span(0.0, 0.1))
    monkeypatch.setattr(paper_model, "searched", lambda size: found)


def test_a_figure_beyond_its_bound_fails(no_search, monkeypatch, tmp_path):
    monkeypatch.setattr(paper_model, "WITHIN", 0.03)
    assert paper_model.main(["--device", "host", "--output", str(tmp_path)]) == 1
    report = json.loads((tmp_path / "paper_model.json").read_text())
    assert report["verified"]
    assert {claim["holds"] for claim in report["claims"]} == {True, False}
    table = paper_model.table(tmp_path)
    assert "| Table 4: n=1, 64 channels, 8192x4096 | 2574 GFLOPS |" in table
    assert "0.0 to 10.0 %" in table


def test_a_quick_run_holds_nothing_to_its_bounds(no_search, tmp_path):
    assert paper_model.main(["--quick", "--device", "host", "--output", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "paper_model.json").read_text())
    assert report["quick"]
    assert all(claim["bound"] is None for claim in report["claims"])


def test_what_is_stored_holds():
    report = json.loads((script.RESULTS / "paper_model.json").read_text())
    assert not report["quick"]
    assert report["verified"]
    assert [claim["holds"] for claim in report["claims"]].count(True) == len(report["claims"]) >= 10


def test_the_page_shows_what_is_stored():
    assert [block.write(check=True) for block in paper_model.BLOCKS] == [0]
    text = (DOCS / "paper.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", text):
        assert (DOCS / target).exists(), target
