"""What staged copies are late by."""

import numpy as np
import pytest

from ooc_cudnn.calibration import staging
from ooc_cudnn.calibration.session import DIRECTIONS, Session, make_bench
from ooc_cudnn.calibration.staging import latency_line
from ooc_cudnn.devices.measuring import HostMemory, Timing
from perfmodel import Line, shipped
from perfmodel.staging import STAGED_BYTES, staging_slots
from tests.support.simulated_device import SimulatedDevice


@pytest.fixture
def session():
    session = Session(make_bench(SimulatedDevice(shipped("h200")), 2**30, quick=False), quick=False)
    session.hosts["pageable"] = {way: HostMemory(np.empty(2**28, "f4")) for way in DIRECTIONS}
    return session


def test_what_a_copy_is_late_by_does_not_fall_with_its_bytes():
    found = latency_line({2**20: 2e-3, 2**22: 1e-3})
    assert (found.alpha, found.beta) == (0.0, pytest.approx(1.5e-3))
    found = latency_line({2**20: 1e-3, 2**22: 1e-3})
    assert (found.alpha, found.beta) == (0.0, pytest.approx(1e-3))


@pytest.mark.parametrize("binding", ["copy_in", "copy_out"])
def test_what_others_delay_is_told_by_the_ring_that_binds(binding, monkeypatch, session):
    """Of a call staged both ways: the other ring waits for the slower one, which says nothing."""
    each, crossing, slots = 3e-4, 1e-4, 2
    late = {"copy_in": Line(1e-10, 5e-4), "copy_out": Line(2e-10, 5e-4)}
    if binding == "copy_out":
        # results leave their slots: it takes a ring that is late by far more to bind
        late["copy_out"] = Line(0.0, 20e-3)
    turning = {
        way: line.seconds(STAGED_BYTES) + crossing + each * (2 * slots - 1)
        for way, line in late.items()
    }
    piece = {way: turning[way] / float(staging_slots(way, STAGED_BYTES, slots)) for way in turning}
    assert max(piece, key=piece.__getitem__) == binding

    def call(session, nbytes, pieces):
        return Timing(pieces * max(piece.values()), 0.1), slots

    monkeypatch.setattr(staging, "call", call)
    monkeypatch.setattr(staging, "crossing", lambda session, way, nbytes: crossing)
    assert staging.others(session, late) == (pytest.approx(each, rel=1e-3), 0.1)


def test_calls_staged_both_ways_read_one_side_and_write_the_other(host_device):
    session = Session(make_bench(host_device, 2**28, quick=True), quick=True)
    plain, written = (np.full(2**22, value, "f4") for value in (-1.0, -2.0))
    session.hosts["pageable"] = {"copy_in": HostMemory(plain), "copy_out": HostMemory(written)}
    with host_device.arena.lock:
        timing, slots = staging.call(session, 2**20, 4)
    assert timing.seconds > 0
    assert slots > 0
    assert (plain == -1.0).all()
    # the call before the timed ones begins where memory does
    assert (written[: 2**20] == 0.0).all()
