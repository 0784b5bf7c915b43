"""The mean of each channel, cut along rows too, and its gradient."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.operations.pooling.global_average import GlobalAverageCall, of_all_sites
from ooc_cudnn.operations.pooling.gradient import PoolingGradientCall
from tests.support.cut_calls import check_cut, rounded

pytest.importorskip("ml_dtypes")


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 2, 5, 4), (1, 2, 3, 4, 2)], ids=str)
def test_every_split(shape):
    random, axes = np.random.default_rng(5), tuple(range(2, len(shape)))

    def forward(dtype):
        x = rounded(random.standard_normal(shape), dtype)
        return {"x": x}, x.mean(axes, keepdims=True)

    def backward(dtype):
        dy = rounded(random.standard_normal((*shape[:2], *(1 for _ in axes))), dtype)
        return {"dy": dy}, np.broadcast_to(dy, shape) / np.prod(shape[2:])

    check_cut(
        lambda dtype, alpha, beta: GlobalAverageCall(shape, dtype, alpha=alpha, beta=beta),
        forward,
        summed=True,
    )
    check_cut(
        lambda dtype, alpha, beta: PoolingGradientCall(
            of_all_sites(shape, dtype), alpha=alpha, beta=beta
        ),
        backward,
    )
