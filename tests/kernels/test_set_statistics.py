"""Statistics of sets, and what is normalised by them, against NumPy in float64.

And every cut gives the same bits.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import set_statistics as kernels
from ooc_cudnn.operations.normalization.layer_in_chain import NormaliseSites
from ooc_cudnn.operations.normalization.set_reduction import (
    FoldImages,
    GroupSums,
    MergeGroups,
    NormaliseSets,
    NormaliseSetsBackward,
    NormaliseSitesBackward,
    SetMoments,
    SetSums,
    statistics_shape,
)
from ooc_cudnn.tensor import ACCUMULATOR
from tests.support.device_operand import DTYPES, EPSILON, Operand, assert_close, random
from tests.support.kernel_runs import run

LAYOUTS = ["first", "last", "first_rows", "last_rows"]
SHAPES = [
    (2, 3, 5, 7), (1, 1, 1, 1), (3, 12, 7, 7), (2, 1, 9, 9), (1, 5, 400), (2, 3, 4, 5, 6), (4, 33),
    (30, 2, 3, 1), (2, 70, 3, 5), (3, 21, 8, 6), (2, 3, 20_001), (64, 64, 14, 14),
]  # fmt: skip


def by_sets(array, by_site):
    """(n, sets, members), of what is broadcast over a tensor, too."""
    flat = array.reshape(*array.shape[:2], -1)
    return flat.swapaxes(1, 2) if by_site else flat


def moments(x, by_site=False):
    sets = by_sets(x, by_site)
    mean = sets.mean(axis=2)
    squares = ((sets - mean[..., np.newaxis]) ** 2).sum(axis=2)
    return np.stack([np.full_like(mean, sets.shape[2]), mean, squares])


def unit_of(shape, by_site):
    """About three units of a set, the last one ragged."""
    members = shape[1] if by_site else math.prod(shape[2:])
    return max(1, members * 2 // 5)


def vector(shape, dtype, seed, offset=0):
    values = np.abs(random(shape, seed)) + 0.5
    return Operand(shape, ACCUMULATOR[dtype], data=values, offset=offset)


def state_of(operation, seed=0):
    """A state, of which the first of three rows are counts."""
    values = np.abs(random(operation.output_shape, seed))
    if operation.rows == 3:
        values[0] = np.ceil(100 * values[0])
    return Operand(operation.output_shape, "float64", data=values)


def merged(a, b):
    (n_a, m_a, s_a), (n_b, m_b, s_b) = a, b
    n = n_a + n_b
    squares = s_a + s_b + (m_b - m_a) ** 2 * n_a * n_b / n
    return np.stack([n, m_a + (m_b - m_a) * n_b / n, squares])


@pytest.mark.parametrize("by_site", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_moments(dtype, shape, layout, by_site):
    operation = SetMoments(shape, dtype, unit_of(shape, by_site), by_site)
    for offset in (0, 1):
        x = Operand(shape, dtype, layout, data=3 + random(shape, 1), offset=offset)
        expected = moments(x.wide, by_site)
        fresh = Operand(operation.output_shape, "float64")
        slack = 1e-12 * (1 + np.abs(expected))
        assert_close(run(kernels, operation, (x, None), fresh), expected, "float64", slack)
        state = state_of(operation)
        before = state.wide
        found = run(kernels, operation, (x, state), state)
        expected = merged(before, expected)
        assert_close(found, expected, "float64", 1e-12 * (1 + np.abs(expected)))


@pytest.mark.parametrize("way", ["channels", "images", "sites", "parameters of sites"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums(dtype, shape, layout, way):
    by_site = way == "sites"
    kept = shape[1:2] if way == "channels" else statistics_shape(shape, by_site="sites" in way)
    operation = SetSums(shape, dtype, unit_of(shape, by_site), by_site, statistics_shape=kept)
    x = Operand(shape, dtype, layout, data=random(shape, 1), offset=1)
    dy = Operand(shape, dtype, "last" if layout == "first" else layout, data=random(shape, 2))
    mean, inverse = vector(kept, dtype, 3, offset=1), vector(kept, dtype, 4)
    scale = vector(shape[1:2], dtype, 5)

    def wide(operand):
        broadcast = (1, -1, *[1] * (len(shape) - 2)) if operand.wide.ndim == 1 else kept
        return operand.wide.reshape(broadcast)

    gradient = dy.wide * (wide(scale) if by_site else 1)
    hat = (x.wide - wide(mean)) * (1 if way == "channels" else wide(inverse))
    parts = np.stack([by_sets(gradient, by_site), by_sets(gradient * hat, by_site)])
    expected, size = parts.sum(axis=3), np.abs(parts).sum(axis=3)
    vectors = (mean, None if way == "channels" else inverse, scale if by_site else None)
    fresh = Operand(operation.output_shape, "float64")
    found = run(kernels, operation, (x, dy, *vectors, None), fresh)
    assert_close(found, expected, "float64", 1e-13 * (size + 1))
    state = state_of(operation)
    before = state.wide
    found = run(kernels, operation, (x, dy, *vectors, state), state)
    assert_close(found, before + expected, "float64", 1e-13 * (size + np.abs(before) + 1))


@pytest.mark.parametrize("shape", [(3, 36, 7, 29), (2, 64, 5, 1), (1, 100, 300)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_channels_side_by_side_are_the_same_bits(dtype, shape):
    """A kernel of its own takes several channels a thread: beside them one after the other."""
    kept = statistics_shape(shape, by_site=True)
    operation = SetSums(shape, dtype, 90, statistics_shape=kept)
    mean, inverse = vector(kept, dtype, 3), vector(kept, dtype, 4)
    found = []
    for layout in ("first", "last", "last_rows"):
        x = Operand(shape, dtype, layout, data=3 + random(shape, 1))
        dy = Operand(shape, dtype, layout, data=random(shape, 2))
        sums = Operand(operation.output_shape, "float64")
        found.append(run(kernels, operation, (x, dy, mean, inverse, None, None), sums).tobytes())
    assert found[0] == found[1] == found[2]


#: Slopes of what an activation is applied to; how far they may be off, in units of the sum.
SLOPES = {
    ("relu", 0.0): lambda v: np.where(v > 0, 1, 0.0),
    ("leaky_relu", 0.25): lambda v: np.where(v > 0, 1, 0.25),
    ("swish", 1.5): lambda v: slope_of("silu", 1.5 * v),
    ("mish", 0.0): lambda v: slope_of("mish", v),
    ("gelu", 0.0): lambda v: slope_of("gelu", v),
    ("gelu_tanh", 0.0): lambda v: slope_of("gelu", v, approximate="tanh"),
}


def slope_of(function, values, **options):
    """PyTorch's, in float64."""
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(np.array(values, "float64")).requires_grad_()
    getattr(torch.nn.functional, function)(x, **options).sum().backward()
    return x.grad.numpy()


