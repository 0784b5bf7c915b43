"""What other processes take of the processors, by made-up clocks and statistics."""

import os
import time

import numpy as np
import pytest

from ooc_cudnn.bench import steadiness
from ooc_cudnn.bench.steadiness import Neighbours

#: Ticks of all processors: user, nice, system, idle, waiting for a disk, two kinds of interrupts,
#: stolen, and guests, who are counted as users already.
BEFORE, AFTER = (100, 20, 30, 4000, 50, 6, 7, 8, 9), (400, 40, 90, 9000, 90, 16, 17, 58, 309)
BUSY_TICKS = 300 + 20 + 60 + 10 + 10 + 50


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Two processors with the ticks that are written, and the clocks that are set."""
    clocks = {"wall": 7.0, "own": 1.0}
    monkeypatch.setattr(steadiness, "_STATISTICS", tmp_path / "stat")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(time, "perf_counter", lambda: clocks["wall"])
    monkeypatch.setattr(time, "process_time", lambda: clocks["own"])

    def tick(ticks, **seconds):
        line = " ".join(map(str, ticks))
        (tmp_path / "stat").write_text(f"cpu  {line}\ncpu0 {line}\nintr 1\n")
        clocks.update(seconds)

    tick(BEFORE)
    return tick


@pytest.mark.parametrize("own_seconds", [0.0, 1.5])
def test_neighbours_are_not_oneself(machine, own_seconds):
    looking = Neighbours()
    machine(AFTER, wall=10.0, own=1.0 + own_seconds)
    busy_seconds = BUSY_TICKS / os.sysconf("SC_CLK_TCK")
    assert looking.share() == pytest.approx((busy_seconds - own_seconds) / (2 * 3.0))
    # and nothing since that look
    machine(AFTER, wall=11.0)
    assert looking.share() == 0.0


def test_ticks_that_lag_behind_make_no_share_negative(machine):
    looking = Neighbours()
    machine(BEFORE, wall=8.0, own=1.9)
    assert looking.share() == 0.0


def test_a_system_that_does_not_say(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(steadiness, "_STATISTICS", tmp_path / "nothing")
    looking = Neighbours()
    machine(BEFORE, wall=8.0)
    assert np.isnan(looking.share())


@pytest.mark.skipif(not steadiness._STATISTICS.exists(), reason="needs /proc")
def test_this_system_says_something():
    assert Neighbours().share() >= 0.0
