"""The search: sizes, one grid from lines, finalists priced exactly; and what they are judged by."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.accuracy_draw import SCALES, draw_of
from benchmarks.planning import judged
from benchmarks.planning_problems import BATCHES, VGG, feasible, problem, problems
from benchmarks.searches import Prices, descended
from ooc_cudnn.call_planner import planner
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.search import Search, caution, even_sizes
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.functions.call.decorator import FUNCTIONS
from ooc_cudnn.functions.call.plan_api import plan_request
from ooc_cudnn.operations.core.call import AXES
from ooc_cudnn.tensor import TensorSpec
from perfmodel import Split
from tests.support import searches


@given(st.integers(1, 5000), st.integers(2, 40))
def test_sizes_run_from_whole_to_one(extent, at_most):
    sizes = even_sizes(extent, at_most, extent)
    assert (sizes[0], sizes[-1]) == (extent, 1)
    assert list(sizes) == sorted(set(sizes), reverse=True)
    assert len(sizes) <= at_most


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_sizes_up_to_a_largest_are_even_pieces_of_the_whole(extent, largest):
    for size in even_sizes(extent, 24, largest):
        assert size <= largest
        pieces = -(-extent // size)
        assert size == -(-extent // pieces)


@pytest.fixture(scope="module")
def request_():
    x, w = TensorSpec((6, 12, 40, 24), placement="pinned"), TensorSpec((20, 12, 3, 3))
    return plan_request("convolution_forward", x=x, w=w, padding=1, machine="h200",
                        memory_limit=2**20)  # fmt: skip


def sample(search, count, seed):
    """Splits of the grid, drawn at random, and their places in it."""
    sizes, random = search.grid[0], np.random.default_rng(seed)
    at = [tuple(int(random.integers(len(sizes[axis]))) for axis in AXES) for _ in range(count)]
    splits = [
        Split(**{axis: sizes[axis][i] for axis, i in zip(AXES, place, strict=True)}) for place in at
    ]
    return [pair for pair in zip(splits, at, strict=True) if search.call.is_legal(pair[0])]


def indices(function):
    return [at for at, (name, _) in enumerate(problems()) if name == function]


def test_the_problems_hold_every_layer_of_vgg_for_every_function():
    assert len(problems()) > 1000
    assert len(VGG) == 13
    assert {function for function, _ in problems()} == set(FUNCTIONS)
    for function in FUNCTIONS:
        assert {problems()[at][1] for at in indices(function)} > set(VGG), function
    drawn = [problem(at) for at in range(300)]
    placements = {operand.placement for each in drawn for operand in each.operands}
    assert placements == {"device", "pinned", "pageable", "disk"}
    assert {each.operands[0].shape[0] for each in drawn} > set(BATCHES)
    assert (
        min(each.memory_share for each in drawn)
        == 0.0
        < 1.0
        < max(each.memory_share for each in drawn)
    )
    assert drawn[7] == problem(7)


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_lines_tell_what_counting_tells(function):
    """The two builders of the table: bytes of the largest piece, seconds of all pieces."""
    slots, seconds = [], []
    for at in indices(function)[:3]:
        made = feasible(problem(at))[0].parts[0].request
        search = Search(made, made.layouts[0])
        pieces, drawn = search.grid[1], sample(search, 12, 1)
        exact = search.pieces([split for split, _ in drawn], down=True)
        shape = [len(each) for each in search.grid[0].values()]

        def of(values, at, shape=shape):
            return np.broadcast_to(values, shape)[at]

        for row, (_, at) in enumerate(drawn):
            for name, each in exact.counts.items():
                assert (
                    np.broadcast_to(each, len(drawn))[row]
                    == np.broadcast_to(pieces.counts[name], shape)[at]
                )
            for name, each in exact.distinct.items():
                assert (
                    np.broadcast_to(each, len(drawn))[row]
                    == np.broadcast_to(pieces.distinct[name], shape)[at]
                )
            for name, each in exact.slot_bytes.items():
                estimated = of(pieces.slot_bytes[name], at)
                slots.append(abs(estimated - each[row]) / max(each[row], 2**12))
            estimated = of(pieces.seconds, at)
            seconds.append(abs(estimated / exact.seconds[row] - 1) if exact.seconds[row] else 0.0)
    # Borders and ragged last rows are what lines do not see.
    assert np.median(slots) < 0.01
    assert np.quantile(slots, 0.9) < 0.2
    assert np.median(seconds) < 0.1
    assert np.max(seconds) < 1.0


def test_a_price_is_that_of_the_schedule_in_bytes(request_):
    """Every split of a coarse grid: what crosses the link is what the steps copy."""
    from ooc_cudnn.call_planner.planner import make_plan
    from ooc_cudnn.pipeline.schedule import plan_schedule
    from ooc_cudnn.pipeline.simulate import ReplayedSchedule

    request = dataclasses.replace(request_, memory_limit=2**30)
    for split, _ in sample(Search(request, request.layouts[0]), 25, 5):
        plan = make_plan(request, split=split)
        schedule, moved = plan_schedule(request, plan), {"copy_in": 0, "copy_out": 0}
        replayed = ReplayedSchedule(schedule)
        for step, cost in zip(schedule.steps, replayed.costs, strict=True):
            if step.stream in moved:
                moved[step.stream] += cost.host_bytes
        assert (plan.bytes_in, plan.bytes_out) == (moved["copy_in"], moved["copy_out"])


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_what_is_found_is_the_best_of_all_splits(function):
    """A problem so small that every split of the grid is priced."""
    random = np.random.default_rng(3)
    while True:
        drawn = draw_of(random, function, SCALES["tiny"])
        planned, limit = feasible(dataclasses.replace(drawn, memory_share=0.3))
        made = planned.parts[0].request
        search = Search(made, made.layouts[0])
        if math.prod(len(search.candidates(axis)) for axis in AXES) < 500:
            break
    found, prices = search.best(limit), Prices(search, limit)
    sizes = itertools.product(*(prices.sizes[axis] for axis in AXES))
    best = min(prices.seconds([Split(**dict(zip(AXES, of, strict=True))) for of in sizes]))
    assert bool(found) == (best < np.inf)
    if found:
        assert found[0].seconds <= best * 1.012


@pytest.mark.parametrize("function", ["convolution_forward", "pooling_backward"])
def test_what_is_found_is_near_the_best_that_lines_lead_to(function):
    (at,) = indices(function)[3:4]
    assert judged(at)["found over best"] < 1.03


@pytest.mark.parametrize("at", [35, 355])
def test_every_memory_order_is_looked_at_where_the_link_does_not_bind(at):
    assert judged(at)["found over best"] < 1.03


def test_of_equally_fast_splits_the_one_with_fewer_cuts_is_taken(request_):
    search, whole = Search(request_, "channels_first"), request_.chain.extents
    uncut, by_images, by_rows = (
        caution(search.counts(split))
        for split in (whole, dataclasses.replace(whole, n=1), dataclasses.replace(whole, h_y=8))
    )
    assert uncut == 1.0 < by_images < by_rows < 1.01


@settings(max_examples=15, deadline=None)
@given(st.integers(2_000, 2**20))
def test_whatever_fits_is_found(limit):
    x, w = TensorSpec((4, 6, 12, 8), placement="pinned"), TensorSpec((5, 6, 3, 3))
    made = plan_request("convolution_forward", x=x, w=w, padding=1, machine="h200",
                        memory_limit=2**30)  # fmt: skip
    search = Search(made, made.layouts[0])
    prices = Prices(search, limit)
    found = search.best(limit)
    if found:
        assert found[0].memory_bytes <= limit
        assert found[0].seconds <= 1.03 * descended(prices, [made.chain.extents, found[0].split])


def test_nothing_fits_in_no_memory(request_):
    prices = Prices(Search(request_, request_.layouts[0]), 10)
    assert descended(prices, [request_.chain.extents]) == np.inf


def test_memory_that_is_too_short_for_the_next_size_of_the_grid_is_used():
    """Of 128 images the grid has 8, 11 and 16 at once: 13 fit here, and save more than a tenth."""
    x = TensorSpec((128, 8, 3, 13), "float64", "disk")
    made = plan_request("softmax_backward", y=x, dy=x, mode="instance", alpha=0.5,
                        machine="h200", memory_limit=139_378)  # fmt: skip
    search = Search(made, made.layouts[0])
    (on_grid,) = search.best(made.memory_limit)[:1]
    between = search.finer(on_grid, made.memory_limit)
    assert on_grid.split.n == 11
    assert between.split.n == 13
    assert between.seconds < 0.9 * on_grid.seconds
    assert planner.make_plan(made).split == between.split


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_plans_of_searches_that_tests_share_are_the_library_s(function):
    """Limits one after another, and back: what was planned before alters no plan."""
    first = feasible(problem(indices(function)[0]))[0].parts[0].request
    asked = [
        dataclasses.replace(first, memory_limit=first.memory_limit // share)
        for share in (1, 3, 2, 1)
    ]

    def plans():
        for each in asked:
            try:
                yield planner.make_plan(each)
            except PlanInfeasibleError as error:
                yield error.smallest_bytes

    expected = [*plans()]
    assert isinstance(expected[0], Plan)
    with searches.shared():
        assert [*plans()] == expected
