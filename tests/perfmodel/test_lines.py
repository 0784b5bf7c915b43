"""Lines of a machine that may be disturbed: fitted, kept or scaled; and what copies are late by.

Whole calibrations of a machine that something else uses: tests/calibration/test_noise.py.
"""

import dataclasses

import pytest

from perfmodel import ComputeModel, Line, LineFitter, Samples, shipped
from perfmodel.lines import KEPT, SCALED, latency_line
from perfmodel.staging import SLAB_BYTES

H200 = shipped("h200")
KEY = "copy_in/pageable"


def sampled(line, sizes=(1e6, 2e7, 6e7, 2e8)):
    return Samples(sizes, tuple(line.seconds(size) for size in sizes))


def test_what_a_copy_is_late_by_does_not_fall_with_its_bytes():
    found = latency_line({2**20: 2e-3, 2**22: 1e-3})
    assert (found.alpha, found.beta) == (0.0, pytest.approx(1.5e-3))
    found = latency_line({2**20: 1e-3, 2**22: 1e-3})
    assert (found.alpha, found.beta) == (0.0, pytest.approx(1e-3))


def test_of_copies_through_slabs_those_count_that_fill_them():
    late, (small, *large) = 9e-3, sampled(Line(1e-10, 1e-3)).work
    assert small < SLAB_BYTES <= min(large)
    seconds = late, *(Line(1e-10, 1e-3).seconds(size) for size in large)
    samples = Samples((small, *large), seconds)
    line, kept = LineFitter(H200, None, through_slabs=True).line(KEY, samples, 0.0)
    assert (line.alpha, line.beta) == pytest.approx((1e-10, 1e-3), rel=1e-3)
    assert kept == samples
    line, _ = LineFitter(H200, None, through_slabs=True).line("copy_in/disk", samples, 0.0)
    assert line.beta == 0.0
    line, _ = LineFitter(H200, None, through_slabs=False).line(KEY, samples, 0.0)
    assert line.beta > 2e-3


def test_a_spoilt_line_is_a_known_one_scaled_or_one_that_was_measured_well_before():
    known = H200.lines[KEY]
    slower = sampled(known.scaled(2.0))
    fitter = LineFitter(H200, None, through_slabs=True)
    line, _ = fitter.line(KEY, slower, spread=0.5)
    assert line.alpha == pytest.approx(2.0 * known.alpha)
    assert fitter.quality[KEY][SCALED]
    earlier = {"quality": {KEY: {"spread": 0.01}}, "samples": {KEY: sampled(known)}}
    fitter = LineFitter(H200, dataclasses.replace(H200, **earlier), through_slabs=True)
    assert fitter.line(KEY, slower, spread=0.5) == (known, sampled(known))
    assert fitter.quality[KEY] == {"spread": 0.01, KEPT: 1.0}


def test_lines_that_were_not_measured_are_as_far_from_what_is_known_as_the_nearest():
    plain, softmax = Line(1e-12, 1e-6), Line(3e-12, 2e-6)
    compute = ComputeModel({"pointwise/float32": plain, "pointwise/float32/softmax": softmax})
    fitter = LineFitter(dataclasses.replace(H200, compute=compute), None, through_slabs=True)
    measured = plain.scaled(3.0)
    key = "pointwise/float32"
    found = fitter.completed({key: measured}, {key: sampled(measured)})
    assert found[key] == measured
    assert found["pointwise/float32/softmax"].alpha == pytest.approx(9e-12)
