"""Statistics summed set by set: the same to the last bit however a call is cut; as PyTorch's."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.elementwise.activation import Activation
from ooc_cudnn.operations.elementwise.binary import OpTensor
from ooc_cudnn.operations.normalization import set_reduction as set_statistics
from ooc_cudnn.operations.normalization.batch_calls import (
    BatchNormalizationCall,
    BatchNormalizationGradientCall,
)
from ooc_cudnn.operations.normalization.batch_launches import Normalise
from ooc_cudnn.operations.normalization.batch_two_phase import (
    BatchNormalizationDataCall,
    ChannelMomentsCall,
    ChannelSumsCall,
    ChannelVectorsCall,
    ParameterGradientsCall,
)
from ooc_cudnn.operations.normalization.group import (
    GroupNormalizationGradientCall,
    GroupStatisticsCall,
)
from ooc_cudnn.operations.normalization.layer import (
    LayerNormalizationGradientCall,
    LayerStatisticsCall,
)
from ooc_cudnn.operations.normalization.set_reduction import NormaliseSets
from ooc_cudnn.tensor import ACCUMULATOR, numpy_dtype
from tests.support.bounded import UNIT
from tests.support.device_operand import OF_A_RUN
from tests.support.forced import Forced, legal_splits
from tests.support.function_cases import channels_last
from tests.support.splits import some

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
F = torch.nn.functional
EPSILON = 1e-3
SHAPES = {
    "no sites": (4, 6),
    "1d": (2, 4, 7),
    "2d": (3, 4, 5, 3),
    "3d": (2, 4, 4, 2, 2),
    "one image": (1, 4, 6, 2),
    "one channel": (2, 1, 5, 2),
}
#: What is tried: every shape in float64, and every dtype in two axes.
CASES = [
    *((shape, "float64") for shape in SHAPES),
    *(("2d", dtype) for dtype in ("float32", "float16", "bfloat16")),
]
#: Splits that are tried but for deterministic float64 in two axes, where every split is.
FEW = 6


#: Units of a row or two, so that small images have several, the last one ragged.
short_units = mock.patch.object(set_statistics, "LEAST_UNIT", 4)


def draw(shape, dtype, seed=0):
    random = np.random.default_rng([*shape, seed])
    return random.standard_normal(shape).astype(numpy_dtype(dtype))


@short_units
def check_every_split(call, inputs, old=None, *, bits, lay=lambda array: array):
    """Run the call cut in every way; return what the first one gives.

    With `bits` all others must give the same to the last bit, else nearly.
    """
    results = {}
    for name in call.results:
        made = call.operands[name]
        results[name] = np.full(made.shape, np.nan, numpy_dtype(made.dtype))
        if old is not None and name in old:
            results[name][...] = old[name]
    results = {name: lay(array) for name, array in results.items()}
    before = {name: array.copy() for name, array in results.items()}
    forced = Forced(call, {n: lay(a) for n, a in inputs.items()} | results)
    splits = list(legal_splits(call))
    first = None
    every = bits and call.dtype == "float64" and getattr(call, "shape", None) == SHAPES["2d"]
    for split in splits if every else some(splits, FEW):
        for name, array in results.items():
            array[...] = before[name]
        forced.run(split, overlap=False)
        found = {name: array.copy() for name, array in results.items()}
        first = first or found
        for name, array in found.items():
            if bits:
                assert array.tobytes() == first[name].tobytes(), f"{name} under {split}"
            assert_near(array, first[name], call.dtype, f"{name} under {split}")
    assert len(splits) > 1
    return first


def assert_near(actual, expected, dtype, what):
    """Within a few roundings of the largest."""
    actual, expected = (np.asarray(array).astype("f8") for array in (actual, expected))
    unit = UNIT[dtype] if actual.shape and actual.ndim > 1 else UNIT[ACCUMULATOR[dtype]]
    tolerance = (2 * unit + 200 * UNIT[ACCUMULATOR[dtype]]) * (1 + np.abs(expected).max())
    assert np.abs(actual - expected).max() <= tolerance, what


def gradients(y, inputs, dy):
    """What PyTorch has for y and the gradients, as NumPy's."""
    made = torch.autograd.grad(y, inputs, dy)
    return [tensor.detach().numpy() for tensor in (y, *made)]


def leaf(array):
    return torch.tensor(array.astype("f8"), requires_grad=True)


def operands(shape, dtype):
    """x, dy, scale, bias, as they are and as PyTorch's leaves."""
    vectors = ACCUMULATOR[dtype]
    arrays = (draw(shape, dtype, 1), draw(shape, dtype, 2),
              draw(shape[1:2], vectors, 3), draw(shape[1:2], vectors, 4))  # fmt: skip
    return arrays, [leaf(array) for array in arrays]