@pytest.mark.parametrize(("mode", "coef"), SLOPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_through_an_activation(dtype, layout, mode, coef):
    """Sums, and dx, of a dy that is that of the activation's result."""
    shape = (2, 10, 7, 5)
    kept = statistics_shape(shape, by_site=False)
    x = Operand(shape, dtype, layout, data=random(shape, 1), offset=1)
    dy = Operand(shape, dtype, layout, data=random(shape, 2))
    mean, inverse = vector(kept, dtype, 3, offset=1), vector(kept, dtype, 4)
    scale, bias = (vector(shape[1:2], dtype, seed) for seed in (5, 6))
    m, i = (operand.wide.reshape(kept) for operand in (mean, inverse))
    a, b = (operand.wide.reshape(1, -1, 1, 1) for operand in (scale, bias))
    y = a * (x.wide - m) * i + b
    dz = dy.wide * SLOPES[mode, coef](y)
    unit = EPSILON[ACCUMULATOR[dtype]]
    if mode == "gelu" and dtype in ("float16", "bfloat16"):
        unit = max(unit, 4e-6)  # by a polynomial
    steep = 0 if "relu" in mode else 4 * unit  # slopes of numbers that are rounded
    operation = SetSums(shape, dtype, 15, statistics_shape=kept, mode=mode, coef=coef)
    inputs = (x, dy, mean, inverse, None, scale, bias, None)
    parts = np.stack([by_sets(dz, False), by_sets(dz * (x.wide - m) * i, False)])
    found = run(kernels, operation, inputs, Operand(operation.output_shape, "float64"))
    reach = np.abs(dy.wide) * (1 + np.abs(a * i) * (np.abs(x.wide) + np.abs(m)) + np.abs(b))
    reaches = np.stack(
        [by_sets(reach, False), by_sets(reach * np.abs((x.wide - m) * i), False)]
    ).sum(axis=3)
    size = 1e-12 * (np.abs(parts).sum(axis=3) + 1) + steep * reaches
    assert_close(found, parts.sum(axis=3), "float64", size)

    sums = random((2, *shape[:2]), 7)
    of_dy, of_products = sums.reshape(2, *kept) / 50
    terms = [a * dz, -of_dy, -(x.wide - m) * i * of_products]
    size = np.abs(i) * (sum(map(np.abs, terms)) + np.abs(m * i * of_products))
    backward = NormaliseSetsBackward(shape, dtype, 50, mode=mode, coef=coef)
    inputs = (x, dy, scale, mean, inverse, Operand(sums.shape, "float64", data=sums), bias)
    size = 12 * unit * size + steep * np.abs(i * a) * reach
    found = run(kernels, backward, inputs, dy)  # in place
    assert_close(found, i * sum(terms), dtype, size)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 33, 128, 500, 768, 1100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_sites(dtype, channels, layout):
    """In one pass where channels lie side by side, in place too: the same bits as by the sums."""
    shape = (2, channels, 3, 5)
    kept = statistics_shape(shape, by_site=True)
    x = Operand(shape, dtype, layout, data=random(shape, 1), offset=1)
    dy = Operand(shape, dtype, layout, data=random(shape, 2))
    mean, inverse = vector(kept, dtype, 3, offset=1), vector(kept, dtype, 4)
    scale = vector(shape[1:2], dtype, 5)
    operation = NormaliseSitesBackward(shape, dtype)
    shape_of_sums = operation.sums.output_shape
    sums = Operand(shape_of_sums, "float64")
    found = run(kernels, operation.sums, (x, dy, mean, inverse, scale, None), sums)
    sums = Operand(shape_of_sums, "float64", data=found)
    by_sums = Operand(shape, dtype, layout)
    run(kernels, operation.by_sums, (x, dy, scale, mean, inverse, sums), by_sums)

    i, hat = inverse.wide, (x.wide - mean.wide) * inverse.wide
    gradient = dy.wide * scale.wide.reshape(1, -1, 1, 1)
    parts = gradient, gradient * hat
    shares = [part.mean(axis=1, keepdims=True) for part in parts]
    sizes = [np.abs(part).mean(axis=1, keepdims=True) for part in parts]
    expected = i * (gradient - shares[0] - hat * shares[1])
    reach = (np.abs(x.wide) + np.abs(mean.wide)) * i
    size = i * (np.abs(gradient) + sizes[0] + reach * sizes[1])
    unit = EPSILON[ACCUMULATOR[dtype]]
    found = run(kernels, operation, (x, dy, scale, mean, inverse), dy)  # in place
    assert_close(found, expected, dtype, 12 * unit * size)
    assert found.tobytes() == by_sums.result().tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 33, 768, 1100])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_and_gradients_of_another_type(dtype, channels, layout):
    """y is rounded once; dy of a half type counts as if it had been widened, to the last bit."""
    shape = (2, channels, 3, 5)
    kept = statistics_shape(shape, by_site=True)
    x = Operand(shape, "float32", layout, data=random(shape, 1), offset=1)
    mean, inverse = vector(kept, "float32", 3), vector(kept, "float32", 4)
    scale, bias = vector(shape[1:2], "float32", 5), vector(shape[1:2], "float32", 6)

    vectors = (scale, bias, mean, inverse)
    wide = Operand(shape, "float32", layout)
    run(kernels, NormaliseSets(shape, "float32", by_site=True), (x, *vectors), wide)
    operation = NormaliseSets(shape, "float32", by_site=True, y_dtype=dtype)
    y = run(kernels, operation, (x, *vectors), Operand(shape, dtype, layout))
    assert (y == wide.result().astype(y.dtype)).all()

    narrow = Operand(shape, dtype, layout, data=random(shape, 2))
    widened = Operand(shape, "float32", layout, data=narrow.wide)
    found = []
    for dy, dy_dtype in ((narrow, dtype), (widened, "")):
        of_channels = SetSums(shape, "float32", 15, statistics_shape=kept, dy_dtype=dy_dtype)
        sums = Operand(of_channels.output_shape, "float64")
        found.append(run(kernels, of_channels, (x, dy, mean, inverse, None, None), sums))
        operation = NormaliseSitesBackward(shape, "float32", dy_dtype)
        dx = Operand(shape, "float32", layout)
        found.append(run(kernels, operation, (x, dy, scale, mean, inverse), dx))
    assert found[0].tobytes() == found[2].tobytes()
    assert found[1].tobytes() == found[3].tobytes()


