"""Engines chosen by measurement: what is measured, what is chosen for it, and what is kept."""

import dataclasses
import json
import time
import warnings

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import devices
from ooc_cudnn.calibration import run
from ooc_cudnn.devices.engine_files import (
    engines_path,
    forget_tables,
    operation_from,
    save_tables,
    tables_of,
)
from ooc_cudnn.devices.engines import Engine, Measured, Option, Tables, front
from ooc_cudnn.devices.machines import machine_path
from ooc_cudnn.devices.measuring import Bench
from ooc_cudnn.functions import trials, tune
from ooc_cudnn.functions.prepared import forget_calls
from ooc_cudnn.functions.tuning import Deadline, Tuning
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.operations.convolution_backward import (
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)
from ooc_cudnn.telling import forget_warnings
from ooc_cudnn.tensor import TensorSpec
from perfmodel import ComputeModel, Line, shipped
from tests.support.clock import Clock
from tests.support.engines_device import EnginesDevice
from tests.support.fake_cudnn import BehaviorNote, FakeEngine, Graph, KnobType, NumericalNote

X, W = TensorSpec((8, 4, 16, 16)), TensorSpec((4, 4, 3, 3))
#: A result of `X` and `W`, and of one of its images.
RESULTS = 8 * 4 * 16 * 16
IMAGE = RESULTS // 8
KIB = 2**10


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Make the device with given engines; its machine model says 1 us a result for all of them."""
    Clock(monkeypatch, look_seconds=1e-12)
    monkeypatch.setattr(trials, "SHORTEST_SECONDS", 0.0)
    monkeypatch.setattr(trials, "LARGEST_ERROR", np.inf)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_warnings()

    def made(*engines):
        device = EnginesDevice(list(engines), monkeypatch)
        monkeypatch.setitem(devices._resolved, "host", device)
        known, identity = shipped("host"), device.identity()
        a_result = 2 * 4 * 9 * 8  # flops, of 32 channels
        lines = {
            key: Line(1e-6 / a_result, 0.0) if key.startswith("convolution") else line
            for key, line in known.compute.lines.items()
        }
        told = dataclasses.replace(known, compute=ComputeModel(lines), identity=identity)
        told.save(machine_path(identity))
        ooc_cudnn.settings(machine=None, memory_limit=2**19)
        return device

    return made


def tuned(**options):
    options = {"x": X, "w": W, "padding": 1} | options
    return tune.tune("convolution_forward", **options)


def planned(**options):
    options = {"x": X, "w": W, "padding": 1} | options
    return ooc_cudnn.plan("convolution_forward", **options)


def call(random, **settings):
    """The convolution of `X` and `W`: how far it is from the reference."""
    x, w = random.standard_normal(X.shape, "f4"), random.standard_normal(W.shape, "f4")
    with ooc_cudnn.settings(**settings):
        y = ooc_cudnn.convolution_forward(x, w, padding=1)
    expected = Convolution.of(X.shape, W.shape, padding=1).reference(x, w)
    return np.abs(y - expected).max() / np.abs(expected).max()


def numbers(measured):
    return [option.engine.number for option in measured.options]


# What is measured ------------------------------------------------------------------------------


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


@pytest.mark.parametrize("note", ["TENSOR_CORE", "DOWN_CONVERT_INPUTS"])
def test_what_rounds_is_never_taken_for_strict_float32(make, note):
    make(FakeEngine(100, 2e-6), FakeEngine(101, 1e-6, notes=(NumericalNote[note],)))
    with ooc_cudnn.settings(allow_tf32=False):
        assert numbers(*tuned()) == [100]


@pytest.mark.parametrize(("error", "is_admitted"), [(1e-7, True), (1e-4, False), (np.nan, False)])
def test_an_engine_is_checked_before_it_is_used(make, random, error, is_admitted):
    wrong = FakeEngine(101, 1e-6, error=error)
    make(FakeEngine(100, 2e-6), wrong)
    with ooc_cudnn.settings(allow_tf32=False):
        (measured,) = tuned()
        assert numbers(measured) == ([101] if is_admitted else [100])
        assert call(random) < 1e-6


def test_coarse_sums_may_be_as_coarse_as_the_settings_say(make):
    make(FakeEngine(100, 2e-6), FakeEngine(101, 1e-6, error=1e-4))
    assert numbers(*tuned()) == [101]  # products of TF32 have 11 bits


def test_known_faults_are_no_candidates(make):
    make(FakeEngine(100, 2e-6), FakeEngine(17, 1e-6))
    with ooc_cudnn.settings(allow_tf32=False):
        asked = {"x": X, "dy": X, "filter_shape": W.shape, "padding": 1}
        (measured,) = tune.tune("convolution_backward_filter", **asked)
    assert numbers(measured) == [100]


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
        launched = tune.launched_of(operation)
        found = Tuning(device, bench, Deadline()).measured(launched, every=True)
    assert numbers(found) == [101, 100]
    tables_of(device).add(found)
    assert device.workspace([launched], None) == (KIB, ("eng101 (measured)",))
    assert device.workspace([tune.launched_of(operation.forward)], None) == (0, ("eng100",))


# What is chosen --------------------------------------------------------------------------------


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
    launched = tune.launched_of(Convolution.of((8, 4, 16, 16), (4, 4, 3, 3), padding=1))
    _, names = device.workspace([launched], budget, sparing=sparing)
    assert names == (f"eng{number} (measured)",)


def test_without_a_table_the_heuristics_choose(make):
    device = make(FakeEngine(100, 3e-6, KIB), FakeEngine(101, 1e-6), FakeEngine(102, 2e-6))
    assert planned().algorithms == ("eng100",)
    launched = tune.launched_of(Convolution.of((8, 4, 16, 16), (4, 4, 3, 3), padding=1))
    assert device.workspace([launched], 0) == (0, ("eng101",))
    assert not any(each.operation for each in tables_of(device))


def test_other_sizes_have_the_engines_of_the_nearest(make):
    device = make(FakeEngine(100, 1e-6), FakeEngine(101, 1e-6))
    tables = tables_of(device)
    for images, number in ((1, 100), (64, 101)):
        operation = Convolution.of((images, 4, 16, 16), (4, 4, 3, 3), padding=1)
        option = Option(1.0, 0, Engine(number), f"eng{number}", 1e-7)
        tables.add(Measured(operation.work(), (option,), operation))
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
    slow = dataclasses.replace(machine, step_seconds=0.02)
    monkeypatch.setattr(trials, "WORTH_SPARING", 0.99)
    monkeypatch.setattr("ooc_cudnn.functions.target.machine_for", lambda *_: slow)
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


# What calls wait for ---------------------------------------------------------------------------


def test_a_first_call_measures_what_it_has_time_for(make, monkeypatch):
    """Engines that take 0.2 s to build, for each size: not all can be."""
    monkeypatch.setattr(trials, "FIRST_CALLS_MEASURE", True)
    device = make(
        FakeEngine(100, 3e-8, build_seconds=0.2),
        FakeEngine(101, 2e-8, KIB, build_seconds=0.2),
        FakeEngine(102, 2.5e-8, 0, build_seconds=0.2),
        FakeEngine(103, 1e-8, 0, build_seconds=0.2),
    )
    began = time.perf_counter()
    plan = planned()
    assert 0.5 < time.perf_counter() - began < 1.0
    assert plan.algorithms not in [("eng100",), ("eng103 (measured)",)]
    assert tune.has_unfinished(device)
    assert tune.finish_tuning(device)
    assert not tune.has_unfinished(device)
    forget_calls()
    assert planned().algorithms == ("eng103 (measured)",)


def test_a_first_call_compiles_no_engines(make, monkeypatch):
    monkeypatch.setattr(trials, "FIRST_CALLS_MEASURE", True)
    compiled = FakeEngine(101, 1e-8, behavior=(BehaviorNote.RUNTIME_COMPILATION,))
    make(FakeEngine(100, 3e-8), compiled, FakeEngine(102, 2e-8))
    assert planned().algorithms == ("eng102 (measured)",)
    assert compiled.launched == 0


def test_too_little_memory_to_measure_in(make, monkeypatch):
    """The piece and its slots fill the memory: no engine that takes workspace was timed."""
    monkeypatch.setattr(trials, "FIRST_CALLS_MEASURE", True)
    make(FakeEngine(100, 3e-6))
    monkeypatch.setattr(Bench, "time_launch", lambda *asked, **more: None)
    with pytest.warns(UserWarning, match="no memory to measure engines of convolution_forward"):
        assert planned().algorithms == ("eng100",)


def test_what_is_known_is_not_measured_again(make):
    fast = FakeEngine(101, 1e-6, 8 * KIB)
    make(FakeEngine(100, 3e-6), fast)
    tuned()
    planned()
    launched = fast.launched
    for _ in range(2):
        forget_calls()  # as another process would
        planned()
        assert fast.launched == launched


def test_another_size_is_timed_by_the_engines_that_are_known(make):
    slow, fast, pruned = FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, KIB), FakeEngine(102, 9e-6)
    device = make(slow, fast, pruned)
    tuned()
    before = slow.launched, fast.launched, pruned.launched
    planned(x=TensorSpec((8, 4, 20, 16)))
    assert (slow.launched > before[0], fast.launched > before[1]) == (True, True)
    assert pruned.launched == before[2]
    sizes = {each.work.sized for each in tables_of(device) if each.operation is not None}
    assert len(sizes) > 1


# What fails ------------------------------------------------------------------------------------


def test_an_engine_that_fails_is_never_taken_again(make, random):
    fast = FakeEngine(101, 1e-6, 8 * KIB)
    device = make(FakeEngine(100, 3e-6), fast)
    tuned()
    fast.fails = True
    with pytest.warns(
        UserWarning, match=r"engine eng101 failed for convolution_forward .*next one"
    ):
        assert call(random) < 1e-6
    fast.fails = False
    launched = fast.launched
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call(random) < 1e-6
    assert fast.launched == launched
    save_tables(device)
    forget_calls()
    assert planned().algorithms == ("eng100 (measured)",)


def test_the_heuristics_choice_may_fail_too(make, random):
    make(FakeEngine(100, 1e-6, fails=True), FakeEngine(101, 3e-6))
    with ooc_cudnn.settings(deterministic=True), pytest.warns(UserWarning, match="eng100 failed"):
        assert call(random) < 1e-6


def test_an_engine_that_fails_while_it_is_measured_is_left_out(make):
    make(FakeEngine(100, 2e-6), FakeEngine(101, 1e-6, fails=True))
    assert numbers(*tuned()) == [100]


def test_nothing_to_tune(host_device):
    with pytest.raises(tune.NothingToTuneError, match="host has one way"):
        tuned()


def test_a_call_without_convolutions_has_nothing_to_tune(make):
    make(FakeEngine(100, 2e-6))
    with pytest.raises(tune.NothingToTuneError, match="launches no convolution"):
        tune.tune("pooling_forward", x=X, window=2)


# What is kept ----------------------------------------------------------------------------------


def test_what_was_measured_is_read_by_later_processes(make):
    device = make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 8 * KIB))
    (measured,) = tuned()
    forget_tables()
    (read,) = tables_of(device)
    assert read == dataclasses.replace(measured, is_stored=True)
    assert engines_path(device).name.startswith("Fake-9000_91900_")


def test_processes_do_not_lose_what_others_stored(make):
    device = make(FakeEngine(100, 3e-6))
    tuned()
    forget_tables()
    mine = tables_of(device)
    mine._known.clear()
    mine._by_kind.clear()
    operation = Convolution.of((8, 2, 16, 16), (4, 2, 3, 3))
    option = Option(1.0, 0, Engine(100), "eng100", 1e-7)
    mine.add(Measured(operation.work(), (option,), operation))
    save_tables(device)
    forget_tables()
    assert len(list(tables_of(device))) == 2


def broken(data, **changes):
    """A stored table, with some values of its first launch changed."""
    launch = {**data["launches"][0], **changes}
    return json.dumps({**data, "launches": [launch]})


BAD = {
    "empty": lambda data: "",
    "cut off": lambda data: json.dumps(data)[:-40],
    "not JSON": lambda data: "\0\1\2",
    "deep": lambda data: "[" * 100_000,
    "a list": lambda data: "[]",
    "another format": lambda data: json.dumps({**data, "format": "shopping list"}),
    "newer": lambda data: json.dumps({**data, "version": 2}),
    "another card": lambda data: json.dumps(
        {**data, "identity": {"gpu": "other", "cudnn": "91900"}}
    ),
    "another cuDNN": lambda data: json.dumps(
        {**data, "identity": {"gpu": "Fake 9000", "cudnn": "8"}}
    ),
    "no launches": lambda data: json.dumps({n: v for n, v in data.items() if n != "launches"}),
    "launches of no kind": lambda data: json.dumps({**data, "launches": 7}),
    "an unknown name": lambda data: broken(data, more=1),
    "an unknown function": lambda data: broken(data, function="pooling_forward"),
    "an unknown dtype": lambda data: broken(data, dtype="int8"),
    "an unknown layout": lambda data: broken(data, layout="sideways"),
    "a shape of words": lambda data: broken(data, x_shape=["a", "b", 1, 1]),
    "a negative shape": lambda data: broken(data, x_shape=[8, -4, 16, 16]),
    "a shape of fractions": lambda data: broken(data, x_shape=[8, 4, 16.5, 16]),
    "channels that do not fit": lambda data: broken(data, w_shape=[4, 3, 3, 3]),
    "no switch": lambda data: broken(data, allow_tf32="yes"),
    "no pairs": lambda data: broken(data, padding=[1, 1]),
    "engines of no kind": lambda data: broken(data, engines=3),
    "negative seconds": lambda data: broken(
        data, engines=[{**data["launches"][0]["engines"][0], "seconds": -1.0}]
    ),
    "no seconds": lambda data: broken(
        data, engines=[{**data["launches"][0]["engines"][0], "seconds": 0}]
    ),
    "an error of NaN": lambda data: broken(
        data, engines=[{**data["launches"][0]["engines"][0], "error": np.nan}]
    ),
    "no engine": lambda data: broken(
        data, engines=[{**data["launches"][0]["engines"][0], "engine": "eng4"}]
    ),
    "an unknown form": lambda data: broken(
        data,
        engines=[{**data["launches"][0]["engines"][0], "engine": {"number": 1, "form": "odd"}}],
    ),
}


def stored(device):
    """A table of one launch, made by hand and stored: what its file holds."""
    operation = Convolution.of(X.shape, W.shape, padding=1)
    option = Option(1e-6, 8 * KIB, Engine(101), "eng101", 1e-7)
    tables_of(device).add(Measured(operation.work(), (option,), operation))
    return save_tables(device)


@pytest.mark.parametrize("what", BAD)
def test_a_file_that_cannot_be_used_is_ignored_and_said_once(make, what):
    device = make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 8 * KIB))
    path = stored(device)
    path.write_text(BAD[what](json.loads(path.read_text())), encoding="utf-8")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            forget_tables()
            assert not list(tables_of(device))
    (only,) = said
    assert "stored engines of fake are ignored" in str(only.message)


def test_calls_do_without_a_file_that_cannot_be_used_and_tuning_mends_it(make):
    device = make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 8 * KIB))
    stored(device).write_text("{")
    forget_tables()
    with pytest.warns(UserWarning, match="so cuDNN's heuristics choose"):
        assert planned().algorithms == ("eng100",)
    tuned()
    assert planned().algorithms == ("eng101 (measured)",)


def test_engines_of_another_cudnn_are_said_to_be_ignored(make):
    device = make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 8 * KIB))
    tuned()
    device.told = {**device.told, "cudnn": "92000"}
    forget_tables()
    with pytest.warns(UserWarning, match="with another cuDNN than the one that is loaded"):
        assert not list(tables_of(device))


def test_a_folder_that_cannot_be_written_is_no_hindrance_to_calls(make, monkeypatch, tmp_path):
    monkeypatch.setattr(trials, "FIRST_CALLS_MEASURE", True)
    make(FakeEngine(100, 3e-8), FakeEngine(101, 1e-8))
    (tmp_path / "ooc_cudnn" / "engines").write_text("a file")
    with pytest.warns(UserWarning, match=r"cannot be (stored|used|read)|are ignored"):
        assert planned().algorithms == ("eng101 (measured)",)
    with pytest.raises(OSError, match=r"exists|directory"):
        tuned()


def test_what_no_user_may_ask_for_is_not_stored(make):
    """A piece may see more padding than a call may have: such a file could not be read."""
    device = make(FakeEngine(100, 1e-6))
    piece = Convolution((1, 4, 2, 16), (4, 4, 3, 3), ((-1, 9), (1, 1)), (1, 1), (1, 1))
    option = Option(1.0, 0, Engine(100), "eng100", 1e-7)
    tables_of(device).add(Measured(piece.work(), (option,), piece))
    save_tables(device)
    forget_tables()
    assert not list(tables_of(device))


def test_an_operation_is_what_its_file_says():
    with pytest.raises(ValueError, match="function is 'x'"):
        operation_from({"function": "x", "layout": "", "result_dtype": "", "dtype": ""})


def test_a_front_keeps_the_least_workspace():
    assert front([]) == ()
    made = [Option(1.0, 8), Option(1.0, 4), Option(2.0, 0), Option(0.5, 8)]
    assert [(each.seconds, each.workspace_bytes) for each in front(made)] == [
        (0.5, 8), (1.0, 4), (2.0, 0),
    ]  # fmt: skip


def test_what_was_stored_says_nothing_of_other_problems():
    """A family is as slow as the slowest that this process has seen, not as any that ever was."""
    machine = shipped("host")
    work = Convolution.of((8, 4, 16, 16), (4, 4, 3, 3)).work()
    other = Convolution.of((8, 8, 16, 16), (4, 8, 3, 3)).work()
    slow = Measured(work, (Option(1e3 * machine.compute.seconds(work)),))
    plain = machine.compute.seconds(other)
    assert Tables([slow]).corrected(machine).compute.seconds(other) == plain
    tables = Tables()
    tables.add(slow)
    found = tables.corrected(machine).compute.seconds(other)
    assert found == pytest.approx(1e3 * plain, rel=1e-3)


# Forms, and pieces at a border -------------------------------------------------------------------


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
        _, names = device.workspace([tune.launched_of(border)], None)
        assert names == (("eng101 (measured)",) if uneven_error < 1e-6 else ("eng100",))
        with ooc_cudnn.settings(memory_limit=2**14):
            assert planned().split.h_y < 16
            assert call(random) < 1e-6


def test_forms_keep_to_engines_that_were_measured_in_them(make):
    """Half types with float32 results: as they are, or widened to float32 in the workspace."""
    device = make(FakeEngine(100, 3e-8), FakeEngine(101, 1e-8))
    forward = Convolution.of(X.shape, W.shape, padding=1, dtype="float16")
    operation = ConvolutionBackwardFilter(forward, "float32")
    with device.arena.lock:
        bench = Bench(device, 2**20, batches=1, batch_seconds=0.0)
        found = Tuning(device, bench, Deadline()).measured(tune.launched_of(operation), every=True)
    (plain,) = found.options
    assert (plain.engine, plain.workspace_bytes) == (Engine(101), 0)  # it needs no copies
    with device.engines.forced(operation, Engine(101, form="widened")) as built:
        nbytes, name = built
    assert name == "eng101, widened"
    assert nbytes == 2 * 4 * 8 * 4 * 16 * 16
    assert {engine.form for engine in device.engines.candidates(operation, every=True)} == {
        "", "widened",
    }  # fmt: skip


def test_strict_gradients_of_border_pieces_are_made_symmetric(make):
    """By rows of zeros beside x: so an engine that is wrong with uneven padding sees none there."""
    device = make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, uneven_error=1.0))
    forward = Convolution.of(X.shape, W.shape, padding=((1, 0), 1), allow_tf32=False)
    operation = ConvolutionBackwardFilter(forward, "float32")
    with device.arena.lock:
        bench = Bench(device, 2**20, batches=1, batch_seconds=0.0)
        found = Tuning(device, bench, Deadline()).measured(tune.launched_of(operation), every=True)
    (option,) = found.options
    assert option.name == "eng101, symmetric rows"
    assert option.workspace_bytes == 4 * 8 * 4 * 17 * 16
    assert option.error < 1e-6


def test_a_plan_without_room_for_its_engine_is_priced_with_the_one_it_has(make):
    make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 127 * KIB))
    tuned()
    with ooc_cudnn.settings(memory_limit=2**17):
        plan = planned()
    assert plan.algorithms == ("eng100 (measured)",)
    assert plan.compute_seconds == pytest.approx(3e-6 * RESULTS, rel=0.1)


def test_an_engine_without_room_in_one_call_keeps_its_place_for_others(make):
    """Its seconds at that size are guessed from those that were timed."""
    device = make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 100 * KIB))
    tuned()
    launched = tune.launched_of(Convolution.of((6, 4, 16, 16), (4, 4, 3, 3), padding=1))
    options = tables_of(device).options(launched[0].operation)
    with device.arena.lock:
        bench = Bench(device, 2**17, batches=1, batch_seconds=0.0)
        found = Tuning(device, bench, Deadline()).measured_again(launched, options)
    assert numbers(found) == [101, 100]
    assert found.options[0].seconds == pytest.approx(6 * IMAGE * 1e-6, rel=0.01)


def test_known_engines_are_timed_again_for_a_second_at_most(make):
    device = make(FakeEngine(100, 3e-6, build_seconds=0.6), FakeEngine(101, 1e-6, KIB))
    tuned()
    launched = tune.launched_of(Convolution.of((6, 4, 16, 16), (4, 4, 3, 3), padding=1))
    options = tables_of(device).options(launched[0].operation)
    with device.arena.lock:
        bench = Bench(device, 2**20, batches=1, batch_seconds=0.0)
        began = time.perf_counter()
        deadline = Deadline(1.0)
        found = Tuning(device, bench, deadline).measured_again(launched, options[::-1])
    assert time.perf_counter() - began < 1.0
    assert numbers(found) == [101, 100]


def test_a_frontend_that_cannot_ask_for_engines_has_nothing_to_tune(make, monkeypatch):
    """Before version 1.28; calls are as they were."""
    make(FakeEngine(100, 3e-6))
    for name in ("get_engine_and_knobs_at_index", "get_engine_count"):
        monkeypatch.delattr(Graph, name)
    with pytest.raises(tune.NothingToTuneError, match=r"no engine .* could be measured"):
        tuned()
    assert planned().algorithms == ("eng100",)


@pytest.mark.parametrize("quick", [False, True])
def test_a_full_calibration_ends_what_calls_began(make, monkeypatch, quick):
    device = make(FakeEngine(100, 3e-8), FakeEngine(101, 1e-8, is_ranked=False))
    monkeypatch.setattr(trials, "FIRST_CALLS_MEASURE", True)
    assert planned().algorithms == ("eng100 (measured)",)
    model = dataclasses.replace(shipped("host"), identity=device.identity())
    monkeypatch.setattr(run, "measure", lambda session, progress: {})
    monkeypatch.setattr(run, "fit_model", lambda session, found, before: model)
    run.calibrate(device, quick=quick)
    assert tune.has_unfinished(device) == quick
    assert planned().algorithms == (f"eng{100 + (not quick)} (measured)",)
