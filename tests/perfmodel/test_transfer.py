"""Copies are linear in bytes and in copies; two busy directions slow each other down."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import PLACEMENTS, Line, Slowdown, TransferModel, VirtualStep, replay
from perfmodel.rows import (
    GAP_BYTES,
    GATHERED_ALONE,
    NARROW_BYTES,
    NARROWEST_ROW_BYTES,
    Rows,
    narrow_rows,
)
from perfmodel.staging import STAGED_BYTES

PINNED = Line(1 / 50e9, 1e-5)
DISK = Line(1 / 2e9, 1e-4)
PAIRS = {"pinned/pinned": Slowdown(1.1, 1.12), "pageable/pinned": Slowdown(1.4, 1.2)}
LINK = TransferModel({"pinned": PINNED, "disk": DISK}, {"pinned": PINNED}, PAIRS)
SECONDS = st.floats(0.0, 1e3)
FACTORS = st.floats(1.0, 3.0)


def test_each_copy_costs_beta():
    assert LINK.copy_seconds("copy_in", "disk", 2e9, copies=100) == pytest.approx(1.0 + 100 * 1e-4)
    assert LINK.copy_seconds("copy_out", "pinned", 50e9) == pytest.approx(1.0 + 1e-5)


def test_the_device_and_no_copies_cost_nothing():
    assert LINK.copy_seconds("copy_in", "device", 1e12, copies=5) == 0.0
    assert LINK.copy_seconds("copy_out", "pinned", 0, copies=0) == 0.0


def test_an_unknown_placement_is_named_with_the_known_ones():
    with pytest.raises(KeyError, match=r"no line for copy out of disk memory.* device, pinned"):
        LINK.copy_seconds("copy_out", "disk", 1)
    with pytest.raises(ValueError, match="'device'; the placements that cost time"):
        TransferModel({"device": PINNED}, {})


@pytest.mark.parametrize(("host_bytes", "copies"), [(-1, 1), (1, -1), (float("nan"), 1)])
def test_bad_amounts_are_refused(host_bytes, copies):
    with pytest.raises(ValueError, match=r"host_bytes|copies"):
        LINK.copy_seconds("copy_in", "pinned", host_bytes, copies)


@pytest.mark.parametrize("factor", [0.9, float("nan"), float("inf"), -1])
def test_a_slowdown_below_one_is_refused(factor):
    with pytest.raises(ValueError, match="slowdown of copy_out"):
        Slowdown(1.1, factor)


@pytest.mark.parametrize("pair", ["pinned", "pinned/device", "pinned/pinned/pinned", "a/b", ""])
def test_a_pair_that_is_none_is_refused(pair):
    with pytest.raises(ValueError, match=r"slowdowns has .*two placements"):
        TransferModel({}, {}, {pair: Slowdown()})


def test_what_was_not_measured_is_as_what_it_resembles():
    assert LINK.slowdown("pageable", "pinned") == Slowdown(1.4, 1.2)
    assert LINK.slowdown("disk", "pinned") == Slowdown(1.4, 1.2)
    for pair in (("pinned", "disk"), ("pinned", "pageable"), ("pageable", "disk")):
        assert LINK.slowdown(*pair) == Slowdown(1.1, 1.12)
    assert LINK.slowdown("device", "pinned") == Slowdown()
    for source in PLACEMENTS:
        for target in PLACEMENTS:
            assert TransferModel({}, {}).slowdown(source, target) == Slowdown()


def test_files_are_slowed_down_by_as_much_less_as_they_are_slower_than_plain_memory():
    ways = {"pageable": Line(1e-10, 0.0), "disk": Line(4e-10, 1e-3), "pinned": Line(1e-11, 0.0)}
    pairs = {"pageable/pageable": Slowdown(1.8, 1.4), "pageable/pinned": Slowdown(1.4, 1.2)}

    def factors(*pair, **more):
        found = TransferModel(ways, {**ways, **more}, pairs).slowdown(*pair)
        return pytest.approx((found.copy_in, found.copy_out))

    assert factors("disk", "pageable") == (1.2, 1.1)
    assert factors("pageable", "disk") == (1.2, 1.1)
    assert factors("disk", "disk") == (1.05, 1.025)
    assert factors("disk", "pinned") == (1.1, 1.05)
    # a file in the page cache that is as fast as plain memory, or faster
    assert factors("pageable", "disk", disk=Line(0.5e-10, 0.0)) == (1.8, 1.4)
    pairs["disk/disk"] = Slowdown(1.3, 1.3)
    assert factors("disk", "disk") == (1.3, 1.3)


def test_the_slowdown_of_a_call_is_the_mean_of_its_pairs():
    # 1 s pinned and 3 s pageable in, all pinned out: a quarter and three quarters of the time
    found = LINK.mean_slowdown({"pinned": 1.0, "pageable": 3.0, "device": 0.0}, {"pinned": 7.0})
    assert found.copy_in == pytest.approx(0.25 * 1.1 + 0.75 * 1.4)
    assert found.copy_out == pytest.approx(0.25 * 1.12 + 0.75 * 1.2)
    assert LINK.mean_slowdown({"pinned": 2.0}, {"pinned": 3.0}) == Slowdown(1.1, 1.12)
    assert LINK.mean_slowdown({}, {"pinned": 1.0}) == Slowdown()
    assert LINK.mean_slowdown({"device": 0.0}, {"pinned": 1.0}) == Slowdown()


@given(SECONDS, SECONDS, FACTORS, FACTORS)
def test_both_ways_at_once_is_what_a_virtual_clock_shows(
    in_seconds, out_seconds, slow_in, slow_out
):
    pair = Slowdown(slow_in, slow_out)
    timeline = replay(
        [VirtualStep("copy_in", in_seconds), VirtualStep("copy_out", out_seconds)],
        TransferModel({}, {}, {"pinned/pinned": pair}),
    )
    assert pair.together(in_seconds, out_seconds) == pytest.approx(timeline.finish, abs=1e-9)


def test_a_duplex_link_moves_the_measured_rate():
    # 55 GB/s alone; staged copies 31 GB/s of 34 alone, beside pinned ones of 49
    pair = Slowdown(34 / 31, 55 / 49)
    assert pair.together(1 / 34, 1 / 55)[1] == pytest.approx(1 / 49)
    assert pair.together(1e6 / 34, 1e9) == pytest.approx((1e6 / 31, 1e9 + 1e6 / 31 * (1 - 49 / 55)))


def test_a_transfer_model_is_a_constant_and_goes_to_json_and_back():
    lines = {"pinned": PINNED}
    link = TransferModel(lines, lines)
    lines["disk"] = DISK
    assert "disk" not in link.copy_in
    assert TransferModel.from_json(LINK.to_json()) == LINK
    assert hash(TransferModel.from_json(LINK.to_json())) == hash(LINK)


class TestRowsApart:
    LINK = TransferModel(
        {"pinned": Line(1e-9, 0.0), "pageable": Line(3e-9, 0.0, {"rows": 2e-8})},
        {"pinned": Line(1e-9, 0.0), "disk": Line(1e-8, 0.0)},
        latency={"copy_in/pageable": Line(1e-8, 0.5)},
    )

    def test_gathering_takes_a_while_for_each_row(self):
        # 1000 rows of 500 bytes
        seconds = self.LINK.copy_seconds("copy_in", "pageable", 500_000, 2, Rows(500, 1000))
        assert seconds == pytest.approx(3e-9 * 500_000 + 1000 * 2e-8)

    def test_narrow_rows_of_pinned_memory_cost_something_where_they_lie_apart(self):
        link = TransferModel({"pinned": Line(1e-9, 0.0, {"rows": 2e-7})}, {})
        least, most = NARROW_BYTES
        for width, share in ((least, 1.0), ((least + most) // 2, 0.5), (most, 0.0)):
            for gap, part in ((0, 0.0), (GAP_BYTES / 4, 0.25), (GAP_BYTES, 1.0), (2**21, 1.0)):
                apart = link.apart_seconds_per_byte("copy_in", "pinned", Rows(width, width + gap))
                assert width * apart == pytest.approx(2e-7 * share * part)
        still_narrower = narrow_rows(least / 2, 2**21)
        assert still_narrower == pytest.approx(narrow_rows(least, 2**21), rel=0.1)

    @pytest.mark.parametrize(
        "rows", [Rows(NARROWEST_ROW_BYTES - 28, 1000), Rows(100, 1000, scattered=True)]
    )
    def test_what_is_gathered_of_pinned_memory_is_slower_than_plain_memory(self, rows):
        seconds = self.LINK.copy_seconds("copy_in", "pinned", 500_000, 1, rows)
        assert seconds == pytest.approx(GATHERED_ALONE * (3e-9 * 500_000 + 5000 * 2e-8))
        assert seconds > self.LINK.copy_seconds("copy_in", "pageable", 500_000, 1, rows)

    def test_what_lies_in_one_piece_costs_nothing_more(self):
        assert self.LINK.copy_seconds("copy_in", "pageable", 1e6) == pytest.approx(3e-3)

    def test_staging_has_a_latency_and_files_are_staged(self):
        late = self.LINK.latency_seconds
        assert late("copy_in", "pageable", 0) == 0.5
        assert late("copy_in", "disk", 1e6) == pytest.approx(0.51)
        assert late("copy_out", "disk", 1e6) == 0.0
        assert late("copy_in", "pinned", 1e6) == 0.0

    def test_the_latency_grows_with_what_one_thread_stages(self):
        late = self.LINK.latency_seconds("copy_in", "pageable", np.array([1e6, 1e7, 1e9]))
        most = 0.5 + 1e-8 * STAGED_BYTES
        assert late == pytest.approx([0.51, most, most])

    def test_json_there_and_back(self):
        assert TransferModel.from_json(self.LINK.to_json()) == self.LINK


def test_copies_in_flight_make_each_other_late():
    line = Line(1e-9, 1e-3, {"others": 2e-3})
    link = TransferModel({}, {}, {}, {"copy_out/pageable": line})
    assert link.latency_seconds("copy_out", "pageable", 1e6) == pytest.approx(2e-3)
    assert link.latency_seconds("copy_out", "disk", 1e6, others=2) == pytest.approx(6e-3)
    assert TransferModel.from_json(link.to_json()) == link
