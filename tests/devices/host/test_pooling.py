"""Pooling and its gradient on the host: modes, geometry, layouts, NaN, boxes of any size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ooc_cudnn.devices.host import chunks as host_chunks
from ooc_cudnn.devices.host import pooling as host_pooling
from ooc_cudnn.devices.host import pooling_gradient as host_pooling_backward
from ooc_cudnn.operations.core.ranges import Rows
from ooc_cudnn.operations.pooling.forward import MODES, Pooling
from ooc_cudnn.operations.pooling.gradient import PoolingBackward
from tests.support.host_operations import DTYPES, LAYOUTS, assert_near, laid_out, run

CASES = {
    "rows": ((2, 3, 20), {"window": 3, "padding": 1, "stride": 2}),
    "plain": ((2, 3, 8, 6), {"window": 2}),
    "overlapping": ((2, 3, 9, 8), {"window": 3, "padding": 1, "stride": 2}),
    "uneven": ((2, 2, 7, 9), {"window": (4, 2), "padding": ((0, 3), (1, 0)), "stride": (1, 3)}),
    "gaps": ((1, 2, 9, 9), {"window": 2, "stride": 3}),
    "solid": ((2, 2, 5, 4, 6), {"window": (2, 3, 2), "padding": 1, "stride": (2, 1, 2)}),
    "global": ((2, 5, 6, 7), {"window": (6, 7)}),
    "nearly global": ((2, 3, 10, 9), {"window": (9, 8), "stride": 1}),
}


def make(random, case, mode, dtype="float64"):
    shape, geometry = CASES[case]
    operation = Pooling.of(shape, mode=mode, dtype=dtype, **geometry)
    x = random.integers(-6, 7, shape) / 2.0  # many ties
    dy = np.round(random.standard_normal(operation.output_shape) * 8) / 8
    return operation, x, dy


@pytest.fixture(params=[True, False], ids=["by windows", "by taps"])
def way(request, monkeypatch):
    """Both ways to find maxima, whichever were the faster."""
    monkeypatch.setattr(host_pooling_backward, "_windows_are_few", lambda forward: request.param)


@pytest.mark.parametrize("elements", [5, 90, 2**18])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_against_the_definition(monkeypatch, way, random, case, mode, elements):
    monkeypatch.setattr(host_chunks, "CHUNK_ELEMENTS", elements)
    operation, x, dy = make(random, case, mode)
    y = operation.reference(x)
    assert_near(run(host_pooling, operation, (x,), "float64"), y, "float64", 3, 64)
    backward = PoolingBackward(operation, (0, operation.x_shape[2]))
    expected = backward.reference(*((y, dy, x) if operation.is_max else (dy,)))
    inputs = (y, dy, x) if operation.is_max else (None, dy, None)
    assert_near(run(host_pooling, backward, inputs, "float64"), expected, "float64", 3, 64)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("case", ["overlapping", "solid", "nearly global"])
def test_dtypes_and_layouts(way, random, case, mode, dtype, layout):
    operation, x, dy = make(random, case, mode, dtype)
    y = operation.reference(x)
    x, dy = laid_out(x, layout, dtype), laid_out(dy, layout, dtype)
    found = run(host_pooling, operation, (x,), dtype, layout)
    assert_near(found, y, dtype, 3, 256)
    backward = PoolingBackward(operation, (1, operation.x_shape[2] - 1))
    inputs = (found, dy, x) if operation.is_max else (None, dy, None)
    expected = backward.reference(*(a.astype("f8") for a in inputs if a is not None))
    size = replace(backward).reference(
        *(abs(a.astype("f8")) if a is dy else a.astype("f8") for a in inputs if a is not None)
    )
    assert_near(run(host_pooling, backward, inputs, dtype, layout), expected, dtype, size, 256)


@pytest.mark.parametrize("case", ["rows", "plain", "overlapping", "solid"])
@pytest.mark.parametrize("mode", ["max", *MODES[2:]])
def test_against_pytorch(random, case, mode):
    torch = pytest.importorskip("torch")
    operation, x, dy = make(random, case, mode)
    axes = x.ndim - 2
    name = f"{'max' if mode == 'max' else 'avg'}_pool{axes}d"
    padding = tuple(pair[0] for pair in operation.padding)
    options = {} if mode == "max" else {"count_include_pad": mode == "average_include_padding"}
    if any(2 * p > k for p, k in zip(padding, operation.window, strict=True)):
        pytest.skip("PyTorch pads at most half a window")
    given = torch.from_numpy(x).requires_grad_()
    y = getattr(torch.nn.functional, name)(
        given, operation.window, operation.stride, padding, **options
    )
    y.backward(torch.from_numpy(dy))
    found = run(host_pooling, operation, (x,), "float64")
    assert_near(found, y.detach().numpy(), "float64", 3, 64)
    backward = PoolingBackward(operation, (0, operation.x_shape[2]))
    inputs = (found, dy, x) if operation.is_max else (dy,)
    found = run(host_pooling, backward, inputs, "float64")
    assert_near(found, given.grad.numpy(), "float64", 3, 64)


@pytest.mark.parametrize("case", ["plain", "overlapping", "global", "nearly global"])
def test_nan_and_infinity(way, random, case):
    operation, x, dy = make(random, case, "max", "float32")
    x[0, 0, :2, 1], x[1], x[0, 1, 0, 0] = np.nan, -np.inf, np.inf
    x, dy = x.astype("f4"), dy.astype("f4")
    y = run(host_pooling, operation, (x,), "float32")
    np.testing.assert_array_equal(y, operation.reference(x))
    assert np.isnan(y).any()
    assert (y[1] == -np.inf).all()
    backward = PoolingBackward(operation, (0, operation.x_shape[2]))
    found = run(host_pooling, backward, (y, dy, x), "float32")
    np.testing.assert_allclose(found, backward.reference(y, dy, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("case", ["rows", "overlapping", "uneven", "solid"])
def test_pieces_of_rows(way, random, case, mode):
    """Pieces of y from their rows of x, and of dx from the windows that reach it."""
    whole, x, dy = make(random, case, mode)
    y = whole.reference(x)
    everything = PoolingBackward(whole, (0, x.shape[2]))
    dx = everything.reference(*((y, dy, x) if whole.is_max else (dy,)))
    k, s, p = whole.window[0], whole.stride[0], whole.padding[0][0]
    for a in range(y.shape[2]):
        for b in range(a + 1, y.shape[2] + 1):
            rows = whole.input_rows((a, b))
            piece = whole.on_piece(x.shape[0], rows, x.shape[1])
            found = run(host_pooling, piece, (x[:, :, rows.start : rows.stop],), "float64")
            assert_near(found, y[:, :, a:b], "float64", 3, 64)
    for a in range(x.shape[2]):
        for b in (a + 1, x.shape[2]):
            low = min(max(0, -((k - 1 - p - a) // s)), y.shape[2])
            high = max(low, min(y.shape[2], (b - 1 + p) // s + 1))
            rows = whole.input_rows((low, high))
            start, stop = min(a, rows.start), max(b, rows.stop)  # windows may see less, or more
            rows = Rows(start, stop, rows.before - (rows.start - start), 0)
            after = (high - low - 1) * s + k - rows.before - (stop - start)
            piece = whole.on_piece(x.shape[0], rows._replace(after=after), x.shape[1])
            if piece.output_shape[2] != high - low:
                continue
            backward = PoolingBackward(piece, (a - start, b - start))
            of_y, of_x = slice(low, high), slice(start, stop)
            inputs = (None, dy[:, :, of_y], None)
            if whole.is_max:
                inputs = (y[:, :, of_y], dy[:, :, of_y], x[:, :, of_x])
            found = run(host_pooling, backward, inputs, "float64")
            assert_near(found, dx[:, :, a:b], "float64", 3, 64)


def test_no_images(way):
    operation = Pooling((0, 3, 4, 4), (2, 2), (2, 2), ((0, 0), (0, 0)), "max", "float32")
    x, y = np.empty((0, 3, 4, 4), "f4"), np.empty((0, 3, 2, 2), "f4")
    assert run(host_pooling, operation, (x,), "float32").size == 0
    assert run(host_pooling, PoolingBackward(operation, (0, 4)), (y, y, x), "float32").size == 0


@pytest.mark.parametrize("mode", MODES[1:])
def test_a_window_of_half_a_million_elements_takes_no_step_for_each(random, mode):
    operation = Pooling.of((1, 2, 700, 800), window=(700, 800), mode=mode)
    x = random.standard_normal(operation.x_shape).astype("f4")
    y = run(host_pooling, operation, (x,), "float32")
    np.testing.assert_allclose(
        y[..., 0, 0], x.max(axis=(2, 3)) if operation.is_max else x.mean(axis=(2, 3)), atol=1e-5
    )
    dy = np.full(y.shape, 3, "f4")
    inputs = (y, dy, x) if operation.is_max else (dy,)
    dx = run(host_pooling, PoolingBackward(operation, (0, 700)), inputs, "float32")
    np.testing.assert_allclose(dx, 3 * (x == y) if operation.is_max else 3 / 560000, rtol=1e-5)
