"""Which engine is chosen: for a budget, for another size, for a plan."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.call_planner.search import Search
from ooc_cudnn.devices.engines import Engine, Measurement, Option, Tables, front
from ooc_cudnn.devices.tuning_database import (
    tables_of,
)
from ooc_cudnn.engines import trials
from ooc_cudnn.functions.call.plan_api import planned_call
from ooc_cudnn.functions.tune import tune
from ooc_cudnn.memory.alignment import align
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import FusedConvolution
from ooc_cudnn.tensor import TensorSpec
from perfmodel import shipped
from tests.support.fake_cudnn import BehaviorNote, FakeEngine, NumericalNote
from tests.support.splits import LAYOUTS
from tests.support.tuned import KIB, RESULTS, call, planned, tuned


def test_a_front_keeps_the_least_workspace():
    assert front([]) == ()
    made = [Option(1.0, 8), Option(1.0, 4), Option(2.0, 0), Option(0.5, 8)]
    assert [(each.seconds, each.workspace_bytes) for each in front(made)] == [
        (0.5, 8), (1.0, 4), (2.0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("budget", "sparing", "number"),
    [
        (None, 0, 102), (None, 1, 101), (None, 2, 100), (None, 9, 100),
        (32 * KIB, 0, 102), (32 * KIB - 1, 0, 101), (16 * KIB, 0, 101), (16 * KIB - 1, 0, 100),
        (0, 0, 100), (32 * KIB, 1, 101),
    ],
)  # fmt: skip
def test_a_budget_gets_the_fastest_within_it(make, budget, sparing, number):
    engines = (
        FakeEngine(100, 3e-6),
        FakeEngine(101, 2e-6, 16 * KIB),
        FakeEngine(102, 1e-6, 32 * KIB),
    )
    device = make(*engines)
    tuned()
    launched = tune.launch_of(Convolution.of((8, 4, 16, 16), (4, 4, 3, 3), padding=1))
    _, names = device.workspace([launched], budget, sparing=sparing)
    assert names == (f"eng{number} (measured)",)


def test_without_a_table_the_heuristics_choose(make):
    device = make(FakeEngine(100, 3e-6, KIB), FakeEngine(101, 1e-6), FakeEngine(102, 2e-6))
    assert planned().algorithms == ("eng100",)
    launched = tune.launch_of(Convolution.of((8, 4, 16, 16), (4, 4, 3, 3), padding=1))
    assert device.workspace([launched], 0) == (0, ("eng101",))
    assert not any(each.operation for each in tables_of(device))


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_channels_of_zeros_are_added_where_tensor_cores_want_them(make, layout):
    """The heuristics rank an engine without them first, for three channels as they are."""
    notes = (NumericalNote.TENSOR_CORE,)
    device = make(FakeEngine(101, 1e-6, channels=8, notes=notes), FakeEngine(100, 1e-5))

    def algorithms(budget=None, **how):
        forward = Convolution.of((2, 3, 9, 8), (8, 3, 3, 3), **{"dtype": "float16", **how})
        launched = tune.launch_of(replace(forward, layout=layout))
        nbytes, names = device.workspace([launched], budget)
        assert budget is None or nbytes <= budget
        return nbytes, names

    nbytes, names = algorithms()
    if layout == "channels_first":
        form, copied = "padded", [(2, 8, 9, 8), (8, 8, 3, 3), (2, 8, 7, 6)]
    else:  # the three columns of three channels, up to a multiple of 8
        form, copied = "unfolded", [(2, 16, 9, 6), (8, 16, 3, 1)]
    assert names == (f"eng101, {form}",)
    assert nbytes == sum(-(-2 * math.prod(shape) // 256) * 256 for shape in copied)
    assert algorithms(dtype="float32") == (0, ("eng100",))
    if layout == "channels_first":
        assert algorithms(nbytes - 1) == (0, ("eng100, no tensor cores",))
        return
    padded = sum(-(-2 * math.prod(shape) // 256) * 256 for shape in [(2, 8, 9, 8), (8, 8, 3, 3)])
    assert padded < nbytes
    assert algorithms(nbytes - 1) == (padded, ("eng101, padded",))
    assert algorithms(padded - 1) == (0, ("eng100, no tensor cores",))


def test_other_sizes_have_the_engines_of_the_nearest(make):
    device = make(FakeEngine(100, 1e-6), FakeEngine(101, 1e-6))
    tables = tables_of(device)
    for images, number in ((1, 100), (64, 101)):
        operation = Convolution.of((images, 4, 16, 16), (4, 4, 3, 3), padding=1)
        option = Option(1.0, 0, Engine(number), f"eng{number}", 1e-7)
        tables.add(Measurement(operation.work(), (option,), operation))
    for images, number in ((1, 100), (4, 100), (16, 101), (999, 101)):
        operation = Convolution.of((images, 4, 16, 16), (4, 4, 3, 3), padding=1)
        assert [option.engine.number for option in tables.options(operation)] == [number]
    assert not tables.options(Convolution.of((1, 4, 16, 16), (4, 4, 3, 3), stride=2))
    strict = Convolution.of((1, 4, 16, 16), (4, 4, 3, 3), padding=1, allow_tf32=False)
    assert not tables.options(strict)


def seconds_with(make, fast_seconds, workspace, **settings):
    """A plan with a table of two: that fast with so much workspace, or 3 us a result with none."""
    make(FakeEngine(100, 3e-6), FakeEngine(101, fast_seconds, workspace))
    with ooc_cudnn.settings(memory_limit=2**17, **settings):
        tuned()
        return planned()


def test_workspace_is_traded_against_the_size_of_pieces(make, monkeypatch):
    """Much workspace is worth it where much is saved, and pieces are larger where little is."""
    worth = seconds_with(make, 1e-6, 64 * KIB)
    assert worth.algorithms == ("eng101 (measured)",)
    assert worth.workspace_bytes == 64 * KIB
    assert worth.compute_seconds == pytest.approx(1e-6 * RESULTS, rel=0.05)
    # each piece takes 20 ms of the host to issue
    machine = shipped("host")
    slow = replace(machine, step_seconds=0.02)
    monkeypatch.setattr(trials, "WORTH_SPARING", 0.99)
    monkeypatch.setattr("ooc_cudnn.engines.target.machine_for", lambda *_: slow)
    spared = seconds_with(make, 2.7e-6, 96 * KIB)
    assert spared.algorithms == ("eng100 (measured)",)
    assert spared.workspace_bytes == 0
    with monkeypatch.context() as patch:
        patch.setattr(trials, "_traded", lambda make, planned, *_: planned)
        with ooc_cudnn.settings(memory_limit=2**17):
            forced = planned()
    assert forced.algorithms == ("eng101 (measured)",)
    assert forced.pieces > spared.pieces
    assert forced.seconds > spared.seconds


def test_a_plan_shows_its_engine_and_predicts_by_it(make, random):
    make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 8 * KIB))
    tuned()
    assert "eng101 (measured)" in planned().explain()
    with ooc_cudnn.profile() as seen:
        assert call(random) < 1e-6
    (record,) = seen.calls
    assert record.plan.algorithms == ("eng101 (measured)",)
    assert record.predicted_seconds == pytest.approx(record.seconds, rel=0.1)


def test_a_plan_without_room_for_its_engine_is_priced_with_the_one_it_has(make):
    make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 127 * KIB))
    tuned()
    with ooc_cudnn.settings(memory_limit=2**17):
        plan = planned()
    assert plan.algorithms == ("eng100 (measured)",)
    assert plan.compute_seconds == pytest.approx(3e-6 * RESULTS, rel=0.1)


def test_another_memory_order_is_no_faster_until_it_is_measured():
    """Its line may be wrong by far: on an H100 cuDNN took 70 times as long as it said."""
    machine = shipped("h200")
    last, first = (
        replace(Convolution.of((2, 32, 64, 64), (32, 32, 3, 3), padding=1), layout=layout)
        for layout in ("channels_last", "channels_first")
    )
    larger = replace(first, x_shape=(8, 32, 64, 64))
    plain = machine.compute.seconds(first.work())

    def seconds(operation, tables):
        return tables.corrected(machine).compute.seconds(operation.work())

    slow, fast = (Measurement(last.work(), (Option(f * plain),), last) for f in (3.0, 1e-3))
    for is_stored in (False, True):
        tables = Tables([slow]) if is_stored else Tables()
        tables.add(slow)
        assert seconds(last, tables) == pytest.approx(3.0 * plain, rel=1e-4)
        assert seconds(first, tables) == pytest.approx(seconds(last, tables))
        assert seconds(larger, tables) == pytest.approx(
            3.0 * machine.compute.seconds(larger.work()), rel=1e-4
        )
        tables.add(Measurement(first.work(), (Option(0.5 * plain),), first))
        assert seconds(first, tables) == pytest.approx(0.5 * plain, rel=1e-4)
    assert seconds(first, Tables([fast])) == plain
    fused = FusedConvolution(last, "relu")
    assert seconds(first, Tables([replace(slow, work=fused.work(), operation=fused)])) > plain
    # a trial times what the heuristics chose, and tries the other order itself
    assert seconds(first, Tables([replace(slow, operation=None)])) == plain


def test_what_was_stored_says_nothing_of_other_problems():
    """A family is as slow as the slowest that this process has seen, not as any that ever was."""
    machine = shipped("host")
    work = Convolution.of((8, 4, 16, 16), (4, 4, 3, 3)).work()
    other = Convolution.of((8, 8, 16, 16), (4, 8, 3, 3)).work()
    slow = Measurement(work, (Option(1e3 * machine.compute.seconds(work)),))
    plain = machine.compute.seconds(other)
    assert Tables([slow]).corrected(machine).compute.seconds(other) == plain
    tables = Tables()
    tables.add(slow)
    found = tables.corrected(machine).compute.seconds(other)
    assert found == pytest.approx(1e3 * plain, rel=1e-3)


def test_each_size_is_predicted_by_the_one_that_was_measured_nearest_to_it():
    """VGG-16's layers of 28 x 28 and 14 x 14 are of one kind, and have other engines."""
    machine = shipped("h100")
    small, large = (
        Convolution.of((64, 512, extent, extent), (512, 512, 3, 3), padding=1)
        for extent in (14, 28)
    )
    works = [small.work(), large.work()]
    plain = [machine.compute.seconds(work) for work in works]
    found = [
        Measurement(work, (Option(factor * seconds),), operation)
        for work, factor, seconds, operation in zip(
            works, (2.0, 0.5), plain, (small, large), strict=True
        )
    ]
    for stored in (found, found[::-1]):
        compute = Tables(stored).corrected(machine).compute
        for operation, factor in ((small, 2.0), (large, 0.5)):
            more = replace(operation, x_shape=(96, *operation.x_shape[1:])).work()
            expected = factor * machine.compute.seconds(more)
            assert compute.seconds(more) == pytest.approx(expected, rel=1e-4)


