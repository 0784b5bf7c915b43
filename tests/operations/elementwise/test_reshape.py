"""Elements of an image in another shape, under every split, from and to any order of memory."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.operations.elementwise.reshape import ReshapeCall
from ooc_cudnn.tensor import numpy_dtype
from tests.support.forced import Forced, legal_splits
from tests.support.function_cases import channels_last
from tests.support.splits import RINGS

pytest.importorskip("ml_dtypes")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(5, 3, 4), (3, 2, 4, 5), (2, 3, 2, 1, 4)], ids=str)
def test_every_split(shape, dtype):
    random = np.random.default_rng(2)
    x = random.standard_normal(shape).astype(numpy_dtype(dtype))
    flat = (shape[0], x.size // shape[0])
    old = random.standard_normal(flat).astype(x.dtype)
    for last in (False, True):
        laid = channels_last(x) if last else x
        there = ReshapeCall(shape, flat, dtype)
        adding = ReshapeCall(shape, flat, dtype, alpha=2.0, beta=0.5)
        back = ReshapeCall(flat, shape, dtype)
        for at, split in enumerate(legal_splits(there)):
            depth, whole = RINGS[at % len(RINGS)]
            y = np.full(flat, np.nan, x.dtype)
            Forced(there, {"x": laid, "y": y}).run(split, depth=depth, whole=whole)
            assert (y == x.reshape(flat)).all()
            again = np.full_like(laid, np.nan)
            Forced(back, {"x": y, "y": again}).run(split, depth=depth, whole=whole)
            assert (again == x).all()
            y = old.copy()
            Forced(adding, {"x": laid, "y": y}).run(split, depth=depth, whole=whole)
            wide = np.float64 if dtype == "float64" else np.float32
            expected = 2 * x.reshape(flat).astype(wide) + wide(0.5) * old.astype(wide)
            assert (y == expected.astype(x.dtype)).all()
