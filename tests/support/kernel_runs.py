"""Runs one operation by a module of kernel runners, in the workspace it asks for and no more."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.devices.kernels.runners import WORKSPACE
from ooc_cudnn.devices.view import DeviceView
from tests.support.device_operand import NUMPY, Operand

cupy = pytest.importorskip("cupy")

GUARD_BYTES = 256


class Packed:
    """A packed array of any number of axes on the device, with a guard behind it."""

    def __init__(self, shape, dtype, data=None, *, offset=0):
        count = int(np.prod(shape))
        self.memory = np.full(offset + count + 8, np.nan, NUMPY[dtype])
        self.inside = slice(offset, offset + count)
        if data is not None:
            self.memory[self.inside] = np.asarray(data).astype(NUMPY[dtype]).ravel()
        self.device = cupy.asarray(self.memory.view(np.uint8))
        strides = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
        pointer = self.device.data.ptr + offset * NUMPY[dtype].itemsize
        self.view = DeviceView(pointer, dtype, tuple(shape), strides)

    def result(self):
        after = cupy.asnumpy(self.device).view(self.memory.dtype)
        outside = np.ones(after.size, bool)
        outside[self.inside] = False
        assert np.array_equal(after[outside].view(np.uint8), self.memory[outside].view(np.uint8)), (
            "wrote outside"
        )
        return after[self.inside].reshape(self.view.shape)

    @property
    def wide(self):
        return self.memory[self.inside].reshape(self.view.shape).astype(np.float64)


def run(module, operation, inputs, output):
    """Run it twice: the second time must give the same bits; the workspace's guard must stand."""
    needed = WORKSPACE.get(type(operation), lambda _: 0)(operation)
    memory = cupy.full(needed + GUARD_BYTES, 0xFF, np.uint8)  # NaN to whoever reads it unwritten
    views = tuple(operand and operand.view for operand in inputs)
    in_place = any(operand is output for operand in inputs)
    results = []
    for _ in range(1 if in_place else 2):
        module.RUNNERS[type(operation)](
            operation, Call(views, output.view, (memory.data.ptr, needed))
        )
        results.append(output.result())
    assert bool((memory[needed:] == 0xFF).all()), "wrote past the workspace"
    for operand in inputs:
        if operand is not None and operand is not output:
            operand.result()  # what is around it stands
            now = cupy.asnumpy(operand.device)
            assert np.array_equal(now, operand.memory.view(np.uint8)), "wrote an input"
    first = np.ascontiguousarray(results[0]).view(np.uint8)
    assert np.array_equal(first, np.ascontiguousarray(results[-1]).view(np.uint8)), "not repeatable"
    return results[0]


__all__ = ["Operand", "Packed", "run"]
