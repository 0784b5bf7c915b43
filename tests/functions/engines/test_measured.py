"""What is measured of engines, and which are admitted."""

import dataclasses
import time
from typing import NamedTuple

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.calibration.compute import TimedLaunches
from ooc_cudnn.calibration.session import Session
from ooc_cudnn.cli.tune import format_launch
from ooc_cudnn.devices.engines import HEURISTICS, Engine
from ooc_cudnn.devices.measuring import Bench
from ooc_cudnn.devices.tuning_database import forget_tables, tables_of
from ooc_cudnn.engines import accuracy
from ooc_cudnn.engines.accuracy import Checks
from ooc_cudnn.engines.autotune import Deadline, EngineTuner
from ooc_cudnn.engines.workload import Effort
from ooc_cudnn.errors import DeviceOutOfMemoryError
from ooc_cudnn.functions.tune import tune
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)
from ooc_cudnn.pipeline.exactness import ExpectedResult
from ooc_cudnn.tensor import ORDERS, TensorSpec, numpy_dtype
from tests.support.fake_cudnn import FakeEngine, Graph, KnobType, NumericalNote
from tests.support.tuned import KIB, RESULTS, W, X, call, numbers, planned, tuned


def test_the_fastest_for_each_workspace_are_kept(make):
    make(
        FakeEngine(100, 4e-6),
        FakeEngine(101, 3e-6, 16 * KIB),
        FakeEngine(102, 3.5e-6, 20 * KIB),  # slower, and takes more
        FakeEngine(103, 1e-6, 32 * KIB, is_ranked=False),
        FakeEngine(104, 0.99e-6, 64 * KIB, is_ranked=False),  # not worth the workspace
        FakeEngine(105, 9e-6, 0, is_ranked=False),
    )
    (measured,) = tuned()
    assert numbers(measured) == [103, 101, 100]
    assert [option.workspace_bytes for option in measured.options] == [32 * KIB, 16 * KIB, 0]
    results = np.prod(measured.operation.output_shape)
    seconds = [option.seconds / results for option in measured.options]
    assert seconds == pytest.approx([1e-6, 3e-6, 4e-6], rel=1e-3)
    assert all(0 < option.error < 1e-6 for option in measured.options)
    assert measured.is_complete


