"""What calls wait for, and what is left to `tune` and `calibrate`."""

import dataclasses
import time

import pytest

from ooc_cudnn.calibration import run
from ooc_cudnn.devices.engine_files import (
    tables_of,
)
from ooc_cudnn.devices.measuring import Bench
from ooc_cudnn.functions import trials, tune
from ooc_cudnn.functions.prepared import forget_calls
from ooc_cudnn.functions.tuning import Deadline, Tuning
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.tensor import TensorSpec
from perfmodel import shipped
from tests.support.fake_cudnn import BehaviorNote, FakeEngine
from tests.support.tuned import IMAGE, KIB, first_calls_measure, numbers, planned, tuned


def test_a_first_call_measures_what_it_has_time_for(make, monkeypatch):
    """Engines that take 0.2 s to build, for each size: not all can be."""
    first_calls_measure(monkeypatch)
    device = make(
        FakeEngine(100, 3e-8, build_seconds=0.2),
        FakeEngine(101, 2e-8, KIB, build_seconds=0.2),
        FakeEngine(102, 2.5e-8, 0, build_seconds=0.2),
        FakeEngine(103, 1e-8, 0, build_seconds=0.2),
    )
    began = time.perf_counter()
    plan = planned()
    assert 0.5 < time.perf_counter() - began < 1.0
    assert plan.algorithms not in [("eng100",), ("eng103 (measured)",)]
    assert tune.has_unfinished(device)
    assert tune.finish_tuning(device)
    assert not tune.has_unfinished(device)
    forget_calls()
    assert planned().algorithms == ("eng103 (measured)",)


@pytest.mark.parametrize(("call_seconds", "waits"), [(0.005, True), (0.02, False)])
def test_a_call_that_is_fast_anyway_never_waits(make, monkeypatch, call_seconds, waits):
    first_calls_measure(monkeypatch)
    monkeypatch.setattr(trials, "FAST_SECONDS", call_seconds)
    make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6))  # 8,192 results, 1 us each by the line
    assert planned().algorithms == (("eng101 (measured)",) if waits else ("eng100",))


def test_a_call_waits_no_longer_than_it_takes(make, monkeypatch):
    """It is predicted to take 8 ms; the heuristics' choice was built before it waits."""
    first_calls_measure(monkeypatch)
    monkeypatch.setattr(trials, "WAITING_SHARE", 1.0)
    engines = [FakeEngine(100 + at, 1e-7, at, build_seconds=5e-4) for at in range(9)]
    make(*engines)
    began = time.perf_counter()
    planned()
    assert 0 < sum(engine.launched > 0 for engine in engines[1:]) < 8
    assert time.perf_counter() - began < 0.05


def test_a_first_call_compiles_no_engines(make, monkeypatch):
    first_calls_measure(monkeypatch)
    compiled = FakeEngine(101, 1e-8, behavior=(BehaviorNote.RUNTIME_COMPILATION,))
    make(FakeEngine(100, 3e-8), compiled, FakeEngine(102, 2e-8))
    assert planned().algorithms == ("eng102 (measured)",)
    assert compiled.launched == 0


def test_too_little_memory_to_measure_in(make, monkeypatch):
    """The piece and its slots fill the memory: no engine that takes workspace was timed."""
    first_calls_measure(monkeypatch)
    make(FakeEngine(100, 3e-6))
    monkeypatch.setattr(Bench, "time_launch", lambda *asked, **more: None)
    with pytest.warns(UserWarning, match="no memory to measure engines of convolution_forward"):
        assert planned().algorithms == ("eng100",)


def test_what_is_known_is_not_measured_again(make):
    fast = FakeEngine(101, 1e-6, 8 * KIB)
    make(FakeEngine(100, 3e-6), fast)
    tuned()
    planned()
    launched = fast.launched
    for _ in range(2):
        forget_calls()  # as another process would
        planned()
        assert fast.launched == launched


def test_another_size_is_timed_by_the_engines_that_are_known(make):
    slow, fast, pruned = FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, KIB), FakeEngine(102, 9e-6)
    device = make(slow, fast, pruned)
    tuned()
    before = slow.launched, fast.launched, pruned.launched
    planned(x=TensorSpec((8, 4, 20, 16)))
    assert (slow.launched > before[0], fast.launched > before[1]) == (True, True)
    assert pruned.launched == before[2]
    sizes = {each.work.sized for each in tables_of(device) if each.operation is not None}
    assert len(sizes) > 1


def test_an_engine_without_room_in_one_call_keeps_its_place_for_others(make):
    """Its seconds at that size are guessed from those that were timed."""
    device = make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 100 * KIB))
    tuned()
    launched = tune.launched_of(Convolution.of((6, 4, 16, 16), (4, 4, 3, 3), padding=1))
    options = tables_of(device).options(launched[0].operation)
    with device.arena.lock:
        bench = Bench(device, 2**17, batches=1, batch_seconds=0.0)
        found = Tuning(device, bench, Deadline()).measured_again(launched, options)
    assert numbers(found) == [101, 100]
    assert found.options[0].seconds == pytest.approx(6 * IMAGE * 1e-6, rel=0.01)


def test_known_engines_are_timed_again_for_a_second_at_most(make):
    device = make(FakeEngine(100, 3e-6, build_seconds=0.6), FakeEngine(101, 1e-6, KIB))
    tuned()
    launched = tune.launched_of(Convolution.of((6, 4, 16, 16), (4, 4, 3, 3), padding=1))
    options = tables_of(device).options(launched[0].operation)
    with device.arena.lock:
        bench = Bench(device, 2**20, batches=1, batch_seconds=0.0)
        began = time.perf_counter()
        deadline = Deadline(1.0)
        found = Tuning(device, bench, deadline).measured_again(launched, options[::-1])
    assert time.perf_counter() - began < 1.0
    assert numbers(found) == [101, 100]


@pytest.mark.parametrize("quick", [False, True])
def test_a_full_calibration_ends_what_calls_began(make, monkeypatch, quick):
    device = make(FakeEngine(100, 3e-8), FakeEngine(101, 1e-8, is_ranked=False))
    first_calls_measure(monkeypatch)
    assert planned().algorithms == ("eng100 (measured)",)
    model = dataclasses.replace(shipped("host"), identity=device.identity())
    monkeypatch.setattr(run, "measure", lambda session, progress: {})
    monkeypatch.setattr(run, "fit_model", lambda session, found, before: model)
    run.calibrate(device, quick=quick)
    assert tune.has_unfinished(device) == quick
    assert planned().algorithms == (f"eng{100 + (not quick)} (measured)",)
