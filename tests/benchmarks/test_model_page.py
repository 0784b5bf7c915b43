"""The tables and pictures of docs/model-method.md, made of results and models made up here."""

import dataclasses
import json

import pytest

from benchmarks.pages import model as model_page
from benchmarks.pages import model_pictures
from ooc_cudnn.bench.environment import ROOT
from perfmodel import Samples, shipped

SIZES = (1e6, 4e6, 16e6)


def result(device="cuda", *, quick=False):
    """What `model_accuracy` would store of two calls."""
    gpu = {"name": "A card"} if device == "cuda" else None
    errors = {"count": 2, "median": 0.05, "p90": 0.12, "max": 0.2, "median_ratio": 0.97}
    claims = [
        ("error of the closed_form, median", 0.0512, "<=", 0.1, True),
        ("chosen split over best, worst", 1.0712, "<=", 1.06, False),
        ("calls disturbed by other processes", 3.0, "", None, None),
    ]
    keys = ("name", "value", "relation", "bound", "holds")
    return {
        "quick": quick,
        "environment": {
            "device": device, "gpu": gpu, "cores": 2,
            "commit": "0123456789", "date": "2026-11-21",
        },
        "claims": [dict(zip(keys, claim, strict=True)) for claim in claims],
        "measurements": {
            "drawn with": {"seed": 7},
            "summary": {
                "by_placement": {"disk": errors, "pinned": errors},
                "by_stage_of_replay": {"copy_in": errors},
            },
            "calls": [
                {"placement": "pinned", "seconds": 0.1, "predicted/measured": 0.9},
                {"placement": "disk", "seconds": 1.0, "predicted/measured": 0.01},
            ],
        },
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for name, stored in (
        ("cuda", result()),
        ("cuda_splits", result(quick=True)),
        ("host", result("host")),
    ):
        (tmp_path / f"model_accuracy_{name}.json").write_text(json.dumps(stored))
    return tmp_path


@pytest.fixture
def calibrated():
    """The H200 as a calibration leaves it."""
    model = shipped("h200")
    line = model.transfer.copy_in["pinned"]
    samples = {"copy_in/pinned": Samples(SIZES, tuple(1.1 * line.seconds(s) for s in SIZES))}
    return dataclasses.replace(
        model,
        samples=samples,
        quality={
            "copy_in/pinned": {"residual": 0.0123, "held_out_error": 0.0345},
            "convolution/tf32/channels_last": {"residual": 0.2, "held_out_error": 0.3},
        },
        facts={"calibration_seconds": 48.6, "drift_of_copy_in_share": -0.012},
    )


def test_what_is_stored_is_found_cards_first_and_without_quick_runs(folder):
    assert [model_page.machine_of(each) for each in model_page.stored(folder)] == [
        "A card", "host device, 2 cores",
    ]  # fmt: skip
    assert model_page.stored(folder / "nowhere") == []


def test_claims_show_what_was_missed(folder):
    section = model_page.accuracy_section(model_page.stored(folder))
    assert "**A card**, on 2026-11-21 at `0123456`, seed 7:" in section
    assert "| error of the closed form, median | 5.1 % | <= 10.0 % | held |" in section
    assert "| chosen split over best, worst | 1.071 | <= 1.060 | **missed** |" in section
    assert "| calls disturbed by other processes | 3 |  |  |" in section
    assert "| slowest operand in a file | 2 | 5.0 % | 12.0 % | 0.97 |" in section


def test_a_result_of_splits_alone_has_no_groups():
    only = result()
    del only["measurements"]["summary"], only["measurements"]["calls"]
    assert "median | 90th" not in model_page.accuracy_section([only])


def test_the_search_shows_what_it_finds_and_how_long_it_takes():
    keys = ("name", "value", "bound", "relation", "unit", "holds")
    claims = [
        ("found over best, the worst", 1.0024, 1.03, "<=", "", True),
        ("a first plan of a function, the longest", 211.41, 150.0, "<=", "ms", False),
    ]
    section = model_page.search_section(
        {
            "measurements": {"problems judged": 9},
            "claims": [dict(zip(keys, claim, strict=True)) for claim in claims],
        }
    )
    assert "Over 9 calls" in section
    assert "| found over best, the worst | 1.002 | <= 1.03 | held |" in section
    assert "| a first plan of a function, the longest | 211.4 ms | <= 150 | **missed** |" in section


def test_a_machine_shows_its_lines_and_how_it_was_made(calibrated):
    section = model_page.machine_section(calibrated)
    rate = 1e-9 / calibrated.transfer.copy_in["pinned"].alpha
    assert f"| in from pinned | {rate:.1f} GB/s |" in section
    # 1 / 1.1 - 1 on the samples, whatever its quality says
    assert "| 9.1 % | 3.5 % |" in section
    assert "| convolutions | 20.0 % | 30.0 % |" in section
    said = " ".join(section.split())
    assert "Calibrated in 49 s, drift from first to last: copy in -1.2 %; 3 samples are" in said


def test_one_without_samples_shows_what_it_has():
    section = model_page.machine_section(shipped("p100"))
    assert "residual |" in section.splitlines()[0]
    assert "Calibrated" not in section
    assert "computing" not in section


def test_the_picture_shows_every_call(folder):
    calls = [["pinned", 0.1, 0.9], ["disk", 1.0, 0.01]]
    shown = model_pictures.accuracy(folder)
    assert shown == [["A card", calls], ["host device, 2 cores", calls]]


def test_both_pictures_of_the_page_are_there():
    text = (ROOT / model_page.METHOD).read_text(encoding="utf-8")
    for picture in model_pictures.PICTURES:
        assert picture.link("", model_page.METHOD).removeprefix("![]") in text
