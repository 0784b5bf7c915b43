"""Steps that pause, with their first layers in slabs: what a card makes is what one piece makes."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.runtime.constraints_here import constraints_for
from ooc_cudnn.network.runtime.two_part import TwoPartStep
from ooc_cudnn.network.search.pass_pipeline import canonicalize
from ooc_cudnn.network.search.strategies.remat_slices import RematerializeSlices
from tests.network.runtime.test_two_part import LARGE, arrays, network, run
from tests.support.network_checks import assert_close
from tests.support.network_steps import plans_by

LIMITS = (1_000_000, 1_500_000, 2_000_000, 3_000_000)


def slice_batch(step):
    """A plan of `step` in slabs, some of them made again: under the first limit that has one."""
    for limit in LIMITS:
        constraints = constraints_for(limit, None, step, {})
        try:
            for made in plans_by(RematerializeSlices(), step, constraints):
                if made.plan.batch_slices > 1 and made.plan.again:
                    return replace(made.plan, policy="best"), limit
        except PlanInfeasibleError:
            continue
    pytest.fail(f"no plan in slabs within {LIMITS} bytes")


def test_a_step_that_pauses_in_slabs_makes_what_one_piece_makes():
    net, (y, _) = network()
    x, seeds = arrays(net, [y])
    _, (expected,), gradients, running = run(LARGE)
    plan, limit = slice_batch(canonicalize(net.pausing_phases(y), "best"))
    step = TwoPartStep(net, partial(net.pausing_phases, y), limit, {}, plan)
    for _ in range(4):  # recorded from the third time on
        for name, array in network()[0].running.items():
            net.running[name][...] = array
        paused = step.forward(x=x)
        found = paused.backward(seeds)
        assert_close(paused.outputs[0], expected, "output")
        least = 1e-3 * max(np.abs(each).max() for each in gradients.values())
        for name, gradient in gradients.items():
            assert_close(found[name], gradient, name, least=least)
        for name, statistics in running.items():
            assert_close(net.running[name], statistics, name)
