"""The table of convolutions by measured engines: what a cell says, and what marks it."""

import json

from benchmarks.pages import engines


def record(ratio, ours_host, errors):
    """A record of one problem of VGG-16, where PyTorch takes 1 ms."""
    name = "64x64>128, 112, 3x3 strict backward_filter"
    ways = {
        "ours, channels_first": {"median": ratio * 1e-3},
        "PyTorch, channels_first": {"median": 2e-3},
        "PyTorch, channels_last": {"median": 1e-3},
    }
    measured = {
        "measured": ways,
        "host, one call": {"ours, channels_first": ours_host, "PyTorch, channels_first": 1e-5},
        "errors": dict(zip(("ours", "PyTorch"), errors, strict=True)),
        "ours over PyTorch": {"measured": ratio},
    }
    mean = {"name": "strict: ours over PyTorch, geometric mean", "value": ratio}
    environment = {"gpu": {"name": "a card"}, "date": "2026-11-26T00:00:00"}
    return {"measurements": {name: measured}, "claims": [mean], "environment": environment}


def page(folder, *given):
    (folder / "engines_vgg16.json").write_text(json.dumps(record(*given)))
    return engines.figures(folder)


def test_a_cell_is_the_ratio_and_bold_beyond_the_bound(tmp_path):
    exact = (1e-6, 1e-6)
    assert "| - | - | 1.20 |" in page(tmp_path, 1.2, 1e-4, exact)
    assert "| - | - | **1.30** |" in page(tmp_path, 1.3, 1e-4, exact)
    assert "1 of 72 problems" in page(tmp_path, 1.3, 1e-4, exact)


def test_what_says_little_of_the_engine_is_marked(tmp_path):
    assert "| 1.20h |" in page(tmp_path, 1.2, 2e-3, (1e-6, 1e-6))
    assert "| **1.30e** |" in page(tmp_path, 1.3, 1e-4, (1e-6, 1e-4))


def test_one_line_is_of_all_sets(tmp_path):
    exact = (1e-6, 1e-6)
    page(tmp_path, 1.6, 1e-4, exact)
    bound_by_the_host = record(2.5, 2e-3, exact)
    (tmp_path / "engines_resnet50.json").write_text(json.dumps(bound_by_the_host))
    text = engines.figures(tmp_path)
    assert "Over all 2 problems of all sets the geometric mean is 2.00." in text
    assert "2 are above 1.25, 1 of these without a mark" in text


def test_without_a_record_it_says_what_measures_it(tmp_path):
    assert "python -m benchmarks.engines" in engines.figures(tmp_path)
