"""Batch normalisation: exact over the whole batch whatever the split, and as PyTorch has it."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from tests.support.bounded import UNIT
from tests.support.function_cases import (
    DTYPES,
    FEW_LAID,
    check_laid,
    check_under_falling_limits,
    draw,
    some_limits,
)
from tests.support.normalization import (
    backward_call,
    data,
    inference_call,
    training_call,
    vector_dtype,
    wide,
)

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
SCALES = (
    ("float32", 1.0, 0.0),
    ("float32", 2.0, -0.25),
    ("float64", 0.5, 2.0),
    ("float16", 0.5, 2.0),
    ("bfloat16", -1.5, 0.0),
)
SHAPES = {
    "1d": (5, 4, 41),
    "2d": (4, 6, 9, 7),
    "3d": (3, 4, 5, 4, 4),
    "one image": (1, 6, 18, 14),
    "one channel": (4, 1, 18, 7),
    "one site": (60, 20, 1, 1),
}
MODERATE = {"plain": (0, 1), "mean 1e4, deviation 1": (1e4, 1), "small": (-3, 1e-3)}


def anew(*args, **options):
    """The gradient without saved statistics."""
    return backward_call(*args, saved=False, **options)


MAKE = {
    "training": training_call,
    "inference": inference_call,
    "backward": backward_call,
    "backward anew": anew,
}


@pytest.mark.parametrize("function", MAKE)
@pytest.mark.parametrize("shape", SHAPES)
def test_under_falling_limits(shape, function):
    call = MAKE[function](SHAPES[shape])
    check_under_falling_limits(call, cuts=shape == "2d")


@pytest.mark.parametrize("function", MAKE)
@pytest.mark.parametrize(("dtype", "alpha", "beta"), SCALES)
def test_dtypes_and_scales_under_falling_limits(dtype, alpha, beta, function):
    check_under_falling_limits(MAKE[function](SHAPES["2d"], dtype, alpha, beta), cuts=False)


@pytest.mark.parametrize("function", MAKE)
@pytest.mark.parametrize("values", MODERATE)
def test_data_far_from_zero(values, function):
    for dtype in ("float32", "float64"):
        call = MAKE[function](SHAPES["2d"], dtype, values=MODERATE[values])
        check_under_falling_limits(call)


@pytest.mark.parametrize("function", MAKE)
@pytest.mark.parametrize("laid", FEW_LAID)
def test_any_strides(laid, function):
    call = MAKE[function](SHAPES["2d"], "float32", 2.0, -0.25)
    check_laid(call, laid)


# PyTorch -----------------------------------------------------------------------------------------


def test_training_and_its_gradient_are_pytorchs():
    call = training_call(SHAPES["2d"], "float64")
    backward = backward_call(SHAPES["2d"], "float64")
    x = torch.tensor(call.operands["x"], requires_grad=True)
    scale = torch.tensor(call.operands["scale"], requires_grad=True)
    shift = torch.tensor(call.operands["bias"], requires_grad=True)
    mean, variance = (torch.tensor(call.options[n]) for n in ("running_mean", "running_variance"))
    y = torch.nn.functional.batch_norm(
        x, mean, variance, scale, shift, training=True, momentum=0.1, eps=1e-5
    )
    call.results["y"].check(y.detach().numpy())
    call.changed["running_mean"].check(mean.numpy())
    call.changed["running_variance"].check(variance.numpy())
    operands = {n: torch.tensor(a) for n, a in backward.operands.items()}
    x = operands["x"].requires_grad_()
    scale = operands["scale"].requires_grad_()
    y = torch.nn.functional.batch_norm(x, None, None, scale, shift, training=True, eps=1e-5)
    grads = torch.autograd.grad(y, (x, scale, shift), operands["dy"])
    for name, grad in zip(("dx", "dscale", "dbias"), grads, strict=True):
        backward.results[name].check(grad.numpy(), name)


def test_the_backward_function_takes_what_training_returns():
    for dtype in ("float32", "float16"):
        random = np.random.default_rng(24)
        x, scale, shift = data(random, SHAPES["2d"], dtype)
        dy = draw(random, SHAPES["2d"], dtype)
        made = ooc_cudnn.batch_normalization_forward_training(x, scale, shift)
        with_saved = ooc_cudnn.batch_normalization_backward(
            x, dy, scale, saved_mean=made[1], saved_inverse_variance=made[2]
        )
        without = ooc_cudnn.batch_normalization_backward(x, dy, scale)
        for one, other in zip(with_saved, without, strict=True):
            assert np.allclose(
                one.astype("f8"), other.astype("f8"), rtol=1e-4,
                atol=1e-5 if dtype == "float32" else 2e-3,
            )  # fmt: skip


# What is returned --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_channel_vectors_are_float32_but_for_float64(dtype):
    call = training_call(SHAPES["2d"], dtype)
    found = call.run(call.copies())
    assert found["y"].dtype == DTYPES[dtype]
    for name in ("saved_mean", "saved_inverse_variance"):
        assert found[name].dtype == vector_dtype(dtype)
        assert found[name].shape == (SHAPES["2d"][1],)
    found = backward_call(SHAPES["2d"], dtype).run()
    assert found["dx"].dtype == DTYPES[dtype]
    assert found["dscale"].dtype == found["dbias"].dtype == vector_dtype(dtype)


@pytest.mark.parametrize("name", ["running_mean", "running_variance"])
def test_running_statistics_come_in_pairs(name):
    call = training_call(SHAPES["2d"])
    running = call.options[name].copy()
    with pytest.raises(ValueError, match=r"running_mean and running_variance.* both"):
        ooc_cudnn.batch_normalization_forward_training(**call.operands, **{name: running})
    assert np.array_equal(running, call.options[name])


@pytest.mark.parametrize("factor", [0.0, 0.25, 1.0])
def test_factors_of_the_running_average(factor):
    call = training_call(SHAPES["2d"], factor=factor)
    for limit in some_limits(call):
        with ooc_cudnn.settings(memory_limit=limit):
            arrays = call.copies()
            call.check(call.run(arrays, call.fresh()), f"limit {limit}", arrays)


def test_running_statistics_that_are_strided():
    call = training_call(SHAPES["2d"])
    for name in ("running_mean", "running_variance"):
        arrays = call.copies()
        large = np.full(2 * len(arrays[name]), 9, "f4")
        arrays[name] = large[::2]
        arrays[name][...] = call.options[name]
        call.check(call.run(arrays, call.fresh()), "strided", arrays)
        assert np.all(large[1::2] == 9)


# Exact over the whole batch ----------------------------------------------------------------------


def test_statistics_do_not_depend_on_the_split():
    """Not even in the seventh digit, for data whose digits are mostly those of its mean."""
    for values in MODERATE.values():
        call = training_call((8, 3, 33, 16), values=values)
        seen = []
        for limit in (2**24, 60_000, 20_000, 8_000, some_limits(call)[-1]):
            with ooc_cudnn.settings(memory_limit=limit), ooc_cudnn.profile() as p:
                found = call.run(call.copies(), call.fresh())
            call.check(found, f"limit {limit}")
            seen.append((p.calls[0].plan.pieces, found))
        assert len({pieces for pieces, _ in seen}) >= 3
        for _, found in seen[1:]:
            for name in ("saved_mean", "saved_inverse_variance"):
                assert np.allclose(found[name], seen[0][1][name], rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("shape", ["1d", "2d", "3d"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_deterministic_results_do_not_depend_on_the_limit(dtype, shape):
    """Not in a single bit: images are summed one by one, rows in units that no piece cuts."""
    shape = {"1d": (5, 3, 2500), "2d": (6, 3, 70, 40), "3d": (3, 2, 9, 20, 20)}[shape]
    call, backward = training_call(shape, dtype), anew(shape, dtype)
    seen = []
    for limit in (2**26, 300_000, 120_000, 70_000):
        with (
            ooc_cudnn.settings(memory_limit=limit, deterministic=True),
            ooc_cudnn.profile() as p,
        ):
            arrays = call.copies()
            found = call.run(arrays, call.fresh()) | backward.run(backward.copies())
        changed = {name: arrays[name] for name in call.changed}
        pieces = tuple(each.plan.pieces for each in p.calls)
        seen.append((pieces, {n: array.tobytes() for n, array in (found | changed).items()}))
    assert len({pieces for pieces, _ in seen}) >= 3
    assert all(content == seen[0][1] for _, content in seen[1:])


def test_float64_statistics_keep_the_digits_that_a_difference_of_squares_would_lose():
    x = 1e8 + np.random.default_rng(25).standard_normal((6, 2, 25, 16))
    exact = x - 1e8
    expected = exact.var(axis=(0, 2, 3))
    for limit in (2**24, 20_000, 9_000):
        with ooc_cudnn.settings(memory_limit=limit):
            made = ooc_cudnn.batch_normalization_forward_training(
                x, np.ones(2), np.zeros(2), epsilon=1e-5
            )
        variance = 1 / made[2] ** 2 - 1e-5
        assert np.allclose(variance, expected, rtol=1e-6)
        assert np.allclose(made[0].mean(axis=(0, 2, 3)), 0, atol=1e-6)
        assert np.allclose(made[0].var(axis=(0, 2, 3)), 1, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_channels_of_constant_value(dtype):
    """Their deviation is 0: y is the bias and dx comes without NaN."""
    shape = (4, 3, 9, 7)
    x = np.broadcast_to(np.array([0.1, -1000.3, 0]).reshape(1, 3, 1, 1), shape)
    x = np.ascontiguousarray(x).astype(DTYPES[dtype])
    scale, shift = (np.array(v, vector_dtype(dtype)) for v in ([2, 3, 4], [1, -2, 0.5]))
    # The gradient with statistics of its own needs the most.
    for limit in some_limits(anew(shape, dtype)):
        with ooc_cudnn.settings(memory_limit=limit):
            y, mean, inverse = ooc_cudnn.batch_normalization_forward_training(x, scale, shift)
        with ooc_cudnn.settings(memory_limit=2 * limit):  # it reads one tensor more
            dx, dscale, dbias = ooc_cudnn.batch_normalization_backward(x, x, scale)
        exact = x[0, :, 0, 0].astype("f8")
        assert np.allclose(mean, exact, rtol=1e-7, atol=0)
        assert np.allclose(inverse, 1e5**0.5, rtol=1e-5)
        # The mean is rounded to the vectors' dtype, and epsilon's root is 316.
        atol = 4 * 316 * 1000.3 * UNIT[str(vector_dtype(dtype))] + 1e-6
        expected = np.broadcast_to(wide(shift, 4), shape)
        assert np.allclose(y.astype("f8"), expected, rtol=2 * UNIT[dtype], atol=atol)
        for array in (dx, dscale, dbias):
            assert np.isfinite(array.astype("f8")).all()


def test_one_element_a_channel():
    """No variance to speak of, nor NaN."""
    for shape in ((1, 40, 1, 1), (1, 7, 1)):
        x = np.random.default_rng(26).standard_normal(shape).astype("f4")
        scale, shift = np.full(shape[1], 2, "f4"), np.arange(shape[1], dtype="f4")
        running_mean, running_variance = np.ones(shape[1], "f4"), np.ones(shape[1], "f4")
        y, mean, inverse = ooc_cudnn.batch_normalization_forward_training(
            x, scale, shift, running_mean=running_mean, running_variance=running_variance
        )
        assert np.array_equal(mean, x.ravel())
        assert np.allclose(inverse, 1e5**0.5)
        assert np.allclose(y.ravel(), shift)
        assert np.allclose(running_mean, 0.9 + 0.1 * x.ravel())
        assert np.allclose(running_variance, 0.9)
        dx, dscale, dbias = ooc_cudnn.batch_normalization_backward(x, y, scale)
        assert np.allclose(dx, 0, atol=1e-3)
        assert np.allclose(dscale, 0, atol=1e-3)
        assert np.allclose(dbias, y.ravel())


def test_nan_stays_in_its_channel():
    x = np.random.default_rng(27).standard_normal((4, 3, 9, 7)).astype("f4")
    x[2, 1, 4, 4] = np.nan
    vectors = np.ones(3, "f4"), np.zeros(3, "f4")
    call = training_call(x.shape)
    for limit in some_limits(call):
        with ooc_cudnn.settings(memory_limit=limit):
            y, mean, inverse = ooc_cudnn.batch_normalization_forward_training(x, *vectors)
        for array in (y[:, 1], mean[1], inverse[1]):
            assert np.isnan(array).all()
        for array in (y[:, ::2], mean[::2], inverse[::2]):
            assert np.isfinite(array).all()


def test_a_failed_call_leaves_the_running_statistics():
    call = training_call(SHAPES["2d"])
    arrays = call.copies()

    def stop(*_):
        raise RuntimeError("enough")

    limit = some_limits(call)[1]
    with (
        ooc_cudnn.settings(memory_limit=limit, progress=stop),
        pytest.raises(RuntimeError, match="enough"),
    ):
        call.run(arrays, call.fresh())
    for name, array in arrays.items():
        assert np.array_equal(array, call.arrays[name]), name
