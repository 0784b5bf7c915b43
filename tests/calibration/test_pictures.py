"""A calibration drawn and written: every sample is there, and nothing is drawn without samples."""

import dataclasses
import importlib.util

import numpy as np
import pytest

from ooc_cudnn.calibration.pictures import calibration_figure, draw_calibration
from perfmodel import Samples, shipped
from tests.support.colours import check_one_meaning_a_colour

SIZES = (1e6, 4e6, 16e6)


@pytest.fixture
def model():
    """The H200 with samples a tenth slower than its lines, half-way through made-up noise."""
    h200 = shipped("h200")
    lines = {f"copy_in/{name}": line for name, line in h200.transfer.copy_in.items()}
    lines |= {f"copy_out/{name}": line for name, line in h200.transfer.copy_out.items()}
    lines |= h200.compute.lines
    samples = {
        key: Samples(SIZES, tuple(1.1 * line.seconds(size) for size in SIZES))
        for key, line in lines.items()
    }
    for pair in h200.transfer.slowdowns:
        for direction, placement in zip(("copy_in", "copy_out"), pair.split("/"), strict=True):
            line = lines[f"{direction}/{placement}"]
            seconds = tuple(1.5 * line.seconds(size) for size in SIZES)
            samples[f"duplex/{pair}/{direction}"] = Samples(SIZES, seconds)
    quality = {key: {"residual": 0.1, "held_out_error": 0.2, "spread": 0.03} for key in lines}
    return dataclasses.replace(
        h200,
        samples=samples,
        quality={**quality, "duplex/pinned/pinned": {"spread": 0.04, "samples": 3.0}},
        facts={
            "drift_of_compute_share": -0.034,
            "calibration_seconds": 48.5,
        },
    )


def points(axes):
    """Every point that is drawn as a mark."""
    marked = [line for line in axes.get_lines() if line.get_marker() not in ("None", "", None)]
    return sum(len(line.get_xdata()) for line in marked)


def test_every_sample_is_a_mark(model):
    pytest.importorskip("matplotlib")
    copies_in, copies_out, convolutions, passes, link, computing = calibration_figure(model).axes
    for axes in (copies_in, copies_out):
        # three placements alone, and four pairs at once
        assert points(axes) == (3 + 4) * len(SIZES)
    kinds = [key for key in model.compute.lines if key.startswith("convolution")]
    assert points(convolutions) == len(SIZES) * len(kinds)
    assert points(passes) == len(SIZES) * (len(model.compute.lines) - len(kinds))
    assert points(link) == 6 * len(SIZES)
    assert points(computing) == len(SIZES) * len(model.compute.lines)


def test_a_colour_is_one_group_s_in_all_panels(model):
    pytest.importorskip("matplotlib")
    figure = calibration_figure(model)
    check_one_meaning_a_colour(figure, lambda label: label * (not label.startswith("in from ")))
    *of_groups, link, computing = figure.axes
    for axes, panels in ((link, of_groups[:2]), (computing, of_groups[2:])):
        drawn = {line.get_color() for line in axes.get_lines() if line.get_marker() == "o"}
        assert drawn <= {line.get_color() for panel in panels for line in panel.get_lines()}
        assert len(drawn) > 1


def test_residuals_are_those_of_the_samples(model):
    pytest.importorskip("matplotlib")
    *_, link, computing = calibration_figure(model).axes
    for axes in (link, computing):
        drawn = np.concatenate(
            [line.get_ydata() for line in axes.get_lines() if line.get_marker() == "o"]
        )
        assert drawn == pytest.approx(100 * (1 / 1.1 - 1))
        assert axes.get_title(loc="left") == "residuals: 9.1% in the median, 9.1% for nine of ten"


def test_rates_are_bytes_over_seconds(model):
    pytest.importorskip("matplotlib")
    axes = calibration_figure(model).axes[0]
    drawn = next(line for line in axes.get_lines() if line.get_marker() == "o")
    seconds = model.samples["copy_in/pinned"].seconds
    expected = [size / spent / 1e9 for size, spent in zip(SIZES, seconds, strict=True)]
    assert list(drawn.get_ydata()) == pytest.approx(expected)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_it_is_written_in_the_format_of_the_suffix(model, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    draw_calibration(model, tmp_path / f"fit.{suffix}")
    content = (tmp_path / f"fit.{suffix}").read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_parts_that_were_not_measured_are_left_out(model):
    pytest.importorskip("matplotlib")
    some = {key: held for key, held in model.samples.items() if key == "copy_in/pinned"}
    figure = calibration_figure(dataclasses.replace(model, samples=some))
    assert [points(axes) for axes in figure.axes] == [3, 0, 0, 0, 3, 0]


def test_a_model_without_samples_says_so():
    with pytest.raises(ValueError, match=r"'p100' keeps no samples.*ooc-cudnn calibrate"):
        calibration_figure(shipped("p100"))


def test_without_matplotlib_the_command_is_named(model, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'ooc_cudnn\[plot\]'"):
        draw_calibration(model, "never.png")
