"""Interpolation, adaptive pooling, padding and cropping against PyTorch, however they are cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ooc_cudnn.operations.backward_resampling import BackwardResampling
from ooc_cudnn.operations.chain import Chain
from ooc_cudnn.operations.resampling_arguments import (
    adaptive_pooling,
    cropped,
    interpolation,
    padded,
)
from tests.support.forced import Forced, legal_splits
from tests.support.function_cases import DTYPES
from tests.support.splits import LAYOUTS, RINGS, some

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
F = torch.nn.functional

#: Splits of a case that are run.
SPLITS = 12
UNIT = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-22, "float64": 2**-50}


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
    return padded(shape, pairs, value=value), lambda t: F.pad(t, flat, value=value)


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
    x = x.astype(DTYPES[dtype]).astype("f8")
    t = torch.from_numpy(x).requires_grad_()
    y = function(t)
    dy = random.standard_normal(y.shape).astype(DTYPES[dtype]).astype("f8")
    y.backward(torch.from_numpy(dy))
    return operation, x, y.detach().numpy(), dy, t.grad.numpy()


def described(operation, dtype):
    return operation.__class__(
        operation.lead, operation.windows, dtype, operation.is_max, operation.value,
        title=operation.title,
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_reference(name):
    operation, x, y, dy, dx = operands(name)
    assert operation.output_shape == y.shape
    assert np.allclose(operation.reference(x), y, rtol=1e-13, atol=1e-14)
    call = BackwardResampling(operation)
    piece = call.whole_piece()
    launch = call.on_piece(piece, layout="", result_dtype="float64")
    seen = {"y": y, "dy": dy, "x": x}
    inputs = [
        seen[name][tuple(slice(*part) for part in call.region(name, piece))] for name in call.takes
    ]
    assert np.allclose(launch.reference(*inputs), dx, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_split(name, gradient):
    """Whatever the split, the dtype, alpha and beta, the ring, the layout and the axis of rows."""
    ways = itertools.cycle(itertools.product(RINGS, LAYOUTS))
    turns = zip(itertools.cycle(DTYPES), [(1.0, 0.0), (2.0, -0.25)] * 2, strict=False)
    for dtype, (alpha, beta) in turns:
        operation, x, y, dy, dx = operands(name, dtype)
        operation = described(operation, dtype)
        old = np.random.default_rng(7).standard_normal((dx if gradient else y).shape)
        old = (old if beta else np.full(old.shape, np.nan)).astype(DTYPES[dtype])
        if gradient:
            call = BackwardResampling(operation, alpha=alpha, beta=beta)
            arrays, exact = {"y": y, "dy": dy, "x": x}, dx
            arrays, result = {name: arrays[name] for name in call.takes}, "dx"
        else:
            call = Chain((operation,), dtype, alpha=alpha, beta=beta)
            arrays, exact, result = {"x": x}, y, "y"
        arrays = {name: a.astype(DTYPES[dtype]) for name, a in arrays.items()}
        expected = alpha * exact + (beta * old.astype("f8") if beta else 0)
        for row_axis in call.row_axes:
            out = old.copy()
            forced = Forced(call.along(row_axis), {**arrays, result: out})
            splits = list(legal_splits(forced.chain))
            found = []
            for split in some(splits, SPLITS // len(call.row_axes)):
                (depth, whole), layout = next(ways)
                out[...] = old
                forced.run(split, depth=depth, whole=whole, layout=layout, overlap=False)
                assert np.allclose(
                    out.astype("f8"), expected, rtol=4 * UNIT[dtype],
                    atol=8 * UNIT[dtype] * np.abs(expected).max(),
                ), (dtype, row_axis, split)  # fmt: skip
                found.append(out.tobytes())
            assert len(set(found)) == 1  # to the bit


def test_a_crop_is_a_padding_turned_round():
    crop = cropped((1, 2, 6, 5), (1, 2), (3, 2))
    assert crop.windows == padded((1, 2, 6, 5), ((-1, -2), (-2, -1))).windows
    with pytest.raises(ValueError, match="reach beyond"):
        cropped((1, 2, 6, 5), 2, 4)


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
        (lambda: padded((1, 1, 4), ((-2, -2),)), "leaves 0 of 4"),
    ],
)
def test_arguments_that_do_not_fit(make, why):
    with pytest.raises(ValueError, match=why):
        make()
