"""alpha and beta apply before the one rounding on the card, too: every function in half types."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ooc_cudnn
from tests.support.forced import legal_splits
from tests.support.scaled_once import HALF, MAKERS, OVERFLOWING, cancelling, overflowing
from tests.support.splits import LAYOUTS, RINGS, Split, some

cupy = pytest.importorskip("cupy")
#: Splits of each call that are tried.
SPLITS = 12


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", MAKERS)
def test_what_cancels_is_not_rounded_before(name, dtype):
    made = Split(cancelling(name, dtype), device="cuda")
    ways = itertools.cycle(itertools.product(RINGS, LAYOUTS))
    for split in some(list(legal_splits(made.splittable)), SPLITS):
        (depth, whole), layout = next(ways)
        made.run(split, depth=depth, whole=whole, layout=layout)


@pytest.mark.parametrize("name", OVERFLOWING)
def test_what_alpha_brings_into_range_is_finite(name):
    made = Split(overflowing(name), device="cuda")
    for split in legal_splits(made.splittable):
        made.run(split)


@pytest.mark.parametrize("name", OVERFLOWING)
def test_operands_on_the_device(name):
    """Computed on where they lie, in one piece."""
    call = overflowing(name)
    arrays = {name: cupy.asarray(array) for name, array in call.arrays.items()}
    found = call.run(arrays, {name: cupy.asarray(old) for name, old in call.fresh().items()})
    call.check({name: array.get() for name, array in found.items()}, "on the device")


def test_the_example_of_the_issue():
    x = np.full((1, 10, 1, 1), 100, np.float16)
    y = ooc_cudnn.convolution_forward(x, x, alpha=0.01)
    assert y.item() == 1000