@pytest.mark.parametrize("width", [5, 35])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_cut_gives_the_same_bits(dtype, width):
    """Whatever the order of memory, the images and channels beside it, and the rows before."""
    shape, unit = (3, 10, 7, width), 3 * width  # three rows
    data, gradients = 100 + random(shape, 1), random(shape, 2)
    mean = vector((10,), dtype, 3).wide
    whole = None
    for layout, offset, n, c, rows in (
        ("first", 0, (0, 3), (0, 10), (7,)),
        ("last", 1, (0, 3), (0, 10), (7,)),
        ("first_rows", 3, (1, 3), (2, 9), (3, 3, 1)),
        ("last_rows", 0, (2, 3), (4, 5), (6, 1)),
        ("last", 1, (1, 2), (0, 1), (3, 4)),
    ):
        state = sums = None
        start = 0
        for count in rows:
            region = slice(*n), slice(*c), slice(start, start + count)
            part = data[region]
            x = Operand(part.shape, dtype, layout, data=part, offset=offset)
            dy = Operand(part.shape, dtype, layout, data=gradients[region], offset=offset)
            operation = SetMoments(part.shape, dtype, unit)
            before = state and Operand(operation.output_shape, "float64", data=state.result())
            state = Operand(operation.output_shape, "float64")
            run(kernels, operation, (x, before), state)
            products = SetSums(part.shape, dtype, unit, statistics_shape=part.shape[1:2])
            vectors = Operand(part.shape[1:2], ACCUMULATOR[dtype], data=mean[region[1]]), None, None
            before = sums and Operand(products.output_shape, "float64", data=sums.result())
            sums = Operand(products.output_shape, "float64")
            run(kernels, products, (x, dy, *vectors, before), sums)
            start += count
        found = np.concatenate([state.result(), sums.result()])
        whole = found if whole is None else whole
        assert found.tobytes() == np.ascontiguousarray(whole[:, slice(*n), slice(*c)]).tobytes()


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("sets", [1, 7, 300])
def test_images_in_their_order(rows, sets):
    operation = FoldImages(rows, 5, sets)
    values = np.abs(random((rows, 5, sets), 1))
    values[0] = np.ceil(100 * values[0])
    images = Operand((rows, 5, sets) if rows > 1 else (5, sets), "float64", data=values)
    each = list(values.swapaxes(0, 1))

    def folded(states):
        total = states[0]
        for more in states[1:]:
            total = merged(total, more) if rows == 3 else total + more
        return total

    found = run(kernels, operation, (images, None), Operand((rows, sets), "float64"))
    assert_close(found, folded(each), "float64", 1e-11)
    state = Operand((rows, sets), "float64", data=values[:, 2])
    found = run(kernels, operation, (images, state), state)
    assert_close(found, folded([each[2], *each]), "float64", 1e-11)
    # All at once, or the first three and then the others: the same bits.
    once = run(kernels, operation, (images, None), Operand((rows, sets), "float64"))
    parts, state = (values[:, :3], values[:, 3:]), None
    for part in parts:
        given = Operand(part.shape, "float64", data=part)
        made = Operand((rows, sets), "float64", data=None if state is None else state)
        before = None if state is None else made
        state = run(kernels, FoldImages(rows, part.shape[1], sets), (given, before), made)
    assert state.tobytes() == once.tobytes()


