"""Stored images as maps, under every split: (x - mean) * scale of integers."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.elementwise.activation import Activation
from ooc_cudnn.operations.elementwise.cast_scale import CastScale
from tests.support.every_split import check_every_split, rounded

pytest.importorskip("ml_dtypes")
#: dtype, alpha, beta
SCALES = [("float64", 1, 0), ("float16", 0.5, 1), ("float32", 1, 1), ("bfloat16", 1, 0)]


@pytest.mark.parametrize("stored", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (3, 2, 9), (1, 2, 3, 2, 4), (3, 5)], ids=str)
@pytest.mark.parametrize("vectors", ["cc", "11", "1c"], ids=lambda v: f"mean, scale of {v}")
def test_under_every_split(random, vectors, shape, stored):
    most = np.iinfo(stored)
    x = random.integers(most.min, most.max, shape, stored, endpoint=True)
    wide = (1, -1, *[1] * (len(shape) - 2))
    for dtype, alpha, beta in SCALES[len(shape) % 2 :: 2]:
        real = "f8" if dtype == "float64" else "f4"
        mean, scale = (
            random.uniform(0.5, 1, shape[1] if kind == "c" else 1).astype(real) for kind in vectors
        )
        mean *= 100
        old, _ = rounded(random.standard_normal(shape), dtype)
        wide_mean, wide_scale = (v.astype("f8").reshape(wide) for v in (mean, scale))
        operation = CastScale(shape, stored, mean.shape, scale.shape, dtype)
        call = Chain((operation,), dtype, alpha=alpha / 64, beta=beta)
        check_every_split(call, {"x": x, "mean": mean, "scale": scale},
                          {"y": (x - wide_mean) * wide_scale}, most=6,
                          sizes={"y": (abs(x.astype("f8")) + wide_mean) * wide_scale},
                          old={"y": old} if beta else None)  # fmt: skip


def test_a_mean_of_large_numbers_costs_no_digits(random):
    x = random.integers(40_000, 40_100, (1, 1, 50), "uint16")
    mean, scale = np.float32([40_050.25]), np.float32([1 / 3])
    call = Chain((CastScale(x.shape, "uint16", (1,), (1,), "float32"),), "float32")
    exact = (x - 40_050.25) * float(scale[0])
    check_every_split(call, {"x": x, "mean": mean, "scale": scale}, {"y": exact}, terms=0)


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="one of uint8, int8, uint16, int16"):
        CastScale((1, 3, 4), "int32", (1,), (1,), "float32")
    maps = Activation((1, 3, 4), "relu", 0.0, "float32")
    with pytest.raises(ValueError, match="begins with"):
        Chain((maps, CastScale((1, 3, 4), "uint8", (1,), (1,), "float32")), "float32")


def test_in_front_of_a_convolution(random):
    """The map of floats is never whole; around the images the padding is 0, not -mean * scale."""
    torch = pytest.importorskip("torch")
    x = random.integers(0, 256, (2, 3, 8, 5), "uint8")
    mean, scale = np.array([100.0, 120.0, 90.0]), np.array([0.02])
    w = random.standard_normal((4, 3, 3, 3))
    images = CastScale(x.shape, "uint8", (3,), (1,), "float64")
    steps = (images, Convolution.of(x.shape, w.shape, padding=1, dtype="float64"))
    relu = Activation(steps[1].output_shape, "relu", 0.0, "float64")
    maps = torch.from_numpy((x - mean.reshape(3, 1, 1)) * scale)
    y = torch.relu(torch.nn.functional.conv2d(maps, torch.from_numpy(w), padding=1)).numpy()
    call = Chain((*steps, relu), "float64", alpha=2.0)
    arrays = {"x": x, "mean": mean, "scale": scale, "w": w}
    check_every_split(call, arrays, {"y": y}, terms=500, sizes={"y": 1 + abs(y)})
