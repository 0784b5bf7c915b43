"""Engines that fail, and devices without any."""

import shutil
import warnings
from dataclasses import replace

import pytest

import ooc_cudnn
from ooc_cudnn.devices import tuning_database
from ooc_cudnn.devices.cuda import convolutions
from ooc_cudnn.devices.tuning_database import engines_path, forget_tables, save_tables, tables_of
from ooc_cudnn.errors import CudnnError
from ooc_cudnn.functions.call.call_cache import forget_calls
from ooc_cudnn.functions.tune import tune
from ooc_cudnn.operations.convolution.forward import Convolution
from tests.support.fake_cudnn import FakeEngine
from tests.support.tuned import KIB, W, X, call, numbers, planned, tuned


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


def test_an_engine_that_failed_is_known_to_later_processes(make, random):
    fast = FakeEngine(101, 1e-6, 8 * KIB)
    device = make(FakeEngine(100, 3e-6), fast)
    (measured,) = tuned()
    larger = Convolution.of((32, *X.shape[1:]), W.shape, padding=1)
    mine = tuning_database._tables.pop(
        device
    )  # another process stores, since this one read the file
    tables_of(device).add(replace(measured, work=larger.work(), operation=larger))
    save_tables(device)
    tuning_database._tables[device] = mine

    path = engines_path(device)
    written = path.stat().st_mtime_ns
    assert call(random) < 1e-6
    assert path.stat().st_mtime_ns == written  # a call that does not fail writes nothing
    fast.fails = True
    with pytest.warns(UserWarning, match="engine eng101 failed"):
        assert call(random) < 1e-6
    assert "eng101" not in path.read_text()
    forget_tables()
    assert [numbers(each) for each in tables_of(device)] == [[100], [100]]


def test_engines_stay_stored_where_the_device_itself_failed(make, random, monkeypatch):
    """Nothing runs any more then, whichever engine it is."""
    engines = FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 8 * KIB)
    device = make(*engines)
    tuned()
    for each in engines:
        each.fails = True

    def fails(*_):
        raise CudnnError("an illegal memory access was encountered")

    monkeypatch.setattr(convolutions.convolution_direct, "run", fails)
    with pytest.warns(UserWarning, match="failed"), pytest.raises(CudnnError, match="illegal"):
        call(random)
    forget_tables()
    assert [numbers(each) for each in tables_of(device)] == [[101, 100]]


def test_a_call_does_without_storing_that_an_engine_failed(make, random):
    fast = FakeEngine(101, 1e-6, 8 * KIB)
    device = make(FakeEngine(100, 3e-6), fast)
    tuned()
    fast.fails = True
    path = engines_path(device)
    shutil.rmtree(path.parent)
    path.parent.write_text("a file")
    failed = pytest.warns(UserWarning, match="eng101 failed")
    with failed, pytest.warns(UserWarning, match="cannot be stored"):
        assert call(random) < 1e-6


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
