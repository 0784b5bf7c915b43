"""A convolution with its bias and ReLU as one launch on the card: right, and NaN goes through."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import FusedConvolution, is_faster_fused
from ooc_cudnn.pipeline.exactness import ExpectedResult
from tests.support.device_operand import Operand

cupy = pytest.importorskip("cupy")

#: Largest errors, as a share of the largest result: float32 is TF32.
ERRORS = {"float32": 3e-3, "float16": 2e-3, "bfloat16": 1e-2}
#: x, w and the rest.
CASES = {
    "3x3": ((4, 64, 20, 24), (64, 64, 3, 3), {"padding": 1}),
    "1x1": ((4, 64, 20, 24), (32, 64, 1, 1), {}),
    "three channels": ((4, 3, 33, 31), (16, 3, 3, 3), {"padding": 1}),
    "odd channels": ((3, 13, 17, 19), (11, 13, 3, 3), {"padding": 1}),
    "aligned channels": ((3, 8, 17, 19), (24, 8, 5, 3), {"padding": (2, 1)}),
    "stride": ((2, 3, 41, 41), (64, 3, 7, 7), {"padding": 3, "stride": 2}),
    "dilation": ((2, 16, 25, 25), (16, 16, 3, 3), {"padding": 2, "dilation": 2}),
    "first rows": ((2, 32, 20, 20), (32, 32, 3, 3), {"padding": ((1, 0), (1, 1))}),
    "last rows": ((2, 32, 20, 20), (32, 32, 3, 3), {"padding": ((0, 1), (1, 1))}),
    "last columns": ((2, 32, 20, 20), (32, 32, 3, 3), {"padding": ((1, 1), (0, 1))}),
    "one row": ((2, 16, 1, 40), (16, 16, 1, 3), {"padding": (0, 1)}),
    "one axis": ((2, 16, 300), (16, 16, 5), {"padding": 2}),
}


def fused(name, dtype, mode="relu"):
    x, w, options = CASES[name]
    forward = replace(Convolution.of(x, w, dtype=dtype, **options), layout="channels_last")
    return FusedConvolution(forward, mode)


def run(device, operation, inputs):
    """What the card makes of inputs in a result full of NaN, and the engine's plan."""
    views = [Operand(each.shape, operation.dtype, "last", data=each) for each in inputs[:2]]
    views += [Operand(inputs[2].shape, operation.dtype, data=inputs[2])]
    y = Operand(operation.output_shape, operation.dtype, "last")
    found = device.convolutions.executable(operation, None)
    alone = device.convolutions.executable(operation.forward, None)
    nbytes = max(plan.workspace_bytes for plan in (found, alone) if plan is not None)
    scratch = cupy.full(nbytes + 256, 0xFF, "u1")
    device.convolutions.run(
        operation, tuple(each.view for each in views), y.view, (scratch.data.ptr, nbytes),
        cupy.cuda.get_current_stream(),
    )  # fmt: skip
    return y.result(), found


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("name", CASES)
def test_one_launch_is_right(cuda_device, name, dtype):
    for mode in ("relu", "identity"):
        operation = fused(name, dtype, mode)
        expected = ExpectedResult.of(operation)
        result, found = run(cuda_device, operation, expected.inputs)
        assert expected.compared(result).relative <= ERRORS[dtype], (mode, found)
        if name == "3x3":
            assert is_faster_fused(operation.forward, "channels_last")
            assert found is not None, "cuDNN has engines for it"


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("name", ["3x3", "three channels", "stride"])
def test_nan_goes_through_relu(cuda_device, name, dtype):
    operation = fused(name, dtype)
    x, w, b = (each.copy() for each in ExpectedResult.of(operation).inputs)
    b[0] = np.nan
    result, found = run(cuda_device, operation, (x, w, b))
    assert np.isnan(result[:, 0]).all(), found
    assert not np.isnan(result[:, 1:]).any(), found
    b[0] = 0
    x[0, 0, 6, 6] = np.nan
    result, found = run(cuda_device, operation, (x, w, b))
    site = 6 // operation.forward.stride[0]
    assert np.isnan(result[0, :, site, site]).all(), found
