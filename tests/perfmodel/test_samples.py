"""Samples say how far a line is from them, and fit one: their own, or one of a kind, scaled."""

import numpy as np
import pytest

from perfmodel import FitError, Line, Samples, fit_samples

LIKE = Line(2e-12, 1e-6, {"bytes": 3e-12, "sites": 1e-9})


def drawn(line, count, noise=0.0, seed=0):
    """Samples of a line with two further features."""
    random = np.random.default_rng(seed)
    work = tuple(10.0 ** random.uniform(7, 10, count))
    features = {name: tuple(10.0 ** random.uniform(3, 7, count)) for name in ("bytes", "sites")}
    exact = Samples(work, (1.0,) * count, features).predicted(line)
    return Samples(work, tuple(exact * random.lognormal(0, noise, count)), features)


def test_residuals_are_relative_to_what_was_measured():
    samples = Samples((10.0, 20.0), (1.0, 4.0), {"bytes": (1.0, 2.0)})
    assert samples.predicted(Line(0.1, 0.5, {"bytes": 0.25})).tolist() == [1.75, 3.0]
    assert samples.residuals(Line(0.1, 0.5, {"bytes": 0.25})).tolist() == [0.75, -0.25]


@pytest.mark.parametrize("factor", [0.2, 1.0, 7.0])
def test_four_samples_of_a_machine_of_the_same_kind_are_enough(factor):
    line = Line(
        factor * LIKE.alpha, factor * LIKE.beta, {n: factor * r for n, r in LIKE.terms.items()}
    )
    found = fit_samples(drawn(line, 4), LIKE)
    assert found.line.alpha == pytest.approx(line.alpha)
    assert found.line.beta == pytest.approx(line.beta)
    assert dict(found.line.terms) == pytest.approx(dict(line.terms))
    assert found.residual < 1e-9
    assert found.held_out_error < 1e-9


def test_one_bad_sample_of_five_does_not_scale_the_line():
    samples = drawn(LIKE, 5)
    disturbed = Samples(
        samples.work, (9 * samples.seconds[0], *samples.seconds[1:]), samples.features
    )
    assert fit_samples(disturbed, LIKE).line.alpha == pytest.approx(LIKE.alpha)


def test_many_samples_of_another_kind_find_their_own_line():
    other = Line(5e-12, 2e-5, {"bytes": 1e-13, "sites": 0.0})
    found = fit_samples(drawn(other, 40, noise=0.02), LIKE)
    assert found.line.alpha == pytest.approx(other.alpha, rel=0.05)
    assert found.held_out_error < 0.05
    assert fit_samples(drawn(other, 40, noise=0.02)).line == found.line


def test_few_noisy_samples_are_predicted_better_by_the_scaled_line():
    """Held-out samples choose: nine samples, four unknowns, a third of noise."""
    errors = {"scaled": [], "free": []}
    for seed in range(20):
        test = drawn(LIKE, 200, seed=seed + 1000)
        few = drawn(LIKE, 9, noise=0.3, seed=seed)
        for name, like in (("scaled", LIKE), ("free", None)):
            line = fit_samples(few, like).line
            errors[name].append(np.median(np.abs(test.residuals(line))))
    assert np.median(errors["scaled"]) < np.median(errors["free"])


def test_two_amounts_of_work_do_not_tell_a_line_and_scale_the_known_one():
    samples = Samples((8.0, 8.0, 32.0, 32.0), (2e-5, 2e-5, 2e-5, 2e-5), {"bytes": (1.0,) * 4})
    line = fit_samples(samples, Line(0.0, 1e-5, {"bytes": 1e-12})).line
    assert line.beta == pytest.approx(2e-5)


def test_one_sample_is_not_held_out():
    found = fit_samples(Samples((1e9,), (4e-3,), {"bytes": (0.0,), "sites": (0.0,)}), LIKE)
    assert found.residual == pytest.approx(0.0, abs=1e-12)
    assert found.held_out_error == 1.0


def test_a_line_that_takes_no_time_cannot_be_scaled():
    with pytest.raises(FitError, match="takes no time"):
        fit_samples(drawn(LIKE, 4), Line(0.0, 0.0))


def test_json_there_and_back():
    for samples in (drawn(LIKE, 3), Samples((1.0, 2.0), (1.0, 2.0))):
        assert Samples.from_json(samples.to_json()) == samples
        assert hash(Samples.from_json(samples.to_json())) == hash(samples)
    with pytest.raises(ValueError, match="Samples lacks 'seconds'"):
        Samples.from_json({"work": [1.0]})
    with pytest.raises(ValueError, match="bytes has 1 samples, but work has 2"):
        Samples((1.0, 2.0), (1.0, 2.0), {"bytes": (1.0,)})
