"""What computing loses to copies beside it."""

from dataclasses import replace

import pytest

from ooc_cudnn.calibration.losses import measured_losses
from ooc_cudnn.calibration.session import make_bench
from perfmodel import shipped
from tests.support.simulated_device import SimulatedDevice


@pytest.fixture
def bench(host_device):
    with host_device.arena.lock:
        yield make_bench(host_device, 2**30, quick=True)
        host_device.release_caches()


def test_a_second_of_copies_costs_at_most_a_second(bench):
    found = measured_losses(bench, quick=True)
    assert 0.0 <= found["copies"].seconds <= 1.0
    assert found["steps"].seconds == 1.0


@pytest.mark.parametrize("lost", [0.0, 0.1, 0.3])
def test_what_copies_hold_up_is_seen(monkeypatch, lost):
    """Where the same processors copy and compute; on a virtual clock."""
    machine = replace(shipped("host"), losses={"copies": lost}, step_seconds=0.0)
    device = SimulatedDevice(machine)
    monkeypatch.setattr(device, "kind", "host", raising=False)
    found = measured_losses(make_bench(device, 2**30, quick=True), quick=True)["copies"].seconds
    assert found == pytest.approx(lost, abs=0.05)


@pytest.mark.parametrize("lost", [0.0, 0.03, 0.2])
def test_what_a_card_loses_is_found(lost):
    machine = replace(shipped("h200"), losses={"copies": lost})
    card = make_bench(SimulatedDevice(machine), 2**31, quick=True)
    assert measured_losses(card, quick=True)["copies"].seconds == pytest.approx(lost, abs=1e-6)


def test_nothing_is_measured_without_room(bench):
    for small in (bench, make_bench(SimulatedDevice(shipped("h200")), 2**31, quick=True)):
        small.limit_bytes = 2**12
        assert measured_losses(small, quick=True) == {}
