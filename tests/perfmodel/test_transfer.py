"""Copies are linear in bytes and in copies; two busy directions slow each other down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import Line, TransferModel, VirtualStep, replay

PINNED = Line(1 / 50e9, 1e-5)
DISK = Line(1 / 2e9, 1e-4)
LINK = TransferModel({"pinned": PINNED, "disk": DISK}, {"pinned": PINNED}, 1.12)
SECONDS = st.floats(0.0, 1e3)


def test_each_copy_costs_beta():
    assert LINK.copy_in_seconds("disk", 2e9, copies=100) == pytest.approx(1.0 + 100 * 1e-4)
    assert LINK.copy_out_seconds("pinned", 50e9) == pytest.approx(1.0 + 1e-5)


def test_the_device_and_no_copies_cost_nothing():
    assert LINK.copy_in_seconds("device", 1e12, copies=5) == 0.0
    assert LINK.copy_out_seconds("pinned", 0, copies=0) == 0.0


def test_an_unknown_placement_is_named_with_the_known_ones():
    with pytest.raises(KeyError, match=r"no copy_out line for placement 'disk'.*device, pinned"):
        LINK.copy_out_seconds("disk", 1)
    with pytest.raises(ValueError, match="'device'; the placements that cost time"):
        TransferModel({"device": PINNED}, {}, 1.0)


@pytest.mark.parametrize(("host_bytes", "copies"), [(-1, 1), (1, -1), (float("nan"), 1)])
def test_bad_amounts_are_refused(host_bytes, copies):
    with pytest.raises(ValueError, match=r"host_bytes|copies"):
        LINK.copy_in_seconds("pinned", host_bytes, copies)


def test_a_slowdown_below_one_is_refused():
    with pytest.raises(ValueError, match="duplex_slowdown"):
        TransferModel({}, {}, 0.9)


@given(SECONDS, SECONDS, st.floats(1.0, 2.0))
def test_duplex_is_what_a_virtual_clock_shows(in_seconds, out_seconds, slowdown):
    link = TransferModel({}, {}, slowdown)
    timeline = replay(
        [VirtualStep("copy_in", in_seconds), VirtualStep("copy_out", out_seconds)], slowdown
    )
    assert link.duplex(in_seconds, out_seconds) == pytest.approx(timeline.finish, abs=1e-9)


def test_a_duplex_link_moves_the_measured_rate():
    # 55 GB/s alone, 49 GB/s each way together
    link = TransferModel({"pinned": Line(1 / 55e9, 0)}, {"pinned": Line(1 / 55e9, 0)}, 55 / 49)
    alone = link.copy_in_seconds("pinned", 49e9)
    assert link.duplex(alone, alone) == pytest.approx((1.0, 1.0))


def test_a_transfer_model_is_a_constant_and_goes_to_json_and_back():
    lines = {"pinned": PINNED}
    link = TransferModel(lines, lines, 1.0)
    lines["disk"] = DISK
    assert "disk" not in link.copy_in
    assert TransferModel.from_json(LINK.to_json()) == LINK
    assert hash(TransferModel.from_json(LINK.to_json())) == hash(LINK)
