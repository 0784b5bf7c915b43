"""Every legal split of small shapes gives the same result, whatever the ring and memory order."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import perfmodel
from tests.support import calls, normalization
from tests.support.bounded import UNIT, Bounded, arithmetic_unit
from tests.support.calls import ConvolutionCase
from tests.support.forced import legal_splits
from tests.support.function_cases import DTYPES, Call, channels_last
from tests.support.normalization import Statistics, wide
from tests.support.splits import LAYOUTS, MAKERS, RINGS, Split, loop_orders, make, row_axes, some

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
#: Splits of a case that are tried under every loop order, and with operands in two memory orders.
SPLITS = 3
#: Splits of a case along each axis but the first.
SPLITS_ALONG = 40


@pytest.mark.parametrize("name", MAKERS)
def test_every_split(name):
    made = Split(make(name))
    ways = list(itertools.product(RINGS, LAYOUTS))
    count = 0
    for at, split in enumerate(legal_splits(made.splittable)):
        (depth, whole), layout = ways[at % len(ways)]
        made.run(split, depth=depth, whole=whole, layout=layout, overlap=at % 4 == 0)
        count += 1
    assert count >= 4


@pytest.mark.parametrize("name", MAKERS)
def test_every_split_along_the_other_axes(name):
    """HY may be any spatial axis: the same results, whichever is cut."""
    ways = list(itertools.product(RINGS, LAYOUTS))
    for row_axis in row_axes(name):
        made = Split(make(name), row_axis=row_axis)
        splits = list(legal_splits(made.splittable))
        for at, split in enumerate(some(splits, SPLITS_ALONG)):
            (depth, whole), layout = ways[at % len(ways)]
            made.run(split, depth=depth, whole=whole, layout=layout, overlap=False)


@pytest.mark.parametrize("name", MAKERS)
def test_every_loop_order(name):
    """The planner has one order a function; the others are as right, if not as fast."""
    made = Split(make(name))
    splits = some(list(legal_splits(made.splittable)), SPLITS)
    for at, order in enumerate(loop_orders(made.splittable)):
        for split in splits[at % 2 :: 2]:
            depth, whole = RINGS[at % len(RINGS)]
            made.run(split, order=order, depth=depth, whole=whole, overlap=False)


@pytest.mark.parametrize("name", MAKERS)
def test_splits_with_some_operands_channels_last(name):
    """Operands in two memory orders are brought to one on the way."""
    call = make(name)
    for last in (name for name, a in (call.arrays | call.old).items() if a.ndim > 2):
        made = Split(call, lambda n, a, last=last: channels_last(a) if n == last else a)
        splits = some(list(legal_splits(made.splittable)), SPLITS)
        for at, split in enumerate(splits):
            made.run(split, layout=LAYOUTS[at % 2], overlap=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("which", "pieces"), [("filter", {"n": 1}), ("bias", {"n": 1}), ("data", {"c_y": 1})]
)
def test_half_types_lose_nothing_to_64_pieces(which, pieces, dtype):
    """Sums over pieces are float32: 64 of them err no more than one piece of the whole."""
    shapes = ((64, 3, 5, 4), (2, 3, 3, 3)) if which != "data" else ((1, 2, 5, 4), (64, 2, 3, 3))
    case = ConvolutionCase("half", *shapes, {"padding": 1}, dtype)
    call = calls.gradient_call(case, which)
    made = Split(call)
    (result,) = call.results
    whole, errors = made.splittable.extents, {}
    single = calls.gradient_call(ConvolutionCase("single", *shapes, {"padding": 1}), which)
    for split in (whole, replace(whole, **pieces)):
        made.run(split)
        actual = made.results[result].astype("f8")
        errors[split] = np.abs(actual - call.results[result].value)
        # One rounding to the narrow dtype, beside those of a sum in float32.
        sums = single.results[result].error.max()
        assert (errors[split] <= sums + 1.001 * UNIT[dtype] * np.abs(actual)).all()
    one, many = errors.values()
    assert many.max() <= one.max() + sums


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_bias_gradient_of_2_to_the_20_elements(dtype):
    """Sixteenths add up without a rounding in float32, and only there: the sum is exact."""
    random = np.random.default_rng(61)
    dy = (random.integers(-16, 17, (8, 2, 256, 256)) / 16).astype(DTYPES[dtype])
    exact = dy.astype("f8").sum(axis=(0, 2, 3))
    result = Bounded.exact(exact.astype(dy.dtype))
    call = Call("convolution_backward_bias", {"dy": dy}, {}, {"db": result}, ("db",), name="large")
    made = Split(call)
    whole = made.splittable.extents
    for n, c_y, h_y in ((8, 2, 256), (1, 2, 256), (8, 1, 16), (3, 2, 100), (1, 1, 64)):
        made.run(perfmodel.Split(n=n, c_y=c_y, c_x=whole.c_x, h_y=h_y))


def test_statistics_far_from_zero_do_not_depend_on_the_pieces():
    """Mean 1e4, deviation 1: what is left of float32 after the mean is all there is to lose."""
    call = normalization.training_call((8, 2, 12, 6), values=(1e4, 1))
    made = Split(call)
    found = {}
    for split in legal_splits(made.splittable):
        if split.c_y == 2 and (split.n, split.h_y) in ((8, 12), (1, 12), (8, 1), (3, 5), (1, 1)):
            made.run(split)
            found[split] = made.content()
    assert len(found) == 5
    one = found.pop(made.splittable.extents)
    x, scale, shift = call.arrays["x"], call.arrays["scale"], call.arrays["bias"]
    unit, statistics = arithmetic_unit("float32"), Statistics(x, "float32")
    size = np.abs(wide(scale, 4) * statistics.normal) + np.abs(wide(shift, 4))
    for split, many in found.items():
        for name in ("saved_mean", "saved_inverse_variance", "running_mean", "running_variance"):
            # Sums are float64: two neighbouring numbers of float32 at the most.
            assert np.allclose(many[name], one[name], rtol=2 * unit, atol=0), f"{split} {name}"
        moved = np.abs(many["saved_mean"].astype("f8") - one["saved_mean"]) * statistics.inverse
        margin = 16 * unit * size + np.abs(wide(scale * moved, 4))
        assert (np.abs(many["y"].astype("f8") - one["y"]) <= margin).all(), str(split)
