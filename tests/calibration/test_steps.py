"""What the host takes for the parts of a call."""

import pytest

from ooc_cudnn.calibration import steps
from ooc_cudnn.calibration.session import make_bench
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.measuring import Timing
from perfmodel import shipped
from tests.support.clock import Clock
from tests.support.simulated_device import SimulatedDevice


def test_what_an_operand_takes_is_told_from_calls_of_two_and_of_six(monkeypatch):
    bench = make_bench(SimulatedDevice(shipped("h200")), 2**30, quick=True)
    calls = Timing(100e-6, 0.1), Timing(8100e-6, 0.2)
    monkeypatch.setattr(steps, "_one_piece", lambda bench: calls)
    found = steps.host_seconds(bench)
    step = found["step_seconds"].seconds
    each = found["operand_seconds"]
    # of the 8 ms that four more take, each is copied in a step
    assert each.seconds == pytest.approx(2e-3 - step)
    assert each.spread == 0.2
    # on the host's device, threads issue steps beside each other: nothing can be told
    bench = make_bench(get_device("host"), 2**30, quick=True)
    assert "operand_seconds" not in steps.host_seconds(bench)
    monkeypatch.undo()
    assert all(timing.seconds > 0 for timing in steps._one_piece(bench))


def test_steps_and_launches_are_told_apart(monkeypatch):
    """On a clock that goes on by a microsecond a look: a piece takes three steps and a launch."""
    Clock(monkeypatch)
    bench = make_bench(SimulatedDevice(shipped("h200")), 2**30, quick=True)
    found = steps.host_seconds(bench)
    # a call is looked at twice; a launch as well, but it is no more than half of a piece
    piece = 1e-6 / steps.SHAPE[0]
    assert found["launch_seconds"].seconds == pytest.approx(piece / 2)
    assert found["step_seconds"].seconds == pytest.approx(piece / 6)
    assert max(timing.spread for timing in found.values()) < 1e-6
