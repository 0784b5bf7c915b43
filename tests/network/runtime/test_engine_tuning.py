"""Steps of networks on a device whose engines are known: tuned, planned and run."""

from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.cuda.convolutions import Convolutions
from ooc_cudnn.devices.engines import Engine, Measurement, Option, Tables
from ooc_cudnn.devices.tuning_database import forget_tables, tables_of
from ooc_cudnn.engines.workload import engines_of_others
from ooc_cudnn.functions.tune.tune import NothingToTuneError
from ooc_cudnn.network.runtime import engine_tuning, lazy_step, plan_cache
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import ConvolutionBackwardFilter, forward_of
from ooc_cudnn.pipeline.program import Task
from tests.support.fake_cudnn import BehaviorNote, FakeEngine, NumericalNote
from tests.support.tuned import KIB, engines_maker

#: One plan, and no comparison of policies.
QUICK = {"policy": "keep", "micro_batches": 1}


@pytest.fixture
def make(monkeypatch, tmp_path):
    return engines_maker(monkeypatch, tmp_path)


def network(images=4):
    net = ooc_cudnn.Network(seed=1)
    h = net.input("images", (images, 3, 8, 8))
    for channels in (4, 8):
        h = net.activation(net.convolution(h, channels, window=3, padding=1))
    return net, net.mean_squared_error(h, net.input("labels", h.shape))


def inputs(random, net):
    found = {name: net.graph.tensors[name].shape for name in ("images", "labels")}
    return {name: random.standard_normal(shape, "f4") for name, shape in found.items()}


def algorithms(step):
    """The engines of every convolution of the step that ran last."""
    (ready,) = step._ready.values()
    items = ready.planned.lowered.program.items
    return {n for item in items if isinstance(item, Task) for n in item.plan.algorithms}


def directions(found):
    operations = [measured.operation for measured in found]
    return sorted((type(each).__name__, *forward_of(each).w_shape[:2]) for each in operations)


@pytest.mark.parametrize("limit", [2**19, 24 * KIB])
def test_a_tuned_step_launches_what_was_measured(make, random, limit):
    """Every convolution forward and backward; results are those of a step that was not tuned."""
    make(FakeEngine(100, 3e-7), FakeEngine(101, 1e-7, KIB))
    net, loss = network()
    given = inputs(random, net)
    with ooc_cudnn.settings(memory_limit=limit, allow_tf32=False):
        step = net.training_step(loss, **QUICK)
        value = step(**given)
        assert algorithms(step) == {"eng100"}
        gradients, before = step.gradients, step.plan
        told = []
        found = step.tune(tell=told.append, **given)
        assert told == found
        if limit == 2**19:
            assert directions(found) == [
                ("Convolution", 4, 3), ("Convolution", 8, 4), ("ConvolutionBackwardData", 8, 4),
                ("ConvolutionBackwardFilter", 4, 3), ("ConvolutionBackwardFilter", 8, 4),
            ]  # fmt: skip
        assert step(**given) == pytest.approx(value, rel=1e-6)
        assert algorithms(step) == {"eng101 (measured)"}
        assert step.plan.compute_seconds < before.compute_seconds
        for name, gradient in gradients.items():
            np.testing.assert_allclose(step.gradients[name], gradient, rtol=1e-4, atol=1e-6)
        assert step.tune(**given) == []
        forget_tables()  # as another process
        again = net.training_step(loss, **QUICK)
        again(**given)
        assert algorithms(again) == {"eng101 (measured)"}
        assert again.tune(**given) == []


def known_engines():
    """Engines of each convolution that was measured, and whether some were not checked."""
    tables = tables_of(get_device("host"))
    return [
        (tuple(option.engine.number for option in each.options),
         {option.error is None for option in each.options})
        for each in tables
    ]  # fmt: skip