@pytest.mark.parametrize("groups", [1, 4, 12])
def test_groups_of_channels(groups):
    operation = MergeGroups(3, 12, groups)
    values = np.abs(random((3, 3, 12), 1))
    values[0] = np.ceil(100 * values[0])
    state = Operand(values.shape, "float64", data=values)
    expected = values.copy()
    for start in range(0, 12, 12 // groups):
        total = values[:, :, start]
        for channel in range(start + 1, start + 12 // groups):
            total = merged(total, values[:, :, channel])
        expected[:, :, start : start + 12 // groups] = total[..., np.newaxis]
    assert_close(run(kernels, operation, (state,), state), expected, "float64", 1e-11)

    for dtype in ("float32", "float64"):
        sums = Operand((2, 3, 12), "float64", data=random((2, 3, 12), 2))
        scale = Operand((12,), dtype, data=random(12, 3))
        grouped = (sums.wide * scale.wide).reshape(2, 3, groups, -1).sum(axis=3)
        expected = np.repeat(grouped, 12 // groups, axis=2)
        found = run(kernels, GroupSums(3, 12, groups, dtype), (sums, scale),
                    Operand((2, 3, 12), "float64"))  # fmt: skip
        assert_close(found, expected, "float64", 1e-13)


@pytest.mark.parametrize("by_site", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_normalise(dtype, shape, layout, by_site):
    kept = statistics_shape(shape, by_site=by_site)
    unit = EPSILON[ACCUMULATOR[dtype]]
    for offset in (0, 1):
        x = Operand(shape, dtype, layout, data=random(shape, 1), offset=offset)
        dy = Operand(shape, dtype, layout, data=random(shape, 2), offset=offset)
        scale, bias = (vector(shape[1:2], dtype, seed, offset) for seed in (3, 4))
        mean, inverse = (vector(kept, dtype, seed, offset) for seed in (5, 6))
        a, b = (v.wide.reshape(1, -1, *[1] * (len(shape) - 2)) for v in (scale, bias))
        m, i = mean.wide, inverse.wide
        inner = a * (x.wide - m) * i
        size = np.abs(inner) + np.abs(a * m * i) + np.abs(b)
        operation = NormaliseSets(shape, dtype, by_site)
        inputs = (x, scale, bias, mean, inverse)
        found = run(kernels, operation, inputs, Operand(shape, dtype, layout))
        assert_close(found, inner + b, dtype, 8 * unit * size)
        clipped = replace(operation, mode="clipped_relu", coef=0.75)
        found = run(kernels, clipped, inputs, x)  # in place, too
        assert_close(found, np.clip(inner + b, 0, 0.75), dtype, 8 * unit * size)
        x = Operand(shape, dtype, layout, data=random(shape, 1), offset=offset)

        sums = random((2, shape[0], math.prod(kept[1:])), 7)
        of_dy, of_products = sums.reshape(2, *kept) / 50
        terms = [a * dy.wide, -of_dy, -(x.wide - m) * i * of_products]
        size = np.abs(i) * (sum(map(np.abs, terms)) + np.abs(m * i * of_products))
        operation = NormaliseSetsBackward(shape, dtype, 50, by_site)
        inputs = (x, dy, scale, mean, inverse, Operand(sums.shape, "float64", data=sums))
        found = run(kernels, operation, inputs, Operand(shape, dtype, layout))
        assert_close(found, i * sum(terms), dtype, 12 * unit * size)
        assert_close(run(kernels, operation, inputs, dy), i * sum(terms), dtype, 12 * unit * size)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sites_in_one_go(dtype, shape, layout):
    x = Operand(shape, dtype, layout, data=random(shape, 1), offset=1)
    scale, bias = (vector(shape[1:2], dtype, seed) for seed in (3, 4))
    operation = NormaliseSites(shape, dtype, 0.1)
    expected = operation.reference(x.wide, scale.wide, bias.wide)
    found = run(kernels, operation, (x, scale, bias), Operand(shape, dtype, layout))
    size = 10 * np.abs(x.wide).max() * scale.wide.max()
    assert_close(found, expected, dtype, 8 * EPSILON[ACCUMULATOR[dtype]] * size)


def test_nan_stays_in_its_set():
    data = random((2, 3, 40), 1)
    data[1, 2, 7] = np.nan
    x = Operand(data.shape, "float32", data=data)
    operation = SetMoments(data.shape, "float32", 16)
    found = run(kernels, operation, (x, None), Operand(operation.output_shape, "float64"))
    assert np.isnan(found[1:, 1, 2]).all()
    assert np.isfinite(found[1:]).sum() == 10


def test_nothing_to_do():
    x = Operand((0, 3, 4), "float32")
    run(kernels, SetMoments(x.view.shape, "float32", 4), (x, None), Operand((3, 0, 3), "float64"))
    empty = Operand((0, 3, 1), "float32")
    scale = Operand((3,), "float32", data=np.ones(3))
    run(kernels, NormaliseSets(x.view.shape, "float32"),
        (x, scale, scale, empty, empty), Operand((0, 3, 4), "float32"))  # fmt: skip