@pytest.mark.parametrize(("seconds", "launches"), [(1e-4, 2), (1e-3, 1)])
def test_a_hopeless_engine_is_hardly_launched(make, seconds, launches):
    """Though no other one takes as little workspace: the fastest takes next to none.

    What takes less than a second may only have loaded its code.
    """
    hopeless = FakeEngine(101, seconds)
    make(FakeEngine(100, 1e-6, 2**19 // 1024), hopeless)
    (found,) = tuned()
    assert numbers(found) == [100]
    assert hopeless.launched == launches


def test_what_takes_next_to_no_workspace_is_kept_however_slow(make):
    """A plan without room for another one has an engine whose seconds are known."""
    make(FakeEngine(100, 1e-6, 8 * KIB), FakeEngine(102, 1e-4, 16), FakeEngine(101, 2e-4))
    (found,) = tuned()
    assert numbers(found) == [100, 102]
    assert found.options[1].seconds == pytest.approx(100 * found.options[0].seconds, rel=0.01)


def test_without_time_there_are_engines_for_little_workspace_too(make):
    """Those that the heuristics choose: they ran unmeasured where the fastest had no room."""
    device = make(
        FakeEngine(100, 1e-6, 100 * KIB),
        FakeEngine(101, 2e-6, 90 * KIB),
        FakeEngine(102, 3e-6, 32 * KIB),
        FakeEngine(103, 9e-5),
        FakeEngine(104, 4e-6),
    )
    launched = tune.launch_of(Convolution.of(X.shape, W.shape, padding=1))
    bench = Bench(device, 2**19, batches=1, batch_seconds=0.0)
    with device.arena.lock:
        tuning = EngineTuner(device, bench, Deadline(0.0))
        found = tuning.measured(launched, every=False, chosen=Engine(100))
    assert numbers(found) == [100, 102, 103]
    assert not found.is_complete


def test_what_fails_when_it_is_timed_well_is_not_kept(make, monkeypatch):
    device = make(FakeEngine(100, 2e-6, 8 * KIB), FakeEngine(101, 1e-6))
    timed = EngineTuner._timed

    def fails(self, launched, option):
        return None if option.engine.number == 101 else timed(self, launched, option)

    monkeypatch.setattr(EngineTuner, "_timed", fails)
    (found,) = tuned()
    assert numbers(found) == [100]
    assert device.workspace([tune.launch_of(found.operation)], None)[1] == ("eng100 (measured)",)


def test_slow_engines_are_launched_twice_only(make):
    slow, other = FakeEngine(101, 8e-6, 16), FakeEngine(100, 1e-6)
    make(other, slow)
    tuned()
    assert slow.launched == 2
    assert other.launched > 5


@pytest.mark.parametrize("deterministic", [False, True])
def test_engines_that_add_in_any_order(make, deterministic):
    make(FakeEngine(100, 2e-6), FakeEngine(101, 1e-6, notes=(NumericalNote.NONDETERMINISTIC,)))
    with ooc_cudnn.settings(deterministic=deterministic):
        (measured,) = tuned()
        assert numbers(measured) == ([100] if deterministic else [101])
        assert planned().algorithms == (f"eng{100 + (not deterministic)} (measured)",)
    with ooc_cudnn.settings(deterministic=not deterministic):
        assert planned().algorithms == ("eng100",)


def test_fft_is_taken_for_strict_float32_where_it_was_measured(make):
    make(FakeEngine(100, 2e-6), FakeEngine(101, 1e-6, KIB, notes=(NumericalNote.FFT,)))
    with ooc_cudnn.settings(allow_tf32=False):
        assert planned().algorithms == ("eng100",)
        (measured,) = tuned()
        assert numbers(measured) == [101, 100]
        assert planned().algorithms == ("eng101 (measured)",)


class NewKnob(NamedTuple):
    """A kind of knob that the frontend does not know."""

    name: str
    value: int


def test_what_cannot_be_asked_for_gives_way_to_nothing_slower(make):
    """cuDNN's heuristics choose an engine that it does not build when it is asked for."""
    odd = NewKnob("NEW", 99)
    make(FakeEngine(100, 1e-6, knobs={odd: 1}), FakeEngine(101, 3e-6))
    (measured,) = tuned(effort=Effort(every=False))
    assert [option.engine for option in measured.options] == [HEURISTICS]
    assert planned().algorithms == ("eng100_k99=1 (measured)",)
    make(FakeEngine(100, 3e-6, knobs={odd: 1}), FakeEngine(101, 1e-6))
    (measured,) = tuned(effort=Effort(every=False))
    assert numbers(measured) == [101]
    assert planned().algorithms == ("eng101 (measured)",)


def test_what_cannot_be_asked_for_is_known_as_all_others(make):
    """A kind without a table had no seconds in plans, and was measured again by each tuning.

    On an H200 that was the order in which calls from host memory compute, so they launched what
    had no table.
    """
    device = make(FakeEngine(100, 1e-6, 8, knobs={NewKnob("NEW", 99): 1}), FakeEngine(101, 3e-6))
    device.layouts = lambda dtype: ORDERS
    found = tuned()
    assert {measured.operation.layout for measured in found} == {*ORDERS}
    for _ in range(2):
        for placement in ("pageable", "pinned"):
            x, w = (dataclasses.replace(spec, placement=placement) for spec in (X, W))
            plan = planned(x=x, w=w)
            assert plan.algorithms == ("eng100_k99=1 (measured)",)
            assert plan.compute_seconds == pytest.approx(1e-6 * RESULTS, rel=0.05)
        assert tuned(effort=Effort(again=False)) == []
        forget_tables()  # as another process: it is stored
    larger = tune.launch_of(Convolution.of((32, 4, 64, 64), W.shape, padding=1))
    assert device.workspace([larger], None) == (8, ("eng100_k99=1 (measured)",))
    assert device.workspace([larger], 7) == (0, ("eng101 (measured)",))


def test_what_cannot_be_asked_for_may_fail(make, random):
    odd = FakeEngine(100, 1e-6, knobs={NewKnob("NEW", 99): 1})
    make(odd, FakeEngine(101, 3e-6))
    tuned()
    odd.fails = True
    with pytest.warns(UserWarning, match="eng100_k99=1 failed"):
        assert call(random) < 1e-5
    assert planned().algorithms == ("eng101",)


@pytest.mark.parametrize("note", ["TENSOR_CORE", "DOWN_CONVERT_INPUTS"])
def test_what_rounds_is_never_taken_for_strict_float32(make, note):
    make(FakeEngine(100, 2e-6), FakeEngine(101, 1e-6, notes=(NumericalNote[note],)))
    with ooc_cudnn.settings(allow_tf32=False):
        assert numbers(*tuned()) == [100]


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_half_types_in_float32_must_not_be_rounded_to_half_types(dtype, direction):
    """They are scaled, or added up, and rounded once, after that. Some engines round them first."""
    forward = Convolution.of((2, 16, 14, 14), (16, 16, 3, 3), padding=1, dtype=dtype)
    for made, may_be_rounded in ((dtype, True), ("float32", False)):
        operation = {
            "forward": dataclasses.replace(forward, y_dtype=made),
            "backward_data": ConvolutionBackwardData(forward, made),
            "backward_filter": ConvolutionBackwardFilter(forward, made),
        }[direction]
        expected = ExpectedResult.of(operation)
        found = np.zeros(operation.output_shape)
        found[expected.channels] = expected.values
        rounded = found.astype(numpy_dtype(dtype)).astype(np.float32)
        assert expected.compared(rounded).is_admitted == may_be_rounded
        assert expected.compared(found.astype(np.float32)).is_admitted


@pytest.mark.parametrize(("error", "is_admitted"), [(1e-7, True), (1e-4, False), (np.nan, False)])
def test_an_engine_is_checked_before_it_is_used(make, random, error, is_admitted):
    wrong = FakeEngine(101, 1e-6, error=error)
    make(FakeEngine(100, 2e-6), wrong)
    with ooc_cudnn.settings(allow_tf32=False):
        (measured,) = tuned()
        assert numbers(measured) == ([101] if is_admitted else [100])
        assert call(random) < 1e-6


def test_an_engine_that_wants_many_images_is_checked_with_as_many(make, random):
    """It was taken for right unchecked, with an error of 0."""
    make(FakeEngine(100, 1e-6, least_images=8, error=0.3), FakeEngine(101, 3e-6))
    (measured,) = tuned()
    assert numbers(measured) == [101]
    assert call(random) < 1e-6


#: More images than a check has, in one piece.
MANY, ROOM = TensorSpec((40, 4, 16, 16)), 2**22


def test_checks_end_in_time_where_the_choice_cannot_be_checked(make):
    """All others were checked, for three times as long as there was."""
    wrong = [FakeEngine(101 + at, 2e-7, error=1.0, build_seconds=0.2) for at in range(30)]
    make(FakeEngine(100, 1e-7, least_images=33), *wrong)
    began = time.perf_counter()
    with ooc_cudnn.settings(memory_limit=ROOM):
        (measured,) = tuned(x=MANY, effort=Effort(seconds=2.0))
    assert time.perf_counter() - began < 2.0
    assert numbers(measured) == [100]
    assert not measured.is_complete


@pytest.mark.parametrize("slower", [1.2, 3.0, 10.0])
def test_what_cannot_be_checked_gives_way_to_what_can_be(make, slower):
    """Though it is what the heuristics choose, and takes less time and workspace."""
    unchecked = FakeEngine(100, 1e-7, least_images=33, error=0.3)
    make(unchecked, FakeEngine(101, slower * 1e-7, 8 * KIB))
    with ooc_cudnn.settings(memory_limit=ROOM):
        (measured,) = tuned(x=MANY)
        assert planned(x=MANY).algorithms == ("eng101 (measured)",)
    assert numbers(measured) == [101]


def test_where_nothing_can_be_checked_the_heuristics_choice_is_kept_with_no_error(make):
    """It would run anyway, so its seconds are to be known; another engine would not."""
    device = make(
        FakeEngine(100, 2e-7, least_images=33),
        FakeEngine(101, 1e-7, least_images=33, is_ranked=False),
    )
    with ooc_cudnn.settings(memory_limit=ROOM):
        (measured,) = tuned(x=MANY)
        assert planned(x=MANY).algorithms == ("eng100 (measured)",)
    (option,) = measured.options
    assert (option.engine, option.error, option.is_right_uneven) == (Engine(100), None, False)
    assert format_launch(measured)[-1].split()[-1] == "unknown"
    forget_tables()
    (read,) = tables_of(device)
    assert read.options == measured.options


def test_coarse_sums_may_be_as_coarse_as_the_settings_say(make):
    make(FakeEngine(100, 2e-6), FakeEngine(101, 1e-6, error=1e-4))
    assert numbers(*tuned()) == [101]  # products of TF32 have 11 bits


def test_known_faults_are_no_candidates(make):
    make(FakeEngine(100, 2e-6), FakeEngine(17, 1e-6))
    with ooc_cudnn.settings(allow_tf32=False):
        asked = {"x": X, "dy": X, "filter_shape": W.shape, "padding": 1}
        (measured,) = tune.tune("convolution_backward_filter", **asked)
    assert numbers(measured) == [100]


def test_the_oldest_engine_is_tried_last(make):
    """It may take seconds, after which there is no time for another."""
    device = make(FakeEngine(100, 2e-6), FakeEngine(0, 1e-6), FakeEngine(101, 3e-6))
    operation = Convolution.of(X.shape, W.shape, padding=1)
    found = list(device.engines.candidates(operation, every=True, compiled=True))
    assert [each.number for each in found][:2] == [100, 101]
    assert {each.number for each in found[:-1]} == set(range(1, 102))
    assert found[-1].number == 0


def test_an_engine_is_asked_for_with_its_knobs(make):
    knobs = {KnobType.TILE_SIZE: 5, KnobType.SPLIT_K: 2}
    make(FakeEngine(100, 2e-6), FakeEngine(101, 1e-6, knobs=knobs))
    (measured,) = tuned()
    assert measured.options[0].engine == Engine(101, {"TILE_SIZE": 5, "SPLIT_K": 2})
    assert planned().algorithms == ("eng101_k1=5_k2=2 (measured)",)


def test_a_knob_that_is_gone_is_an_engine_that_is_not_there(make):
    device = make(FakeEngine(100, 2e-6))
    operation = Convolution.of(X.shape, W.shape, padding=1)
    with device.engines.forced(operation, Engine(100, {"GONE": 1})) as built:
        assert built is None


@pytest.mark.parametrize("kind", [ConvolutionBackwardData, ConvolutionBackwardFilter])
def test_gradients_have_engines_of_their_own(make, kind):
    device = make(FakeEngine(100, 2e-6), FakeEngine(101, 1e-6, KIB))
    operation = kind(Convolution.of(X.shape, W.shape, padding=1), "float32")
    bench = Bench(device, 2**20, batches=1, batch_seconds=0.0)
    with device.arena.lock:
        launched = tune.launch_of(operation)
        found = EngineTuner(device, bench, Deadline()).measured(launched, every=True)
    assert numbers(found) == [101, 100]
    tables_of(device).add(found)
    assert device.workspace([launched], None) == (KIB, ("eng101 (measured)",))
    assert device.workspace([tune.launch_of(operation.forward)], None) == (0, ("eng100",))


@pytest.mark.parametrize(("dtype", "taken"), [("float16", 3e-6), ("float32", 9e-6)])
def test_a_calibration_times_filter_gradients_of_half_types_by_the_fastest_engine(
    make, dtype, taken
):
    """As steps run them, which time some first; others by what the heuristics choose."""
    device = make(FakeEngine(100, 9e-6), FakeEngine(101, 3e-6, KIB))
    operation = Convolution.of(X.shape, W.shape, padding=1, dtype=dtype)
    session = Session(device, 2**20, quick=True)
    launched = tune.launch_of(ConvolutionBackwardFilter(operation, "float32"))
    with device.arena.lock:
        found = session.taken_by(lambda: TimedLaunches(session).measure(lambda: [launched]))
    (sample,) = found[launched[0].operation.work().key]
    results = np.prod(launched[0].operation.output_shape)
    assert sample.timing.seconds / results == pytest.approx(taken, rel=1e-2)


@pytest.mark.parametrize("uneven_error", [1e-8, 1e-2])
def test_an_engine_that_is_wrong_at_a_border_is_not_used_there(make, random, uneven_error):
    """Pieces of rows see padding on one side: some engines take it for both."""
    taken = FakeEngine(101, 1e-6, error=1e-8, uneven_error=uneven_error)
    device = make(FakeEngine(100, 3e-6), taken)
    with ooc_cudnn.settings(allow_tf32=False):
        (measured,) = tuned()
        assert numbers(measured) == [101]
        assert measured.options[0].is_right_uneven == (uneven_error < 1e-6)
        border = Convolution.of(X.shape, W.shape, padding=((1, 0), 1), allow_tf32=False)
        _, names = device.workspace([tune.launch_of(border)], None)
        assert names == (("eng101 (measured)",) if uneven_error < 1e-6 else ("eng100",))
        with ooc_cudnn.settings(memory_limit=2**14):
            assert planned().split.h_y < 16
            assert call(random) < 1e-6


@pytest.mark.parametrize("uneven_error", [1e-8, 1e-2])
def test_pieces_may_have_padding_where_the_measured_call_has_none(make, random, uneven_error):
    """Without padding there was nothing uneven to check, and so all were taken to be right."""
    make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, uneven_error=uneven_error))
    with ooc_cudnn.settings(allow_tf32=False):
        (measured,) = tuned(padding=0)
        assert numbers(measured) == [101]
        assert measured.options[0].is_right_uneven == (uneven_error < 1e-6)
        with ooc_cudnn.settings(memory_limit=2**14):
            assert planned().split.h_y < 16
            assert call(random) < 1e-6


