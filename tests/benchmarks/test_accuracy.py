"""The accuracy of the performance model: what is drawn, what is summed up, and a tiny run."""

import itertools
import json
import os
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

import ooc_cudnn
from benchmarks import accuracy_calls, accuracy_splits, model_accuracy, reprice
from benchmarks.accuracy_calls import measure_again, measure_call
from benchmarks.accuracy_chains import CHAINS, FIRST, chains
from benchmarks.accuracy_draw import SCALES, Drawn, Operand, draw
from benchmarks.accuracy_operands import Blocks, Bound, shaped, stored_bytes, words
from benchmarks.accuracy_plans import Described
from benchmarks.accuracy_sketches import SKETCHES, convolution_flops, windowed
from benchmarks.accuracy_splits import (
    LEAST_SPLITS,
    MOST_PIECES,
    MOST_SPLITS,
    draw_problem,
    final_ratio,
    grid,
    problem_scale,
    rank_correlation,
    runner,
    sources_of,
)
from benchmarks.accuracy_summary import errors, grouped, rounded, worst
from ooc_cudnn.bench.timing import Timing
from ooc_cudnn.call_planner import table as pricing_table
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.machines import machine_path
from ooc_cudnn.engines.target import Target
from ooc_cudnn.functions.call.decorator import FUNCTIONS
from ooc_cudnn.functions.call.plan_api import plan, planned_call
from ooc_cudnn.functions.call.plan_chain import forget_plans
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import DTYPES, TensorSpec, numpy_dtype
from perfmodel import shipped
from tests.support.sampling import EVERY

#: The calls that are measured in every run.
FIXED = range(FIRST, FIRST + len(CHAINS))
#: No call is left out for want of time, however busy the machine.
QUICK = ["--quick", "--device", "host", "--seconds", "1e9", "--split-seconds", "1e9"]


def test_every_public_function_is_drawn():
    assert set(SKETCHES) == set(FUNCTIONS)
    turn = [draw(7, index, SCALES["cuda"]).function for index in range(len(SKETCHES))]
    assert set(turn) == set(FUNCTIONS)


@pytest.mark.parametrize("scale", SCALES)
def test_a_draw_is_a_function_of_its_seed_and_keeps_to_its_scale(scale):
    bounds = SCALES[scale]
    for index in range(len(SKETCHES) * 3):
        drawn = draw(3, index, bounds)
        assert drawn == draw(3, index, bounds)
        assert Drawn.from_json(json.loads(json.dumps(drawn.to_json()))) == drawn
        assert bounds.smallest_bytes <= drawn.nbytes <= 2 * bounds.largest_bytes
        assert drawn.flops <= max(bounds.flops.values())
    assert draw(3, 0, bounds) != draw(4, 0, bounds)


def test_draws_differ_in_everything():
    drawn = [draw(1, index, SCALES["cuda"]) for index in range(120)]
    operands = [operand for each in drawn for operand in each.operands]
    assert {operand.dtype for operand in operands} == set(DTYPES)
    assert {o.placement for o in operands} == {"device", "pinned", "pageable", "disk"}
    assert {o.order for o in operands} == {"channels_first", "channels_last", "rows_apart"}
    assert {len(o.shape) for o in operands if o.fill == "result"} >= {3, 4, 5}
    assert {each.allow_tf32 for each in drawn} == {True, False}
    shares = [each.memory_share for each in drawn]
    assert min(shares) < 0.05
    assert max(shares) > 1
    assert any(each.arguments.get("groups", 1) > 1 for each in drawn)


def test_shapes_of_draws_are_those_that_the_library_computes():
    for index in range(len(SKETCHES) * 2):
        drawn = draw(5, index, SCALES["cuda"])
        if drawn.operations:
            continue  # planned with arrays, in the tiny run
        specs = {o.name: TensorSpec(o.shape, o.dtype, "pinned") for o in drawn.operands}
        results = tuple(specs.pop(o.name) for o in drawn.operands if o.fill == "result")
        found = plan(
            drawn.function,
            machine="h200",
            memory_limit="100GiB",
            out=results if len(results) > 1 else results[0],
            **specs,
            **drawn.arguments,
        )
        assert found.seconds > 0


def test_arithmetic_of_a_sketch():
    # 2 * 10 * 10 sites * 3 * 3 taps, and one step of 32 channels each way instead of 3 to 5
    assert convolution_flops((5, 3, 3, 3), (5, 10, 10), 1) == 2 * 100 * 9 * 32 * 32
    assert windowed((8, 9), 3, 1, 2) == (4, 5)
    assert windowed((8,), 3, 0, 1, dilation=2) == (4,)


