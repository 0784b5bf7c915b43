"""What is measured is what the calls that follow launch."""

import pytest

import ooc_cudnn
from ooc_cudnn.devices.engines import Engine, Measurement, Option, Tables
from ooc_cudnn.devices.tuning_database import forget_tables, tables_of
from ooc_cudnn.engines.workload import (
    Effort,
    PlannedLaunch,
    PlannedWork,
    engine_launches,
    launches_to_measure,
    of_own_size,
)
from ooc_cudnn.functions.tune import rounds, tune
from ooc_cudnn.functions.tune.rounds import measure_what_is_launched
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.tensor import TensorSpec
from tests.support.fake_cudnn import FakeEngine
from tests.support.tuned import KIB, W


@pytest.mark.filterwarnings("ignore:the machine model asked for")
def test_a_call_from_arrays_elsewhere_has_its_engines_too(make):
    """Its plan cuts no channels, where that of the call that was tuned does: another kind."""
    make(FakeEngine(100, 3e-9), FakeEngine(101, 1e-9))
    x, dy = (4, 32, 96, 96), (4, 2, 96, 96)
    function, filters = "convolution_backward_filter", {"filter_shape": (2, 32, 1, 1)}

    def lying(placement):
        return {name: TensorSpec(s, placement=placement) for name, s in (("x", x), ("dy", dy))}

    with ooc_cudnn.settings(machine="h200", memory_limit="1GiB"):
        tune.tune(function, **lying("pageable"), **filters)
        cut, whole = (
            ooc_cudnn.plan(function, **lying(placement), **filters)
            for placement in ("pageable", "pinned")
        )
    assert (cut.split.c_x, whole.split.c_x) == (16, 32)
    assert cut.algorithms == whole.algorithms == ("eng101 (measured)",)


@pytest.mark.parametrize("limit", [16 * KIB, 64 * KIB])
def test_plans_turn_to_what_was_not_measured_until_all_is(make, limit):
    """Engines are slower than the line of all kinds says, so other channels look faster.

    Those that were measured in this round say nothing of them: to the calls that follow they are
    stored ones.
    """
    make(FakeEngine(100, 2.4e-5), FakeEngine(101, 2e-5))
    x, dy = TensorSpec((8, 16, 16, 16)), TensorSpec((8, 16, 16, 16))
    asked = {"x": x, "dy": dy, "filter_shape": (16, 16, 3, 3), "padding": 1}
    with ooc_cudnn.settings(memory_limit=limit):
        tune.tune("convolution_backward_filter", **asked)
        found = ooc_cudnn.plan("convolution_backward_filter", **asked)
    assert found.algorithms == ("eng101 (measured)",)


def asking(*extents, limit_bytes=2**19, images=(2,)):
    """Plans that follow each other: of images of these extents, and so many of them."""
    left, numbers = list(extents), list(images)

    def following(values):
        return values.pop(0) if len(values) > 1 else values[0]

    def plan():
        x = TensorSpec((following(numbers), 4, 8, following(left)))
        found = tune.planned_call("convolution_forward", x=x, w=W, padding=1)
        return PlannedWork("this", [(part.request, part.plan) for part in found.parts], limit_bytes)

    return plan


def test_what_is_launched_for_many_pieces_costs_as_much(make):
    device = make(FakeEngine(100, 1e-9))
    with ooc_cudnn.settings(memory_limit=64 * KIB):
        planned = asking(32, images=(64,))()
    ((_, plan),) = planned.tasks
    (launched,) = engine_launches(device, planned)
    assert launched.times == plan.pieces > 8
    wanted = launches_to_measure(device, [launched], planned.limit_bytes, Effort())
    cost = wanted[launched.operation].cost
    assert cost == pytest.approx(plan.pieces * launched.seconds)


@pytest.mark.filterwarnings("ignore:the machine model asked for")
def test_the_uncut_call_counts_once(make):
    """Its plan cuts no channels: it is another kind."""
    device = make(FakeEngine(100, 1e-9))
    specs = {
        name: TensorSpec((4, channels, 96, 96), placement="pageable")
        for name, channels in (("x", 32), ("dy", 2))
    }
    with ooc_cudnn.settings(machine="h200", memory_limit="1GiB"):
        found = tune.planned_call(
            "convolution_backward_filter", **specs, filter_shape=(2, 32, 1, 1)
        )
    tasks = [(part.request, part.plan) for part in found.parts]
    launched = list(engine_launches(device, PlannedWork("this", tasks, 2**30)))
    assert [each.times for each in launched] == [found.plan.pieces, 1]
    assert found.plan.pieces > 1


@pytest.mark.parametrize(("times", "is_timed"), [(1, False), (10_000, True)])
def test_sizes_are_timed_for_themselves_where_all_their_pieces_matter(make, times, is_timed):
    device = make(FakeEngine(100, 1e-9))
    small, large, near = (Convolution.of((n, 4, 8, 8), W.shape, padding=1) for n in (8, 64, 12))
    option = Option(1e-6, 0, Engine(100))
    for operation in (near, large):
        tables_of(device).add(Measurement(operation.work(), (option,), operation))
    launched = [PlannedLaunch(small, 1e-7, times), PlannedLaunch(large, 1e-4, 1)]
    found = of_own_size(tables_of(device), launched, 2**20, has_learnt=False)
    assert found == ([small] if is_timed else [])


def images_of(found):
    return [measured.operation.output_shape[0] for measured in found]


