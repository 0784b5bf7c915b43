"""The least that a step takes with its copies is little below what its replay takes."""

from __future__ import annotations

import pytest

from ooc_cudnn import networks, settings
from ooc_cudnn.engines.target import Target
from ooc_cudnn.network.cost.overlap_bound import least_seconds
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.search.plan_step import plan_step
from ooc_cudnn.tensor import ORDERS
from perfmodel import shipped
from tests.support.joined_maps import unet
from tests.support.network_steps import banded


def least_of(made, machine, *, pieces=()):
    seconds = [task.seconds for task in made.plan.tasks]
    return least_seconds(made.step, made.lowered.live_ranges, machine, seconds, (), pieces)


@pytest.mark.every_case
def test_it_is_little_below_the_replay():
    """Where no copy waits for memory."""
    net, loss = networks.resnet50(batch=256)
    step, machine = net.training_phases(loss), shipped("h200")
    constraints = PlanConstraints(Target(machine, 2**40, 2**40, ORDERS, None, overlap=True), {})
    made = plan_step("step", step, constraints, policy="keep")
    pieces = [task.pieces for task in made.plan.tasks]
    about, least = least_of(made, machine, pieces=pieces), least_of(made, machine)
    assert 0.97 * made.plan.seconds <= about.seconds <= 1.001 * made.plan.seconds
    # what comes for pieces may come beside them
    assert sum(task.seconds for task in made.plan.tasks) <= least.unwaited
    assert least.unwaited < least.seconds <= about.seconds


def test_what_is_there_is_not_copied():
    net, loss = networks.alexnet(batch=4)
    step, machine = net.training_phases(loss), shipped("h200")
    constraints = PlanConstraints(Target(machine, 2**34, 2**34, ORDERS, None, overlap=True), {})
    made = plan_step("step", step, constraints, policy="keep", micro_batches=1)
    seconds, live_ranges = [0.0] * len(made.step.phases), made.lowered.live_ranges
    there = set(made.step.touched)
    assert least_seconds(made.step, live_ranges, machine, seconds).seconds > 0
    assert least_seconds(made.step, live_ranges, machine, seconds, there).seconds == 0
    # streamed by each phase that uses it, it crosses the link more often
    streamed = least_seconds(made.step, {}, machine, seconds)
    assert streamed.seconds > least_seconds(made.step, live_ranges, machine, seconds).seconds


def test_of_a_streamed_map_a_band_moves_its_rows():
    """All of the map was counted for each band: plans of many bands were never made."""
    net, loss = unet(512, levels=3, axes=2)
    with settings(machine="h200"):
        made = banded(net, loss, "4MiB", bands=16)
    assert "streamed" in made.plan.fate.values()
    least = least_of(made, shipped("h200"))
    assert 0.2 * made.plan.seconds < least.seconds <= 1.001 * made.plan.seconds