def test_what_is_ranked_is_timed_before_a_step_is_planned(make, random):
    """The heuristics' choice, and what they rank next; a `tune` by hand measures all the same."""
    slow, fast, hidden = (
        FakeEngine(100, 3e-7), FakeEngine(101, 1e-7), FakeEngine(102, 1e-8, is_ranked=False),
    )  # fmt: skip
    make(slow, fast, hidden)
    net, loss = network()
    given = inputs(random, net)
    step = net.training_step(loss, **QUICK)
    value = step(**given)
    assert algorithms(step) == {"eng100"}
    assert known_engines() == []
    with ooc_cudnn.settings(tune_seconds=60.0):
        step = net.training_step(loss, **QUICK)
        assert step(**given) == pytest.approx(value, rel=1e-6)
        assert algorithms(step) == {"eng101 (measured)"}
        assert known_engines() == 5 * [((101,), {True})]
        launches = slow.launched
        forget_tables()  # as another process
        again = net.training_step(loss, **QUICK)
        again(**given)
        assert algorithms(again) == {"eng101 (measured)"}
        assert slow.launched == launches, "nothing is timed twice"
        assert len(again.tune(**given)) == 5
        again(**given)
        assert algorithms(again) == {"eng102 (measured)"}
        assert known_engines() == 5 * [((102,), {False})]


def test_an_engine_whose_code_is_loaded_first_is_not_taken_for_a_slow_one(make, random):
    """On an H200 that took 0.46 s of an engine that computes for 1 ms."""
    make(FakeEngine(100, 3e-7), FakeEngine(101, 1e-7, load_seconds=0.4))
    net, loss = network()
    with ooc_cudnn.settings(tune_seconds=60.0):
        step = net.training_step(loss, **QUICK)
        step(**inputs(random, net))
    assert algorithms(step) == {"eng101 (measured)"}


def test_it_is_timed_in_every_memory_order(make, random, monkeypatch):
    device = make(FakeEngine(100, 3e-7), FakeEngine(101, 1e-7))
    orders = ("channels_first", "channels_last")
    monkeypatch.setattr(type(device), "layouts", lambda device, dtype: orders)
    net, loss = network()
    with ooc_cudnn.settings(tune_seconds=60.0):
        net.training_step(loss, **QUICK)(**inputs(random, net))
    found = [forward_of(each.operation).layout for each in tables_of(device)]
    assert sorted(found) == 5 * ["channels_first"] + 5 * ["channels_last"]


def test_of_strict_float32_only_what_the_heuristics_choose_is_timed(make, random):
    """Others may use Fourier transforms, which are taken where they were checked."""
    make(FakeEngine(100, 3e-7), FakeEngine(101, 1e-7, notes=(NumericalNote.FFT,)))
    net, loss = network()
    given = inputs(random, net)
    with ooc_cudnn.settings(tune_seconds=60.0, allow_tf32=False):
        step = net.training_step(loss, **QUICK)
        step(**given)
    assert algorithms(step) == {"eng100 (measured)"}


@pytest.mark.parametrize("settings", [{"deterministic": True}, {"tune_seconds": 0}])
def test_nothing_is_timed_unasked(make, random, settings):
    make(FakeEngine(100, 3e-7), FakeEngine(101, 1e-7))
    net, loss = network()
    with ooc_cudnn.settings(**{"tune_seconds": 60.0, **settings}):
        step = net.training_step(loss, **QUICK)
        step(**inputs(random, net))
    assert known_engines() == []


def test_time_for_it_is_bounded(make, random):
    """What is predicted to take longest comes first."""
    make(FakeEngine(100, 1.0))
    net, loss = network()
    with ooc_cudnn.settings(tune_seconds=1e-6):
        net.training_step(loss, **QUICK)(**inputs(random, net))
    assert len(known_engines()) < 5


