"""The kernels of resampling, piece by piece.

Beside references in float64, which tests/operations compares with PyTorch.
"""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import arguments
from ooc_cudnn.devices.kernels import interpolation as interpolation_module
from ooc_cudnn.devices.kernels import resampling as resampling_module
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.resampling.arguments import (
    adaptive_pooling,
    any_pooling,
    describe_padding,
    interpolation,
)
from ooc_cudnn.operations.resampling.forward import Resampling, ResamplingBackward
from ooc_cudnn.operations.resampling.gradient import ResamplingGradientCall
from ooc_cudnn.tensor import packed_strides
from tests.support.device_operand import EPSILON, Operand, assert_close
from tests.support.kernel_runs import run

MEAN = "average_include_padding"
CASES = {
    "nearest": interpolation((2, 3, 5, 7), size=(9, 4)),
    "nearest, 1d": interpolation((3, 5, 40), scale_factor=1.7),
    "nearest, rounded": interpolation((2, 3, 41), size=1000),
    "linear, 1d": interpolation((3, 5, 40), scale_factor=0.6, mode="linear"),
    "bilinear": interpolation((2, 3, 6, 5), scale_factor=2, mode="linear"),
    "bilinear, aligned": interpolation(
        (2, 3, 6, 9), size=(11, 4), mode="linear", align_corners=True
    ),
    "trilinear": interpolation((1, 4, 3, 4, 5), size=(7, 2, 9), mode="linear"),
    "bilinear, packs": interpolation((2, 8, 3, 4), size=(7, 8), mode="linear"),
    "bilinear, smaller": interpolation((1, 4, 9, 11), size=(2, 3), mode="linear"),
    "trilinear, packs": interpolation(
        (1, 8, 2, 3, 4), size=(5, 4, 16), mode="linear", align_corners=True
    ),
    "bilinear, one axis stays": interpolation((1, 4, 3, 6), size=(6, 6), mode="linear"),
    "linear, long rows": interpolation((1, 1, 2600), size=5301, mode="linear"),
    "linear, long rows of lanes": interpolation((1, 8, 700), size=1500, mode="linear"),
    "much larger": interpolation((1, 2, 2, 3), size=(50, 31), mode="linear"),
    "one": interpolation((2, 2, 1, 5), size=(4, 1), mode="linear", align_corners=True),
    "adaptive mean": adaptive_pooling((2, 3, 11, 7), (4, 3)),
    "adaptive mean, more": adaptive_pooling((1, 3, 5, 4), (7, 9)),
    "adaptive max": adaptive_pooling((2, 3, 11, 7), (4, 3), mode="max"),
    "adaptive max, 3d": adaptive_pooling((1, 2, 5, 7, 3), (2, 3, 2), mode="max"),
    "ceil mode": any_pooling(
        (2, 3, 7, 8), window=3, stride=2, padding=1, mode=MEAN, ceil_mode=True
    ),
    "pad": describe_padding((2, 3, 6, 5), ((2, 1), (0, 3)), value=-1.5),
    "pad and crop": describe_padding((1, 4, 7, 5), ((-2, 3), (1, -2))),
    "crop, 3d": describe_padding((1, 2, 5, 4, 6), ((-1, -2), (0, -1), (-3, 0))),
}
LAYOUTS = ["first first first first", "last last last last", "first_rows last last_rows first",
           "last first last first", "last_rows last_rows last last_rows",
           "images images images images"]  # fmt: skip


