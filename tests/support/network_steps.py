"""Steps of drawn networks through the real engine, compared with their twins, and bands by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import ooc_cudnn
from ooc_cudnn.network.lowering.lower import LoweredStep, lower_step
from ooc_cudnn.network.lowering.summarize import RewriteSpec, summarize
from ooc_cudnn.network.policies.policy import POLICIES
from ooc_cudnn.network.runtime.constraints_here import constraints_for
from ooc_cudnn.network.search.incumbent import Incumbent
from ooc_cudnn.network.search.pass_pipeline import (
    apply_passes,
    canonicalize,
    take_concatenations_apart,
)
from ooc_cudnn.network.search.strategies.spill import Spill
from ooc_cudnn.network.search.strategies.strategy import PlanRequest
from tests.support.network_checks import assert_close, sizes_of
from tests.support.on_device import fetched


def banded_plan(net, loss, limit, bands, micro_batches=1, anew=None):
    """The plan of a step in so many bands of rows, which the planner tries last.

    With `anew`, which is asked of each map and gradient, concatenations are taken apart, and each
    region makes for itself what it says.
    """
    return banded(net, loss, limit, bands, micro_batches, anew).plan


def banded(net, loss, limit, bands, micro_batches=1, anew=None):
    """The same, with its program."""
    step, names = canonicalize(net.training_phases(loss), "best"), None
    constraints = constraints_for(limit, None, step, {})
    if anew is not None:
        step = take_concatenations_apart(step)
        names = frozenset(filter(anew, sorted(maps_of(step))))
    rewritten = apply_passes(step, frozenset(), micro_batches, bands, names)
    live_ranges_of = POLICIES["keep"].live_ranges_of(rewritten)
    lowered = lower_step("training_step", rewritten, live_ranges_of, constraints)
    how = RewriteSpec(micro_batches, bands, apart=names is not None, anew=tuple(names or ()))
    plan = summarize("training_step", "best", rewritten, lowered, how, constraints)
    return LoweredStep(plan, rewritten, lowered)


def maps_of(step):
    """Maps and gradients of a step, as they are called before any pass."""
    return {each.source for each in step.tensors.values() if each.kind in ("map", "gradient")}


class Recorder(Incumbent):
    """Keeps all plans that it is offered, and none as the fastest: so whatever comes is planned."""

    def __init__(self, constraints):
        super().__init__(constraints)
        self.plans = []

    def take(self, planned):
        self.plans.append(planned)
        return False


def plans_by(strategy, step, constraints, recorder=None):
    """All plans that a strategy comes to, with nothing to beat."""
    recorder = Recorder(constraints) if recorder is None else recorder
    request = PlanRequest("training_step", step, constraints)
    if strategy.is_worth_trying(request, recorder):
        recorder.explore(request.name, strategy.candidates(request, recorder))
    return recorder.plans


def spilling_plans(net, loss, limit, strategy=None):
    """The plans of a step in which tensors are on the host for a while."""
    step = canonicalize(net.training_phases(loss), "best")
    plans = plans_by(strategy or Spill(), step, constraints_for(limit, None, step, {}))
    return [planned._replace(plan=replace(planned.plan, policy="best")) for planned in plans]


def check_step(drawn, limit, **asked):
    """Run a step of a `Drawn` network and compare it; return it, and what it made.

    Returns
    -------
    TrainingStep, dict
        The second: copies of the loss, every gradient and the running statistics, by name.
    """
    for name, array in drawn.running.items():
        drawn.net.running[name] = array.copy()
    step = drawn.net.training_step(drawn.loss, memory_limit=limit, **asked)
    with ooc_cudnn.profile() as profiled:
        value = step(**drawn.inputs)
    compare(drawn, step, value)
    peak = profiled.calls[0].peak_device_bytes
    assert peak == step.plan.device_bytes <= limit
    made = {"loss": np.array(value)}
    made |= {f"gradient of {name}": np.array(each) for name, each in step.gradients.items()}
    return step, made | {name: np.array(drawn.net.running[name]) for name in drawn.running}


def compare(drawn, step, value):
    """Compare the loss, the gradients and the running statistics of a step with PyTorch's."""
    loss, gradients, running = drawn.expected
    assert_close(np.array([value]), loss.reshape(1), "loss")
    least = sizes_of(gradients)
    for name, gradient in gradients.items():
        if gradient is not None:
            made = fetched(step.gradients[name])
            assert_close(made, gradient, f"gradient of {name}", least=least)
    for name, array in running.items():
        assert_close(np.asarray(drawn.net.running[name]), array, name)
