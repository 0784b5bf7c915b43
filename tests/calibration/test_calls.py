"""What whole calls tell: the host's parts of them, and what staged copies are late by."""

import numpy as np
import pytest

from ooc_cudnn.calibration import calls
from ooc_cudnn.calibration.calls import host_seconds
from ooc_cudnn.calibration.session import DIRECTIONS, Session
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.measuring import HostMemory, Timing
from perfmodel import Line, shipped
from perfmodel.staging import STAGED_BYTES, staging_slots
from tests.support.clock import Clock
from tests.support.simulated_device import SimulatedDevice

# --- the host's part ------------------------------------------------------------------------------


def of_host(device):
    session = Session(device, 2**30, quick=True)
    found = session.taken_by(lambda: host_seconds(session))
    return {name: held[0].timing for name, held in found.items()}


def test_what_an_operand_takes_is_told_from_calls_of_two_and_of_six(monkeypatch):
    one_piece = Timing(100e-6, 0.1), Timing(8100e-6, 0.2)
    monkeypatch.setattr(calls, "_one_piece", lambda bench: one_piece)
    found = of_host(SimulatedDevice(shipped("h200")))
    step = found["step_seconds"].seconds
    each = found["operand_seconds"]
    # of the 8 ms that four more take, each is copied in a step
    assert each.seconds == pytest.approx(2e-3 - step)
    assert each.spread == 0.2
    # on the host's device, threads issue steps beside each other: nothing can be told
    host = get_device("host")
    assert "operand_seconds" not in of_host(host)
    monkeypatch.undo()
    bench = Session(host, 2**30, quick=True).bench
    assert all(timing.seconds > 0 for timing in calls._one_piece(bench))


def test_steps_and_launches_are_told_apart(monkeypatch):
    """On a clock that goes on by a microsecond a look: a piece takes three steps and a launch."""
    Clock(monkeypatch)
    found = of_host(SimulatedDevice(shipped("h200")))
    # a call is looked at twice; a launch as well, but it is no more than half of a piece
    piece = 1e-6 / calls.SHAPE[0]
    assert found["launch_seconds"].seconds == pytest.approx(piece / 2)
    assert found["step_seconds"].seconds == pytest.approx(piece / 6)
    assert max(timing.spread for timing in found.values()) < 1e-6


# --- staged copies --------------------------------------------------------------------------------


@pytest.mark.parametrize("binding", ["copy_in", "copy_out"])
def test_what_others_delay_is_told_by_the_ring_that_binds(binding, monkeypatch):
    """Of a call staged both ways: the other ring waits for the slower one, which says nothing."""
    session = Session(SimulatedDevice(shipped("h200")), 2**30, quick=False)
    session.hosts["pageable"] = {way: HostMemory(np.empty(2**28, "f4")) for way in DIRECTIONS}
    each, crossing, slots = 3e-4, 1e-4, 2
    late = {"copy_in": Line(1e-10, 5e-4), "copy_out": Line(2e-10, 5e-4)}
    if binding == "copy_out":
        # results leave their slots: it takes a ring that is late by far more to bind
        late["copy_out"] = Line(0.0, 20e-3)
    for way, line in late.items():
        for size in (2**16, STAGED_BYTES):
            session.record(f"latency/{way}/pageable", Timing(line.seconds(size), 0.0), size)
    turning = {
        way: line.seconds(STAGED_BYTES) + crossing + each * (2 * slots - 1)
        for way, line in late.items()
    }
    piece = {way: turning[way] / float(staging_slots(way, STAGED_BYTES, slots)) for way in turning}
    assert max(piece, key=piece.__getitem__) == binding

    def staged_call(session, nbytes, pieces):
        return Timing(pieces * max(piece.values()), 0.1), slots

    monkeypatch.setattr(calls, "staged_call", staged_call)
    monkeypatch.setattr(calls, "copy_seconds", lambda session, way, nbytes: crossing)
    assert calls.others(session) == (pytest.approx(each, rel=1e-3), 0.1)


def test_calls_staged_both_ways_read_one_side_and_write_the_other(host_device):
    session = Session(host_device, 2**28, quick=True)
    plain, written = (np.full(2**22, value, "f4") for value in (-1.0, -2.0))
    session.hosts["pageable"] = {"copy_in": HostMemory(plain), "copy_out": HostMemory(written)}
    with host_device.arena.lock:
        timing, slots = calls.staged_call(session, 2**20, 4)
    assert timing.seconds > 0
    assert slots > 0
    assert (plain == -1.0).all()
    # the call before the timed ones begins where memory does
    assert (written[: 2**20] == 0.0).all()
