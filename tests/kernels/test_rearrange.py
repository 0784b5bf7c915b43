"""Axes split, permuted and joined by the kernels of relayout.cu, beside NumPy."""

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import rearrange
from ooc_cudnn.operations.elementwise.rearrange import Rearrange
from tests.support.device_operand import DTYPES, Operand, random
from tests.support.kernel_runs import run

#: Factors of each axis, and which of them each axis of the result is made of.
CASES = {
    "channels": (((3,), (2, 9), (4,), (5,)), ((0,), (2, 1), (3,), (4,))),
    "pixels": (((2,), (3, 2, 2), (4,), (5,)), ((0,), (1,), (4, 2), (5, 3))),
    "pixels back": (((2,), (3,), (4, 2), (5, 2)), ((0,), (1, 3, 5), (2,), (4,))),
    "voxels": (((1,), (2, 2, 2, 2), (3,), (2,), (3,)), ((0,), (1,), (5, 2), (6, 3), (7, 4))),
    "tokens": (((3,), (16,), (4,), (5,)), ((0,), (2, 3), (1,))),
    "windows": (((2,), (3,), (2, 3), (4, 5)), ((0, 2, 4), (3, 5), (1,))),
    "windows back": (((2, 2, 4), (3, 5), (3,)), ((0,), (5,), (1, 3), (2, 4))),
    "flat": (((3,), (7,), (2,)), ((0,), (1, 2))),
    "one of each": (((1,), (1,), (1,)), ((0,), (1,), (2,))),
}


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
