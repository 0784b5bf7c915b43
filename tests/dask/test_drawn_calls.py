"""Drawn calls on drawn chunkings, by two workers: each equal to one call on plain arrays."""

import math
from itertools import pairwise

import numpy as np
import pytest

import ooc_cudnn
from tests.fuzz.cases import DRAWERS
from tests.fuzz.stream import Stream
from tests.support.sampling import number

da = pytest.importorskip("dask.array", reason="the extra dask is not installed")

import ooc_cudnn.dask as ooc  # noqa: E402

CALLS, AT_ONCE = 300, 25
#: Larger problems take their time and show no more.
MOST_ELEMENTS = 20_000
#: Functions that sum over chunks.
SUMS = {
    "batch_normalization_backward", "batch_normalization_forward_training",
    "convolution_add_activation_backward", "convolution_backward_bias",
    "convolution_backward_filter",
}  # fmt: skip
#: Functions whose last bits may differ: those, and what NumPy sums over channels in pairs.
ROUNDED = SUMS | {"softmax_forward", "softmax_backward"}
FUNCTIONS = sorted(set(DRAWERS) & set(ooc.__all__))


def drawn_chunks(stream, shape):
    """Images and spatial axes cut anywhere, one element wide at times."""

    def cut(extent):
        places = {stream.randint(0, extent) for _ in range(stream.choice((0, 0, 1, 1, 2)))}
        cuts = sorted({0, extent, *places})
        return tuple(b - a for a, b in pairwise(cuts))

    return tuple((extent,) if at == 1 else cut(extent) for at, extent in enumerate(shape))


def drawn(seed):
    """A call of a few elements in float64: its function, operands by name and options.

    Where results are sums over chunks, operands are small integers, so that sums are exact in any
    order, and what a chunk gets wrong shows to the last bit.
    """
    for again in range(1000):
        stream = Stream(seed, f"dask {again}")
        name = stream.choice(FUNCTIONS)
        problem = DRAWERS[name](stream)
        if sum(math.prod(tensor.shape) for tensor in problem.tensors.values()) <= MOST_ELEMENTS:
            break
    random = np.random.default_rng(seed)

    def numbers(shape):
        if problem.function in SUMS:
            return random.integers(-3, 4, shape).astype("float64")
        return random.standard_normal(shape)

    values = {
        name: numbers(tensor.shape)
        for name, tensor in problem.tensors.items()
        if tensor.kind != "derived"
    }
    for name, tensor in problem.tensors.items():
        if tensor.kind == "positive":
            values[name] = np.abs(values[name]) + 1
    values |= problem.derive(values)
    hidden = {*problem.hidden, "running_mean", "running_variance"}
    return stream, problem, {name: each for name, each in values.items() if name not in hidden}


def called(problem, arrays, functions):
    """The call on some arrays, by the library's functions or by those on dask arrays."""
    if problem.function == "chain_forward":
        return problem.invoke(arrays, {})
    given = {name: arrays[name] for name in problem.tensors if name in arrays}
    return getattr(functions, problem.function)(
        **given, **{n: each for n, each in problem.options.items() if each is not None}
    )


def one_call(problem, values):
    if problem.function == "add_tensor":
        values = {**values, "y": values["y"].copy()}
    return called(problem, values, ooc_cudnn)


@pytest.mark.parametrize("first", range(0, CALLS, AT_ONCE))
def test_equal_to_one_call(first, client, in_float64, monkeypatch):
    expected, made, said = [], [], []
    with ooc_cudnn.settings(deterministic=True):
        for seed in range(first, first + number(12, of=AT_ONCE)):
            stream, problem, values = drawn(seed)
            one = one_call(problem, values)
            chunked = {
                name: da.from_array(each, chunks=drawn_chunks(stream, each.shape))
                if len(each.shape) == len(problem.tensors[next(iter(values))].shape)
                else each
                for name, each in values.items()
            }
            with monkeypatch.context() as patched:
                patched.setattr(ooc_cudnn, "chain_forward", ooc.chain_forward)
                found = called(problem, chunked, ooc)
            several = isinstance(one, tuple)
            expected += one if several else (one,)
            made += found if several else (found,)
            said += [
                (problem.function, f"{seed}: {problem.function} {problem.options} {problem.words}")
            ] * (len(made) - len(said))
    not_exact = set()
    computed = client.gather(client.compute(made))
    for one, array, other, (function, words) in zip(expected, made, computed, said, strict=True):
        assert array.shape == one.shape == other.shape, words
        assert array.dtype == one.dtype == other.dtype, words
        size = np.nanmax(np.abs(one), initial=1.0)
        np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-13 * size, err_msg=words)
        if not np.array_equal(one, other, equal_nan=True):
            not_exact.add(function)
    assert not not_exact - ROUNDED