@pytest.mark.parametrize("dtype", DTYPES)
def test_words_are_numbers_in_every_dtype(dtype):
    values = words(2**16).view(numpy_dtype(dtype)).astype(np.float64)
    assert np.isfinite(values).all()
    assert np.abs(values).max() < 2
    assert np.abs(values).min() >= 2.0**-63
    assert 0.4 < (values < 0).mean() < 0.6


@pytest.mark.parametrize("order", ["channels_first", "channels_last", "rows_apart"])
def test_memory_orders(order):
    operand = Operand("x", (2, 3, 4, 5), "float32", "pageable", order, "data")
    raw = np.zeros(stored_bytes(operand), np.uint8)
    array = shaped(raw, operand)
    array[...] = np.arange(120).reshape(2, 3, 4, 5)
    assert array.shape == operand.shape
    steps = {"channels_first": 60, "channels_last": 60, "rows_apart": 105}
    assert array.strides[0] == 4 * steps[order]
    assert array.strides[1] == {"channels_first": 80, "channels_last": 4, "rows_apart": 140}[order]
    assert np.count_nonzero(raw.view(np.float32)) == 119


@pytest.fixture(autouse=True)
def _others_do_not_count(monkeypatch):
    monkeypatch.setattr(accuracy_calls, "QUIET_TRIES", 1)


@pytest.fixture
def blocks(tmp_path):
    return Blocks("host", SCALES["tiny"], tmp_path)


def test_operands_are_where_they_were_drawn(blocks):
    for index in range(len(SKETCHES)):
        drawn = draw(2, index, SCALES["tiny"])
        bound = Bound(drawn, blocks)
        for operand in drawn.operands:
            array = bound.arrays[operand.name]
            assert array.shape == operand.shape
            assert array.dtype == numpy_dtype(operand.dtype)
            assert ooc_cudnn.placement(array) == operand.placement


def test_results_that_are_not_written_are_seen(blocks):
    bound = Bound(draw(2, 0, SCALES["tiny"]), blocks)
    bound.poison()
    assert not bound.look()["ok"]
    bound()
    assert bound.look()["ok"]


def test_one_call_is_measured_stage_by_stage(blocks):
    found = measure_call(draw(2, 1, SCALES["tiny"]), blocks)
    assert found["peak_exact"]
    assert found["contents"]["ok"]
    assert found["predicted/measured"] == found["predicted_seconds"] / found["seconds"]
    assert found["profile"]["pieces"] >= 1
    assert set(found["stages"]) == {"copy_in", "compute", "copy_out"}
    assert found["replay"]["seconds"] > 0


def test_of_several_rounds_the_quietest_counts(blocks):
    drawn = draw(2, 1, SCALES["tiny"])
    found = measure_call(drawn, blocks)
    once = dict(found)
    measure_again(found, drawn, blocks)
    assert found["round_seconds"][0] == once["seconds"]
    assert found["seconds"] == min(found["round_seconds"]) == found["timing"]["median"]
    assert found["predicted/measured"] == found["predicted_seconds"] / found["seconds"]
    found |= {"seconds": 1e-9, "timing": once["timing"] | {"median": 1e-9}}
    measure_again(found, drawn, blocks)
    assert len(found["round_seconds"]) == 3
    assert found["seconds"] == found["timing"]["median"] == 1e-9


def _call(ratio, name="f"):
    return {"predicted/measured": ratio, "name": name}


def test_errors_are_summed_up():
    calls = [_call(ratio) for ratio in (0.5, 0.9, 1.0, 1.1, 1.4)]
    found = errors([call["predicted/measured"] for call in calls])
    assert found["median"] == pytest.approx(0.1)
    assert found["max"] == pytest.approx(0.5)
    assert found["p90"] == pytest.approx(0.46)  # 0, 0.1, 0.1, 0.4, 0.5: 0.4 + 0.6 * 0.1
    assert found["median_ratio"] == 1.0
    assert [call["predicted/measured"] for call in worst(calls, 2)] == [0.5, 1.4]
    assert set(grouped([_call(1, "a"), _call(2, "b")], lambda call: call["name"])) == {"a", "b"}


def test_figures_are_rounded_wherever_they_stand():
    found = rounded({"a": [1.23456789, 7], "b": {"c": (True, "x", 1.0e-9 / 3)}})
    assert found == {"a": [1.23457, 7], "b": {"c": [True, "x", 3.33333e-10]}}


def to(folder):
    return "--output", str(folder), "--scratch", str(folder)


