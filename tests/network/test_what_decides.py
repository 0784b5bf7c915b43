"""A plan hangs on the step, the limit and the machine model: on all of these, and nothing else."""

from __future__ import annotations

import json
from collections import Counter

import ooc_cudnn
from ooc_cudnn.network.ir.plan import NetworkPlan
from tests.support.elsewhere import said_elsewhere
from tests.support.residual import blocks

_ELSEWHERE = """
import json
from tests.support.residual import blocks
net, loss = blocks(16, 28, 4, channels=64)
plan = net.plan(loss, memory_limit="34MiB", machine="p100", bound=True)
print(json.dumps(plan.to_json()))
"""


def test_every_process_finds_the_same_plan():
    """Whatever order its sets are in: the search, the comparison, and the program of the bound."""
    one, other = said_elsewhere(_ELSEWHERE)
    assert one == other
    plan = NetworkPlan.from_json(json.loads(one))
    assert plan.taken == "repeat"
    assert set(plan.fate.values()) == {"kept", "recomputed", "offloaded"}
    assert plan.bound_seconds


def bytes_by_fate(plan):
    found = Counter()
    for each in plan.fates:
        found[each.fate] += each.nbytes
    return found


def test_one_card_makes_again_what_another_offloads():
    """A P100 computes little beside its link, an H200 much: no rule says so, but their models."""
    net, loss = blocks(64, 56, 4, channels=256)
    found = {}
    for machine in ("p100", "h200"):
        kept = net.plan(loss, memory_limit="64GiB", policy="keep", machine=machine)
        limit = int(0.6 * kept.device_bytes)
        with ooc_cudnn.settings(planning_seconds=0.2):
            found[machine] = bytes_by_fate(net.plan(loss, memory_limit=limit, machine=machine))
    assert found["p100"]["offloaded"] > 2**30
    assert found["p100"]["recomputed"] == 0
    assert found["h200"]["recomputed"] > 2**30
    assert found["h200"]["offloaded"] == 0
