"""Pooling and its gradient against PyTorch, and a loop over the windows where PyTorch has none."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.operations.pooling.gradient import PoolingBackward

torch = pytest.importorskip("torch")
F = torch.nn.functional

INCLUDE, EXCLUDE = "average_include_padding", "average_exclude_padding"
#: x, window, stride, padding: PyTorch pads by at most half a window, the same on both sides.
CASES = [
    ((2, 3, 8, 10), 2, 2, 0),
    ((2, 3, 9, 7), 3, 2, 1),
    ((1, 2, 7, 8), (3, 2), (1, 3), (1, 0)),
    ((2, 2, 11, 5), 2, 3, 0),
    ((2, 3, 20), 4, 3, 2),
    ((1, 2, 5, 6, 7), (2, 3, 2), (2, 1, 2), (1, 1, 0)),
    ((2, 4, 6, 6), 6, 6, 0),
]


def pytorch(x, window, stride, padding, mode):
    axes = x.ndim - 2
    if mode == "max":
        function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[axes - 1]
        return function(x, window, stride, padding)
    function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[axes - 1]
    return function(x, window, stride, padding, count_include_pad=mode == INCLUDE)


@pytest.mark.parametrize("mode", ["max", "max_deterministic", INCLUDE, EXCLUDE])
@pytest.mark.parametrize(("shape", "window", "stride", "padding"), CASES)
def test_forward_and_backward(shape, window, stride, padding, mode, random):
    forward = Pooling.of(shape, window=window, stride=stride, padding=padding, mode=mode)
    x = random.standard_normal(shape)
    t = torch.from_numpy(x).requires_grad_()
    expected = pytorch(t, window, stride, padding, mode.removesuffix("_deterministic"))
    y = forward.reference(x)
    assert y.shape == forward.output_shape == tuple(expected.shape)
    assert np.allclose(y, expected.detach().numpy(), rtol=1e-13, atol=1e-14)

    dy = random.standard_normal(y.shape)
    expected.backward(torch.from_numpy(dy))
    backward = PoolingBackward(forward, (0, shape[2]))
    dx = backward.reference(y, dy, x)
    assert np.allclose(dx, t.grad.numpy(), rtol=1e-13, atol=1e-14)
    if not forward.is_max:
        assert np.array_equal(backward.reference(dy), dx)
        assert np.array_equal(backward.reference(None, dy, None), dx)
    rows = (1, shape[2] - 1)
    some = PoolingBackward(forward, rows)
    assert some.output_shape == dx[:, :, slice(*rows)].shape
    assert np.array_equal(some.reference(y, dy, x), dx[:, :, slice(*rows)])


def test_the_first_of_equals_takes_the_gradient(random):
    """As in PyTorch, which compares with >."""
    shape = (3, 4, 9, 10)
    forward = Pooling.of(shape, window=3, stride=2, padding=1)
    x = random.integers(0, 3, shape).astype("f8")
    t = torch.from_numpy(x).requires_grad_()
    y = F.max_pool2d(t, 3, 2, 1)
    y.sum().backward()
    ones = np.ones(forward.output_shape)
    dx = PoolingBackward(forward, (0, 9)).reference(y.detach().numpy(), ones, x)
    assert np.array_equal(dx, t.grad.numpy())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_propagates_and_takes_the_gradient(value):
    x = np.zeros((1, 1, 4, 4)) if np.isnan(value) else np.full((1, 1, 4, 4), -np.inf)
    x[0, 0, 1, 2] = x[0, 0, 3, 2] = value
    forward = Pooling.of(x.shape, window=2)
    y = forward.reference(x)
    expected = F.max_pool2d(torch.from_numpy(x), 2).numpy()
    assert np.array_equal(y, expected, equal_nan=True)
    dx = PoolingBackward(forward, (0, 4)).reference(y, np.ones(y.shape), x)
    assert dx.sum() == 4
    if value != -np.inf:
        assert dx[0, 0, 1, 2] == dx[0, 0, 3, 2] == 1
    else:  # all are equal: the first
        assert (dx[0, 0, ::2, ::2] == 1).all()


def boxes(forward):
    """Each output site with the slices of x in its window."""
    for site in itertools.product(*map(range, forward.output_shape[2:])):
        box = []
        for axis, o in enumerate(site):
            begin = o * forward.stride[axis] - forward.padding[axis][0]
            end = min(begin + forward.window[axis], forward.x_shape[2 + axis])
            box.append(slice(max(begin, 0), max(end, 0)))
        yield (..., *site), (..., *box)


#: What PyTorch does not do: uneven padding, and windows that begin inside x.
UNEVEN = [
    ((2, 2, 7, 6), (3, 3), (2, 1), ((0, 2), (1, 0))),
    ((1, 3, 9, 5), (3, 2), (2, 2), ((-2, -1), (1, 0))),
    ((2, 2, 12), (3,), (4,), ((-3, -1),)),
    ((1, 2, 3, 3), (3, 3), (1, 1), ((2, 2), (2, 2))),
]


@pytest.mark.parametrize("mode", ["max", INCLUDE, EXCLUDE])
@pytest.mark.parametrize(("shape", "window", "stride", "padding"), UNEVEN)
def test_pieces(shape, window, stride, padding, mode, random):
    forward = Pooling(shape, window, stride, padding, mode)
    x = random.integers(-2, 3, shape).astype("f8")
    y = forward.reference(x)
    dy = random.standard_normal(y.shape)
    dx = np.zeros(shape)
    for site, box in boxes(forward):
        seen = x[box].reshape(*shape[:2], -1)
        if mode == "max":
            assert np.array_equal(y[site], seen.max(-1))
            for n, c in itertools.product(*map(range, shape[:2])):
                at = np.unravel_index(seen[n, c].argmax(), x[box].shape[2:])
                dx[box][(n, c, *at)] += dy[site][n, c]
        else:
            count = math.prod(window) if mode == INCLUDE else seen.shape[-1]
            assert np.allclose(y[site], seen.sum(-1) / count)
            dx[box] += (dy[site] / count).reshape(*shape[:2], *[1] * len(window))
    found = PoolingBackward(forward, (0, shape[2])).reference(y, dy, x)
    assert np.allclose(found, dx, rtol=1e-13, atol=1e-14)


def test_work_counts_bytes():
    forward = Pooling.of((1, 2, 4, 4), window=2, dtype="float16")
    assert forward.work().device_bytes == (32 + 8) * 2
    backward = PoolingBackward(forward, (0, 4))
    assert backward.work().device_bytes == (32 + 8 + 32 + 8) * 2
