"""The kernel of stored images, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.kernels.cast_scale import cast_scale
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.elementwise.cast_scale import CastScale
from ooc_cudnn.tensor import ACCUMULATOR, packed_strides
from tests.support.card import cupy
from tests.support.device_operand import DTYPES, EPSILON, Operand, assert_close, random


@pytest.mark.parametrize("layout", ["first", "last", "first_rows"])
@pytest.mark.parametrize("stored", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("shape", [(2, 3, 8, 16), (3, 3, 7, 7), (1, 2, 3, 2, 9), (3, 5)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cast_scale(dtype, shape, stored, layout):
    draw = np.random.default_rng(0)
    most = np.iinfo(stored)
    x = draw.integers(most.min, most.max, shape, stored, endpoint=True)
    memory = cupy.asarray(x)
    view = DeviceView(memory.data.ptr, stored, shape, packed_strides(shape))
    real = ACCUMULATOR[dtype]
    for mean_shape, scale_shape in (((shape[1],), (shape[1],)), ((1,), (shape[1],))):
        mean = Operand(mean_shape, real, data=50 + random(mean_shape, 1))
        scale = Operand(scale_shape, real, data=random(scale_shape, 2) / 100)
        y = Operand(shape, dtype, layout)
        operation = CastScale(shape, stored, mean_shape, scale_shape, dtype)
        cast_scale(operation, Call((view, mean.view, scale.view), y.view))
        expected = operation.reference(x, mean.array, scale.array)
        size = np.abs(expected) + 60 * np.abs(scale.wide).max()
        assert_close(y.result(), expected, dtype, 4 * EPSILON[real] * size)