def test_pieces_of_a_data_gradient_have_padding_that_its_call_has_not(make, random):
    make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, uneven_error=1e-2))
    w, dy = random.standard_normal((4, 4, 5, 5), "f4"), random.standard_normal((4, 4, 28, 12), "f4")
    (measured,) = tune.tune("convolution_backward_data", w=w, dy=dy)
    assert numbers(measured) == [101]
    with ooc_cudnn.settings(memory_limit=3 * 2**12):
        dx = ooc_cudnn.convolution_backward_data(w, dy)
    expected = measured.operation.reference(w, dy)
    assert np.abs(dx - expected).max() < 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("padding", "is_used"), [(((0, 0), (1, 1)), False), (((1, 0), (1, 1)), True)]
)
def test_an_engine_that_is_wrong_inside_is_used_nowhere(make, monkeypatch, padding, is_used):
    """A piece with rows on both sides has even padding: no table tells it from the whole."""
    make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6))
    error = Checks._error

    def errs(self, operation, engine):
        found = error(self, operation, engine)
        if operation.padding == padding and engine.number == 101:
            return found._replace(of_rounding=9.0)
        return found

    monkeypatch.setattr(Checks, "_error", errs)
    (measured,) = tuned()
    assert numbers(measured) == [101 if is_used else 100]
    assert measured.options[0].is_right_uneven is not is_used