def of_images(count, layout="channels_first"):
    operation = Convolution.of((count, 64, 28, 28), (64, 64, 3, 3), padding=1)
    return replace(operation, layout=layout)


def measured(operation, factor, number, launching=None):
    seconds = factor * shipped("h100").compute.seconds(operation.work())
    option = Option(seconds, engine=Engine(number))
    return Measurement(operation.work(), (option,), operation, launching=launching)


def test_price_and_engine_are_of_one_size_in_whatever_order_it_was_measured():
    """32 images are as near to 16 as to 64."""
    machine, asked = shipped("h100"), of_images(32)
    found = [
        measured(of_images(16), 2.0, 16, 5e-6),
        measured(of_images(64), 0.5, 64, 9e-6),
        measured(of_images(64, "channels_last"), 3.0, 64),
        measured(of_images(16, "channels_last"), 4.0, 16),
    ]
    for stored in itertools.permutations(found):
        tables = Tables(stored)
        compute = tables.corrected(machine).compute
        for operation, factor in ((asked, 0.5), (replace(asked, layout="channels_last"), 3.0)):
            assert tables.nearest(operation).options[0].engine.number == 64
            expected = factor * machine.compute.seconds(operation.work())
            assert compute.seconds(operation.work()) == pytest.approx(expected, rel=1e-4)
        assert compute.launching_seconds(asked.work(), 0.0) == 9e-6


