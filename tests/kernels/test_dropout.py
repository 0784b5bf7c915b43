"""Dropout's kernel on the device: the mask that the definition in NumPy makes, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.kernels.dropout import advance, dropout
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.elementwise.dropout import Advance, Dropout
from tests.support.card import cupy
from tests.support.device_operand import DTYPES, Operand, assert_close, random

STATE = np.array([0x1234_5678_9ABC, 7], np.int64)


def state_view(array):
    return DeviceView(array.data.ptr, "int64", (2,), (1,))


@pytest.mark.parametrize("layout", ["first", "last", "first_rows", "last_rows"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "whole", "first"),
    [
        ((2, 24, 5, 16), (2, 24, 5, 16), (0, 0, 0, 0)),
        ((2, 3, 7, 7), (9, 8, 30, 7), (3, 2, 5, 0)),
        ((1, 5, 4, 33), (2**20, 2**10, 9, 33), (2**20 - 1, 7, 3, 0)),  # indices past 2**32
        ((3, 9), (4, 11), (1, 2)),
        ((2, 3, 2, 3, 4), (2, 5, 4, 3, 4), (0, 1, 2, 0, 0)),
    ],
    ids=str,
)
def test_dropout(shape, whole, first, dtype, layout):
    state = cupy.asarray(STATE)
    for per_channel in (False, True):
        operation = Dropout(shape, whole, first, 0.3, per_channel, dtype)
        x = Operand(shape, dtype, layout, data=random(shape, 1))
        for y in (Operand(shape, dtype, layout), x):
            expected = operation.reference(x.array, STATE)
            dropout(operation, Call((x.view, state_view(state)), y.view))
            assert_close(y.result(), expected, dtype, 2.0**-22 * np.abs(expected))


def test_the_next_offset():
    state = cupy.asarray(STATE)
    advance(Advance(), Call((state_view(state),), state_view(state)))
    assert cupy.asnumpy(state).tolist() == [STATE[0], STATE[1] + 1]
