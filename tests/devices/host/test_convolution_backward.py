"""Gradients of convolutions on the host: any geometry, dtype and layout, within the workspace."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ooc_cudnn.devices.host import convolution as host_convolution
from ooc_cudnn.devices.host import convolution_backward as host_convolution_backward
from ooc_cudnn.devices.host import (
    convolution_backward_filter as host_convolution_backward_filter,
)
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)
from ooc_cudnn.tensor import ACCUMULATOR
from tests.support.host_operations import DTYPES, LAYOUTS, assert_near, laid_out, run

CASES = {
    "rows": ((2, 3, 20), (4, 3, 3), {"padding": 2, "stride": 3}),
    "stride over window": ((2, 3, 21), (4, 3, 2), {"stride": 5}),
    "uneven": ((2, 3, 7, 6), (4, 3, 3, 2), {"padding": ((1, 0), (0, 2)), "dilation": (2, 1)}),
    "groups": ((1, 4, 7, 6), (6, 2, 3, 3), {"padding": 1, "groups": 2}),
    "depthwise": ((2, 3, 9, 8), (6, 1, 3, 3), {"padding": 1, "stride": 2, "groups": 3}),
    "padding beyond": ((1, 3, 5, 6), (6, 1, 3, 3), {"padding": 4, "groups": 3}),
    "solid": ((1, 2, 5, 4, 3), (2, 2, 2, 2, 2), {"padding": 1, "stride": (1, 2, 1)}),
    "far": ((1, 1, 3, 3), (1, 1, 1, 1), {"padding": ((9, 0), 0), "stride": 4}),
    "common factor": ((2, 2, 19, 17), (3, 2, 3, 4), {"stride": (4, 6), "dilation": (2, 4)}),
    "patches": ((2, 3, 16, 16), (5, 3, 4, 4), {"stride": 4}),
}


def operands(random, case, dtype="float64"):
    x_shape, w_shape, geometry = CASES[case]
    forward = Convolution.of(x_shape, w_shape, dtype=dtype, **geometry)
    shapes = (x_shape, w_shape, forward.output_shape)
    # Values that every dtype holds: the reference then sees what the device sees.
    return forward, *(np.round(random.standard_normal(shape) * 8) / 8 for shape in shapes)


def gradients(forward, x, w, dy):
    """(dx, dw) by PyTorch in float64."""
    torch = pytest.importorskip("torch")
    x, w, dy = (torch.from_numpy(array) for array in (x, w, dy))
    x, w = x.requires_grad_(), w.requires_grad_()
    padded = torch.nn.functional.pad(x, [p for pair in forward.padding[::-1] for p in pair])
    function = getattr(torch.nn.functional, f"conv{x.ndim - 2}d")
    y = function(padded, w, None, forward.stride, 0, forward.dilation, forward.groups)
    y.backward(dy)
    return x.grad.numpy(), w.grad.numpy()


def check(forward, x, w, dy, layout="channels_first", result_dtype=None):
    """Both gradients against PyTorch; bounds from the gradients of absolute values."""
    dtype = forward.dtype
    result = result_dtype or dtype
    dx, dw = gradients(forward, x, w, dy)
    dx_size, dw_size = gradients(forward, abs(x), abs(w), abs(dy))
    x, w, dy = (laid_out(array, layout, dtype) for array in (x, w, dy))
    data = ConvolutionBackwardData(forward, result)
    found = run(host_convolution_backward, data, (w, dy), result, layout)
    assert_near(found, dx, result, dx_size, math.prod(w.shape))
    filters = ConvolutionBackwardFilter(forward, result)
    found = run(host_convolution_backward, filters, (x, dy), result, layout)
    assert_near(found, dw, result, dw_size, dy.size)
    return data, filters, (x, w, dy)


@pytest.fixture(params=[True, False], ids=["scattered", "by residues"])
def way(request, monkeypatch):
    """Both ways of the gradient of the data, whichever were the faster."""
    monkeypatch.setattr(host_convolution_backward, "_scatters", lambda forward: request.param)


@pytest.mark.parametrize("worth", [1, 10**7], ids=["every core", "one thread"])
@pytest.mark.parametrize("block_bytes", [1, 300, 2**21])
@pytest.mark.parametrize("case", CASES)
def test_blocks_of_any_size(monkeypatch, way, random, case, block_bytes, worth):
    monkeypatch.setattr(host_convolution, "WORTH_A_WORKER_FLOPS", worth)
    monkeypatch.setattr(host_convolution, "SMALLEST_BLOCK_BYTES", 1)
    monkeypatch.setattr(host_convolution, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(host_convolution_backward_filter, "LEAST_SITES", 1)
    monkeypatch.setattr(host_convolution_backward_filter, "TILE_BYTES", block_bytes)
    check(*operands(random, case))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["uneven", "groups", "common factor", "solid"])
def test_dtypes_and_layouts(way, random, case, dtype, layout):
    check(*operands(random, case, dtype), layout, ACCUMULATOR[dtype])
    check(*operands(random, case, dtype), layout)


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_references_of_the_operations(way, random, case):
    forward, x, w, dy = operands(random, case)
    for operation, inputs in (
        (ConvolutionBackwardData(forward, "float64"), (w, dy)),
        (ConvolutionBackwardFilter(forward, "float64"), (x, dy)),
    ):
        found = run(host_convolution_backward, operation, inputs, "float64")
        np.testing.assert_allclose(found, operation.reference(*inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [0, 1])
def test_no_rows_of_dy_give_zeros(way, rows):
    forward = Convolution((2, 3, rows, 4), (2, 3, 3, 3), ((0, 0), (1, 1)), (1, 1), (1, 1))
    assert forward.output_shape[2] <= 0
    data = ConvolutionBackwardData(forward, "float32")
    w, dy = np.ones(forward.w_shape, "f4"), np.empty((2, 2, 0, 4), "f4")
    assert (run(host_convolution_backward, data, (w, dy), "float32") == 0).all()
    filters = ConvolutionBackwardFilter(forward, "float32")
    x = np.ones(forward.x_shape, "f4")
    assert (run(host_convolution_backward, filters, (x, dy), "float32") == 0).all()


def test_no_rows_of_x_give_zeros(way):
    forward = Convolution((2, 3, 0, 4), (2, 3, 2, 3), ((1, 2), (1, 1)), (1, 1), (1, 1))
    assert forward.output_shape[2] == 2
    filters = ConvolutionBackwardFilter(forward, "float32")
    x, dy = np.empty(forward.x_shape, "f4"), np.ones(forward.output_shape, "f4")
    assert (run(host_convolution_backward, filters, (x, dy), "float32") == 0).all()
    data = ConvolutionBackwardData(forward, "float32")
    assert (
        run(host_convolution_backward, data, (np.ones((2, 3, 2, 3), "f4"), dy), "float32").size == 0
    )


def test_pieces_whose_windows_begin_inside_or_beyond_the_rows(way, random):
    """Rows [a, b) of dx from the rows of dy that reach them: padding may be negative."""
    whole, _, w, dy = operands(random, "common factor")
    dx = ConvolutionBackwardData(whole, "float64").reference(w, dy)
    (stride, _), (dilation, _), reach = whole.stride, whole.dilation, 2 * whole.dilation[0]
    for a in range(19):
        for b in range(a + 1, 20):
            low = max(0, -((reach - a) // stride))
            high = max(low, min(dy.shape[2], (b - 1) // stride + 1))
            if high == low:
                continue
            before = a - low * stride
            after = (high - 1) * stride + reach + 1 - b
            piece = replace(
                whole, x_shape=(2, 2, b - a, 17), padding=((before, after), whole.padding[1])
            )
            assert piece.output_shape[2] == high - low
            found = run(
                host_convolution_backward,
                ConvolutionBackwardData(piece, "float64"),
                (w, dy[:, :, low:high]),
                "float64",
            )
            np.testing.assert_allclose(found, dx[:, :, a:b], atol=1e-12)
    assert dilation == 2


def test_repeatable_and_workspace_near_a_block_for_each_worker(random):
    forward = Convolution.of((2, 16, 40, 40), (24, 16, 3, 3), padding=1)
    x, dy = (
        random.standard_normal(s).astype("f4") for s in (forward.x_shape, forward.output_shape)
    )
    filters = ConvolutionBackwardFilter(forward, "float32")
    first, second = (run(host_convolution_backward, filters, (x, dy), "float32") for _ in range(2))
    np.testing.assert_array_equal(first, second)
    large = Convolution.of((1, 64, 4096, 4096), (64, 64, 3, 3), padding=1)
    most = host_convolution.MOST_WORKERS * (
        host_convolution.BLOCK_BYTES + host_convolution_backward_filter.TILE_BYTES + 4 * 64 * 64 * 9
    )
    for operation in (
        ConvolutionBackwardData(large, "float32"),
        ConvolutionBackwardFilter(large, "float32"),
    ):
        assert host_convolution_backward.WORKSPACE[type(operation)](operation) <= most