def test_unranked_engines_are_found_once_for_a_family(make, random, monkeypatch):
    """By its costliest convolution; those that are compiled at run time are left to `every`."""
    asked, candidates = [], Convolutions.candidates

    def listed(self, operation, *, every, compiled):
        asked.append((every, compiled))
        return candidates(self, operation, every=every, compiled=compiled)

    monkeypatch.setattr(Convolutions, "candidates", listed)
    hidden = FakeEngine(101, 1e-8, is_ranked=False)
    compiled = FakeEngine(102, 1e-9, is_ranked=False, behavior=(BehaviorNote.RUNTIME_COMPILATION,))
    make(FakeEngine(100, 3e-8), hidden, compiled)
    net, loss = network()
    given = inputs(random, net)
    step = net.training_step(loss, **QUICK)
    assert len(step.tune(**given)) == 5
    # forward, filters' and data's gradient: of these there is one
    assert sorted(asked) == 2 * [(False, False)] + 3 * [(True, False)]
    step(**given)
    assert algorithms(step) == {"eng101 (measured)"}
    assert compiled.launched == 0
    assert len(step.tune(every=True, **given)) == 5
    step(**given)
    assert algorithms(step) == {"eng102 (measured)"}
    assert step.tune(**given) == []


def test_a_family_that_was_thought_cheap_is_searched_once_it_is_measured(make, random):
    """On an H200, fc6's data gradient took 11.5 ms by what is ranked, and 0.84 by another."""
    make(
        FakeEngine(100, 3e-8), FakeEngine(101, 1e-8, is_ranked=False),
        free="backward_data",
    )  # fmt: skip
    net, loss = network()
    step = net.training_step(loss, **QUICK)
    found = step.tune(**inputs(random, net))
    assert len(found) == 5
    assert {measured.options[0].engine.number for measured in found} == {101}


@pytest.mark.parametrize(
    "chosen",
    [
        # the first that is ranked must not be used, so this one is chosen, and is compiled
        {"behavior": (BehaviorNote.RUNTIME_COMPILATION,)},
        {"least_images": 3},  # it computes no problem that is small enough to be checked
    ],
)
def test_what_ran_before_is_measured_too(make, random, chosen):
    """On an H200, VGG-16's first layer took three times as long, tuned."""
    barred = FakeEngine(100, 1e-8, notes=(NumericalNote.TENSOR_CORE,))
    make(barred, FakeEngine(101, 2e-8, **chosen), FakeEngine(102, 3e-8))
    net, loss = network()
    given = inputs(random, net)
    with ooc_cudnn.settings(allow_tf32=False):
        step = net.training_step(loss, **QUICK)
        step(**given)
        assert algorithms(step) == {"eng101"}
        step.tune(**given)
        step(**given)
    assert algorithms(step) == {"eng101 (measured)"}


def test_what_ran_before_is_not_taken_where_it_is_wrong(make, random):
    make(FakeEngine(100, 1e-8, error=0.1), FakeEngine(101, 2e-8))
    net, loss = network()
    given = inputs(random, net)
    step = net.training_step(loss, **QUICK)
    step.tune(**given)
    step(**given)
    assert algorithms(step) == {"eng101 (measured)"}


def test_measuring_may_be_cut_short(make, random):
    """The costliest convolutions were measured, by what there was time for."""
    make(FakeEngine(100, 3e-7, build_seconds=0.5), FakeEngine(101, 1e-7))
    net, loss = network()
    given = inputs(random, net)
    step = net.training_step(loss, **QUICK)
    with pytest.warns(UserWarning, match=r"[1-4] convolutions of the step were not measured"):
        found = step.tune(seconds=2.5, **given)
    assert 0 < len(found) < 5
    step(**given)
    assert algorithms(step) >= {"eng100", "eng100 (measured)"}


def test_what_was_measured_stays_after_ctrl_c(make, random):
    make(FakeEngine(100, 3e-7), FakeEngine(101, 1e-7))
    net, loss = network()
    given, told = inputs(random, net), []

    def stop(measured):
        told.append(measured)
        if len(told) == 2:
            raise KeyboardInterrupt

    step = net.training_step(loss, **QUICK)
    with pytest.raises(KeyboardInterrupt):
        step.tune(tell=stop, **given)
    forget_tables()
    assert len(step.tune(**given)) == 3
    step(**given)
    assert algorithms(step) == {"eng101 (measured)"}


