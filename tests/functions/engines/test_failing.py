"""Engines that fail, and devices without any."""

import warnings

import pytest

import ooc_cudnn
from ooc_cudnn.devices.engine_files import (
    save_tables,
)
from ooc_cudnn.functions import tune
from ooc_cudnn.functions.prepared import forget_calls
from tests.support.fake_cudnn import FakeEngine
from tests.support.tuned import KIB, X, call, numbers, planned, tuned


def test_an_engine_that_fails_is_never_taken_again(make, random):
    fast = FakeEngine(101, 1e-6, 8 * KIB)
    device = make(FakeEngine(100, 3e-6), fast)
    tuned()
    fast.fails = True
    with pytest.warns(
        UserWarning, match=r"engine eng101 failed for convolution_forward .*next one"
    ):
        assert call(random) < 1e-6
    fast.fails = False
    launched = fast.launched
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call(random) < 1e-6
    assert fast.launched == launched
    save_tables(device)
    forget_calls()
    assert planned().algorithms == ("eng100 (measured)",)


def test_the_heuristics_choice_may_fail_too(make, random):
    make(FakeEngine(100, 1e-6, fails=True), FakeEngine(101, 3e-6))
    with ooc_cudnn.settings(deterministic=True), pytest.warns(UserWarning, match="eng100 failed"):
        assert call(random) < 1e-6


def test_an_engine_that_fails_while_it_is_measured_is_left_out(make):
    make(FakeEngine(100, 2e-6), FakeEngine(101, 1e-6, fails=True))
    assert numbers(*tuned()) == [100]


def test_nothing_to_tune(host_device):
    with pytest.raises(tune.NothingToTuneError, match="host has one way"):
        tuned()


def test_a_call_without_convolutions_has_nothing_to_tune(make):
    make(FakeEngine(100, 2e-6))
    with pytest.raises(tune.NothingToTuneError, match="launches no convolution"):
        tune.tune("pooling_forward", x=X, window=2)