def pieces(call):
    """The whole, and some rows of each axis."""
    yield call, call.whole_piece()
    for row_axis in call.row_axes:
        along = call.along(row_axis)
        whole = along.whole_piece()
        last = whole.h_y[1]
        yield along, whole._replace(h_y=(last // 3, last // 3 + max(1, last // 2)))
        yield along, whole._replace(h_y=(last - 1, last))


def drawn(shape, seed=0):
    """Few different values, so that maxima are equal; sums of them are nearly exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape) / 2


def part(array, region):
    return array[tuple(slice(*each) for each in region)]


def in_dtype(case, dtype):
    made = CASES[case]
    assert isinstance(made, Resampling)
    return Resampling(made.lead, made.windows, dtype, made.is_max, made.value, title=made.title)


def check(case, dtype, layouts, offset=0):
    operation = in_dtype(case, dtype)
    x_layout, y_layout, dy_layout, dx_layout = layouts.split()
    x = drawn(operation.input_shape)
    whole = operation.reference(x)
    slack = 32 * EPSILON["float64" if dtype == "float64" else "float32"]
    for chain, piece in pieces(Chain((operation,), dtype)):
        made = chain.on_piece(0, piece)
        source = Operand(made.input_shape, dtype, x_layout,
                         data=part(x, chain.region("x", piece)), offset=offset)  # fmt: skip
        y = Operand(made.output_shape, dtype, y_layout, offset=offset)
        found = run(resampling_module, made, (source,), y)
        assert_close(found, part(whole, chain.region("y", piece)), dtype, slack)
    y = whole.astype(np.float32) if dtype == "float32" else whole
    arrays = {"x": x, "y": y, "dy": drawn(whole.shape, 1)}
    gradient = ResamplingGradientCall(operation)
    dx = None
    for call, piece in pieces(gradient):
        made = call.on_piece(piece, layout="", result_dtype=dtype)
        layouts_of = {"x": x_layout, "y": y_layout, "dy": dy_layout}
        operands = [
            Operand(
                tuple(b - a for a, b in call.region(name, piece)), dtype, layouts_of[name],
                data=part(arrays[name], call.region(name, piece)),
            )
            for name in call.takes
        ]  # fmt: skip
        result = Operand(made.output_shape, dtype, dx_layout, offset=offset)
        found = run(resampling_module, made, operands, result)
        if dx is None:
            seen = [part(arrays[name], call.region(name, piece)) for name in call.takes]
            dx = made.reference(*seen)
        assert_close(found, part(dx, call.region("dx", piece)), dtype, 4 * slack)


@pytest.mark.parametrize("case", CASES)
def test_every_case(case):
    check(case, "float32", LAYOUTS[0])


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "float32"])
@pytest.mark.parametrize(
    "case", ["bilinear", "bilinear, packs", "nearest", "adaptive max", "pad and crop"]
)
def test_every_dtype(case, dtype, layouts):
    check(case, dtype, layouts, offset=1)


@pytest.mark.parametrize("layouts", ["first first first first", "last last last last"])
@pytest.mark.parametrize("case", [case for case in CASES if "linear" in case])
def test_offsets_of_64_bits(case, layouts, monkeypatch):
    monkeypatch.setattr(arguments, "SMALL_OFFSETS", 0)
    check(case, "float32", layouts)


def test_indices_are_of_64_bits_where_offsets_from_the_whole_are_large():
    """Those of a part of x are small, and those before it; together they are not."""
    operation = interpolation((1, 64, 8192, 8192), size=(4096, 4096), mode="linear")

    def template(first):
        rows, made = (first, first + 3820), (first // 2 + 1, first // 2 + 1900)
        views = [
            DeviceView(0, "float16", shape, packed_strides(shape, "channels_last"))
            for shape in ((1, 64, made[1] - made[0], 4096), (1, 64, 3820, 8192))
        ]
        given = (operation, (made, (0, 4096)), *views, (rows, (0, 8192)))
        return interpolation_module.plan(*given, backward=False).expression

    assert "<int" in template(0)
    assert "<long long" in template(3980)


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize(
    "case", ["bilinear, packs", "bilinear, aligned", "trilinear, packs", "bilinear, one axis stays"]
)
def test_what_is_not_finite_stays_where_it_is_seen(case, layout):
    operation = in_dtype(case, "float32")
    x = drawn(operation.input_shape)
    x[..., -1], x[..., 0, 1] = np.inf, np.nan
    source = Operand(x.shape, "float32", layout, data=x)
    y = Operand(operation.output_shape, "float32", layout)
    found = run(resampling_module, operation, (source,), y)
    with np.errstate(invalid="ignore"):
        expected = operation.reference(x)
    assert np.isinf(expected).any()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isposinf(found), np.isposinf(expected))


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("case", ["bilinear, packs", "bilinear, smaller", "trilinear, packs",
                                  "bilinear, one axis stays"])  # fmt: skip
def test_a_gradient_is_none_where_an_output_that_sees_it_is_none(case, layout):
    forward = in_dtype(case, "float32")
    dy = drawn(forward.output_shape)
    dy[np.random.default_rng(5).random(dy.shape) < 0.02] = np.nan
    dy.reshape(-1)[0] = np.nan
    expected = np.zeros(forward.input_shape, bool)
    bounds = [windows.bounds(np.arange(windows.count)) for windows in forward.windows]
    for at in np.argwhere(np.isnan(dy)):
        runs = (slice(start[o], stop[o]) for (start, stop), o in zip(bounds, at[2:], strict=True))
        expected[(at[0], at[1], *runs)] = True
    source = Operand(dy.shape, "float32", layout, data=dy)
    dx = Operand(forward.input_shape, "float32", layout)
    parts = tuple((0, extent) for extent in forward.input_shape[2:])
    found = run(resampling_module, ResamplingBackward(forward, parts), (source,), dx)
    np.testing.assert_array_equal(np.isnan(found), expected)


def drawn_interpolation(random):
    axes = int(random.integers(1, 4))
    extents, sizes = (tuple(int(e) for e in random.integers(1, 14, axes)) for _ in range(2))
    lead = (int(random.integers(1, 3)), int(random.integers(1, 10)))
    return interpolation(
        (*lead, *extents), size=sizes, mode="linear", align_corners=bool(random.integers(2))
    )


@pytest.mark.parametrize("seed", range(24))
def test_drawn_interpolations(seed, monkeypatch):
    random = np.random.default_rng(seed)
    monkeypatch.setitem(CASES, "drawn", drawn_interpolation(random))
    dtype = str(random.choice(["float16", "bfloat16", "float64", "float32"]))
    check("drawn", dtype, str(random.choice(LAYOUTS)), offset=int(random.integers(2)))