def test_without_room_to_check_them_border_pieces_have_another_engine(make, monkeypatch):
    make(FakeEngine(100, 3e-6))
    computed = accuracy.compute
    monkeypatch.setattr(
        accuracy,
        "compute",
        lambda device, of, *rest: computed(device, of, *rest) if of.is_even else None,
    )
    (measured,) = tuned()
    assert not measured.options[0].is_right_uneven


def test_forms_keep_to_engines_that_were_measured_in_them(make):
    """Half types with float32 results: as they are, or widened to float32 in the workspace."""
    device = make(FakeEngine(100, 3e-8), FakeEngine(101, 1e-8))
    forward = Convolution.of(X.shape, W.shape, padding=1, dtype="float16")
    operation = ConvolutionBackwardFilter(forward, "float32")
    with device.arena.lock:
        bench = Bench(device, 2**20, batches=1, batch_seconds=0.0)
        found = EngineTuner(device, bench, Deadline()).measured(
            tune.launch_of(operation), every=True
        )
    (plain,) = found.options
    assert (plain.engine, plain.workspace_bytes) == (Engine(101), 0)  # it needs no copies
    with device.engines.forced(operation, Engine(101, form="widened")) as built:
        nbytes, name = built
    assert name == "eng101, widened"
    assert nbytes == 2 * 4 * 8 * 4 * 16 * 16
    found = device.engines.candidates(operation, every=True, compiled=True)
    assert {engine.form for engine in found} == {"", "widened"}