def old_gradients(shape, dtype):
    """What dx, dscale and dbias hold before, where they are added to."""
    vectors = ACCUMULATOR[dtype]
    return {"dx": draw(shape, dtype, 5), "dscale": draw(shape[1:2], vectors, 6),
            "dbias": draw(shape[1:2], vectors, 7)}  # fmt: skip


def parameter_gradients(shape, dtype, sums, old, images=0):
    """dscale and dbias of the sums, added to what was there before."""
    call = ParameterGradientsCall(shape[1], dtype, images, alpha=2.0, beta=-0.5)
    if shape[1] == 1:
        return run_whole(call, sums, old)
    return check_every_split(call, sums, old, bits=True)


def run_whole(call, inputs, old=()):
    results = {
        name: old[name].copy() if name in old else np.zeros(made.shape, made.dtype)
        for name, made in call.operands.items()
        if name in call.results
    }
    Forced(call, {**inputs, **results}).run(call.extents)
    return results


def check_normalised(shape, inputs, saved, y, dtype, *, by_site=False, lay=lambda array: array):
    """What a chain makes of the statistics: y, and with an activation in the same pass."""
    inputs = inputs | {"mean": saved["saved_mean"],
                       "inverse_deviation": saved["saved_inverse_variance"]}  # fmt: skip
    for operations, expected in (
        ((NormaliseSets(shape, dtype, by_site),), y),
        ((NormaliseSets(shape, dtype, by_site), Activation(shape, "leaky_relu", 0.1, dtype)),
         np.where(y > 0, y, 0.1 * y)),
    ):  # fmt: skip
        found = check_every_split(Chain(operations, dtype), inputs, bits=True, lay=lay)
        assert_near(found["y"], expected, dtype, "y")


def check_gradients(found, expected, old, dtype):
    """Alpha and beta are 2 and -0.5."""
    for name, value in zip(("dx", "dscale", "dbias"), expected, strict=True):
        assert_near(found[name], 2 * value - 0.5 * old[name].astype("f8"), dtype, name)


@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_batch_normalization_in_phases(shape, dtype):
    shape = SHAPES[shape]
    (x, dy, scale, bias), (tx, tdy, tscale, tbias) = operands(shape, dtype)
    mean, variance = draw(shape[1:2], ACCUMULATOR[dtype], 8), np.ones(shape[1], ACCUMULATOR[dtype])
    running = torch.tensor(mean.astype("f8")), torch.tensor(variance.astype("f8"))
    ty = F.batch_norm(tx, *running, tscale, tbias, True, 0.25, EPSILON)
    y, *expected = gradients(ty, (tx, tscale, tbias), tdy)

    bits = {"bits": True}
    moments = check_every_split(ChannelMomentsCall(shape, dtype, True), {"x": x}, **bits)
    saved = run_whole(ChannelVectorsCall(shape[1], dtype, epsilon=EPSILON), moments)
    updated = run_whole(
        ChannelVectorsCall(shape[1], dtype, True, factor=0.25), moments,
        {"running_mean": mean, "running_variance": variance},
    )  # fmt: skip
    for found, value in zip(updated.values(), running, strict=True):
        assert_near(found, value.numpy(), dtype, "running")
    elementwise = (
        Normalise(shape, dtype),
        Activation(shape, "relu", 0.0, dtype),
        OpTensor(shape, shape, dtype),
    )
    inputs = {"scale": scale, "bias": bias, "mean": saved["saved_mean"],
              "inverse_deviation": saved["saved_inverse_variance"]}  # fmt: skip
    chain = Chain(elementwise, dtype)
    found = check_every_split(chain, {"x": x, **inputs, "b": dy}, bits=True)
    assert_near(found["y"], np.maximum(y, 0) + dy.astype("f8"), dtype, "y, relu and sum")

    sums = check_every_split(
        ChannelSumsCall(shape, dtype, True), {"x": x, "dy": dy, **saved}, **bits
    )
    old = old_gradients(shape, dtype)
    found = parameter_gradients(shape, dtype, sums, old)
    data = BatchNormalizationDataCall(shape, dtype, alpha=2.0, beta=-0.5)
    inputs = {"x": x, "dy": dy, "scale": scale, **saved, **sums}
    found |= check_every_split(data, inputs, old, **bits)
    check_gradients(found, expected, old, dtype)

    # Sums in any order err by a few roundings more; those of half types add terms in float32 first.
    by_channel = (0, *range(2, len(shape)))
    spread = np.ptp(x.astype("f8"), axis=by_channel)
    size = np.abs(dy.astype("f8")).sum(axis=by_channel)
    squares = 3 * x.size / shape[1] * spread**2
    farthest = spread * saved["saved_inverse_variance"].astype("f8")
    loss = OF_A_RUN[dtype] * np.stack([0 * spread, spread, squares])
    plain = check_every_split(ChannelMomentsCall(shape, dtype), {"x": x}, bits=False)
    assert np.allclose(plain["moments"], moments["moments"], rtol=1e-12, atol=1e-8 + loss)
    plain = check_every_split(
        ChannelSumsCall(shape, dtype), {"x": x, "dy": dy, **saved}, bits=False
    )
    loss = OF_A_RUN[dtype] * np.stack([size, size * farthest])
    assert np.allclose(plain["sums"], sums["sums"], rtol=1e-10, atol=1e-10 + loss)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("shape", ["1d", "2d", "3d"])
