"""Axes split, permuted and joined by the kernels of relayout.cu, beside NumPy."""

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import rearrange, roll
from ooc_cudnn.operations.elementwise.rearrange import Rearrange
from ooc_cudnn.operations.elementwise.roll import Roll
from tests.support.device_operand import DTYPES, Operand, random
from tests.support.kernel_runs import run

ROLLS = {
    "sites": ((2, 16, 5, 7), (0, 0, 3, 2)),
    "a volume's": ((1, 3, 4, 5, 6), (0, 0, 1, 0, 5)),
    "channels": ((3, 9, 4), (0, 4, 0)),
    "nothing": ((2, 3, 4), (0, 0, 0)),
}

#: Factors of each axis, and which of them each axis of the result is made of.
CASES = {
    "channels": (((3,), (2, 9), (4,), (5,)), ((0,), (2, 1), (3,), (4,))),
    "pixels": (((2,), (3, 2, 2), (4,), (5,)), ((0,), (1,), (4, 2), (5, 3))),
    "pixels back": (((2,), (3,), (4, 2), (5, 2)), ((0,), (1, 3, 5), (2,), (4,))),
    "voxels": (((1,), (2, 2, 2, 2), (3,), (2,), (3,)), ((0,), (1,), (5, 2), (6, 3), (7, 4))),
    "tokens": (((3,), (16,), (4,), (5,)), ((0,), (2, 3), (1,))),
    "windows": (((2,), (3,), (2, 3), (4, 5)), ((0, 2, 4), (3, 5), (1,))),
    "windows of volumes": (
        ((2,), (3,), (2, 3), (2, 2), (3, 5)), ((0, 2, 4, 6), (3, 5, 7), (1,))),
    "windows as channels": (((2,), (33,), (2, 3), (2, 5)), ((0, 2), (3, 5, 1), (4,))),
    "seven axes": (
        ((2,), (2, 2), (2, 3), (3, 2), (2, 2)), ((0,), (4, 1), (3, 2), (6, 5), (8, 7))),
    "windows back": (((2, 2, 4), (3, 5), (3,)), ((0,), (5,), (1, 3), (2, 4))),
    "flat": (((3,), (7,), (2,)), ((0,), (1, 2))),
    "one of each": (((1,), (1,), (1,)), ((0,), (1,), (2,))),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layouts", [("first", "first"), ("last", "last"), ("first", "last_rows")])
@pytest.mark.parametrize("case", CASES)
def test_elements_are_where_numpy_moves_them(case, layouts, dtype):
    operation = Rearrange(*CASES[case], dtype)
    x = Operand(operation.shape, dtype, layouts[0], data=random(operation.shape))
    y = Operand(operation.output_shape, dtype, layouts[1])
    found = run(rearrange, operation, (x,), y)
    assert np.array_equal(found.astype("f8"), operation.reference(x.wide))
    y = Operand(operation.output_shape, dtype, layouts[1], data=operation.reference(x.wide))
    back = run(rearrange, operation.inverse, (y,), Operand(operation.shape, dtype, layouts[0]))
    assert np.array_equal(back.astype("f8"), x.wide)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layouts", [("first", "first"), ("last", "last"), ("first", "last_rows")])
@pytest.mark.parametrize("case", ROLLS)
def test_elements_are_where_numpy_rolls_them(case, layouts, dtype):
    shape, shifts = ROLLS[case]
    operation = Roll(shape, shifts, dtype)
    x = Operand(shape, dtype, layouts[0], data=random(shape))
    found = run(roll, operation, (x,), Operand(shape, dtype, layouts[1]))
    assert np.array_equal(found.astype("f8"), np.roll(x.wide, shifts, range(len(shape))))
    y = Operand(shape, dtype, layouts[1], data=found.astype("f8"))
    back = run(roll, operation.inverse, (y,), Operand(shape, dtype, layouts[0]))
    assert np.array_equal(back.astype("f8"), x.wide)
