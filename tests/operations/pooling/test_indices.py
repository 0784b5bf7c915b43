"""Indices of maxima in place of x and y: under every split, against PyTorch's autograd."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.operations.pooling.gradient import PoolingGradientCall
from ooc_cudnn.operations.pooling.indices import NOWHERE, IndexedPoolingCall, PoolingIndices
from tests.support.every_split import check_every_split, rounded

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
F = torch.nn.functional

CASES = {
    "1d": ((2, 2, 9), {"window": 3, "stride": 2, "padding": 1}),
    "2d": ((2, 2, 6, 6), {"window": 2}),
    "overlapping": ((2, 2, 9, 5), {"window": 3, "stride": 2, "padding": 1}),
    "stride 1": ((1, 2, 6, 4), {"window": (3, 2), "stride": 1, "padding": (1, 0)}),
    "stride beyond window": ((1, 2, 12, 5), {"window": (2, 1), "stride": (5, 3)}),
    "3d": ((1, 2, 5, 4, 3), {"window": 2, "stride": (2, 1, 1)}),
    "a window of 255": ((1, 1, 255, 2), {"window": (255, 1)}),
    # whose rows are packs on the card
    "rows": ((1, 2, 4, 16), {"window": 2}),
    "rows, overlapping": ((1, 2, 5, 16), {"window": 3, "stride": 2, "padding": 1}),
    "rows, stride 1": ((1, 1, 4, 8), {"window": (2, 5), "stride": 1, "padding": (1, 2)}),
    "rows, wide": ((1, 1, 2, 24), {"window": (1, 13), "stride": 1, "padding": (0, 6)}),
    "rows, 3d": ((1, 1, 3, 3, 8), {"window": 3, "stride": (1, 2, 1), "padding": 1}),
    "rows, stride beyond window": ((1, 2, 4, 24), {"window": 2, "stride": (2, 3)}),
}
#: dtype, alpha, beta
SCALES = [("float64", 1, 0), ("float16", 0.5, 1), ("float32", 1, 1), ("bfloat16", 1, 0)]


def in_windows(places, x_shape, forward):
    """PyTorch's indices (places in an image of x) as places in their windows."""
    axes = len(forward.window)
    at = np.unravel_index(places, x_shape[2:])
    sites = np.meshgrid(*map(np.arange, places.shape[2:]), indexing="ij")
    geometry = zip(at, sites, forward.stride, forward.padding, strict=True)
    taps = [place - (site * stride - pad[0]) for place, site, stride, pad in geometry]
    assert len(taps) == axes
    return np.ravel_multi_index(taps, forward.window).astype(np.uint8)


@pytest.mark.parametrize("case", CASES)
def test_forward_and_backward(random, case):
    shape, geometry = CASES[case]
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(shape) - 3]
    how = {"kernel_size" if k == "window" else k: v for k, v in geometry.items()}
    at = len(case) % 2
    for dtype, alpha, beta in SCALES[at::2]:
        forward = Pooling.of(shape, dtype=dtype, **geometry)
        values = random.permutation(np.prod(shape)) / 16 - 3.0  # no two alike
        x, x64 = rounded(values.reshape(shape), dtype)
        t = torch.from_numpy(x64).requires_grad_()
        y, places = pool(t, return_indices=True, **how)
        (dy, dy64), (old_y, _) = (rounded(random.standard_normal(y.shape), dtype) for _ in range(2))
        old_x, _ = rounded(random.standard_normal(shape), dtype)
        y.backward(torch.from_numpy(dy64))
        index = in_windows(places.numpy(), shape, forward)
        if dtype != "bfloat16":  # there two may be alike: the first counts
            np.testing.assert_array_equal(PoolingIndices(forward).reference(x64), index)
        index = PoolingIndices(forward).reference(x64)
        positive = np.where(y.detach().numpy() > 0, index, NOWHERE)
        check_every_split(IndexedPoolingCall(forward, True), {"x": x},
                          {"y": y.detach().numpy(), "index": positive}, most=8)  # fmt: skip
        scale = {"alpha": alpha, "beta": beta}
        call = IndexedPoolingCall(forward, **scale)
        check_every_split(call, {"x": x}, {"y": y.detach().numpy(), "index": index}, most=8,
                          old={"y": old_y} if beta else None)  # fmt: skip
        call = PoolingGradientCall(forward, indexed=True, **scale)
        # A half's gradients are added in float32.
        size = np.abs(t.grad.numpy()) + np.abs(dy64).max() * 4
        check_every_split(call, {"index": index, "dy": dy}, {"dx": t.grad.numpy()}, most=8,
                          sizes={"dx": size}, old={"dx": old_x} if beta else None)  # fmt: skip


def test_nan_and_infinity():
    """NaN is the maximum of its window, the first one; nothing but -infinity is one, too."""
    x = np.array([[[1, np.nan, np.nan, 5, -np.inf, -np.inf, 3, 3]]])
    call = IndexedPoolingCall(Pooling.of(x.shape, window=2, dtype="float64"))
    y = np.array([[[np.nan, np.nan, -np.inf, 3]]])
    index = np.array([[[1, 0, 0, 0]]], np.uint8)
    check_every_split(call, {"x": x}, {"y": y, "index": index})
    index = np.array([[[NOWHERE, NOWHERE, NOWHERE, 0]]], np.uint8)
    check_every_split(replace(call, positive=True), {"x": x}, {"y": y, "index": index})


def test_means_and_large_windows_have_no_indices():
    for geometry in ({"window": 2, "mode": "average_include_padding"}, {"window": (17, 16)}):
        with pytest.raises(ValueError, match="at most 255"):
            IndexedPoolingCall(Pooling.of((1, 1, 32, 32), **geometry))
