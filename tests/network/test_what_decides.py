"""A plan hangs on the step, the limit and the machine model: on all of these, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ooc_cudnn.network.plan import NetworkPlan

_ELSEWHERE = """
import json
from tests.support.residual import blocks
net, loss = blocks(16, 28, 4, channels=64)
plan = net.plan(loss, memory_limit="34MiB", machine="p100", bound=True)
print(json.dumps(plan.to_json()))
"""


def test_every_process_finds_the_same_plan():
    """Whatever order its sets are in: the search, the comparison, and the program of the bound."""
    one, other = (
        subprocess.run(
            [sys.executable, "-c", _ELSEWHERE],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    )
    assert one == other
    plan = NetworkPlan.from_json(json.loads(one))
    assert plan.taken == "repeat"
    assert set(plan.fate.values()) == {"kept", "remade", "offloaded"}
    assert plan.bound_seconds