@pytest.mark.parametrize("channels", [8, 4])
def test_gradients_of_small_filters_are_split_over_the_card(make, channels):
    """The heuristics leave them whole. They run so where nothing was measured, and are measured."""
    ranges = {KnobType.KERNEL_CFG: 55, KnobType.SPLIT_K_SLC: 128}
    setting = {"KERNEL_CFG": 9, "SPLIT_K_SLC": 16}
    if channels < 8:  # unfolded, it is smaller still
        setting = {"KERNEL_CFG": 16, "SPLIT_K_SLC": 64}
    split = {getattr(KnobType, name): choice for name, choice in setting.items()}
    device = make(
        FakeEngine(100, 3e-8, ranges=ranges), FakeEngine(101, 2e-8),
        FakeEngine(100, 1e-8, 2**16, knobs=split, is_ranked=False),
    )  # fmt: skip
    forward = Convolution.of((2, channels, 6, 5), (8, channels, 3, 3), dtype="bfloat16")
    forward = dataclasses.replace(forward, layout="channels_last")
    operation, form = (
        ConvolutionBackwardFilter(forward, "float32"),
        "" if channels == 8 else "unfolded",
    )
    chosen = Engine(100, setting, form)
    assert device.engines.chosen(operation) == chosen
    assert device.engines.running(operation, 2**20) == (chosen, False)
    less = device.engines.chosen(operation, 2**15)
    assert (less.number, less.knobs) == (100, {}), "there is no room for its parts"
    _, (name,) = device.workspace([tune.launch_of(operation)], 2**15)
    assert name.endswith(", not split")
    _, (name,) = device.workspace([tune.launch_of(operation)], 2**20)
    assert not name.endswith(", not split")
    found = list(device.engines.candidates(operation, every=False, compiled=False))
    assert chosen in found[:2]
    for other in (forward, ConvolutionBackwardFilter(forward, "bfloat16")):
        assert device.engines.chosen(other).knobs == {}


