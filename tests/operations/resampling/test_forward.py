"""Interpolation, adaptive pooling, padding and cropping against PyTorch, however they are cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.resampling.arguments import (
    adaptive_pooling,
    any_pooling,
    describe_crop,
    describe_padding,
    interpolation,
    pooling_gradient,
)
from tests.support.cut_calls import check_cut, rounded

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
F = torch.nn.functional


def resized(shape, linear=("linear", "bilinear", "trilinear"), **options):
    mode = options.pop("mode", "nearest")
    name = mode if mode == "nearest" else linear[len(shape) - 3]
    return (
        interpolation(shape, mode=mode, **options),
        lambda t: F.interpolate(t, mode=name, **options),
    )


def adaptive(shape, output, mode):
    name = f"adaptive_{'avg' if mode == 'average' else 'max'}_pool{len(shape) - 2}d"
    return adaptive_pooling(shape, output, mode=mode), lambda t: getattr(F, name)(t, output)


def around(shape, pairs, value=0.0):
    flat = [side for pair in reversed(pairs) for side in pair]
    return describe_padding(shape, pairs, value=value), lambda t: F.pad(t, flat, value=value)


def ceiled(shape, window, stride, padding):
    options = {"stride": stride, "padding": padding, "ceil_mode": True}
    function = getattr(F, f"avg_pool{len(shape) - 2}d")
    return (
        any_pooling(shape, window=window, mode="average_include_padding", **options),
        lambda t: function(t, window, **options),
    )


CASES = {
    "nearest, larger": resized((2, 3, 5, 4), size=(9, 7)),
    "nearest, smaller": resized((2, 2, 9, 5), size=(4, 2)),
    "nearest by a factor": resized((1, 2, 7), scale_factor=1.7),
    "nearest by a factor anew": resized((1, 2, 7), scale_factor=1.7, recompute_scale_factor=True),
    "nearest, 3d": resized((1, 2, 3, 4, 2), scale_factor=2),
    "bilinear twice": resized((2, 2, 4, 3), scale_factor=2, mode="linear"),
    "bilinear aligned": resized((1, 3, 5, 4), size=(8, 3), mode="linear", align_corners=True),
    "bilinear, one axis as it was": resized((1, 2, 4, 3), size=(4, 7), mode="linear"),
    "linear by a factor": resized((2, 2, 9), scale_factor=0.6, mode="linear"),
    "linear by a factor anew": resized(
        (2, 2, 9), scale_factor=0.6, mode="linear", recompute_scale_factor=True
    ),
    "linear, much smaller": resized((1, 2, 13), size=3, mode="linear"),
    "linear of one": resized((1, 1, 1, 5), size=(3, 1), mode="linear", align_corners=True),
    "trilinear": resized((1, 2, 3, 2, 4), size=(4, 5, 3), mode="linear"),
    "adaptive average": adaptive((2, 2, 7, 5), (3, 2), "average"),
    "adaptive average, more than there are": adaptive((1, 2, 3, 4), (5, 4), "average"),
    "adaptive average, 3d": adaptive((1, 2, 5, 3, 4), (2, 3, 1), "average"),
    "adaptive max": adaptive((2, 2, 7, 5), (3, 2), "max"),
    "adaptive max, 1d": adaptive((2, 3, 11), (4,), "max"),
    "ceil mode": ceiled((2, 2, 7, 8), 3, 2, 1),
    "ceil mode, 1d": ceiled((1, 2, 11), 4, 3, 2),
    "pad": around((2, 2, 4, 3), ((2, 1), (0, 3))),
    "pad with a value": around((1, 2, 3, 2), ((1, 4), (2, 0)), value=-1.5),
    "pad and crop": around((2, 2, 6, 5), ((-2, 3), (1, -2))),
    "crop, 3d": around((1, 2, 5, 4, 3), ((-1, -2), (0, -1), (-1, 0))),
}


def operands(name, dtype="float64"):
    """(operation, x, y, dy, dx): results by PyTorch, from operands as that type has them."""
    operation, function = CASES[name]
    random = np.random.default_rng(len(name))
    x = random.integers(-4, 5, operation.input_shape) / 2  # equal maxima
    if not operation.is_max:
        x = random.standard_normal(operation.input_shape)
    x = rounded(x, dtype)
    t = torch.from_numpy(x).requires_grad_()
    y = function(t)
    dy = rounded(random.standard_normal(y.shape), dtype)
    y.backward(torch.from_numpy(dy))
    return operation, x, y.detach().numpy(), dy, t.grad.numpy()


@pytest.mark.parametrize("name", CASES)
def test_reference(name):
    operation, x, y, dy, dx = operands(name)
    assert operation.output_shape == y.shape
    assert np.allclose(operation.reference(x), y, rtol=1e-13, atol=1e-14)
    call = pooling_gradient(operation)
    piece = call.whole_piece()
    launch = call.on_piece(piece, layout="", result_dtype="float64")
    seen = {"y": y, "dy": dy, "x": x}
    inputs = [
        seen[name][tuple(slice(*part) for part in call.region(name, piece))] for name in call.takes
    ]
    assert np.allclose(launch.reference(*inputs), dx, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_every_split(name):
    operation, *_ = CASES[name]

    def case(dtype):
        _, x, y, _, _ = operands(name, dtype)
        return {"x": x}, y

    check_cut(
        lambda dtype, alpha, beta: Chain(
            (replace(operation, dtype=dtype),), dtype, alpha=alpha, beta=beta
        ),
        case,
    )


@pytest.mark.parametrize("name", CASES)
def test_every_split_of_the_gradient(name):
    operation, *_ = CASES[name]

    def case(dtype):
        _, x, y, dy, dx = operands(name, dtype)
        return {"y": y, "dy": dy, "x": x}, dx

    check_cut(
        lambda dtype, alpha, beta: pooling_gradient(
            replace(operation, dtype=dtype), alpha=alpha, beta=beta
        ),
        case,
    )


def test_a_crop_is_a_padding_turned_round():
    crop = describe_crop((1, 2, 6, 5), (1, 2), (3, 2))
    assert crop.windows == describe_padding((1, 2, 6, 5), ((-1, -2), (-2, -1))).windows
    with pytest.raises(ValueError, match="reach beyond"):
        describe_crop((1, 2, 6, 5), 2, 4)


@pytest.mark.parametrize("extent", [1, 2, 3, 7, 30, 63])
def test_nearest_of_every_size(extent):
    """Places as PyTorch rounds them, in float32."""
    x = torch.arange(extent, dtype=torch.float32).reshape(1, 1, -1)
    for count in range(1, 130):
        (windows,) = interpolation((1, 1, extent), size=count).windows
        expected = F.interpolate(x, size=count).numpy().ravel()
        assert np.array_equal(windows.bounds(np.arange(count))[0], expected)


def test_nan_is_the_largest_of_its_window():
    x = np.zeros((1, 1, 7))
    x[0, 0, 3] = np.nan
    operation = adaptive_pooling(x.shape, 3, mode="max")
    y = operation.reference(x)
    assert np.array_equal(y, F.adaptive_max_pool1d(torch.from_numpy(x), 3).numpy(), equal_nan=True)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: interpolation((1, 1, 4), size=3, scale_factor=2), "not both"),
        (lambda: interpolation((1, 1, 4)), "one of size and scale_factor"),
        (lambda: interpolation((1, 1, 4), size=3, mode="cubic"), "mode must be one of"),
        (lambda: interpolation((1, 1, 4), size=3, align_corners=True), "no meaning"),
        (lambda: interpolation((1, 1, 4), scale_factor=0.1), "scale_factor must leave"),
        (lambda: interpolation((1, 1, 4), scale_factor=-1), "positive number"),
        (lambda: interpolation((1, 1, 4), size=3, recompute_scale_factor=True), "needs"),
        (lambda: interpolation((1, 1), size=3), "1 to 3 spatial axes"),
        (lambda: adaptive_pooling((1, 1, 4), 0), "at least 1"),
        (lambda: adaptive_pooling((1, 1, 4), 2, mode="min"), "mode must be one of"),
        (lambda: describe_padding((1, 1, 4), ((-2, -2),)), "leaves 0 of 4"),
    ],
)
def test_arguments_that_do_not_fit(make, why):
    with pytest.raises(ValueError, match=why):
        make()


def test_no_rows_are_asked_of_it_where_what_follows_reads_padding_alone():
    """Verifying a patch of such rows was an error."""
    crop = describe_padding((2, 3, 9, 8), ((2, 1), (-1, 0)))
    nothing = replace(crop, makes=((4, 4), crop.makes[1]), reads=((2, 2), crop.reads[1]))
    assert nothing.reference(np.ones(nothing.input_shape)).shape == (2, 3, 0, 7)
