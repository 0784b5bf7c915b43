"""Runs a call under its splits on the host: every dtype, alpha and beta, along every axis."""

from __future__ import annotations

import itertools

import numpy as np

from tests.support.forced import Forced, legal_splits
from tests.support.function_cases import DTYPES
from tests.support.splits import LAYOUTS, RINGS, some

#: Of the largest element of a result; a sum over pieces may add as much again for each.
UNIT = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-22, "float64": 2**-50}

#: How many splits of a call are run, for each dtype.
SPLITS = 6


def check_cut(make, case, *, summed=False):
    """Compare a call with what it must give, and its splits with each other, to the bit.

    Parameters
    ----------
    make : callable
        Of (dtype, alpha, beta) the call.
    case : callable
        Of a dtype the operands by name, as that type has them, and the result: float64.
    summed : bool
        Whether pieces are added up: then splits may differ in the last bits.
    """
    ways = itertools.cycle(itertools.product(RINGS, LAYOUTS))
    for at, dtype in enumerate(DTYPES):
        alpha, beta = ((1.0, 0.0), (2.0, -0.25))[at % 2]
        operands, exact = case(dtype)
        call = make(dtype, alpha, beta)
        (result,) = call.results
        arrays = {
            name: operands[name].astype(DTYPES[dtype]) for name in call.operands if name != result
        }
        random = np.random.default_rng(7)
        old = random.standard_normal(exact.shape) if beta else np.full(exact.shape, np.nan)
        old = old.astype(DTYPES[dtype])
        expected = alpha * exact + (beta * old.astype("f8") if beta else 0)
        tolerance = 8 * UNIT[dtype] * max(np.abs(expected).max(), np.abs(old).max() if beta else 0)
        found = set()
        for row_axis in call.row_axes:
            check_patches(call.along(row_axis), operands, result, exact, random)
            out = old.copy()
            forced = Forced(call.along(row_axis), {**arrays, result: out})
            for split in some(list(legal_splits(forced.chain)), -(-SPLITS // len(call.row_axes))):
                (depth, whole), layout = next(ways)
                out[...] = old
                forced.run(split, depth=depth, whole=whole, layout=layout, overlap=False)
                off = np.abs(out.astype("f8") - expected)
                assert (off <= tolerance).all(), (dtype, row_axis, split, off.max())
                found.add(out.tobytes())
        assert summed or len(found) == 1, f"{dtype}: splits differ"


def check_patches(call, operands, result, exact, random):
    """What `verify` recomputes of random patches is that, too, and no smaller than it says."""

    def part(array, region):
        return array[tuple(slice(*each) for each in region)]

    for _ in range(3):
        piece = call.patch(random)
        made = call.expected(piece, lambda name, region: part(operands[name], region))
        value, size = made[result]
        right = part(exact, call.region(result, piece))
        assert value.shape == right.shape
        tolerance = 1e-12 * np.abs(exact).max()
        assert (np.abs(value - right) <= tolerance).all()
        assert (size >= np.abs(value) - tolerance).all()


def rounded(array, dtype):
    """An array of float64 with values that a dtype has."""
    return array.astype(DTYPES[dtype]).astype("f8")
