"""What is tried before a plan is settled, and what comes of it."""

import dataclasses
import time
from types import SimpleNamespace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.call_planner.planner import distinct_launches
from ooc_cudnn.devices.engines import Measurement, Option, Tables
from ooc_cudnn.devices.machines import machine_path
from ooc_cudnn.devices.measuring import Bench, Timing
from ooc_cudnn.devices.tuning_database import tables_of
from ooc_cudnn.engines import launch_timing, trials
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.functions.call.call_cache import forget_calls
from ooc_cudnn.functions.call.plan_api import plan_request
from ooc_cudnn.tensor import TensorSpec
from perfmodel import ComputeModel, Line, Work, shipped
from tests.support.clock import Clock


class Launched(list):
    """Launches that were made; those in some memory orders, or all, take longer than they do."""

    slow_layouts = "channels_first", "channels_last", None


@pytest.fixture
def slow(host_device, monkeypatch, tmp_path):
    """Make the host's launches slow, count them; and plan by the device's own model."""
    # how often other threads look at the clock meanwhile, which is chance, is seen in no digit
    Clock(monkeypatch, look_seconds=1e-12)
    run, launched = host_device.run, Launched()

    def slower(launch, views, workspace, stream):
        launched.append(launch)
        if getattr(launch.operation, "layout", None) in launched.slow_layouts:
            time.sleep(0.02)
        run(launch, views, workspace, stream)

    monkeypatch.setattr(host_device, "run", slower)
    monkeypatch.setattr(trials, "SHORTEST_SECONDS", 0.0)
    monkeypatch.setattr(trials, "LARGEST_ERROR", np.inf)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    identity = dict(host_device.identity())
    dataclasses.replace(shipped("host"), identity=identity).save(machine_path(identity))
    with ooc_cudnn.settings(machine=None):
        yield launched


X, W = TensorSpec((8, 4, 16, 16)), TensorSpec((4, 4, 3, 3))


def planned(**settings):
    with ooc_cudnn.settings(memory_limit=2**17, **settings):
        return ooc_cudnn.plan("convolution_forward", x=X, w=W, padding=1)


def test_a_plan_takes_what_its_launches_take(slow):
    plan = planned()
    assert plan.compute_seconds > 0.02 * plan.pieces
    assert plan.compute_seconds == pytest.approx(0.02 * plan.pieces, rel=0.01)
    assert plan.binding_stage == "compute"


def test_what_was_tried_is_not_tried_again(slow):
    first = planned()
    tried = len(slow)
    assert 0 < tried <= 3 * 4 * launch_timing.LAUNCHES
    assert planned() == first
    assert len(slow) == tried


def tell(device, **seconds):
    """Save a model of a device that says how long a convolution takes in each memory order."""
    known, identity = shipped("host"), dict(device.identity())
    lines = {
        key: Line(0.0, seconds[key.split("/")[2]]) if key.startswith("convolution") else line
        for key, line in known.compute.lines.items()
    }
    told = dataclasses.replace(known, compute=ComputeModel(lines), identity=identity)
    told.save(machine_path(identity))


@pytest.mark.parametrize(("within", "tried"), [(3.0, True), (1.1, False)])
def test_the_other_memory_order_is_tried_where_it_may_be_faster(
    slow, host_device, within, tried, monkeypatch
):
    """One takes the 20 ms a piece that it is said to take; the other, of 24, none at all."""
    monkeypatch.setattr(trials, "RIVALS_WITHIN", within)
    slow.slow_layouts = ("channels_first",)
    tell(host_device, channels_first=0.02, channels_last=0.024)
    plan = planned()
    assert plan.layout == ("channels_last" if tried else "channels_first")
    assert (plan.seconds < 0.02) == tried


LAYOUTS = "channels_first", "channels_last"