def test_strict_gradients_of_border_pieces_are_made_symmetric(make):
    """By rows of zeros beside x: so an engine that is wrong with uneven padding sees none there."""
    device = make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, uneven_error=1.0))
    forward = Convolution.of(X.shape, W.shape, padding=((1, 0), 1), allow_tf32=False)
    operation = ConvolutionBackwardFilter(forward, "float32")
    with device.arena.lock:
        bench = Bench(device, 2**20, batches=1, batch_seconds=0.0)
        found = EngineTuner(device, bench, Deadline()).measured(
            tune.launch_of(operation), every=True
        )
    (option,) = found.options
    assert option.name == "eng101, symmetric rows"
    assert option.workspace_bytes == 4 * 8 * 4 * 17 * 16
    assert option.error < 1e-6


@pytest.mark.parametrize(("by_default", "is_taken"), [(0.9e-6, True), (1.5e-6, False)])
def test_a_knob_without_a_name_keeps_its_default(make, by_default, is_taken):
    """The frontend calls what it does not know NOT_SET, and refuses to be asked for that."""
    knobs = {KnobType.TILE_SIZE: 12, KnobType.NOT_SET: 3}
    chosen = FakeEngine(100, 1e-6, knobs=knobs, seconds_by_default=by_default)
    make(chosen, FakeEngine(101, 2e-6))
    (measured,) = tuned()
    asked = Engine(100, {"TILE_SIZE": 12}) if is_taken else HEURISTICS
    assert measured.options[0].engine == asked
    assert planned().algorithms == (f"{chosen.name} (measured)",)


def test_a_frontend_that_cannot_ask_for_engines_has_nothing_to_tune(make, monkeypatch):
    """Before version 1.28; calls are as they were."""
    make(FakeEngine(100, 3e-6))
    for name in ("get_engine_and_knobs_at_index", "get_engine_count"):
        monkeypatch.delattr(Graph, name)
    with pytest.raises(tune.NothingToTuneError, match=r"no engine .* could be measured"):
        tuned()
    assert planned().algorithms == ("eng100",)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", [None, ConvolutionBackwardData, ConvolutionBackwardFilter])
