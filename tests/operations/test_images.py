"""Stored images as maps, under every split: (x - mean) * scale of integers."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.operations.images import StoredImages
from tests.support.every_split import check_every_split, rounded

pytest.importorskip("ml_dtypes")
#: dtype, alpha, beta
SCALES = [("float64", 1, 0), ("float16", 0.5, 1), ("float32", 1, 1), ("bfloat16", 1, 0)]


@pytest.mark.parametrize("stored", ["uint8", "uint16"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (3, 2, 9), (1, 2, 3, 2, 4), (3, 5)], ids=str)
@pytest.mark.parametrize("vectors", ["cc", "11", "1c"], ids=lambda v: f"mean, scale of {v}")
def test_under_every_split(random, vectors, shape, stored):
    x = random.integers(0, np.iinfo(stored).max, shape, stored, endpoint=True)
    wide = (1, -1, *[1] * (len(shape) - 2))
    for dtype, alpha, beta in SCALES[len(shape) % 2 :: 2]:
        real = "f8" if dtype == "float64" else "f4"
        mean, scale = (
            random.uniform(0.5, 1, shape[1] if kind == "c" else 1).astype(real) for kind in vectors
        )
        mean *= 100
        old, _ = rounded(random.standard_normal(shape), dtype)
        wide_mean, wide_scale = (v.astype("f8").reshape(wide) for v in (mean, scale))
        call = StoredImages(
            shape, stored, mean.shape, scale.shape, dtype, alpha=alpha / 64, beta=beta
        )
        check_every_split(call, {"x": x, "mean": mean, "scale": scale},
                          {"y": (x - wide_mean) * wide_scale}, most=6,
                          sizes={"y": (x + wide_mean) * wide_scale},
                          old={"y": old} if beta else None)  # fmt: skip


def test_a_mean_of_large_numbers_costs_no_digits(random):
    x = random.integers(40_000, 40_100, (1, 1, 50), "uint16")
    mean, scale = np.float32([40_050.25]), np.float32([1 / 3])
    call = StoredImages(x.shape, "uint16", (1,), (1,), "float32")
    exact = (x - 40_050.25) * float(scale[0])
    check_every_split(call, {"x": x, "mean": mean, "scale": scale}, {"y": exact}, terms=0)


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="uint8 or uint16"):
        StoredImages((1, 3, 4), "int32", (1,), (1,), "float32")