@pytest.mark.every_case
def test_a_tiny_run_writes_what_it_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(accuracy_splits, "FINAL_SECONDS", 0.0)  # no more rounds than it takes
    path = tmp_path / "model_accuracy_host.json"
    arguments = [*QUICK, "--machine", "host", "--calls", "4", "--seed", "2", "--problems", "2"]
    assert model_accuracy.main([*arguments, *to(tmp_path)]) == 0
    report = json.loads(path.read_text())
    assert report["quick"] is True
    assert report["verified"] is True
    found = [call["drawn"]["index"] for call in report["measurements"]["calls"]]
    assert found == [*FIXED, 0, 1, 2, 3]
    assert report["measurements"]["drawn with"]["seed"] == 2
    assert report["measurements"]["machine model"]["format"] == "ooc_cudnn machine model"
    assert "by function" in capsys.readouterr().out


def test_beyond_the_bounds_it_fails_and_says_what_was_missed(tmp_path, capsys):
    arguments = ["--device", "host", "--machine", "h200", "--scale", "tiny", "--only", "1"]
    arguments += ["--part", "calls", "--seconds", "1e9"]
    assert model_accuracy.main([*arguments, *to(tmp_path)]) == 1
    assert "MISSED: error of the closed_form, median" in capsys.readouterr().out


def test_calls_are_planned_by_a_calibration_of_its_own_as_users_are(tmp_path, monkeypatch):
    calibrated, seen = [], []

    def calibrate(device, quick):
        identity = dict(device.identity())
        replace(shipped("host"), name="own", identity=identity).save(machine_path(identity))
        calibrated.append((machine_path(identity), quick))

    def look(drawn, blocks):
        settings = current()
        target = Target.here(get_device("host"), 2**20, "float32", settings)
        seen.append((settings.machine, target.machine.name, target.trial_device))
        return measure_call(drawn, blocks)

    monkeypatch.setattr(model_accuracy, "chains", lambda scale: ())
    monkeypatch.setattr(ooc_cudnn, "calibrate", calibrate)
    monkeypatch.setattr(model_accuracy, "measure_call", look)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of the user"))
    arguments = [*QUICK, "--calls", "1", "--part", "calls"]
    arguments += to(tmp_path)
    model_accuracy.main(arguments)
    assert seen == [(None, "own", get_device("host"))]
    ((path, quick),) = calibrated
    assert quick
    assert not path.exists()
    assert not (tmp_path / "of the user").exists()
    assert os.environ["XDG_CACHE_HOME"] == str(tmp_path / "of the user")


def test_a_call_that_fails_is_recorded_and_the_others_run(tmp_path, monkeypatch):
    measured = []

    def fails_once(drawn, blocks):
        measured.append(drawn.index)
        if drawn.index == 0:
            raise RuntimeError("the card fell off")
        return measure_call(drawn, blocks)

    monkeypatch.setattr(model_accuracy, "chains", lambda scale: ())
    monkeypatch.setattr(model_accuracy, "measure_call", fails_once)
    path = tmp_path / "model_accuracy_host_calls.json"
    arguments = [*QUICK, "--machine", "host", "--calls", "2", "--seed", "2", "--part", "calls"]
    model_accuracy.main([*arguments, *to(tmp_path)])
    found = json.loads(path.read_text())["measurements"]
    assert measured == [0, 1]
    assert [failed["error"] for failed in found["failed"]] == ["RuntimeError: the card fell off"]
    assert [call["drawn"]["index"] for call in found["calls"]] == [1]


@pytest.mark.parametrize("scale", SCALES)
def test_chains_that_computing_binds_are_the_same_in_every_run(scale):
    found = chains(scale)
    assert [drawn.index for drawn in found] == list(FIXED)
    assert found == chains(scale)
    for drawn in found:
        assert Drawn.from_json(json.loads(json.dumps(drawn.to_json()))) == drawn
        channels = {operand.shape[1] for operand in drawn.operands if "].w" in operand.name}
        assert min(channels) >= 3
        assert sum(kind == "Convolution" for kind, _ in drawn.operations) in (6, 12, 13)


def test_on_a_card_computing_binds_those_chains():
    for drawn in chains("cuda")[:: 1 if EVERY else 3]:
        given = Described(drawn).arguments()
        asked = {"machine": "h200", "memory_limit": drawn.memory_limit}
        assert ooc_cudnn.plan(drawn.function, **asked, **given).binding_stage == "compute"
        assert drawn.flops > 1e12


