"""The trial of a direct convolution of few channels (`benchmarks/few_channels.cu`)."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.layout_ways import direct_plan
from ooc_cudnn.devices.kernels.launch import launch
from ooc_cudnn.operations.convolution.forward import Convolution
from tests.support.device_operand import Operand, assert_close, random


@pytest.mark.parametrize("layout", ["images", "last", "first"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("n", "c_x", "c_y", "sizes", "window", "stride", "padding"),
    [(5, 3, 20, (7, 9), 3, 1, 1), (3, 1, 16, (8, 6), 5, 1, 2), (2, 3, 8, (11, 12), 3, 2, 0)],
)
def test_it_is_the_convolution(layout, dtype, n, c_x, c_y, sizes, window, stride, padding):
    operation = Convolution.of(
        (n, c_x, *sizes), (c_y, c_x, window, window), padding=padding, stride=stride, dtype=dtype
    )
    x = Operand(operation.x_shape, dtype, layout, data=random(operation.x_shape, 1))
    w = Operand(operation.w_shape, dtype, data=random(operation.w_shape, 2))
    for tile in ((16, 4), (32, 2)):
        y = Operand(operation.output_shape, dtype, layout)
        planned = direct_plan(operation, x.view, y.view, *tile)
        key = ("few", operation, layout, tile)
        launch(key, (x.view, w.view, y.view), lambda planned=planned: planned, (), None)
        expected = operation.reference(x.wide, w.wide)
        assert_close(y.result(), expected, dtype, 1e-5 if dtype == "float32" else 1e-3)
        assert not np.isnan(y.result()).any()
