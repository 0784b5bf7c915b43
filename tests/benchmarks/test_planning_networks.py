"""The table of plans beside their bounds: what it is made of, and what the record holds."""

from __future__ import annotations

from benchmarks import longer_searches, planning_networks
from benchmarks.pages.blocks import stored
from benchmarks.planning_networks import CASES, PLENTY, RATIOS, planned, with_bound
from ooc_cudnn import networks
from ooc_cudnn.network.search import remat_greedy


def test_a_plan_and_its_bound():
    net, loss = networks.alexnet(batch=8, image=67, width=1 / 8)
    step = net.training_phases(loss)
    plan = with_bound(planned(step, PLENTY, "keep"), step)
    assert plan.bound_seconds <= plan.seconds
    assert plan.device_bytes <= plan.memory_limit == PLENTY


def test_the_record_has_whole_cases():
    """Those that it has: a later run may add more of them."""
    record = stored(planning_networks.NAME)
    assert record["verified"]
    cases = {name.rsplit(": ", 1)[0] for name in record["checks"]}
    assert set(map(str, CASES[:5])) <= cases <= set(map(str, CASES))
    for case in cases:
        assert {f"{case}: {ratio}" for ratio in (1.5, *RATIOS)} <= record["checks"].keys()


def test_the_table_has_a_row_for_each():
    record = stored(planning_networks.NAME)
    rows = planning_networks.table().splitlines()[2:]
    assert len(rows) == len(record["checks"])
    assert all(row.count("%") == 3 for row in rows)


def test_a_longer_search_is_one_while_it_lasts():
    before, first = remat_greedy.LATER, remat_greedy.FIRST
    with longer_searches.longer(2):
        assert 2 * before == remat_greedy.LATER
        assert tuple(2 * count for count in first) == remat_greedy.FIRST
    assert before == remat_greedy.LATER
    assert first == remat_greedy.FIRST


def test_longer_searches_are_of_every_network():
    record = stored(longer_searches.NAME)
    assert record["verified"]
    assert {name.rpartition(": ")[0] for name in record["checks"]} == set(map(str, CASES))
    rows = longer_searches.table().splitlines()[2:]
    assert len(rows) == len(CASES)