def rival_of(seconds, binding_stage, of_the_other, layouts=LAYOUTS, *, by_lines=None):
    """What is tried beside a plan in channels-first order; its lines may have said otherwise."""
    asked, machine = [], shipped("host")
    known = Tables()
    if by_lines:
        known.add(Measurement(Work("convolution/float32", 1e9, 1e6), (Option(1.0),)))

    def make(model, others, *, ask=True):
        asked.append(ask)
        if others == ("channels_first",):
            assert model is machine
            return SimpleNamespace(plan=SimpleNamespace(seconds=by_lines))
        assert others == ("channels_last",)
        assert (model is machine) == (by_lines is None)
        if of_the_other is None:
            raise PlanInfeasibleError(function="f", limit_bytes=1, smallest_bytes=2)
        return SimpleNamespace(plan=SimpleNamespace(seconds=of_the_other), parts=())

    plan = SimpleNamespace(layout="channels_first", seconds=seconds, binding_stage=binding_stage)
    found = trials._rival(make, layouts, plan, machine, known)
    assert asked.count(True) == (found is not None)  # no engine is built in vain
    return found


def test_a_rival_may_well_be_faster():
    assert rival_of(1.0, "compute", 1.4).plan.seconds == 1.4
    assert rival_of(1.0, "compute", 1.6) is None
    assert rival_of(1.0, "copy_in", 1.1) is None
    assert rival_of(0.01, "compute", 0.011) is None
    assert rival_of(1.0, "compute", None) is None
    assert rival_of(1.0, "compute", 1.1, LAYOUTS[:1]) is None


def test_what_is_faster_than_its_line_says_may_be_so_in_the_other_order():
    assert rival_of(1.0, "compute", 1.6, by_lines=1.2).plan.seconds == 1.6
    assert rival_of(1.0, "compute", 1.6, by_lines=1.0) is None
    assert rival_of(1.0, "compute", 1.4, by_lines=0.5).plan.seconds == 1.4


def test_an_order_that_was_found_slow_is_not_tried_again_in_other_sizes(
    slow, host_device, monkeypatch
):
    """Lines of 25 and 26 ms a launch: one order takes none of it, the other does."""
    monkeypatch.setattr(trials, "RIVALS_SECONDS", 0.0)
    monkeypatch.setattr(trials, "RIVALS_WITHIN", 3.0)  # it may need more pieces
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda _: sleep(0.025))
    slow.slow_layouts = ("channels_last",)
    tell(host_device, channels_first=0.025, channels_last=0.026)
    tried = []
    for height in (16, 18, 20, 22):
        with ooc_cudnn.settings(memory_limit=2**17):
            x = TensorSpec((8, 4, height, 16))
            plan = ooc_cudnn.plan("convolution_forward", x=x, w=W, padding=1)
        assert plan.layout == "channels_first"
        tried.append(sum(launch.operation.layout == "channels_last" for launch in slow))
    assert tried[0] > 0
    assert len(set(tried)) == 1


def test_a_launch_that_was_disturbed_is_timed_again(slow, monkeypatch):
    sleep, sleeps = time.sleep, []
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(0.001))
    quiet = planned()
    forget_calls()

    def disturbed(seconds):
        sleeps.append(seconds)
        sleep(0.008 if len(sleeps) <= 4 else 0.001)  # the first trial

    monkeypatch.setattr(time, "sleep", disturbed)
    found = planned()
    assert (found.split, found.layout) == (quiet.split, quiet.layout)
    assert found.compute_seconds == pytest.approx(quiet.compute_seconds, rel=0.1)


def timed_by(*answers, allowed):
    """The seconds of a launch of 1 ms as predicted, by what a bench finds; and how often it is."""
    left = list(answers)

    def time_launch(*_, **__):
        seconds, launching = left.pop(0)
        return Timing(seconds, 0.0), launching

    bench = SimpleNamespace(time_launch=time_launch)
    found, _ = launch_timing.time_well(
        bench, None, scratch_bytes=0, expected=1e-3, allowed_seconds=allowed
    )
    return found.seconds, len(answers) - len(left)


def test_a_launch_is_timed_again_as_long_as_there_is_time():
    slow, quiet = (0.2, 1e-5), (1e-3, 1e-5)
    assert timed_by(slow, quiet, allowed=np.inf) == (1e-3, 2)
    assert timed_by(slow, quiet, allowed=0.1) == (0.2, 1)
    assert timed_by((2e-3, None), quiet, allowed=0.1) == (1e-3, 2)
    # the host loaded its code meanwhile
    assert timed_by((0.2, 0.199), quiet, allowed=0.1) == (1e-3, 2)


