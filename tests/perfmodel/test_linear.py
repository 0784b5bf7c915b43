"""Known alpha and beta are recovered; what is no line is refused; held out means held out."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel import FitError, Line, fit
from perfmodel.fitting import _folds


def samples(alpha, beta, *, noise=0.0, outliers=0.0, count=60, seed=0):
    """Return work over five decades around beta / alpha, and disturbed seconds."""
    rng = np.random.default_rng(seed)
    work = beta / alpha * np.geomspace(1e-2, 1e3, count)
    seconds = (alpha * work + beta) * (1.0 + noise * rng.standard_normal(count))
    hit = rng.permutation(count)[: round(outliers * count)]
    seconds[hit] *= rng.uniform(2.0, 10.0, len(hit))
    return work, seconds


@settings(max_examples=25)
@given(st.floats(1e-15, 1e-6), st.floats(1e-7, 1.0))
def test_exact_timings_give_alpha_and_beta_back(alpha, beta):
    found = fit(*samples(alpha, beta))
    assert found.line.alpha == pytest.approx(alpha, rel=1e-6)
    assert found.line.beta == pytest.approx(beta, rel=1e-6)
    assert found.residual < 1e-6
    assert found.held_out_error < 1e-6


@pytest.mark.parametrize("seed", range(12))
def test_noise_and_outliers_are_borne(seed):
    alpha, beta = 1 / 55e9, 8e-6
    found = fit(*samples(alpha, beta, noise=0.05, outliers=0.1, seed=seed))
    assert found.line.alpha == pytest.approx(alpha, rel=0.06)
    assert found.line.beta == pytest.approx(beta, rel=0.06)
    assert 0.01 < found.held_out_error < 0.08
    # the outliers stay visible, and there are as many as were put in
    assert sum(error < -0.4 for error in found.residuals) == 6


def test_noise_and_outliers_average_out():
    alpha, beta = 1 / 55e9, 8e-6
    runs = [fit(*samples(alpha, beta, noise=0.05, outliers=0.1, seed=s)).line for s in range(20)]
    assert np.mean([line.alpha for line in runs]) == pytest.approx(alpha, rel=0.02)
    assert np.mean([line.beta for line in runs]) == pytest.approx(beta, rel=0.02)


def test_exact_timings_with_outliers_are_recovered_exactly():
    work, seconds = samples(2e-12, 1e-5, outliers=0.1)
    found = fit(work, seconds)
    assert found.line.alpha == pytest.approx(2e-12, rel=1e-4)
    assert found.line.beta == pytest.approx(1e-5, rel=1e-4)


def test_small_samples_count_as_much_as_large_ones():
    # absolute least squares would give up the first three for the last one's 3 %
    work = np.array([1e3, 2e3, 4e3, 1e9, 2e9, 4e9])
    seconds = 1e-9 * work + 1e-5
    seconds[-1] *= 1.03
    assert fit(work, seconds).line.beta == pytest.approx(1e-5, rel=0.01)


def test_what_a_line_cannot_have_stays_at_zero():
    work = np.linspace(1e3, 1e4, 10)
    assert fit(work, 1e-9 * work - 2e-7).line.beta == 0.0
    flat = fit(work, np.full(10, 1e-5) * (1 + 0.01 * np.sin(7 * work)))
    assert flat.line.beta == pytest.approx(1e-5, rel=0.02)
    assert 0 <= flat.line.alpha < 1e-11


def test_the_held_out_error_is_of_samples_not_fitted():
    rng = np.random.default_rng(1)
    work = np.repeat([1.0, 2.0, 3.0], 4)
    # each amount has an error of its own: a fit can follow it only where it has seen it
    seconds = work * np.repeat([1.0, 1.5, 1.0], 4) * (1 + 1e-3 * rng.standard_normal(12))
    found = fit(work, seconds)
    assert found.held_out_error > 0.2
    assert found.held_out_error > found.residual


def test_folds_hold_each_amount_out_once_and_whole():
    work = np.array([3.0, 1.0, 2.0, 3.0, 5.0, 4.0, 6.0, 1.0])
    masks = list(_folds(work))
    assert (np.sum(masks, axis=0) == 1).all()
    for mask in masks:
        assert not set(work[mask]) & set(work[~mask])


def test_residuals_are_of_the_line_and_in_order():
    work, seconds = samples(1e-9, 1e-4, noise=0.05)
    found = fit(work, seconds)
    np.testing.assert_allclose(found.residuals, found.line.seconds(work) / seconds - 1)
    assert len(found.residuals) == len(work)
    assert found.quality() == {
        "residual": found.residual,
        "held_out_error": found.held_out_error,
        "samples": 60.0,
    }


@pytest.mark.parametrize(
    ("work", "seconds", "message"),
    [
        ([], [], "0 different amounts"),
        ([1, 2], [1, 2], "at least 3"),
        ([1, 1, 2, 2], [1, 1, 2, 2], "2 different amounts"),
        ([1, 2, 3], [1, 2], "same length"),
        ([[1, 2, 3]], [[1, 2, 3]], "must be a number"),
        ([1, 2, math.nan], [1, 2, 3], "work is nan; it must be a finite number"),
        ([1, 2, 3], [1, 2, math.inf], "seconds is inf; it must be a finite number"),
        ([1, 2, 3], [1, 0, 3], "takes some time"),
        ([-1, 2, 3], [1, 2, 3], "work is -1.0; .* at least 0"),
        (["a", "b", "c"], [1, 2, 3], "must be a number"),
        ([1, 2, 3, 4], [4, 3, 2, 1], "negative rate"),
    ],
)
def test_samples_that_determine_no_line_are_refused(work, seconds, message):
    with pytest.raises(FitError, match=message):
        fit(work, seconds)


def test_a_falling_rate_is_seen_through_noise_and_outliers():
    work = np.linspace(1, 10, 40)
    rng = np.random.default_rng(3)
    seconds = (12 - work) * (1 + 0.05 * rng.standard_normal(40))
    seconds[::10] *= 5
    with pytest.raises(FitError, match="negative rate"):
        fit(work, seconds)


def test_a_line_predicts_numbers_and_arrays_alike():
    line = Line(2.0, 1.0)
    assert line.seconds(3.0) == 7.0
    np.testing.assert_array_equal(line.seconds(np.array([0.0, 3.0])), [1.0, 7.0])
    with pytest.raises(ValueError, match="alpha is -1"):
        Line(-1.0, 0.0)


def test_a_fit_says_how_good_it_is():
    found = fit(*samples(1e-9, 1e-4, noise=0.05, count=5))
    assert found.quality() == {
        "residual": np.median(np.abs(found.residuals)),
        "held_out_error": found.held_out_error,
        "samples": 5.0,
    }


def terms_samples(*, noise=0.0, count=80):
    """Work and two features that vary apart, and the seconds of a known line."""
    rng = np.random.default_rng(0)
    line = Line(2e-12, 1e-5, {"bytes": 3e-12, "elements": 5e-12})
    work, size, elements = (10 ** rng.uniform(6, 10, count) for _ in range(3))
    features = {"bytes": size, "elements": elements}
    seconds = line.seconds(work, features) * (1 + noise * rng.standard_normal(count))
    return line, work, seconds, features


def test_known_terms_are_recovered():
    line, work, seconds, features = terms_samples()
    found = fit(work, seconds, features)
    assert found.line.alpha == pytest.approx(line.alpha, rel=1e-6)
    assert found.line.beta == pytest.approx(line.beta, rel=1e-6)
    assert found.line.terms == pytest.approx(dict(line.terms), rel=1e-6)
    assert found.held_out_error < 1e-6


def test_known_terms_are_recovered_from_noise_and_outliers():
    line, work, seconds, features = terms_samples(noise=0.05, count=400)
    seconds[::17] *= 4.0
    found = fit(work, seconds, features).line
    assert found.alpha == pytest.approx(line.alpha, rel=0.1)
    assert found.terms == pytest.approx(dict(line.terms), rel=0.1)


def test_a_feature_that_costs_nothing_is_no_term():
    _, work, seconds, features = terms_samples()
    unrelated = np.random.default_rng(9).uniform(1, 1e9, len(work))
    found = fit(work, seconds, {**features, "unrelated": unrelated}).line
    assert found.terms.get("unrelated", 0.0) * 1e9 < 1e-6 * seconds.min()


@pytest.mark.parametrize("bad", [[-1.0, 2.0, 3.0], [1.0, 2.0], [1.0, math.nan, 3.0], ["a", 1, 2]])
def test_bad_features_are_refused(bad):
    with pytest.raises(FitError, match=r"^bytes (is|has) "):
        fit([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], {"bytes": bad})


def test_a_feature_that_is_not_given_counts_nothing():
    line = Line(1.0, 2.0, {"bytes": 3.0})
    assert line.seconds(4.0) == 6.0
    assert line.seconds(4.0, {"bytes": 1.0, "other": 9.0}) == 9.0
    np.testing.assert_array_equal(
        line.seconds(np.array([1.0, 2.0]), {"bytes": np.array([0.0, 1.0])}), [3.0, 7.0]
    )


def test_terms_go_to_json_and_back_and_lines_without_them_stay_as_they_were():
    line = Line(1.0, 2.0, {"bytes": 3.0})
    assert Line.from_json(line.to_json()) == line
    assert Line(1.0, 2.0).to_json() == {"alpha": 1.0, "beta": 2.0}
    assert Line.from_json({"alpha": 1.0, "beta": 2.0}) == Line(1.0, 2.0)
    with pytest.raises(ValueError, match="terms"):
        Line(1.0, 2.0, {"bytes": -3.0})
    with pytest.raises(ValueError, match="unknown 'gamma'"):
        Line.from_json({"alpha": 1.0, "beta": 2.0, "gamma": 1.0})


def test_half_as_long_counts_as_much_as_twice_as_long():
    """Timings that scatter by factors are met in the middle, not at their lowest."""
    rng = np.random.default_rng(4)
    work = 10 ** rng.uniform(6, 9, 400)
    seconds = 1e-9 * work * np.exp(rng.normal(0.0, 1.0, 400))
    assert fit(work, seconds).line.alpha == pytest.approx(1e-9, rel=0.25)
