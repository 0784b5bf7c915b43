"""The kernel of labels, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.kernels.channel_argmax import channel_argmax
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.softmax.channel_argmax import ChannelArgmax
from ooc_cudnn.tensor import packed_strides
from tests.support.card import cupy
from tests.support.device_operand import DTYPES, Operand


@pytest.mark.parametrize("layout", ["first", "last", "first_rows"])
@pytest.mark.parametrize("labels", ["uint8", "int64"])
@pytest.mark.parametrize("shape", [(2, 3, 8, 16), (3, 5, 7, 7), (1, 4, 3, 2, 9), (3, 5)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_channel_argmax(dtype, shape, labels, layout):
    draw = np.random.default_rng(0)
    data = draw.integers(-3, 3, shape).astype("f8")  # with equal ones
    data[0, -1].flat[::3] = np.nan
    x = Operand(shape, dtype, layout, data=data)
    sites = (shape[0], 1, *shape[2:])
    for order in ("channels_first", "channels_last"):
        memory = cupy.asarray(np.full(sites, 77, labels))
        y = DeviceView(memory.data.ptr, labels, sites, packed_strides(sites, order))
        channel_argmax(ChannelArgmax(shape, dtype, labels), Call((x.view,), y))
        found = np.asarray(cupy.asnumpy(memory)).reshape(sites)
        np.testing.assert_array_equal(found, data.argmax(1)[:, None])
