"""The table of plans beside their bounds: what it is made of, and what the record holds."""

from __future__ import annotations

from benchmarks import planning_networks
from benchmarks.planning_networks import CASES, PLENTY, RATIOS, constraints, planned
from ooc_cudnn import networks
from ooc_cudnn.bench.record import load_record
from ooc_cudnn.network.search.plan_step import plan_with_bound


def test_a_plan_and_its_bound():
    net, loss = networks.alexnet(batch=8, image=67, width=1 / 8)
    step = net.training_phases(loss)
    plan = plan_with_bound(planned(step, PLENTY, "keep").plan, step, constraints(PLENTY))
    assert plan.bound_seconds <= plan.seconds
    assert plan.device_bytes <= plan.memory_limit == PLENTY


def test_the_record_has_whole_cases():
    """Those that it has: a later run may add more of them."""
    record = load_record(planning_networks.NAME)
    assert record["verified"]
    cases = {name.rsplit(": ", 1)[0] for name in record["checks"]}
    assert set(map(str, CASES[:5])) <= cases <= set(map(str, CASES))
    for case in cases:
        assert {f"{case}: {ratio}" for ratio in (1.5, *RATIOS)} <= record["checks"].keys()


def test_the_table_has_a_row_for_each():
    record = load_record(planning_networks.NAME)
    rows = planning_networks.table().splitlines()[2:]
    assert len(rows) == len(record["checks"])
    assert all(row.count("%") == 3 for row in rows)
