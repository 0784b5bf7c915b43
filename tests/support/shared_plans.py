"""Plans of steps that tests share: many train one small model under one limit.

The library's own key says what a plan hangs on; tests that compare fewer plans (`few_plans`) add
which. A test that looks at how a step is planned has a step of its own, or does not share.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from unittest import mock

from ooc_cudnn.network.runtime import plan_cache
from ooc_cudnn.network.search import plan_search, policy_planner

#: Plans that are kept; a test makes a few.
KEPT = 200

_known: OrderedDict = OrderedDict()


@contextmanager
def shared():
    """Plan each step once in this block."""
    known, plan_step = _known, plan_cache.plan_step

    def planned_once(name, step, constraints, *, policy, micro_batches, seconds):
        key = (
            plan_cache._path(name, step, constraints, policy, micro_batches),
            plan_cache._host_bytes(step, constraints),
            seconds,
            *(
                plan_search.BEST_OF,
                plan_search.VDNN,
                plan_search.STRATEGIES,
                plan_search.WAITING_A_LITTLE,
            ),
            plan_search.propose_remat_plans.__qualname__,
            policy_planner.SHARES_HELD,
        )
        if key not in known:
            known[key] = plan_step(
                name,
                step,
                constraints,
                policy=policy,
                micro_batches=micro_batches,
                seconds=seconds,
            )
        known.move_to_end(key)
        while len(known) > KEPT:
            known.popitem(last=False)
        return known[key]

    with mock.patch.object(plan_cache, "plan_step", planned_once):
        yield known