def test_pieces_of_rows_have_measured_engines_too(make, random):
    """Their padding is uneven: engines are checked so where a step launches such pieces."""
    make(FakeEngine(100, 3e-7), FakeEngine(101, 1e-7))
    net = ooc_cudnn.Network(seed=1)
    h = net.convolution(net.input("images", (1, 3, 64, 16)), 4, window=3, padding=1)
    h = net.activation(net.convolution(h, 4, window=3, padding=1))
    loss = net.mean_squared_error(h, net.input("labels", h.shape))
    given = inputs(random, net)
    with ooc_cudnn.settings(memory_limit=24 * KIB):
        step = net.training_step(loss, **QUICK)
        step.tune(**given)
        step(**given)
    assert algorithms(step) == {"eng101 (measured)"}


def test_pieces_are_smaller_where_the_fastest_engine_has_no_room_otherwise(
    make, random, monkeypatch
):
    """Of 32 KiB an image; the other one takes none, and three times as long."""
    monkeypatch.setattr(
        engine_tuning, "LAUNCH_SECONDS", 1e-3
    )  # of all images there is no room for it
    make(FakeEngine(100, 3e-5), FakeEngine(101, 1e-5, 0, 32 * KIB))
    net, loss = network(images=8)
    given = inputs(random, net)
    with ooc_cudnn.settings(memory_limit=256 * KIB, allow_tf32=False):
        step = net.training_step(loss, **QUICK)
        step.tune(**given)
        step(**given)
    (ready,) = step._ready.values()
    tasks = [item for item in ready.planned.lowered.program.items if isinstance(item, Task)]
    (plan,) = (task.plan for task in tasks if task.name.startswith("convolution_2 forward"))
    assert (plan.pieces, plan.algorithms) == (2, ("eng101 (measured)",))


def test_predictions_do_not_depend_on_timings_where_they_must_not(make, random):
    make(FakeEngine(100, 3e-6))
    net, loss = network()
    given = inputs(random, net)
    net.training_step(loss, **QUICK).tune(**given)
    measured = net.plan(loss, **QUICK).compute_seconds
    with ooc_cudnn.settings(deterministic=True):
        assert net.plan(loss, **QUICK).compute_seconds < measured / 2


def test_a_device_without_engines_and_a_step_without_convolutions(make, random):
    net, loss = network()
    with pytest.raises(NothingToTuneError, match="host has one way"):
        net.training_step(loss, **QUICK).tune(**inputs(random, net))
    make(FakeEngine(100, 3e-7))
    net = ooc_cudnn.Network(seed=1)
    x = net.input("images", (4, 3, 8, 8))
    loss = net.mean_squared_error(net.activation(x), net.input("labels", x.shape))
    with pytest.raises(NothingToTuneError, match="the step launches no convolution"):
        net.training_step(loss, **QUICK).tune(**inputs(random, net))
    with pytest.raises(TypeError, match="needs images"):
        net.training_step(loss, **QUICK).tune()


def test_convolutions_that_add_their_biases_are_tuned(make, random):
    """With channels last: one launch each in forward, of which the engines are measured."""
    device = make(FakeEngine(100, 3e-7), FakeEngine(101, 1e-7, KIB))
    device.layouts = lambda dtype: ("channels_last",)
    net, loss = network()
    given = inputs(random, net)
    with ooc_cudnn.settings(memory_limit=2**19):
        step = net.training_step(loss, **QUICK)
        value, gradients = step(**given), step.gradients
        assert algorithms(step) == {"eng100, fused", "eng100"}
        step.tune(**given)
        assert step(**given) == pytest.approx(value, rel=1e-5)
        assert algorithms(step) == {"eng101, fused (measured)", "eng101 (measured)"}
        for name, gradient in gradients.items():
            np.testing.assert_allclose(step.gradients[name], gradient, rtol=1e-4, atol=1e-6)