def test_what_was_measured_in_an_order_counts_there_whatever_the_other_one_took():
    machine = shipped("h100")
    tables = Tables(
        [
            measured(of_images(8), 3.0, 1),
            measured(of_images(64), 3.0, 1),
            measured(of_images(64, "channels_last"), 0.3, 2),
        ]
    )
    compute = tables.corrected(machine).compute
    for images in (4, 8, 16, 64):
        work = of_images(images, "channels_last").work()
        expected = 0.3 * machine.compute.seconds(work)
        assert compute.seconds(work) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "factors", [(2, 1, 1), (1, 0.5, 3), (1.5, 1, 1.5), (1, 0.7, 1), (4, 0.5, 0.5)], ids=str
)
def test_batches_are_cut_where_other_sizes_are_faster(factors):
    """No cut of the batch alone takes less, though seconds are not linear in its size."""
    machine = shipped("h100")
    convolution = Convolution.of((256, 256, 56, 56), (256, 256, 3, 3), padding=1, allow_tf32=False)
    found = []
    for layout in LAYOUTS:
        for images, factor in zip((256, 16, 1), factors, strict=True):
            operation = replace(convolution, layout=layout, x_shape=(images, 256, 56, 56))
            found.append(replace(measured(operation, factor, images), is_stored=True))
    x, w, limit = TensorSpec((256, 256, 56, 56)), TensorSpec((256, 256, 3, 3)), 2**30
    with ooc_cudnn.settings(allow_tf32=False):
        made = planned_call(
            "convolution_forward", x=x, w=w, padding=1, memory_limit=limit,
            machine=Tables(found).corrected(machine),
        )  # fmt: skip
    request = made.parts[0].request
    cuts = [
        priced.seconds
        for search in (Search(request, layout) for layout in request.layouts)
        for priced in search.prices(
            [replace(request.chain.extents, n=n) for n in search.candidates("n")], limit
        )
    ]
    assert made.plan.seconds <= 1.01 * min(cuts)


