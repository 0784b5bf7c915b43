"""The curves of seconds over memory: what the record says of them."""

from __future__ import annotations

import pytest

from benchmarks import trades
from ooc_cudnn.bench.record import load_record
from ooc_cudnn.network.tradeoff.curve import QUICK, SHARES, Figures, Point, Trade


def trade(*seconds):
    points = [
        Point(policy, limit, Figures(each, 0, 0, policy, 1, 1))
        for (limit, policy), each in zip(
            [(1, "best"), (1, "keep"), (2, "best"), (2, "keep")], seconds, strict=True
        )
    ]
    return Trade("small", 2, tuple(points), {})


def test_the_best_is_the_fastest_and_more_memory_no_slower():
    assert trades.best_is_fastest(trade(2.0, 3.0, 1.0, 1.0))
    assert not trades.best_is_fastest(trade(2.0, 1.9, 1.0, 1.0))
    assert not trades.best_is_fastest(trade(2.0, 3.0, 2.1, 3.0))


@pytest.mark.parametrize("case", trades.CASES, ids=str)
def test_the_record_has_every_policy_under_every_limit(case):
    record = load_record(trades.NAME)
    found = Trade.from_json(record["measurements"][str(case)])
    assert record["verified"]
    assert trades.best_is_fastest(found)
    assert set(found.policies) == set(QUICK)
    assert len(found.limits) == len(SHARES)
    assert set(found.bounds) == set(found.limits)
