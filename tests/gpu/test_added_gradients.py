"""A data gradient added to another one by one launch on the card: right, in place, NaN as well."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ooc_cudnn.operations.convolution.data_gradient import is_added_at_once
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import AddedBackwardData
from ooc_cudnn.pipeline.exactness import ExpectedResult
from tests.support.device_operand import Operand

cupy = pytest.importorskip("cupy")

#: x, w and the rest.
CASES = {
    "3x3": ((4, 64, 20, 24), (64, 64, 3, 3), {"padding": 1}),
    "1x1": ((4, 64, 20, 24), (32, 64, 1, 1), {}),
    "to fewer": ((4, 256, 14, 14), (64, 256, 1, 1), {}),
    "many sites": ((8, 64, 56, 56), (256, 64, 1, 1), {}),
    "many channels": ((2, 512, 7, 7), (512, 512, 3, 3), {"padding": 1}),
    "stride": ((2, 64, 41, 41), (64, 64, 3, 3), {"padding": 1, "stride": 2}),
    "1x1, stride": ((2, 64, 28, 28), (128, 64, 1, 1), {"stride": 2}),
    "dilation": ((2, 16, 25, 25), (16, 16, 3, 3), {"padding": 2, "dilation": 2}),
    "first rows": ((2, 32, 20, 20), (32, 32, 3, 3), {"padding": ((1, 0), (1, 1))}),
    "last rows": ((2, 32, 20, 20), (32, 32, 3, 3), {"padding": ((0, 1), (1, 1))}),
    "one row": ((2, 16, 1, 40), (16, 16, 1, 3), {"padding": (0, 1)}),
    "one axis": ((2, 16, 300), (16, 16, 5), {"padding": 2}),
    "three axes": ((1, 32, 12, 12, 12), (32, 32, 3, 3, 3), {"padding": 1}),
}


def added(name, dtype):
    x, w, options = CASES[name]
    forward = replace(Convolution.of(x, w, dtype=dtype, **options), layout="channels_last")
    return AddedBackwardData(forward, dtype)


def run(device, operation, inputs, *, in_place):
    """What the card makes of inputs, in the addend's place or in a result full of NaN."""
    operands = [Operand(each.shape, operation.dtype, "last", data=each) for each in inputs]
    dx = Operand(operation.output_shape, operation.dtype, "last")
    if in_place:
        dx = operands[2]
    found = device.convolutions.executable(operation, None)
    alone = device.convolutions.executable(operation.alone, None)
    nbytes = operation.alone_bytes + 256
    nbytes += max(plan.workspace_bytes for plan in (found, alone) if plan is not None)
    scratch = cupy.full(nbytes + 256, 0xFF, "u1")
    device.convolutions.run(
        operation, tuple(each.view for each in operands), dx.view, (scratch.data.ptr, nbytes),
        cupy.cuda.get_current_stream(),
    )  # fmt: skip
    return dx.result(), found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_one_launch_is_right(cuda_device, name, dtype):
    operation = added(name, dtype)
    assert is_added_at_once(operation.forward, "channels_last")
    expected = ExpectedResult.of(operation)
    for in_place in (False, True):
        result, found = run(cuda_device, operation, expected.inputs, in_place=in_place)
        assert expected.compared(result).is_admitted, (in_place, found)
        if name == "3x3":
            assert found is not None, "cuDNN has engines for it"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_nan_goes_through(cuda_device, dtype):
    operation = added("3x3", dtype)
    w, dy, old = (each.copy() for each in ExpectedResult.of(operation).inputs)
    old[0, 3, 6, 6] = np.nan
    dy[1, 0, 9, 9] = np.nan
    result, found = run(cuda_device, operation, (w, dy, old), in_place=True)
    assert np.argwhere(np.isnan(result[0])).tolist() == [[3, 6, 6]], found
    assert np.isnan(result[1, :, 8:11, 8:11]).all(), found
    assert not np.isnan(result[2:]).any(), found
