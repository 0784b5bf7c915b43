"""Numbers in another dtype, under every split, from and to any order of memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.operations.elementwise.cast import CastCall
from ooc_cudnn.tensor import numpy_dtype
from tests.support.forced import Forced, legal_splits
from tests.support.function_cases import channels_last
from tests.support.splits import RINGS

pytest.importorskip("ml_dtypes")

SHAPE = (3, 2, 3, 2)
DTYPES = ("float16", "bfloat16", "float32", "float64")


@pytest.mark.parametrize(("source", "dtype"), [*itertools.permutations(DTYPES, 2)])
def test_every_split(source, dtype):
    random = np.random.default_rng(0)
    x = random.standard_normal(SHAPE).astype(numpy_dtype(source))
    call = CastCall(SHAPE, source, dtype)
    expected = x.astype(numpy_dtype(dtype))
    for at, split in enumerate(legal_splits(call)):
        depth, whole = RINGS[at % len(RINGS)]
        given = channels_last(x) if at % 2 else x
        y = np.full_like(expected, np.nan)
        Forced(call, {"x": given, "y": y}).run(split, depth=depth, whole=whole)
        assert (y == expected).all()
    old = random.integers(-4, 5, SHAPE).astype(numpy_dtype(dtype))
    y = old.copy()
    Forced(CastCall(SHAPE, source, dtype, beta=1.0), {"x": x, "y": y}).run(call.extents)
    wide = np.float64 if dtype == "float64" else np.float32
    assert (y == (x.astype(wide) + old.astype(wide)).astype(y.dtype)).all()


def test_a_patch_has_the_numbers_themselves():
    random = np.random.default_rng(0)
    x = random.standard_normal(SHAPE)
    call = CastCall(SHAPE, "float32", "bfloat16")
    piece = call.patch(random)
    value, size = call.expected(piece, lambda _, region: x[tuple(slice(*e) for e in region)])["y"]
    assert (np.abs(value) == size).all()
    assert call.rounding().arithmetic == "bfloat16"


def test_a_network_casts_and_its_gradient_is_of_the_type_before():
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 3, 4, 4), gradient=True)
    step = net.pausing_step(net.convolution(net.cast(x, "float16"), 2, window=1, bias=False))
    given = np.ones(x.shape, "float32")
    with ooc_cudnn.settings(device="host", machine="host", memory_limit="64KiB"):
        paused = step.forward(x=given)
        (y,) = paused.outputs
        gradients = paused.backward([np.ones_like(y)])
    assert y.dtype == np.float16
    assert gradients["x"].dtype == np.float32
    w = net.parameters["convolution_1.w"].astype("f4")
    assert np.allclose(gradients["x"], w.sum(0)[None], rtol=2e-3)
    with pytest.raises(TypeError, match="int64"):
        net.cast(x, "int64")
