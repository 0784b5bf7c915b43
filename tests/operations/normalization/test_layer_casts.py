"""Layer normalization whose result has another type than x, under every split."""

import numpy as np
import pytest

from ooc_cudnn.operations.normalization.channel_reduction import SAVED
from ooc_cudnn.operations.normalization.layer import (
    LayerNormalizationCastCall,
    LayerNormalizationGradientCall,
)
from ooc_cudnn.tensor import numpy_dtype
from tests.support.forced import Forced, legal_splits
from tests.support.function_cases import channels_last
from tests.support.splits import RINGS

pytest.importorskip("ml_dtypes")

SHAPE, STATISTICS = (3, 5, 4, 2), (3, 1, 4, 2)


def operands(dtype):
    """Operands of both directions, each of its type."""
    random = np.random.default_rng(0)
    arrays = {
        "x": 2 + random.standard_normal(SHAPE), "dy": random.standard_normal(SHAPE),
        "scale": random.standard_normal(5), "bias": random.standard_normal(5),
        SAVED[0]: random.standard_normal(STATISTICS),
        SAVED[1]: 0.5 + random.random(STATISTICS),
    }  # fmt: skip
    types = {"dy": numpy_dtype(dtype)}
    return {name: each.astype(types.get(name, "f4")) for name, each in arrays.items()}


def check_every_split(call, taken, made):
    """Run a call under every split; compare with what it expects of the whole in float64."""
    whole = call.whole_piece()
    expected = call.expected(whole, lambda name, _: taken[name].astype("f8"))
    for at, split in enumerate(legal_splits(call)):
        depth, rings = RINGS[at % len(RINGS)]
        given = {n: channels_last(a) if a.ndim == 4 and at % 2 else a for n, a in taken.items()}
        results = {name: np.full_like(each, np.nan) for name, each in made.items()}
        Forced(call, {**given, **results}).run(split, depth=depth, whole=rings)
        for name, (value, size) in expected.items():
            unit = 2.0**-8 if results[name].dtype.itemsize == 2 else 1e-5
            error = np.abs(results[name].astype("f8").reshape(value.shape) - value)
            assert (error <= unit * (size + np.abs(value))).all(), (name, split)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_result_of_a_half_type(dtype):
    call = LayerNormalizationCastCall(SHAPE, "float32", dtype)
    arrays = operands(dtype)
    taken = {name: arrays[name] for name in call.inputs}
    check_every_split(call, taken, {"y": np.empty(SHAPE, numpy_dtype(dtype))})
    assert call.rounding().arithmetic == dtype


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_a_half_type(dtype, data):
    call = LayerNormalizationGradientCall(SHAPE, "float32", data=data, dy_dtype=dtype)
    assert not call.may_be_in_place
    arrays = operands(dtype)
    taken = {name: arrays[name] for name in call.inputs}
    sums = {name: np.empty(SHAPE[:2]) for name in call.results if name != "dx"}
    made = {"dx": np.empty(SHAPE, "f4"), **sums} if data else sums
    check_every_split(call, taken, made)
