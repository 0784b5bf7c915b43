"""What `calibrate` prints: rates at usual sizes, errors, and what is slow or doubtful."""

import dataclasses
import re

import pytest

from ooc_cudnn.calibration.report import Usual, explain_confidence, report, summary
from perfmodel import ComputeModel, Line, Slowdown, TransferModel, shipped
from perfmodel.lines import KEPT, SCALED

KEY = "convolution/float32/channels_last"


@pytest.fixture
def model():
    """An H200 whose lines are round numbers."""
    h200 = shipped("h200")
    start, mib = 0.0, 2**20
    copies = {"pinned": Line(1 / 50e9, start), "pageable": Line(1 / 20e9, start)}
    quality = {"residual": 0.1, "held_out_error": 0.2, "spread": 0.03, "samples": 6.0}
    usual = Usual.of(h200)
    flops = usual.work(KEY).flops
    assert flops == 2 * 32 * 28 * 28 * 9 * 256 * 256
    lines = {
        KEY: Line(0.0, start, {"flops_x128": 1e-13}),
        f"{KEY}/backward_data": Line(1e-12, start),
        "pointwise/float32": Line(1 / 4e12, 1e-6),
        "pointwise/float32/softmax": Line(0.0, start, {"exponentials": 1e-12, "elements": 1e-12}),
        "pointwise/float64/statistics": Line(0.0, 4e-6, {"elements": 1e-14}),
    }
    assert usual.pass_bytes == 128 * mib
    return dataclasses.replace(
        h200,
        transfer=TransferModel(copies, copies, {"pinned/pageable": Slowdown(1.25, 2.0)}),
        compute=ComputeModel(lines),
        quality=dict.fromkeys(lines, quality) | {"copy_in/pinned": quality},
        facts={
            "drift_of_compute_share": -0.034,
            "calibration_seconds": 48.5,
        },
        step_seconds=2.5e-5,
    )


def line_of(text, key):
    (found,) = [line for line in text.splitlines() if line.startswith(f"{key} ")]
    return found


def test_rates_are_those_of_a_usual_size_however_a_line_is_made(model):
    text = report(model)
    assert "copies of 16.00 MiB; convolutions, 3 x 3, 256 to 256 channels, on 32 x 256" in text
    assert re.search(r" 50 GB/s +10\.0% +20\.0% +3\.0%", line_of(text, "copy_in/pinned"))
    assert " 10 TFLOP/s " in line_of(text, KEY)
    assert " 1 TFLOP/s " in line_of(text, f"{KEY}/backward_data")
    # 128 MiB in 33.6 us, and the start; or as many for their elements
    assert "3884 GB/s" in line_of(text, "pointwise/float32")
    assert " 4000 GB/s " in line_of(text, "pointwise/float32/softmax")


def test_what_takes_as_long_whatever_its_size_has_no_rate(model):
    found = line_of(report(model), "pointwise/float64/statistics")
    assert "4.08 us" in found
    assert "B/s" not in found


@pytest.mark.parametrize("name", ["h200", "h100", "host", "p100"])
def test_no_rate_of_a_shipped_machine_is_beyond_what_there_is(name):
    text = report(shipped(name))
    rates = [(float(rate), unit) for rate, unit in re.findall(r"([\d.]+) (\w+/s)", text)]
    assert max(rate for rate, unit in rates if unit == "GB/s") < 1e4
    assert max((rate for rate, unit in rates if unit == "TFLOP/s"), default=0.0) < 1000
    assert max((rate for rate, unit in rates if unit == "GFLOP/s"), default=0.0) < 1000
    assert all(f"\n{key} " in text for key in shipped(name).lines)


def test_what_is_slow_or_doubtful_is_noted(model):
    text = report(model)
    assert line_of(text, f"{KEY}/backward_data").endswith(
        "slow: 10 times slower than the fastest of its kind"
    )
    assert line_of(text, "copy_out/pageable").endswith(
        "slow: 2.5 times slower than the fastest of its kind"
    )
    assert line_of(text, KEY).rstrip().endswith("3.0%")
    bad = {"residual": 0.1, "held_out_error": 0.4, "spread": 0.03, "samples": 6.0}
    for quality, note in (
        (bad, "doubtful"),
        ({**bad, "held_out_error": 0.1, "spread": 0.3}, "doubtful"),
        ({**bad, KEPT: 1.0}, "disturbed: kept from the earlier calibration"),
        ({**bad, SCALED: 1.0}, "disturbed: a known line scaled"),
    ):
        worse = dataclasses.replace(model, quality={**model.quality, KEY: quality})
        assert line_of(report(worse), KEY).endswith(f"  {note}")


def test_what_one_sample_tells_and_what_was_not_measured_is_said(model):
    one = {"residual": 0.0, "held_out_error": 1.0, "spread": 0.03, "samples": 1.0}
    text = report(dataclasses.replace(model, quality={**model.quality, KEY: one}))
    assert re.search(r" 0\.0% +3\.0%$", line_of(text, KEY))
    assert line_of(text, "copy_out/pinned").endswith(
        "not measured: a known line, scaled as the nearest measured one"
    )
    unknown = report(dataclasses.replace(model, quality={}))
    assert "not measured" not in unknown


def test_everything_else_is_told(model):
    text = report(model)
    assert "in from pinned   out to pageable  in 40.0 of 50.0 GB/s, out 10.0 of 20.0 GB/s" in text
    assert ", issuing a step 25.0 us, " in text
    assert "drift of compute from first to last: -3.4%" in text
    assert "measured in 48.5 s" in text.splitlines()
    assert "\nhow sure: half of the lines are right within " in text


def test_clocks_that_drifted_are_not_said_to_be_undisturbed(model):
    assert (
        explain_confidence(model)[-1] == "nothing was disturbed: plans are as sure as these lines"
    )
    drifted = dataclasses.replace(model, facts={"drift_of_copy_in_share": 0.31})
    _, told, meaning = explain_confidence(drifted)
    assert told == "clocks drifted while it measured: copy in by +31%"
    assert "off by 31% and more" in meaning
    assert "nothing was disturbed" not in report(drifted)


def test_three_lines_tell_what_was_disturbed(model):
    quality = {"residual": 0.1, "held_out_error": 0.2, "spread": 0.4, SCALED: 1.0}
    spoilt = dataclasses.replace(
        model,
        quality={**model.quality, KEY: quality},
        facts={"drift_of_copy_in_share": 0.31, "calibration_seconds": 12.0},
    )
    measured, sure, kept = summary(spoilt, "/here.json")
    assert measured.startswith("measured  h200 in 12 s: copies 50 GB/s in, 50 GB/s out; ")
    assert sure.endswith("; disturbed lines: 1; clocks drifted")
    assert kept == "kept in   /here.json"
    assert "disturbed" not in summary(model, "")[1]


def test_what_nobody_measured_is_not_sure():
    assert explain_confidence(shipped("l4")) == ["how sure: not measured; scaled from data sheets"]
