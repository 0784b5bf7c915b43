"""What the planner finds is the best of all splits, layouts apart, and found quickly."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.planning_problems import arguments, drawn_sizes, problems, request
from ooc_cudnn.functions.plan import plan_request
from ooc_cudnn.functions.public import FUNCTIONS
from ooc_cudnn.operations.splittable import ALONE, AXES
from ooc_cudnn.pipeline import counted, grid_rings, promising
from ooc_cudnn.pipeline.estimates import Estimates
from ooc_cudnn.pipeline.grid import Grid
from ooc_cudnn.pipeline.loop_orders import different_orders, legal_orders
from ooc_cudnn.pipeline.piece_model import CHANNELS, PieceModel
from ooc_cudnn.pipeline.planner import make_plan
from ooc_cudnn.pipeline.pricing import SplitProblem
from ooc_cudnn.tensor import TensorSpec
from perfmodel import InfeasibleError, Line, exhaustive_search, guided_search, pipeline, shipped
from perfmodel import Split as Sizes
from tests.support.splits import MAKERS, Split, loop_orders, make

MACHINE = "h200"
WITHIN = 1.01
#: Five times what benchmarks/planning.py allows.
SECONDS = 5 * 0.005


def best_of(search, made, sizes):
    """Predicted seconds; infinite where nothing fits."""
    problem = SplitProblem(replace(made), made.layouts[0], 0, sizes)
    try:
        return search(problem, made.memory_limit).price.seconds
    except InfeasibleError:
        return math.inf


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("small", "count", "sizes"), [(True, 3, 6), (False, 2, 4)])
def test_what_is_found_is_the_best_of_all_splits(function, small, count, sizes):
    for _, share, made in problems((function,), count, 3, MACHINE, small=small):
        best, found = (
            best_of(search, made, sizes) for search in (exhaustive_search, guided_search)
        )
        assert best * (1 - 1e-6) <= found <= best * WITHIN or found == best, (
            f"{share} of the data, {made.chain.extents}"
        )


def distances(made):
    """How far estimates are from the prices of splits that are legal, in logarithms."""
    made = replace(made, memory_limit=2**60)
    problem = SplitProblem(made, made.layouts[0], 0, 4)
    grid = Grid(made, made.layouts[0], problem.sizes)
    seconds = Estimates(grid, 2**60).fastest
    found = []
    for at in np.ndindex(*seconds.shape):
        sizes = {axis: grid.sizes[axis][i] for axis, i in zip(AXES, at, strict=True)}
        price = problem.price(Sizes(**sizes))
        if price.legal and np.isfinite(seconds[at]):
            found.append(abs(math.log(seconds[at] / price.seconds)))
    return found


@pytest.mark.parametrize("groups", [1, 2])
def test_pieces_are_looked_at_where_those_between_are_not_on_a_line(groups):
    """Few channels are one step of the kernels; pieces of several groups differ from others."""
    x, w = TensorSpec((8, 96 * groups, 64, 64)), TensorSpec((400 * groups, 96, 3, 3))
    made = plan_request(
        "convolution_forward", machine=MACHINE, memory_limit=2**30, x=x, w=w, padding=1,
        groups=groups,
    )  # fmt: skip
    sizes = {"n": (8, 4, 1), "c_y": (400, 64, 32, 9, 1), "h_y": (64, 8, 2), "c_x": (96, 24, 8, 1)}
    layout = made.layouts[-1]
    model = PieceModel(made.piece_costs(layout), made.cuts, sizes)
    told = {axis: model._telling(axis, sizes[axis]) for axis in AXES}
    rows = {"n": (8, 1), "h_y": (64, 2)}
    if groups > 1:
        assert told == {**sizes, **rows}
        return
    assert told == {**rows, "c_y": (400, 64, 32, 1), "c_x": (96, 24, 1)}
    seconds = [model.probe(dict.fromkeys(AXES, 8) | {"c_y": c_y}, ALONE).seconds
               for c_y in (1, 9, 32)]  # fmt: skip
    between = seconds[0] + (seconds[2] - seconds[0]) * 8 / 31
    assert seconds[1] == pytest.approx(between, rel=1e-9)


@pytest.mark.parametrize("function", ["convolution_forward", "convolution_backward_data"])
def test_what_is_not_looked_at_does_not_fit(function):
    """Of parameters that have no room, and of grids in which nothing fits."""
    roomless = 0
    for _, _, made in problems((function,), 40, 5, MACHINE):
        parameters = sum(made.specs[name].nbytes for name in made.specs if name == "w")
        for limit in (parameters - 1, parameters):
            assert promising._parameters_fit(made, limit) == (limit >= parameters)
        problem = SplitProblem(made, made.layouts[0], 0, 4)
        whole = {
            axis: sizes[:1] if axis in CHANNELS else sizes for axis, sizes in problem.sizes.items()
        }
        estimates = Estimates(Grid(made, made.layouts[0], whole), parameters - 1)
        assert np.isinf(estimates.fastest).all()
        assert not list(estimates.best(8))
        roomless += not promising._parameters_fit(made, made.memory_limit)
    assert roomless


@pytest.mark.parametrize(
    "known",
    [
        {"losses": {}},
        {"losses": {"copies": 0.5, "steps": 1.0}},
    ],
    ids=["card", "host"],
)
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_estimates_are_close_to_prices(function, slots, known, monkeypatch):
    ((_, _, made),) = problems((function,), 1, 4, MACHINE)
    for module in (counted, grid_rings):
        monkeypatch.setattr(module, "RING_DEPTHS", tuple(range(slots, 0, -1)))
    errors = distances(replace(made, machine=replace(made.machine, **known)))
    assert np.median(errors) < 0.02
    # launches at the borders of a chain are not told apart; they bind where pieces are tiny
    assert np.quantile(errors, 0.9) < 0.3


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("placements", list(itertools.product(("pinned", "pageable"), repeat=3)))
def test_estimates_of_what_is_staged_are_prices(placements, slots, monkeypatch):
    for module in (counted, grid_rings):
        monkeypatch.setattr(module, "RING_DEPTHS", tuple(range(slots, 0, -1)))
    *images, filters = placements
    x, y = (TensorSpec((16, 64, 64, 64), placement=placement) for placement in images)
    w = TensorSpec((64, 64, 3, 3), placement=filters)
    made = plan_request("convolution_forward", x=x, w=w, out=y, padding=1, machine=MACHINE,
                        memory_limit=2**40)  # fmt: skip
    errors = distances(made)
    assert len(errors) > 20
    assert np.median(errors) < 0.02
    assert np.quantile(errors, 0.9) < 0.1


def test_beside_threads_that_stage_steps_take_long_whoever_issues_them():
    """A result of 4 MiB in plain memory, of images that are pinned."""
    each = 2e-3
    x, y = (
        TensorSpec((64, channels, 64, 64), placement=placement)
        for channels, placement in ((64, "pinned"), (4, "pageable"))
    )
    w = TensorSpec((4, 64, 3, 3), placement="device")
    machine = replace(shipped(MACHINE), step_seconds=1e-6, staged_step_seconds=each)
    made = plan_request("convolution_forward", x=x, w=w, out=y, padding=1, machine=machine,
                        memory_limit=2**40)  # fmt: skip
    assert not made.in_threads
    errors = distances(made)
    assert len(errors) > 20
    assert np.median(errors) < 0.02
    problem = SplitProblem(made, made.layouts[0], 0)
    for pieces in (4, 16):  # come in, are computed, and leave
        price = problem.price(Sizes(n=64 // pieces, c_y=4, c_x=64, h_y=64))
        assert 3 * pieces * each < price.seconds < 3 * pieces * each + 5e-3
    assert problem.price(made.chain.extents).seconds < each + 5e-3
    # filters that are staged once are in nobody's way after that
    x, y = (TensorSpec((64, channels, 16, 16), placement="pinned") for channels in (512, 256))
    w = TensorSpec((256, 512, 3, 3), placement="pageable")
    made = plan_request("convolution_forward", x=x, w=w, out=y, padding=1, machine=machine,
                        memory_limit=2**40)  # fmt: skip
    assert made.staged
    assert not made.in_threads
    price = SplitProblem(made, made.layouts[0], 0).price(Sizes(n=4, c_y=256, c_x=512, h_y=16))
    assert 3 * each < price.seconds < 3 * each + 5e-3


def test_a_slot_that_is_kept_is_late_each_time(monkeypatch):
    """Of one slot, images that stay for all channels are staged when the last channels begin."""
    monkeypatch.setattr(pipeline, "with_turning", max)  # to see this alone
    x = TensorSpec((8, 64, 64, 64), placement="pageable")
    w = TensorSpec((64, 64, 3, 3), placement="device")
    late = 1e-4

    def seconds(latency, x=x, w=w, **sizes):
        machine = shipped(MACHINE)
        transfer = replace(machine.transfer, latency={"copy_in/pageable": Line(0.0, latency)})
        issuing = dict.fromkeys(("step_seconds", "staged_step_seconds", "launch_seconds"), 0.0)
        compute = replace(machine.compute, launching={})
        machine = replace(machine, transfer=transfer, compute=compute, losses={}, **issuing)
        made = plan_request("convolution_forward", x=x, w=w, out=x, padding=1, machine=machine,
                            memory_limit=2**40)  # fmt: skip
        split = Sizes(**{"n": 8, "c_y": 64, "c_x": 64, "h_y": 64, **sizes})
        counted = SplitProblem(made, made.layouts[0], 0).counted(split, ("n", "c_y", "h_y", "c_x"))
        return counted.priced(1, True).price.seconds

    # each piece has images of its own: they are staged beside the piece before
    assert seconds(late, n=2) - seconds(0.0, n=2) == pytest.approx(late)
    # four pieces of each two images: three quarters of three further latencies, less what computes
    more = seconds(late, n=2, c_y=16) - seconds(0.0, n=2, c_y=16)
    assert late * (1 + 3 * 0.75 * 0.7) < more < late * (1 + 3 * 0.75)
    # filters that are kept whole have a slot for each of their four pieces: nothing waits for one
    given = {
        "x": TensorSpec((8, 256, 32, 32), placement="pinned"),
        "w": TensorSpec((256, 256, 3, 3), placement="pageable"),
    }
    sizes = {"n": 2, "c_y": 64, "c_x": 256, "h_y": 32}
    more = [seconds(latency, **given, **sizes) for latency in (0.0, late)]
    assert more[1] - more[0] == pytest.approx(late)


def test_threads_issue_the_steps_of_what_is_cut_and_not_those_of_a_single_piece():
    each = 0.05
    machine = replace(shipped(MACHINE), staged_step_seconds=each)
    x = TensorSpec((4, 64, 128, 128), placement="pageable")
    made = plan_request("activation_forward", x=x, out=x, machine=machine, memory_limit=2**40)
    problem = SplitProblem(made, made.layouts[0], 0, 3)
    grid = Grid(made, made.layouts[0], problem.sizes)
    seconds = Estimates(grid, 2**40).fastest
    for at in np.ndindex(*seconds.shape):
        sizes = {axis: grid.sizes[axis][i] for axis, i in zip(AXES, at, strict=True)}
        price = problem.price(Sizes(**sizes)).seconds
        assert seconds[at] == pytest.approx(price, rel=0.02)
        whole = Sizes(**sizes) == made.chain.extents
        assert price < each if whole else price > 2 * 3 * each


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_search_takes_milliseconds(function):
    random, times = np.random.default_rng(5), []
    for _ in range(4):
        made = request(function, 0.5, MACHINE, **arguments(function, drawn_sizes(random)))
        begin = time.process_time()
        make_plan(made)
        times.append(time.process_time() - begin)
    assert min(times[1:]) < SECONDS


@pytest.mark.parametrize("name", list(MAKERS)[::7])
def test_loop_orders_are_legal_and_none_that_matters_is_missing(name):
    call = Split(make(name)).splittable
    everything, chosen = set(loop_orders(call)), legal_orders(call)
    assert chosen[0] == call.loop_order
    assert set(chosen) <= everything | {call.loop_order}
    # On which operands each loop depends tells what is loaded how often.
    axes = [found.axes for found in call.operands.values()]

    def seen(order):
        loops = [axis for axis in order if getattr(call.extents, axis, 2) > 1]
        return tuple(tuple(axis in of for of in axes) for axis in loops)

    assert {seen(order) for order in everything} == {seen(order) for order in chosen}


def test_loops_of_one_piece_are_no_loops():
    orders = (("n", "c_y", "h_y", "c_x"), ("c_y", "n", "h_y", "c_x"))
    assert different_orders(orders, {"n": 3, "c_y": 1, "h_y": 2, "c_x": 1}) == orders[:1]
    assert different_orders(orders, {"n": 3, "c_y": 2, "h_y": 1, "c_x": 1}) == orders