@pytest.mark.parametrize("seed", range(4))
def test_the_heuristics_are_asked_once_for_budgets_with_one_answer(make, seed):
    """A search asks for the same convolution within what each of its plans leaves."""
    engines = [FakeEngine(100 + at, 1e-6, (3 - at) * 4 * KIB) for at in range(4)]
    device = make(*engines)
    launched = tune.launch_of(Convolution.of((8, 4, 16, 16), (4, 4, 3, 3), padding=1))
    budgets = [None, *range(0, 16 * KIB, 256)]
    random.Random(seed).shuffle(budgets)
    for budget in budgets:
        room = math.inf if budget is None else budget
        nbytes, names = device.workspace([launched], budget)
        first = next(each for each in engines if each.workspace <= room)
        assert (nbytes, names) == (first.workspace, (first.name,))
    assert sum(each.built for each in engines) < len(budgets) / 2


COMPILED = (BehaviorNote.RUNTIME_COMPILATION,)


@pytest.mark.parametrize("workspace", [0, 3, 64 * KIB, 700 * KIB + 3])
def test_what_is_compiled_at_run_time_is_built_when_it_runs(make, workspace):
    """To compile one takes 0.2 to 0.6 s on an H200, and a planner asks for hundreds."""
    compiled = FakeEngine(100, 1e-9, workspace, behavior=COMPILED)
    device = make(compiled, FakeEngine(101, 1e-9))
    launched = tune.launch_of(Convolution.of((8, 4, 16, 16), (4, 4, 3, 3), padding=1))
    for budget in (None, 2**20, align(workspace), *range(0, workspace, 50 * KIB)):
        nbytes, names = device.workspace([launched], budget)
        if budget is not None and budget < workspace:
            assert (nbytes, names) == (0, ("eng101",))
        else:
            assert names == ("eng100",)
            assert workspace <= nbytes <= max(1.03 * workspace, workspace + 64 * KIB)
            assert budget is None or nbytes <= budget
    assert compiled.built == 0
    x, w = np.ones((8, 4, 16, 16), "float32"), np.ones((4, 4, 3, 3), "float32")
    with ooc_cudnn.settings(memory_limit=2**23):
        y = ooc_cudnn.convolution_forward(x, w, padding=1)
    assert compiled.launched
    assert y[0, 0, 8, 8] == pytest.approx(36.0)


def test_what_cannot_be_compiled_is_not_taken_again(make):
    compiled = FakeEngine(100, 1e-9, behavior=COMPILED, least_images=99)  # found out by building it
    make(compiled, FakeEngine(101, 1e-9))
    x, w = np.ones((8, 4, 16, 16), "float32"), np.ones((4, 4, 3, 3), "float32")
    with (
        ooc_cudnn.settings(memory_limit=2**23),
        pytest.warns(UserWarning, match="engine eng100 failed"),
    ):
        y = ooc_cudnn.convolution_forward(x, w, padding=1)
    assert y[0, 0, 8, 8] == pytest.approx(36.0)