def widths(found):
    return [measured.operation.output_shape[-1] for measured in found]


def test_it_plans_until_all_is_known(make):
    device = make(FakeEngine(100, 1e-9))
    found = measure_what_is_launched(device, asking(8, 32, 31, 128), Effort(), None)
    assert widths(found) == [8, 32]  # a width of 31 is known well enough
    again = measure_what_is_launched(device, asking(9, 128), Effort(again=False), None)
    assert again == []
    again = measure_what_is_launched(device, asking(128), Effort(again=False), None)
    assert widths(again) == [128]


@pytest.mark.parametrize("every", [True, False])
def test_what_is_known_without_compiled_engines_serves_who_asks_for_no_more(make, every):
    """Each run of `bench` measured all engines of all its calls again."""
    engines = FakeEngine(100, 3e-9), FakeEngine(101, 1e-9)
    device = make(*engines)
    effort = Effort(every=every, compiled=False, again=False)
    assert widths(measure_what_is_launched(device, asking(8), effort, None)) == [8]
    launched = [engine.launched for engine in engines]
    for _ in range(2):
        assert measure_what_is_launched(device, asking(8), effort, None) == []
        forget_tables()  # as another process: it is stored
    assert [engine.launched for engine in engines] == launched
    more = measure_what_is_launched(device, asking(8), Effort(again=False), None)
    assert widths(more) == [8]


def test_rounds_end(make, monkeypatch):
    """Each plan launches something that was not measured."""
    monkeypatch.setattr(rounds, "MOST_ROUNDS", 3)
    device = make(FakeEngine(100, 1e-9))
    extents = [2**at for at in range(3, 9)]
    found = measure_what_is_launched(device, asking(*extents, limit_bytes=2**20), Effort(), None)
    assert widths(found) == [8, 16, 32]


def test_time_for_measuring_may_end(make):
    """The rest is said to be left, and is measured the next time."""
    device = make(FakeEngine(100, 1e-9, build_seconds=1.0), FakeEngine(101, 2e-9))
    both = [task for extent in (8, 32) for task in asking(extent)().tasks]
    effort = Effort(every=False, seconds=1.5, again=False)
    with pytest.warns(UserWarning, match="1 convolutions of this were not measured"):
        first = measure_what_is_launched(
            device, lambda: PlannedWork("this", both, 2**19), effort, None
        )
    effort = effort._replace(seconds=9.0)
    second = measure_what_is_launched(
        device, lambda: PlannedWork("this", both, 2**19), effort, None
    )
    assert (widths(first), widths(second)) == ([32], [8])


def test_long_launches_are_measured_on_fewer_images(make):
    device = make(FakeEngine(100, 1e-6))
    (found,) = measure_what_is_launched(device, asking(16), Effort(launch_seconds=6e-4), None)
    assert found.operation.output_shape == (1, 4, 8, 16)


@pytest.mark.filterwarnings("ignore:the machine model asked for")
@pytest.mark.parametrize("own_size", [True, False])
def test_what_is_launched_is_timed_at_its_own_size(make, own_size):
    """By the engines that are known of about that size, and no other; once."""
    first, other = FakeEngine(100, 1e-9), FakeEngine(101, 5e-7)
    device, effort = make(first, other), Effort(own_size=own_size)
    with ooc_cudnn.settings(machine="h200"):  # planning tries nothing
        found = measure_what_is_launched(device, asking(8, images=(32, 20, 18, 20)), effort, None)
    assert images_of(found) == ([32, 20] if own_size else [32])
    assert {option.engine.number for each in found for option in each.options} == {100}
    launched = other.launched
    with ooc_cudnn.settings(machine="h200"):
        again = effort._replace(again=False)
        found = measure_what_is_launched(device, asking(8, images=(26,)), again, None)
    assert images_of(found) == ([26] if own_size else [])
    assert other.launched == launched


@pytest.mark.parametrize("fails", [True, False])
def test_what_was_fast_at_another_size_is_kept_if_it_was_timed(make, fails):
    """A table had lost its measured engine to one that does not run there."""
    known, other = FakeEngine(100, 8e-9), FakeEngine(101, 1e-9)
    device = make(known, other)
    small, large = (Convolution.of((n, 4, 8, 8), W.shape, padding=1) for n in (8, 32))
    slow, fast = (
        Option(seconds, 0, Engine(number)) for seconds, number in ((4e-6, 100), (8e-6, 101))
    )
    for operation, option in ((small, slow), (large, fast)):
        tables_of(device).add(Measurement(operation.work(), (option,), operation))
    other.fails = fails
    found = rounds.measure_sizes(device, [small], 2**20, 9.0, None)
    assert [each.engine.number for each in found[small].options] == [100 if fails else 101]
    assert (other.launched > 0) is not fails
    assert tables_of(device).options(large)[0].engine.number == 101
    assert found[small].is_complete


def test_a_size_is_nearer_by_its_sites_than_by_its_images():
    def measured(images, extent):
        operation = Convolution.of((images, 4, extent, extent), W.shape, padding=1)
        return Measurement(operation.work(), (Option(images * 1e-3),), operation)

    tables = Tables([measured(16, 14), measured(4, 28)])  # as much to compute
    assert len(list(tables)) == 2
    for extent, images in ((14, 16), (28, 4)):
        operation = Convolution.of((64, 4, extent, extent), W.shape, padding=1)
        assert tables.options(operation)[0].seconds == images * 1e-3