# What plans launch, timed -------------------------------------------------------------------------


@pytest.fixture
def trained(random):
    """Runs a step under a limit that times engines; returns it."""

    def run(net, loss, limit, **how):
        with ooc_cudnn.settings(memory_limit=limit, tune_seconds=60.0, **how):
            step = net.training_step(loss, **QUICK)
            step(**inputs(random, net))
        return step

    return run


def test_an_engine_without_workspace_is_not_taken_for_a_fast_one(make, trained):
    """On an H200 a filter gradient took 2.2 s by what was left, where 7 ms were predicted."""
    make(FakeEngine(100, 1e-6, 0, 32 * KIB), FakeEngine(101, 3e-4))
    net, loss = network(images=8)
    step = trained(net, loss, 256 * KIB)
    assert algorithms(step) == {"eng100 (measured)"}


def test_what_a_plan_launches_is_timed_at_its_size(make, trained):
    """Nothing else fits, and what is left is timed before it runs: predictions hold."""
    make(FakeEngine(100, 1e-6, 512 * KIB), FakeEngine(101, 3e-5))
    net, loss = network()
    step = trained(net, loss, 256 * KIB)
    assert algorithms(step) == {"eng101 (measured)"}
    results = 4 * 8 * 8 * (4 + 8 + 4 + 8 + 4)  # of both layers: y, dx, and dw counts as much
    assert step.plan.compute_seconds > 3e-5 * results / 4


def test_what_would_run_with_room_is_timed_beside_it(make, trained, monkeypatch):
    """On an H200 a transposed convolution took 483 ms without room, and seemed to take no less."""
    make(FakeEngine(100, 1e-6, 400 * KIB), FakeEngine(101, 3e-5))
    monkeypatch.setattr(lazy_step, "time_first", lambda *given: 0)  # its seconds were spent
    net, loss = network()
    step = trained(net, loss, 420 * KIB)
    assert "eng100 (measured)" in algorithms(step)


def test_a_plan_that_was_timed_is_found_by_the_next_process(make, trained, monkeypatch):
    make(FakeEngine(100, 1e-6, 0, 32 * KIB), FakeEngine(101, 3e-4))
    net, loss = network(images=8)
    monkeypatch.setattr(plan_cache, "SHORTEST_SECONDS", 0.0)
    first = trained(net, loss, 256 * KIB, plan_cache=True)
    forget_tables()  # as another process
    monkeypatch.setattr(plan_cache, "plan_step", None)
    again = trained(net, loss, 256 * KIB, plan_cache=True)
    assert again.plan == first.plan


def test_engines_that_are_good_for_others_are_tried_where_one_is_slow(make):
    """Those of the same window first; none of another direction or type."""
    forward = Convolution.of((4, 8, 16, 16), (8, 8, 3, 3), dilation=3)
    operation = ConvolutionBackwardFilter(forward, "float32")

    def measured(number, of):
        return Measurement(of.work(), (Option(1.0, 0, Engine(number), f"eng{number}"),), of)

    near = replace(forward, dilation=(1, 1))
    tables = Tables([
        measured(1, forward),
        measured(2, ConvolutionBackwardFilter(near, "float32")),
        measured(3, ConvolutionBackwardFilter(replace(near, dtype="float16"), "float32")),
        measured(4, replace_images(operation, 64)),
        measured(5, replace_images(operation, 2)),
    ])  # fmt: skip
    found = engines_of_others(tables, operation)
    assert [engine.number for engine in found] == [5, 4, 2]


def replace_images(operation, images):
    forward = operation.forward
    shape = (images, *forward.x_shape[1:])
    return replace(operation, forward=replace(forward, x_shape=shape))
