"""How calls are timed: in a row, again and again while there is time, and held on a stream."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.bench import timing
from ooc_cudnn.bench.clock import Clock
from ooc_cudnn.bench.contents import fill
from ooc_cudnn.bench.timing import time_in_a_row, time_repeats


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on when it is told to, and by nothing else."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def passes(seconds):
        now[0] += seconds

    return passes


def nothing():
    pass


def test_calls_in_a_row_are_as_many_as_fill_a_row_and_each_counts_alike(clock):
    made = {"quick": 0, "slow": 0}

    def call(name, seconds):
        made[name] += 1
        clock(seconds)

    calls = {"quick": lambda: call("quick", 1e-6), "slow": lambda: call("slow", 1.0)}
    found = time_in_a_row(calls, nothing, repeats=3)
    assert found["quick"].median == pytest.approx(1e-6)
    assert found["slow"].median == pytest.approx(1.0)
    rows = 1 + 3  # the first does not count
    assert made == {"quick": 3 + rows * timing.MOST_CALLS, "slow": 3 + rows * timing.FEWEST_CALLS}
    assert len(found["slow"].samples) == 3


@pytest.mark.parametrize(("seconds", "samples"), [(0.1, 10), (4.0, 7), (20.0, 1)])
def test_a_step_is_repeated_while_there_is_time(clock, seconds, samples):
    found = time_repeats(lambda: clock(seconds), nothing)
    assert len(found.samples) == samples
    assert found.median == pytest.approx(seconds)


def test_a_clock_times_ways_in_turns():
    order = []
    found = Clock("host", quick=True).measure(
        {"a": [lambda: order.append("a0"), lambda: order.append("a1")],
         "b": [lambda: order.append("b")]}
    )  # fmt: skip
    assert set(found) == {"a", "b"}
    assert all(len(each.samples) == 2 for each in found.values())
    assert {"a0", "a1", "b"} == set(order)


def test_what_is_filled_is_numbers_that_differ_from_block_to_block():
    x = np.full((3, 2**22), np.nan, np.float32)
    fill(x)
    assert np.isfinite(x).all()
    assert not np.array_equal(x[0], x[1])
