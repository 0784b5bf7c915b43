"""vDNN's figures: what is assumed gives its baselines, and the page shows what was simulated."""

import json

import pytest

from benchmarks import vdnn, vdnn_machine
from benchmarks.vdnn_figures import (
    ALL_M,
    CARD_BYTES,
    CONV_P,
    CONVENTIONAL,
    DEEP,
    DO_NOT_FIT,
    DYN,
    GIB,
    ORACLE,
    SHALLOW,
)
from benchmarks.vdnn_networks import network
from benchmarks.vdnn_replay import replayed
from ooc_cudnn.bench import script
from perfmodel import shipped

ALEXNET, VGG_128 = CONVENTIONAL[0], CONVENTIONAL[4]


@pytest.mark.parametrize(
    "case", [case for case in (*CONVENTIONAL, *DEEP, SHALLOW) if case.baseline_gib], ids=str
)
def test_baselines_are_those_that_the_paper_states(case):
    found = vdnn_machine.baseline_bytes(network(case)) / GIB
    assert found == pytest.approx(case.baseline_gib, rel=vdnn.BASELINE_WITHIN)


def test_six_of_ten_do_not_fit_the_card():
    cases = (*CONVENTIONAL, *DEEP)
    found = {case for case in cases if vdnn_machine.baseline_bytes(network(case)) > CARD_BYTES}
    assert found == DO_NOT_FIT
    assert len(found) == 6
    assert shipped("titanx").device_bytes == CARD_BYTES


def test_slow_algorithms_slow_convolutions_alone():
    fast, slow = (vdnn_machine.machine(which).compute.lines for which in "pm")
    for key, line in fast.items():
        factor = vdnn_machine.LEAST_MEMORY_FACTOR if key.startswith("convolution") else 1
        assert slow[key].alpha == pytest.approx(factor * line.alpha)
        assert slow[key].beta == line.beta
    # and where they are 70 to 80 % of the time, conv (m) loses its 55 %
    assert pytest.approx(0.55) == 1 - 1 / (0.25 + 0.75 * vdnn_machine.LEAST_MEMORY_FACTOR)


def test_policies_of_alexnet():
    oracle, slow, fast = (replayed(ALEXNET, way) for way in (ORACLE, ALL_M, CONV_P))
    assert slow.seconds > 2 * oracle.seconds
    assert oracle.seconds <= fast.seconds < slow.seconds
    assert slow.most_bytes < fast.most_bytes < oracle.most_bytes * 1.01
    assert oracle.offloaded_bytes == 0 < fast.offloaded_bytes < slow.offloaded_bytes
    assert replayed(ALEXNET, DYN).chosen == ORACLE
    assert slow.average_bytes < slow.most_bytes <= slow.peak_bytes


def test_dyn_of_what_does_not_fit_is_within_the_card():
    deep = replayed(DEEP[0], DYN)
    assert deep.chosen == CONV_P
    assert deep.peak_bytes < CARD_BYTES
    assert 1 - replayed(DEEP[0], ORACLE).seconds / deep.seconds < 0.05


def test_what_is_stored_holds():
    report = json.loads((script.RESULTS / "vdnn.json").read_text())
    assert not report["quick"]
    assert report["verified"]
    assert [claim["holds"] for claim in report["claims"]].count(True) == len(report["claims"]) >= 14
    row = report["checks"][f"{VGG_128}: {ALL_M}"]["simulated"]
    assert row["seconds"] == pytest.approx(replayed(VGG_128, ALL_M).seconds, rel=0.05)


def test_the_page_shows_what_is_stored():
    assert [block.write(check=True) for block in vdnn.BLOCKS] == [0, 0]