def test_a_launch_that_takes_longer_than_a_trial_may_is_not_timed_again(slow, monkeypatch):
    """Nor once it has warmed up; the plan that follows computes in another order, tried as well."""
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda _: sleep(1.0))
    plan = planned()
    assert plan.compute_seconds == pytest.approx(plan.pieces, rel=0.05)
    orders = [launch.operation.layout for launch in slow]
    assert sorted(orders) == ["channels_first"] * 2 + ["channels_last"] * 2


def test_other_channels_are_another_problem(slow):
    planned()
    tried = len(slow)
    with ooc_cudnn.settings(memory_limit=2**17):
        ooc_cudnn.plan("convolution_forward", x=X, w=TensorSpec((8, 4, 3, 3)), padding=1)
    assert len(slow) > tried


def test_the_call_is_predicted_and_right(slow):
    random = np.random.default_rng(0)
    x, w = random.standard_normal(X.shape, "f4"), random.standard_normal(W.shape, "f4")
    with ooc_cudnn.settings(memory_limit=2**17), ooc_cudnn.profile() as seen:
        y = ooc_cudnn.convolution_forward(x, w, padding=1)
    (call,) = seen.calls
    assert call.predicted_seconds == pytest.approx(call.seconds, rel=0.05)
    assert call.peak_device_bytes == call.plan.device_bytes
    with ooc_cudnn.settings(machine="host"):
        np.testing.assert_array_equal(y, ooc_cudnn.convolution_forward(x, w, padding=1))


@pytest.mark.parametrize("settings", [{"deterministic": True}, {"machine": "host"}])
def test_nothing_is_tried_where_plans_must_not_depend_on_it(slow, settings):
    planned(**settings)
    assert not slow


def test_nothing_is_tried_for_milliseconds_or_where_copies_bind(slow, monkeypatch):
    monkeypatch.setattr(trials, "SHORTEST_SECONDS", 1e-1)
    planned()
    monkeypatch.setattr(trials, "SHORTEST_SECONDS", 0.0)
    monkeypatch.setattr(trials, "LARGEST_ERROR", 0.0001)
    planned()
    assert not slow


def test_a_progress_callable_may_plan(slow):
    seen = []

    def progress(done, total):
        seen.append(ooc_cudnn.plan("convolution_forward", x=X, w=TensorSpec((2, 4, 3, 3))))

    x, w = np.ones(X.shape, "f4"), np.ones(W.shape, "f4")
    with ooc_cudnn.settings(memory_limit=2**17, progress=progress):
        ooc_cudnn.convolution_forward(x, w, padding=1)
    assert seen


def test_a_trial_keeps_to_the_memory_limit(slow, host_device):
    with ooc_cudnn.settings(memory_limit=2**17):
        ooc_cudnn.plan("convolution_forward", x=X, w=W, padding=1)
        assert host_device.arena.held_bytes <= 2**17


def test_what_the_host_takes_to_launch_is_learnt_of_the_problem(slow, host_device, monkeypatch):
    """A processor's own launches are no time of the host beside the device; made up here."""
    timed = Bench.time_launch
    monkeypatch.setattr(
        Bench, "time_launch", lambda *asked, **more: (timed(*asked, **more)[0], 0.5)
    )
    with ooc_cudnn.settings(memory_limit=2**17):
        request = plan_request("convolution_forward", x=X, w=W, padding=1)
        plan = planned()
    known = tables_of(host_device)
    works = (launch.operation.work() for launch, _ in distinct_launches(request, plan))
    work = next(each for each in works if known.knows(each))
    model = known.corrected(shipped("host")).compute
    assert model.launching_seconds(work, 0.0) == 0.5
    assert model.launching_seconds(dataclasses.replace(work, problem="another"), 0.1) == 0.1
    assert plan.pieces == 1  # the fewer launches, the better
