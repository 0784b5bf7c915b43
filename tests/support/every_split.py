"""One call under every split, row axis and layout: results filled with NaN, compared each time."""

from __future__ import annotations

import itertools

import numpy as np

from ooc_cudnn.tensor import ACCUMULATOR, DTYPES, numpy_dtype
from tests.support.forced import DEPTHS, Forced, legal_splits
from tests.support.host_operations import UNIT, laid_out

LAYOUTS = ("channels_first", "channels_last")


def rounded(values, dtype):
    """Values in a dtype, and what they are there in float64."""
    made = np.asarray(values).astype(numpy_dtype(dtype))
    return made, made.astype("f8")


def check_every_split(call, arrays, expected, *, terms=8, sizes=None, old=None, most=None):
    """Run a call under every legal split, along every row axis, and compare each result.

    Parameters
    ----------
    arrays : mapping
        Its inputs; NumPy arrays.
    expected : mapping
        Its results in float64, without alpha and beta; of integers, exactly what they must be.
    terms : int
        Roundings in the arithmetic type that a result may have, of numbers as large as `sizes`.
    old : mapping
        What results hold before, where beta is not 0.
    most : int, optional
        So many splits, evenly chosen, are enough.
    """
    old, sizes = old or {}, sizes or {}
    for axis in call.row_axes:
        check_patch(call.along(axis), arrays, expected)
    turn = itertools.cycle(itertools.product(LAYOUTS, LAYOUTS, DEPTHS, (False, True)))
    for row_axis in call.row_axes:
        turned = call.along(row_axis)
        splits = list(legal_splits(turned))
        step = -(-len(splits) // most) if most else 1
        for split in splits[::step]:
            order, layout, depth, whole = next(turn)
            results = {}
            for name in call.results:
                operand = call.operands[name]
                fill = np.nan if operand.dtype in DTYPES else 0xAA
                was = old.get(name, np.full(operand.shape, fill))
                results[name] = laid_out(was, order, operand.dtype)
            given = {name: laid_out(array, order, array.dtype) for name, array in arrays.items()}
            Forced(turned, {**given, **results}).run(split, layout=layout, depth=depth, whole=whole)
            for name, array in results.items():
                check(call, name, array, expected[name], sizes.get(name), old.get(name), terms)


def check_patch(call, arrays, expected):
    """What `verify` computes of a random patch is that part of the expected results."""

    def part(array, region):
        return np.asarray(array, "f8")[tuple(slice(*range_) for range_ in region)]

    piece = call.patch(np.random.default_rng(0))
    found = call.expected(piece, lambda name, region: part(arrays[name], region))
    for name, (value, size) in found.items():
        right = part(expected[name], call.region(name, piece))
        assert np.shape(value) == right.shape
        assert np.all(close(value, right, 1e-6 * np.abs(size) + 1e-9)), name


def close(found, right, room):
    """Where numbers differ by no more than `room`; NaN and infinity stand in the same places."""
    with np.errstate(invalid="ignore"):
        near = np.abs(found - right) <= room
    return (near & np.isfinite(right)) | (found == right) | (np.isnan(found) & np.isnan(right))


def check(call, name, array, value, size, old, terms):
    """Compare one result."""
    operand = call.operands[name]
    assert array.shape == np.shape(value) == operand.shape
    if operand.dtype not in DTYPES:
        np.testing.assert_array_equal(array, value)
        return
    alpha, beta = call.scaling(name)
    size = np.abs(value) if size is None else size
    value, size = alpha * np.asarray(value, "f8"), np.abs(alpha) * np.asarray(size, "f8")
    if beta:
        old = old.astype("f8")
        value, size = value + beta * old, size + np.abs(beta * old)
    unit = UNIT[ACCUMULATOR[operand.dtype]]
    room = terms * unit * size + 1.01 * UNIT[operand.dtype] * np.abs(value) + 1e-30
    if operand.dtype == "float16":
        room = room + 2.0**-24
    found = array.astype("f8")
    right = close(found, value, room)
    assert right.all(), (name, call, found[~right][:3], value[~right][:3])
