"""Channels as heads, under every split."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.operations.attention.heads import HeadsCall
from ooc_cudnn.tensor import numpy_dtype
from tests.support.every_split import check_every_split
from tests.support.host_operations import DTYPES


@pytest.mark.parametrize("scaling", [(1.0, 0.0), (2.0, -0.25)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_under_every_split(dtype, scaling, random):
    channels = random.standard_normal((3, 6, 5)).astype(numpy_dtype(dtype))
    heads = channels.reshape(3, 2, 3, 5).transpose(0, 2, 1, 3)
    for x, y in ((channels, heads), (heads, channels)):
        call = HeadsCall(x.shape, y.shape, dtype, alpha=scaling[0], beta=scaling[1])
        old = {"y": random.standard_normal(y.shape).astype(x.dtype)} if scaling[1] else {}
        x = np.ascontiguousarray(x)
        check_every_split(call, {"x": x}, {"y": y.astype("f8")}, old=old)