def test_errors_are_those_of_the_engine(make, kind, groups, layout):
    """In some channels of the result, which another reference computes whole."""
    device = make(FakeEngine(100, 1e-8), FakeEngine(101, 1e-8, error=1e-5))
    x, w = (3, 24, 40, 9), (20, 24 // groups, 3, 2)
    geometry = {"padding": (1, 0), "stride": (2, 1), "groups": groups}
    forward = Convolution.of(x, w, **geometry, allow_tf32=False)
    forward = dataclasses.replace(forward, layout=layout)
    operation = forward if kind is None else kind(forward, "float32")
    with device.arena.lock:
        checks = Checks(device, device.engines, 2**22)
        right = checks.of(operation, Engine(100), borders=True)
        wrong = checks.of(operation, Engine(101), borders=True)
    assert right.error.relative < 1e-6
    assert right.error.of_rounding < 0.2
    assert right.is_right_uneven
    assert wrong is None


@pytest.mark.parametrize(("error", "is_admitted"), [(2e-6, True), (1.2e-5, False)])
def test_sums_of_many_products_are_no_excuse(make, error, is_admitted):
    """What an engine with Winograd's transforms erred by, and one with direct sums."""
    device = make(FakeEngine(100, 1e-8, error=error))
    operation = Convolution.of((2, 512, 16, 16), (8, 512, 3, 3), allow_tf32=False)
    with device.arena.lock:
        checked = Checks(device, device.engines, 2**24).of(operation, Engine(100), borders=False)
    assert (checked is not None) == is_admitted


def test_there_may_be_no_room_to_check_in(make):
    device = make(FakeEngine(100, 1e-8, 2**20))
    with device.arena.lock:
        checks, operation = Checks(device, device.engines, 2**20), Convolution.of(X.shape, W.shape)
        assert checks.of(operation, Engine(100), borders=True) is None
        last_resort = checks.of(operation, Engine(100), borders=True, chosen=True)
    assert last_resort == (None, False)


def test_buffers_are_filled_once_for_all_engines_that_are_looked_at(make, monkeypatch):
    """And again where the block grows, or a check wrote into it."""
    filled, fill = [], Bench.fill
    monkeypatch.setattr(Bench, "fill", lambda *asked: filled.append(asked[2]) or fill(*asked))
    engines = [FakeEngine(100 + at, (1 + at) * 1e-6) for at in range(6)]
    make(*engines)
    tuned()
    buffers, block = 3, 1
    well_timed = 2  # the third takes more than 1.5 times as long
    assert [engine.launched > 2 for engine in engines] == [True] + [False] * 5
    assert len(filled) <= buffers * (block + well_timed)
    filled.clear()
    make(*(FakeEngine(100 + at, 1e-6, at * 2**14) for at in range(4)))
    tuned()
    assert len(filled) > buffers * (block + well_timed)


def test_what_cudnn_cannot_build_at_its_size_has_no_choice(make, monkeypatch):
    """The uncut convolution of a call is measured, too, on fewer images."""
    device = make(FakeEngine(100, 1e-6))
    operation = Convolution.of(X.shape, W.shape, padding=1)
    assert device.engines.chosen(operation) == Engine(100)

    def fails(self):
        raise RuntimeError("too large")

    monkeypatch.setattr(Graph, "validate", fails)
    assert device.engines.chosen(operation) is None


def test_an_engine_for_which_the_card_has_no_room_is_left_out(make, monkeypatch):
    """Another process may hold the memory that the limit would allow."""
    make(FakeEngine(100, 2e-6), FakeEngine(101, 1e-6, 64 * KIB))
    reserve = Bench.reserve

    def reserved(self, nbytes):
        if nbytes > 128 * KIB:
            raise DeviceOutOfMemoryError(
                requested_bytes=nbytes, available_bytes=0, limit_bytes=None, held_bytes=0,
                purpose="calibration",
            )  # fmt: skip
        return reserve(self, nbytes)

    monkeypatch.setattr(Bench, "reserve", reserved)
    (measured,) = tuned()
    assert numbers(measured) == [100]
