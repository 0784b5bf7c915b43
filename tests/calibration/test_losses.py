"""What computing loses to copies beside it."""

from dataclasses import replace

import pytest

from ooc_cudnn.calibration.losses import measured_losses
from ooc_cudnn.calibration.session import make_bench
from perfmodel import shipped
from tests.support.simulated_device import SimulatedDevice


def test_copies_and_steps_of_a_host_take_the_processors_that_compute(host_device):
    """A second of either costs computing a second."""
    found = measured_losses(make_bench(host_device, 2**30, quick=True), quick=True)
    machine = replace(shipped("host"), losses={of: held.seconds for of, held in found.items()})
    assert machine.lost_seconds(9.0, 2.0, 0.5) == pytest.approx(2.0 + 0.5)


@pytest.mark.parametrize("lost", [0.0, 0.03, 0.2])
def test_what_a_card_loses_is_found(lost):
    machine = replace(shipped("h200"), losses={"copies": lost})
    card = make_bench(SimulatedDevice(machine), 2**31, quick=True)
    assert measured_losses(card, quick=True)["copies"].seconds == pytest.approx(lost, abs=1e-6)


def test_nothing_is_measured_without_room():
    small = make_bench(SimulatedDevice(shipped("h200")), 2**12, quick=True)
    assert measured_losses(small, quick=True) == {}
