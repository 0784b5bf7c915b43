"""alpha and beta apply before the one rounding: every function in half types, however cut."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.functions.call.plan_api import tiled_call_of
from tests.support.bounded import Bounded
from tests.support.calls import DTYPES
from tests.support.forced import legal_splits
from tests.support.function_cases import Call
from tests.support.scaled_once import HALF, MAKERS, OVERFLOWING, cancelling, overflowing
from tests.support.splits import LAYOUTS, RINGS, Split, some

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")


#: Splits of each call that are tried.
SPLITS = 10


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", MAKERS)
def test_what_cancels_is_not_rounded_before(name, dtype):
    made = Split(cancelling(name, dtype))
    ways = itertools.cycle(itertools.product(RINGS, LAYOUTS))
    for split in some(list(legal_splits(made.splittable)), SPLITS):
        (depth, whole), layout = next(ways)
        made.run(split, depth=depth, whole=whole, layout=layout, overlap=False)


@pytest.mark.parametrize("name", OVERFLOWING)
def test_what_alpha_brings_into_range_is_finite(name):
    made = Split(overflowing(name))
    for split in legal_splits(made.splittable):
        made.run(split, overlap=False)


def test_the_example_of_the_issue():
    x = np.full((1, 10, 1, 1), 100, np.float16)
    w = np.full((1, 10, 1, 1), 100, np.float16)
    y = ooc_cudnn.convolution_forward(x, w, alpha=0.01)
    assert y.item() == 1000


@pytest.mark.parametrize("dtype", HALF)
def test_sums_over_cut_channels_are_rounded_before_a_bias_as_uncut_ones_are(dtype):
    """1 + 2**-12 is 1 in half types; less a bias of 1 it is 0, however cX is cut."""
    x = np.array([1, 2.0**-12], DTYPES[dtype]).reshape(1, 2, 1, 1)
    w = np.ones((1, 2, 1, 1), x.dtype)
    result = Bounded.exact(np.zeros((1, 1, 1, 1)))
    operands = {"x": x, "w": w, "b": np.array([-1], x.dtype)}
    call = Call("convolution_add_activation_forward", operands, {}, {"y": result}, name="rounded")
    made = Split(call)
    for split in legal_splits(made.splittable):
        made.run(split)
    assert made.splittable.extents.c_x == 2
    # Scaled, it is not rounded on the way.
    scaled = Bounded.exact(np.full((1, 1, 1, 1), 4096 * 2.0**-12))
    made = Split(replace(call, options={"alpha": 4096}, results={"y": scaled}))
    for split in legal_splits(made.splittable):
        made.run(split)


def test_a_scaled_chain_is_not_cut_where_its_result_is_still_wide():
    convolution, bias = ooc_cudnn.operations.Convolution, ooc_cudnn.operations.AddTensor
    w, b = np.ones((4, 4, 1, 1), np.float16), np.ones(4, np.float16)
    steps = [convolution(w), bias(b), convolution(w), bias(b)]
    x = np.ones((1, 4, 8, 8), np.float16)
    for alpha, seams in ((1.0, (1, 2, 3)), (0.5, (1, 2))):
        call = tiled_call_of("chain_forward", x=x, operations=steps, alpha=alpha)
        assert call.seams == seams
