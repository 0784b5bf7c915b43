"""Attention on the card: by cuDNN's fused engines and by kernels, and a model's step by either."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.operations.attention.calls import AttentionCall, AttentionGradientCall
from ooc_cudnn.pipeline import graph_replay
from tests.operations.attention.test_calls import sizes_of
from tests.operations.attention.test_launches import launch_of
from tests.support.attention import Case, by_pytorch, draw, terms_of
from tests.support.every_split import check_every_split
from tests.support.forced import Forced
from tests.support.on_device import on_the_device

torch = pytest.importorskip("torch")

CASES = {
    "a block": Case((3, 3), (2, 197, 197, 64, 64), scale=0.125),
    "windows": Case((2, 2), (5, 49, 49, 32, 32), scale=0.2),
    "causal": Case((2, 2), (2, 130, 130, 64, 64), causal=True, scale=0.125),
    "more keys": Case((2, 2), (1, 70, 300, 128, 128), scale=0.1),
    "shared keys": Case((4, 2), (2, 100, 100, 64, 64), scale=0.125),
}


@pytest.fixture(params=["fused", "kernels"])
def way(request, cuda_device, monkeypatch):
    """Whether cuDNN may compute it; how often it did."""
    found, run = [], cuda_device.attention.run

    def counted(operation, call):
        done = request.param == "fused" and run(operation, call)
        found.append(done)
        return done

    monkeypatch.setattr(cuda_device.attention, "run", counted)
    chosen = {**Forced.__init__.__kwdefaults__, "device": "cuda"}
    monkeypatch.setattr(Forced.__init__, "__kwdefaults__", chosen)
    yield found
    assert any(found) == (request.param == "fused"), "cuDNN has no engine"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_both_directions(name, dtype, way, random):
    case = CASES[name]
    operands = draw(case, random, dtype)
    right = by_pytorch(case, operands)
    forward = launch_of(case, dtype)
    call = AttentionCall(forward)
    expected = {each: right[each] for each in call.results}
    dy = operands.pop("dy")
    check_every_split(
        call, operands, expected, terms=terms_of(dtype), sizes=sizes_of(expected), most=2
    )
    gradient = AttentionGradientCall(forward)
    expected = {each: right[each] for each in gradient.results}
    arrays = {
        **operands,
        "dy": dy,
        "y": right["y"].astype(dy.dtype),
        "lse": right["lse"].astype("f4"),
    }
    terms = terms_of(dtype, backward=True)
    check_every_split(gradient, arrays, expected, terms=terms, sizes=sizes_of(expected), most=2)


def test_products_of_cublas_are_recorded(recorded, monkeypatch):
    """Attention in float32 is made of them."""
    monkeypatch.setattr(graph_replay, "FEWEST_TASKS", 1)
    net = ooc_cudnn.Network(seed=0)
    x = net.input("x", (2, 48, 40), "float32", gradient=True)
    y = net.packed_attention(net.convolution(x, 48, window=1), 2)
    for name in net.parameters:  # what is in ordinary memory is staged
        net.parameters[name] = on_the_device(net.parameters[name])
    step = net.training_step(net.mean_squared_error(y, net.input("target", y.shape, "float32")))
    random = np.random.default_rng(0)
    given = {
        name: on_the_device(random.standard_normal(shape).astype("f4"), "channels_first")
        for name, shape in (("x", x.shape), ("target", y.shape))
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses = [step(**given) for _ in range(6)]
    assert recorded
    assert None not in recorded
    assert losses == pytest.approx([losses[0]] * 6, rel=1e-6)
