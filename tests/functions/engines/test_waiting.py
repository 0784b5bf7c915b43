"""What calls wait for, and what is left to `tune`."""

import time

import pytest

from ooc_cudnn.devices.measuring import Bench
from ooc_cudnn.devices.tuning_database import (
    tables_of,
)
from ooc_cudnn.engines.autotune import Deadline, EngineTuner
from ooc_cudnn.functions.call.call_cache import forget_calls
from ooc_cudnn.functions.tune import tune
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.tensor import TensorSpec
from tests.support.fake_cudnn import FakeEngine
from tests.support.tuned import IMAGE, KIB, RESULTS, numbers, planned, tuned


def test_a_call_measures_no_engine_unasked(make):
    """It times what the heuristics chose; the others are for `tune`."""
    chosen, other = FakeEngine(100, 3e-6), FakeEngine(101, 1e-6)
    device = make(chosen, other)
    assert planned().algorithms == ("eng100",)
    assert chosen.launched
    assert not other.launched
    assert all(each.operation is None for each in tables_of(device))


@pytest.mark.parametrize(
    ("slower", "launches"), [(1, 2), (3, 4), (5, 2), (12, 2), (100, 2), (200, 1)]
)
def test_a_launch_that_is_far_slower_than_predicted_is_not_tried_often(make, slower, launches):
    """Of 8 ms as predicted, where a trial may take 0.1 s, what takes that long runs twice.

    What took 0.1 or 0.8 s may have loaded code, and is launched again; what took 1.6 did not.
    """
    engine = FakeEngine(100, slower * 1e-6)
    make(engine)
    plan = planned()
    assert engine.launched == launches
    assert plan.compute_seconds == pytest.approx(slower * 1e-6 * RESULTS, rel=0.05)


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


@pytest.mark.parametrize(("slower", "launches"), [(1, 2), (2, 6), (3, 6), (12, 4), (100, 3)])
def test_a_stored_engine_that_is_far_slower_elsewhere_is_not_tried_often(make, slower, launches):
    """Twice for each of two sizes, once where it takes more than a second.

    Pieces of the size that is stored look fast then, and are tried, too.
    """
    engine = FakeEngine(100, 1e-6)
    make(engine)
    tuned()
    engine.seconds *= slower
    before = engine.launched
    plan = planned(x=TensorSpec((8, 4, 20, 16)))
    assert engine.launched - before == launches
    results = RESULTS * 20 // 16
    assert plan.compute_seconds == pytest.approx(slower * 1e-6 * results, rel=0.05)


def test_what_is_known_is_timed_again_for_as_long_as_a_trial_may_take(make):
    """All six were, for 0.2 s; the others keep their place."""
    engines = [FakeEngine(100 + at, (1 + 0.3 * at) * 1e-6, (6 - at) * KIB) for at in range(6)]
    device = make(*engines)
    tuned()
    before = [engine.launched for engine in engines]
    began = time.perf_counter()
    planned(x=TensorSpec((8, 4, 20, 16)))
    assert time.perf_counter() - began < 0.1
    again = [engine.launched - number for engine, number in zip(engines, before, strict=True)]
    assert again == [2, 2, 2, 0, 0, 0]
    operation = Convolution.of((8, 4, 20, 16), (4, 4, 3, 3), padding=1)
    options = tables_of(device).options(operation)
    assert [option.engine.number for option in options] == [100, 101, 102, 103, 104, 105]
    seconds = [option.seconds for option in options]
    results = RESULTS * 20 // 16
    expected = [engine.seconds * results for engine in engines]
    assert seconds == pytest.approx(expected, rel=0.01)


def test_an_engine_without_room_in_one_call_keeps_its_place_for_others(make):
    """Its seconds at that size are guessed from those that were timed."""
    device = make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 100 * KIB))
    tuned()
    launched = tune.launch_of(Convolution.of((6, 4, 16, 16), (4, 4, 3, 3), padding=1))
    options = tables_of(device).options(launched[0].operation)
    with device.arena.lock:
        bench = Bench(device, 2**17, batches=1, batch_seconds=0.0)
        found = EngineTuner(device, bench, Deadline()).measured_again(launched, options)
    assert numbers(found) == [101, 100]
    assert found.options[0].seconds == pytest.approx(6 * IMAGE * 1e-6, rel=0.01)


def test_known_engines_are_timed_again_for_a_second_at_most(make):
    device = make(FakeEngine(100, 3e-6, build_seconds=0.6), FakeEngine(101, 1e-6, KIB))
    tuned()
    launched = tune.launch_of(Convolution.of((6, 4, 16, 16), (4, 4, 3, 3), padding=1))
    options = tables_of(device).options(launched[0].operation)
    with device.arena.lock:
        bench = Bench(device, 2**20, batches=1, batch_seconds=0.0)
        began = time.perf_counter()
        deadline = Deadline(1.0)
        found = EngineTuner(device, bench, deadline).measured_again(launched, options[::-1])
    assert time.perf_counter() - began < 1.0
    assert numbers(found) == [101, 100]