def test_batch_normalization_in_sweeps_is_deterministic_if_told(shape, dtype):
    shape = SHAPES[shape]
    (x, dy, scale, bias), (tx, tdy, tscale, tbias) = operands(shape, dtype)
    ty = F.batch_norm(tx, None, None, tscale, tbias, True, 0.1, EPSILON)
    y, *expected = gradients(ty, (tx, tscale, tbias), tdy)
    call = BatchNormalizationCall(shape, dtype, EPSILON, deterministic=True)
    made = check_every_split(call, {"x": x, "scale": scale, "bias": bias}, bits=True)
    assert_near(made["y"], y, dtype, "y")
    call = BatchNormalizationGradientCall(shape, dtype, EPSILON, True)
    made = check_every_split(call, {"x": x, "dy": dy, "scale": scale}, bits=True)
    for name, value in zip(("dx", "dscale", "dbias"), expected, strict=True):
        assert_near(made[name], value, dtype, name)


@pytest.mark.parametrize("groups", ["layer", "group", "instance"])
@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_group_normalization(shape, groups, dtype):
    lay = channels_last if shape == "2d" and dtype == "float32" else lambda array: array
    shape = SHAPES[shape]
    groups = {"layer": 1, "group": max(1, shape[1] // 2), "instance": shape[1]}[groups]
    if groups == shape[1] and len(shape) == 2:
        groups = 3  # of one element no more is known than its bias
    (x, dy, scale, bias), (tx, tdy, tscale, tbias) = operands(shape, dtype)
    y, *expected = gradients(F.group_norm(tx, groups, tscale, tbias, EPSILON),
                             (tx, tscale, tbias), tdy)  # fmt: skip
    for deterministic in (True, False) if dtype == "float64" else (True,):
        way = {"bits": deterministic, "lay": lambda a: lay(a) if a.ndim > 2 else a}
        forward = GroupStatisticsCall(shape, dtype, groups, EPSILON, deterministic)
        made = check_every_split(forward, {"x": x}, **way)
        if deterministic:
            inputs = {"x": x, "scale": scale, "bias": bias}
            check_normalised(shape, inputs, made, y, dtype, lay=way["lay"])
        old = old_gradients(shape, dtype)
        backward = GroupNormalizationGradientCall(
            shape, dtype, groups, deterministic, alpha=2.0, beta=-0.5
        )
        inputs = {"x": x, "dy": dy, "scale": scale, **made}
        found = check_every_split(backward, inputs, old, **way)
        sums = {name: found.pop(name) for name in ("scale_sums", "bias_sums")}
        found |= parameter_gradients(shape, dtype, sums, old, shape[0])
        check_gradients(found, expected, old, dtype)


TWINS = {
    ("relu", 0.0): F.relu,
    ("leaky_relu", 0.25): lambda v: F.leaky_relu(v, 0.25),
    ("swish", 1.0): F.silu,
    ("gelu", 0.0): F.gelu,
    ("gelu_tanh", 0.0): lambda v: F.gelu(v, approximate="tanh"),
    ("mish", 0.0): F.mish,
    ("hardswish", 0.0): F.hardswish,
}


@pytest.mark.parametrize(("mode", "coef"), TWINS)
@pytest.mark.parametrize("groups", [2, 4])
def test_groups_through_an_activation(groups, mode, coef):
    """Dy is that of the activation's result, which nobody reads."""
    shape, dtype = (2, 4, 5, 6), "float64"
    (x, dy, scale, bias), (tx, tdy, tscale, tbias) = operands(shape, dtype)
    y = TWINS[mode, coef](F.group_norm(tx, groups, tscale, tbias, EPSILON))
    _, *expected = gradients(y, (tx, tscale, tbias), tdy)
    forward = GroupStatisticsCall(shape, dtype, groups, EPSILON)
    made = check_every_split(forward, {"x": x}, bits=False)
    for data in (True, False):
        old = old_gradients(shape, dtype)
        backward = GroupNormalizationGradientCall(
            shape, dtype, groups, data=data, mode=mode, coef=coef, alpha=2.0, beta=-0.5
        )
        inputs = {"x": x, "dy": dy, "scale": scale, "bias": bias, **made}
        found = check_every_split(backward, inputs, old if data else None, bits=False)
        sums = {name: found.pop(name) for name in ("scale_sums", "bias_sums")}
        found |= parameter_gradients(shape, dtype, sums, old, shape[0])
        if data:
            check_gradients(found, expected, old, dtype)
        else:
            for name, gradient in zip(("dscale", "dbias"), expected[1:], strict=True):
                assert_near(sums[f"{name[1:]}_sums"].sum(axis=0), gradient, dtype, name)


@pytest.mark.parametrize(("shape", "dtype"), [c for c in CASES if c[0] != "one channel"])
def test_layer_normalization_of_each_site(shape, dtype):
    shape = SHAPES[shape]
    (x, dy, scale, bias), (tx, tdy, tscale, tbias) = operands(shape, dtype)
    ty = F.layer_norm(tx.movedim(1, -1), shape[1:2], tscale, tbias, EPSILON).movedim(-1, 1)
    y, *expected = gradients(ty, (tx, tscale, tbias), tdy)
    made = check_every_split(LayerStatisticsCall(shape, dtype, EPSILON), {"x": x}, bits=True)
    inputs = {"x": x, "scale": scale, "bias": bias}
    check_normalised(shape, inputs, made, y, dtype, by_site=True)
    for deterministic in (True, False) if dtype == "float64" else (True,):
        old = old_gradients(shape, dtype)
        backward = LayerNormalizationGradientCall(shape, dtype, deterministic, alpha=2.0, beta=-0.5)
        inputs = {"x": x, "dy": dy, "scale": scale, **made}
        found = check_every_split(backward, inputs, old, bits=deterministic)
        sums = {name: found.pop(name) for name in ("scale_sums", "bias_sums")}
        found |= parameter_gradients(shape, dtype, sums, old, shape[0])
        check_gradients(found, expected, old, dtype)


@pytest.mark.parametrize("row_axis", [3, 4])
def test_rows_along_other_axes(row_axis):
    """In any order of the sums, rows are cut along any axis."""
    shape, dtype = SHAPES["3d"], "float64"
    (x, dy, scale, bias), (tx, tdy, tscale, tbias) = operands(shape, dtype)
    _, *expected = gradients(F.group_norm(tx, 2, tscale, tbias, EPSILON), (tx, tscale, tbias), tdy)
    forward = GroupStatisticsCall(shape, dtype, 2, EPSILON, row_axis=row_axis)
    made = check_every_split(forward, {"x": x}, bits=False)
    backward = GroupNormalizationGradientCall(shape, dtype, 2, row_axis=row_axis)
    inputs = {"x": x, "dy": dy, "scale": scale, **made}
    found = check_every_split(backward, inputs, bits=False)
    assert_near(found["dx"], expected[0], dtype, "dx")
    layer = LayerStatisticsCall(shape, dtype, EPSILON, row_axis=row_axis)
    made = check_every_split(layer, {"x": x}, bits=True)
    normalise = Chain((NormaliseSets(shape, dtype, by_site=True),), dtype, row_axis=row_axis)
    inputs = {"x": x, "scale": scale, "bias": bias, "mean": made["saved_mean"],
              "inverse_deviation": made["saved_inverse_variance"]}  # fmt: skip
    made = check_every_split(normalise, inputs, bits=True)
    ty = F.layer_norm(tx.movedim(1, -1), shape[1:2], tscale, tbias, EPSILON).movedim(-1, 1)
    assert_near(made["y"], ty.detach().numpy(), dtype, "y")


@short_units
def test_deterministic_calls_cut_rows_at_units_of_the_first_axis():
    call = ChannelMomentsCall((2, 3, 9, 2, 2), "float32", True)
    assert set_statistics.unit_rows(call.shape) == 1
    assert call.row_axes == (2,)
    assert ChannelMomentsCall(call.shape, "float32").row_axes == (2, 3, 4)
    tall = ChannelMomentsCall((2, 3, 9), "float32", True)
    assert tuple(tall.axis_ranges("h_y", 1)) == ((0, 4), (4, 8), (8, 9))
    assert tuple(tall.axis_ranges("h_y", 6)) == ((0, 8), (8, 9))