def test_problems_have_to_be_cut_and_are_smaller():
    scale = problem_scale("cuda")
    drawn = [draw_problem(3, index, scale) for index in range(40)]
    found = [each for each in drawn if each is not None]
    assert 10 < len(found) < 40
    assert all(0.08 <= each.memory_share <= 0.5 for each in found)
    assert all(each.placement_class in ("pinned", "pageable") for each in found)
    assert all(each.nbytes <= 2 * scale.largest_bytes for each in found)
    assert found[0] == draw_problem(3, found[0].index, scale)


@pytest.fixture
def problem(blocks):
    drawn = replace(draw(2, 1, SCALES["tiny"]), memory_share=0.3)
    bound = Bound(drawn, blocks)
    planned = planned_call(drawn.function, memory_limit=drawn.memory_limit, **bound.arguments())
    return bound, planned.parts[0].request


def test_a_grid_holds_different_splits_within_the_limit(problem):
    _, request = problem
    plans = grid(request, None)
    cuts = [tuple(request.chain.ranges(plan.split).items()) for plan in plans]
    assert LEAST_SPLITS <= len(plans) <= MOST_SPLITS
    assert all(cut not in cuts[:at] for at, cut in enumerate(cuts))
    assert all(plan.device_bytes <= request.memory_limit for plan in plans)
    assert all(plan.pieces <= MOST_PIECES * request.chain.sweeps for plan in plans)


def test_every_plan_of_a_grid_gives_the_same_result(problem):
    bound, request = problem
    bound()
    expected = [array.copy() for array in bound.results.values()]
    sources = sources_of(bound)
    for each in grid(request, None):
        for array in bound.results.values():
            array[...] = np.nan
        runner(bound.blocks.device, request, each, sources)()
        for array, right in zip(bound.results.values(), expected, strict=True):
            np.testing.assert_allclose(
                array.astype(np.float64), right.astype(np.float64), rtol=1e-3, atol=1e-3
            )


def test_the_best_split_is_found_round_by_round():
    drifting = np.array([1.0, 2.0, 4.0])
    found = final_ratio(
        {
            "0": Timing(tuple(1.1 * drifting)),
            "3": Timing(tuple(1.0 * drifting)),
            "5": Timing(tuple(1.05 * drifting)),
        }
    )
    assert found["chosen/best"] == pytest.approx(1.1)
    assert found["best"] == 3
    assert final_ratio({"0": Timing((1.0,)), "1": Timing((2.0,))})["chosen/best"] == 1.0
    assert rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]) == pytest.approx(1)
    assert rank_correlation([1.0, 2.0, 3.0], [30.0, 20.0, 10.0]) == pytest.approx(-1)


def test_what_was_measured_is_priced_again(tmp_path, capsys):
    record = model_accuracy.script.RESULTS / "model_accuracy_cuda_calls.json"
    chosen = list(reprice.measured(record))[:: 1 if EVERY else 3]
    calls = list(reprice.repriced(chosen))
    assert len(calls) > (40 if EVERY else 13)
    # Where the link binds, neither trials nor what was learnt of staging since make a difference.
    pinned = [each for each in calls if each.call.drawn.placement_class == "pinned"]
    assert len(pinned) > (20 if EVERY else 6)
    moved = np.array([each.closed_form / each.call.then for each in pinned])
    assert np.median(np.abs(moved - 1.0)) < 0.05
    both = np.array([each.replay / each.closed_form for each in pinned])
    assert np.median(np.abs(both - 1.0)) < 0.01
    few = json.loads(record.read_text())
    few["measurements"]["calls"] = few["measurements"]["calls"][:3]
    path = tmp_path / record.name
    path.write_text(json.dumps(few))
    assert reprice.main([str(path), "--worst", "3"]) == 0
    assert "median now" in capsys.readouterr().out


def test_splits_whose_pieces_take_turns_are_told_apart():
    record = model_accuracy.script.RESULTS / "model_accuracy_cuda_splits.json"

    def errors_by_kind():
        forget_plans()
        found = {}
        for each in reprice.repriced(list(itertools.islice(reprice.measured(record), 2, 4))):
            found.setdefault(each.kind, []).append(each.closed_form)
        return {kind: reprice.off(ratios) for kind, ratios in found.items()}

    whole = errors_by_kind()
    with mock.patch.object(pricing_table, "_meeting", return_value=(0.0, 0.0)):
        found = errors_by_kind()
    forget_plans()
    assert set(whole) == set(found) == {"card, splits", "card, splits, one slot"}
    others, one_slot = "card, splits", "card, splits, one slot"
    assert found[others] == whole[others]
    # a result leaves while the next piece comes in, there as well
    assert found[one_slot]["median"] > 2 * whole[one_slot]["median"]
