"""The pooling kernels, against a loop over the windows in NumPy.

Maxima and their gradients must be right to the bit (dy is of small integers, whose sums are exact),
averages within rounding. x has many equal values, so that the first of them matters.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import arguments
from ooc_cudnn.devices.kernels import pooling as forward_module
from ooc_cudnn.devices.kernels import pooling_gradient as backward_module
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.devices.kernels.pooling import pooling
from ooc_cudnn.devices.kernels.pooling_gradient import pooling_backward
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.operations.pooling.gradient import PoolingBackward
from ooc_cudnn.tensor import ACCUMULATOR
from tests.support.card import cupy
from tests.support.device_operand import DTYPES, EPSILON, NUMPY, Operand, assert_close

INCLUDE, EXCLUDE = "average_include_padding", "average_exclude_padding"

#: name: x, window, stride, (before, after) of each axis
CASES = {
    "2x2 s2": ((2, 5, 12, 16), (2, 2), (2, 2), ((0, 0), (0, 0))),
    "2x2 s2, odd": ((3, 7, 9, 15), (2, 2), (2, 2), ((0, 0), (0, 0))),
    "3x3 s2 p1": ((2, 8, 13, 16), (3, 3), (2, 2), ((1, 1), (1, 1))),
    "3x3 s2": ((1, 16, 9, 31), (3, 3), (2, 2), ((0, 0), (0, 0))),
    "3x3 s1 p1": ((2, 6, 7, 24), (3, 3), (1, 1), ((1, 1), (1, 1))),
    "gaps": ((2, 3, 11, 20), (2, 1), (3, 2), ((0, 0), (0, 0))),
    "uneven": ((2, 4, 8, 20), (5, 3), (1, 2), ((2, 1), (0, 2))),
    "negative": ((2, 4, 10, 12), (3, 3), (2, 2), ((-2, -1), (1, 1))),
    "negative 1d": ((2, 3, 20), (3,), (2,), ((-1, -3),)),
    "short rows": ((5, 9, 6, 3), (2, 2), (1, 1), ((1, 0), (0, 1))),
    "wide": ((1, 2, 4, 700), (2, 2), (2, 2), ((0, 0), (0, 0))),
    "several tiles": ((1, 3, 150, 70), (3, 3), (2, 2), ((1, 1), (1, 1))),
    "many channels": ((1, 200, 5, 6), (3, 3), (2, 2), ((1, 1), (1, 1))),
    "1x1 image": ((3, 40, 1, 1), (1, 1), (1, 1), ((0, 0), (0, 0))),
    "one channel": ((4, 1, 8, 8), (2, 2), (2, 2), ((0, 0), (0, 0))),
    "one column": ((3, 4, 6, 1), (3, 2), (2, 1), ((1, 1), (1, 1))),
    "1d": ((3, 4, 50), (4,), (3,), ((1, 2),)),
    "1d, large windows": ((2, 3, 3000), (100,), (7,), ((50, 0),)),
    "batch": ((70, 3, 7, 6), (3, 3), (2, 2), ((1, 1), (1, 1))),
    "3d": ((2, 3, 6, 7, 8), (2, 3, 2), (2, 1, 2), ((1, 1), (1, 1), (0, 1))),
    "3d 3x3x3 s2": ((1, 8, 9, 9, 9), (3, 3, 3), (2, 2, 2), ((1, 1), (1, 1), (1, 1))),
    "global": ((2, 24, 7, 7), (7, 7), (1, 1), ((0, 0), (0, 0))),
    "large global": ((3, 8, 40, 40), (40, 40), (40, 40), ((0, 0), (0, 0))),
    "rows of a global mean": ((2, 4, 3, 40), (40, 40), (40, 40), ((0, 37), (0, 0))),
    "global, stride 1": ((1, 2, 150, 170), (150, 170), (1, 1), ((0, 0), (0, 0))),
    "20x20 s1": ((1, 4, 24, 40), (20, 20), (1, 1), ((10, 9), (10, 9))),
    "too many overlap": ((1, 2, 64, 66), (62, 62), (1, 1), ((0, 0), (0, 0))),
}


def boxes(operation):
    """Each output site with the slices of x in its window."""
    for site in itertools.product(*map(range, operation.output_shape[2:])):
        box = []
        for o, k, s, (before, _), extent in zip(
            site, operation.window, operation.stride, operation.padding, operation.x_shape[2:],
            strict=True,
        ):  # fmt: skip
            begin = o * s - before
            box.append(slice(max(begin, 0), max(min(begin + k, extent), 0)))
        yield (..., *site), (..., *box)


def divisor(operation, box):
    if operation.mode == INCLUDE:
        return math.prod(operation.window)
    return math.prod(part.stop - part.start for part in box[1:])


def reference_forward(operation, x):
    y = np.empty(operation.output_shape)
    axes = tuple(range(2, x.ndim))
    for site, box in boxes(operation):
        if operation.is_max:
            y[site] = x[box].max(axes)  # NaN where there is one
        else:
            y[site] = x[box].sum(axes) / divisor(operation, box)
    return y


def reference_backward(operation, y, dy, x):
    forward = operation.forward
    n, c = forward.x_shape[:2]
    dx = np.zeros(forward.x_shape)
    for site, box in boxes(forward):
        if forward.is_max:
            seen = x[box].reshape(n, c, -1)
            most = y[site][..., None]
            same = (seen == most) | (np.isnan(seen) & np.isnan(most))
            first = (np.cumsum(same, -1) == 1) & same
            dx[box] += np.where(first, dy[site][..., None], 0.0).reshape(x[box].shape)
        else:
            dx[box] += (dy[site] / divisor(forward, box)).reshape(n, c, *[1] * (x.ndim - 2))
    return dx[:, :, operation.rows[0] : operation.rows[1]]


def values(shape, seed, *, special=True):
    """Few different values; NaN and infinities among them."""
    random = np.random.default_rng(seed)
    x = np.round(2 * random.standard_normal(shape)) / 2
    if special:
        for value in (np.nan, np.nan, np.inf, -np.inf):
            x.ravel()[random.integers(0, x.size, 1 + x.size // 300)] = value
    return x


def tolerance(operation, x, dtype):
    real = EPSILON[ACCUMULATOR[dtype]]
    return 4 * real * math.prod(operation.window) * np.abs(x[np.isfinite(x)]).max(initial=0)


def check(case, dtype, mode, layouts, *, offset=0, rows=None, special=True):
    """Run forward and backward and compare; `layouts` of x, y, dy and dx."""
    x_shape, window, stride, padding = CASES[case]
    forward = Pooling(x_shape, window, stride, padding, mode, dtype)
    x_layout, y_layout, dy_layout, dx_layout = layouts.split()
    data = values(x_shape, 1, special=special and forward.is_max)
    x = Operand(x_shape, dtype, x_layout, data=data, offset=offset)
    y = Operand(forward.output_shape, dtype, y_layout)
    pooling(forward, Call((x.view,), y.view))
    expected = reference_forward(forward, x.wide)
    if forward.is_max:
        assert np.array_equal(y.result().astype("f8"), expected, equal_nan=True)
    else:
        assert_close(y.result(), expected, dtype, tolerance(forward, x.wide, dtype))

    backward = PoolingBackward(forward, rows or (0, x_shape[2]))
    gradient = np.random.default_rng(2).integers(-3, 4, forward.output_shape).astype("f8")
    y = Operand(forward.output_shape, dtype, y_layout, data=expected)
    dy = Operand(forward.output_shape, dtype, dy_layout, data=gradient, offset=offset)
    dx = Operand(backward.output_shape, dtype, dx_layout)
    inputs = (y.view, dy.view, x.view) if forward.is_max else (None, dy.view, None)
    pooling_backward(backward, Call(inputs, dx.view))
    expected = reference_backward(backward, expected, gradient, x.wide)
    if forward.is_max:
        assert np.array_equal(dx.result().astype("f8"), expected)
    else:
        most = backward_size(backward, gradient)
        assert_close(dx.result(), expected, dtype, 8 * EPSILON["float32"] * most)


def backward_size(operation, dy):
    averages = Pooling(**{**vars_of(operation.forward), "mode": EXCLUDE})
    return reference_backward(PoolingBackward(averages, operation.rows), None, np.abs(dy),
                              np.empty(averages.x_shape)).max(initial=0)  # fmt: skip


def vars_of(operation):
    names = ("x_shape", "window", "stride", "padding", "mode", "dtype")
    return {name: getattr(operation, name) for name in names}


FIRST, LAST = "first first first first", "last last last last"
IMAGES = "images images images images"


@pytest.mark.parametrize("layouts", [FIRST, LAST, IMAGES])
@pytest.mark.parametrize("mode", ["max", INCLUDE, EXCLUDE])
@pytest.mark.parametrize("case", CASES)
def test_every_case(case, mode, layouts):
    check(case, "float32", mode, layouts)


@pytest.mark.parametrize("layouts", [FIRST, LAST, IMAGES])
@pytest.mark.parametrize("mode", ["max", EXCLUDE])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("case", ["2x2 s2", "3x3 s2 p1", "3d 3x3x3 s2", "large global", "1d",
                                  "many channels", "too many overlap"])  # fmt: skip
def test_every_dtype(case, dtype, mode, layouts):
    check(case, dtype, mode, layouts)


@pytest.mark.parametrize("layouts", ["last first first first", "images first_rows last first"])
@pytest.mark.parametrize("mode", ["max", EXCLUDE])
def test_one_column_and_padding_before_it(mode, layouts):
    """Where x has no neighbours along w, any stride is right there."""
    check("one column", "float32", mode, layouts)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    "layouts",
    ["first_rows first_rows first_rows first_rows", "last_rows last_rows last_rows last_rows",
     "first_rows first first first_rows", "last last_rows last last_rows",
     "first last last first", "images_rows images images images_rows",
     "images first last images"],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("case", ["2x2 s2", "3x3 s2 p1", "several tiles", "3d", "global"])
def test_pitched_and_unaligned(case, dtype, layouts, offset):
    check(case, dtype, "max", layouts, offset=offset)


@pytest.mark.parametrize("layouts", [FIRST, LAST, IMAGES])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["3x3 s2 p1", "3x3 s1 p1", "short rows", "uneven", "negative",
                                  "3x3 s2", "batch", "one channel", "2x2 s2"])  # fmt: skip
def test_windows_that_share_rows(case, dtype, layouts, monkeypatch):
    """Several of them in a thread, which otherwise only large tensors have."""
    from ooc_cudnn.devices.kernels import launch

    monkeypatch.setattr(forward_module, "FEWEST_THREADS", 0)
    monkeypatch.setattr(backward_module, "FEWEST_BLOCKS", 2)
    monkeypatch.setattr(backward_module, "STRIP_THREADS", 1)
    launch._prepared.clear()
    for mode in ("max", INCLUDE, EXCLUDE):
        check(case, dtype, mode, layouts)
    launch._prepared.clear()


@pytest.mark.parametrize("layouts", [FIRST, LAST])
@pytest.mark.parametrize("mode", ["max", INCLUDE, EXCLUDE])
@pytest.mark.parametrize("case", ["3x3 s2 p1", "negative", "gaps", "1d", "3d", "20x20 s1",
                                  "too many overlap"])  # fmt: skip
def test_some_rows_of_dx(case, mode, layouts):
    extent = CASES[case][0][2]
    check(case, "float32", mode, layouts, rows=(2, extent - 1))
    check(case, "float32", mode, layouts, rows=(3, 4))
    check(case, "float32", mode, layouts, rows=(3, 3))


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smallest_numbers_are_not_taken_for_zero(dtype, layout):
    tiny = float(np.nextafter(NUMPY[dtype].type(0), NUMPY[dtype].type(1)))
    forward = Pooling((1, 4, 4, 4), (2, 2), (2, 2), ((0, 0), (0, 0)), "max", dtype)
    data = np.zeros(forward.x_shape)
    data[:, :, 1::2, 1::2] = tiny
    x = Operand(forward.x_shape, dtype, layout, data=data)
    y = Operand(forward.output_shape, dtype, layout)
    pooling(forward, Call((x.view,), y.view))
    assert (y.result().astype("f8") == tiny).all()
    y = Operand(forward.output_shape, dtype, layout, data=y.result())
    dy = Operand(forward.output_shape, dtype, layout, data=np.ones(forward.output_shape))
    dx = Operand(forward.x_shape, dtype, layout)
    backward = PoolingBackward(forward, (0, 4))
    pooling_backward(backward, Call((y.view, dy.view, x.view), dx.view))
    assert np.array_equal(dx.result().astype("f8"), (data > 0).astype("f8"))


def test_a_gradient_of_nan_stays_with_its_element():
    forward = Pooling((1, 1, 4, 4), (3, 3), (1, 1), ((0, 0), (0, 0)), "max")
    x = Operand(forward.x_shape, "float32", data=np.arange(16.0).reshape(forward.x_shape))
    y = Operand(forward.output_shape, "float32", data=x.array[:, :, 2:, 2:])
    dy = Operand(y.array.shape, "float32", data=np.array([[[[np.nan, 1], [np.inf, 2]]]]))
    dx = Operand(forward.x_shape, "float32")
    backward = PoolingBackward(forward, (0, 4))
    pooling_backward(backward, Call((y.view, dy.view, x.view), dx.view))
    expected = np.zeros(forward.x_shape)
    expected[:, :, 2:, 2:] = dy.wide
    assert np.array_equal(dx.result(), expected, equal_nan=True)


@pytest.mark.parametrize(
    "case", ["3x3 s2 p1", "3d", "uneven", "gaps", "many channels", "1d, large windows"]
)
@pytest.mark.parametrize("layouts", [FIRST, LAST])
def test_small_tiles(case, layouts, monkeypatch):
    """Borders between tiles on every axis."""
    from ooc_cudnn.devices.kernels import launch

    monkeypatch.setattr(backward_module, "TILE_PACKS", 32)
    monkeypatch.setattr(backward_module, "STRIP_WORDS", 0)
    launch._prepared.clear()
    for mode in ("max", EXCLUDE):
        check(case, "float32", mode, layouts)
    launch._prepared.clear()


@pytest.mark.parametrize("case", ["3x3 s2 p1", "3x3 s1 p1", "uneven", "gaps", "batch", "1d"])
@pytest.mark.parametrize("nbytes", [0, 1024])
def test_bands_of_rows_of_dx(case, nbytes, monkeypatch):
    """In NCHW: rows of one plane, which are fewer than it has, or none by way of shared memory."""
    from ooc_cudnn.devices.kernels import launch

    monkeypatch.setattr(backward_module, "PLANES_BYTES", nbytes)
    launch._prepared.clear()
    for mode in ("max", INCLUDE, EXCLUDE):
        check(case, "float32", mode, FIRST)
    check(case, "float16", "max", FIRST, rows=(1, CASES[case][0][2] - 1))
    launch._prepared.clear()


@pytest.mark.parametrize("case", ["3x3 s2 p1", "3d", "uneven", "gaps", "negative", "1d", "global"])
@pytest.mark.parametrize("layouts", [FIRST, LAST])
def test_the_direct_kernel(case, layouts, monkeypatch):
    from ooc_cudnn.devices.kernels import launch

    monkeypatch.setattr(backward_module, "SHARED_BYTES", 1)
    monkeypatch.setattr(backward_module, "STRIP_WORDS", 0)
    launch._prepared.clear()
    for mode in ("max", INCLUDE, EXCLUDE):
        check(case, "float32", mode, layouts)
    launch._prepared.clear()


@pytest.mark.parametrize(
    "case", ["3x3 s2 p1", "3d", "negative", "1d", "large global", "too many overlap"]
)
@pytest.mark.parametrize("layouts", [FIRST, LAST])
def test_offsets_in_64_bits(case, layouts, monkeypatch):
    from ooc_cudnn.devices.kernels import launch

    monkeypatch.setattr(arguments, "SMALL_OFFSETS", 0)
    launch._prepared.clear()
    for mode in ("max", EXCLUDE):
        check(case, "float32", mode, layouts)
    launch._prepared.clear()


@pytest.mark.parametrize("layouts", [FIRST, LAST])
@pytest.mark.parametrize("case", ["global", "large global", "20x20 s1"])
def test_a_warp_or_a_thread_for_each_window(case, layouts, monkeypatch):
    from ooc_cudnn.devices.kernels import launch

    monkeypatch.setattr(forward_module, "WARP_TAPS", 10**9)
    monkeypatch.setattr(backward_module, "WARP_TAPS", 10**9)
    launch._prepared.clear()
    check(case, "float32", "max", layouts)
    check(case, "float16", EXCLUDE, layouts)
    launch._prepared.clear()


def test_empty_tensors_do_nothing():
    empty = DeviceView(0, "float32", (0, 2, 4), (8, 4, 1))
    none = DeviceView(0, "float32", (0, 2, 2), (4, 2, 1))
    forward = Pooling((0, 2, 4), (2,), (2,), ((0, 0),))
    pooling(forward, Call((empty,), none))
    pooling_backward(PoolingBackward(forward, (0, 4)), Call((none, none, empty), empty))


def test_no_windows_give_no_gradient():
    """Rows of dx that nothing touches, where dy has no rows at all."""
    forward = Pooling((2, 3, 5, 4), (2, 2), (9, 2), ((-7, 0), (0, 0)))
    assert forward.output_shape[2] == 0
    none = DeviceView(0, "float32", forward.output_shape, (0, 0, 0, 1))
    x = Operand(forward.x_shape, "float32", data=values(forward.x_shape, 1))
    dx = Operand(forward.x_shape, "float32")
    backward = PoolingBackward(forward, (0, 5))
    pooling_backward(backward, Call((none, none, x.view), dx.view))
    assert (dx.result() == 0).all()


@pytest.mark.parametrize("layout", ["first", "last"])
def test_against_pytorch_at_size(layout):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA here")
    shape = (4, 48, 200, 180)
    for window, stride, padding in ((2, 2, 0), (3, 2, 1)):
        forward = Pooling.of(shape, window=window, stride=stride, padding=padding)
        data = np.random.default_rng(0).permutation(math.prod(shape)).reshape(shape)
        x = Operand(shape, "float32", layout, data=data)  # all different
        y = Operand(forward.output_shape, "float32", layout)
        pooling(forward, Call((x.view,), y.view))
        t = torch.from_numpy(x.array.copy()).cuda().requires_grad_()
        expected = torch.nn.functional.max_pool2d(t, window, stride, padding)
        assert np.array_equal(y.result(), expected.detach().cpu().numpy())
        gradient = torch.randint(-4, 5, expected.shape, device="cuda").float()
        expected.backward(gradient)
        y = Operand(y.array.shape, "float32", layout, data=y.result())
        dy = Operand(y.array.shape, "float32", layout, data=gradient.cpu().numpy())
        dx = Operand(shape, "float32", layout)
        backward = PoolingBackward(forward, (0, shape[2]))
        pooling_backward(backward, Call((y.view, dy.view, x.view), dx.view))
        assert np.array_equal(dx.result(), t.grad.cpu().numpy())


@pytest.mark.parametrize("layout", ["first", "last"])
def test_beyond_two_to_the_31(layout):
    n, c, h, w = 1, 2, 32_770, 32_768
    if cupy.cuda.runtime.memGetInfo()[0] < 12 * n * c * h * w:
        pytest.skip("needs 26 GB of device memory")
    memory = cupy.random.default_rng(0).integers(0, 100, n * c * h * w, dtype=np.uint8)
    memory = memory.astype(np.float16)

    def view(array, h, w):
        strides = (c * h * w, h * w, w, 1) if layout == "first" else (c * h * w, 1, w * c, c)
        return DeviceView(array.data.ptr, "float16", (n, c, h, w), strides)

    forward = Pooling.of((n, c, h, w), window=2, dtype="float16")
    y = cupy.full(memory.size // 4, np.nan, np.float16)
    pooling(forward, Call((view(memory, h, w),), view(y, h // 2, w // 2)))
    cells = (c, h // 2, 2, w // 2, 2) if layout == "first" else (h // 2, 2, w // 2, 2, c)
    axes = (2, 4) if layout == "first" else (1, 3)
    cells = memory.reshape(cells)
    assert bool((y.reshape(cells.max(axes).shape) == cells.max(axes)).all())
    dx = cupy.full(memory.size, np.nan, np.float16)
    dy = cupy.ones_like(y)
    backward = PoolingBackward(forward, (0, h))
    inputs = (view(y, h // 2, w // 2), view(dy, h // 2, w // 2), view(memory, h, w))
    pooling_backward(backward, Call(inputs, view(dx, h, w)))
    dx = dx.reshape(cells.shape)
    assert bool((dx.sum(axes) == 1).all())
    assert bool((dx * cells).sum(axes).astype(np.float16).ravel().__eq__(y).all())
