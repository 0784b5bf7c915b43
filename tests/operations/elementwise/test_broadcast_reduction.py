"""Sums over what an operand was broadcast along, under every split, against PyTorch's autograd."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import operations
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.elementwise.activation_gradient import PreluGradientCall
from ooc_cudnn.operations.elementwise.binary import OpTensor
from ooc_cudnn.operations.elementwise.broadcast_reduction import BroadcastGradientCall, BroadcastSum
from tests.support.every_split import check_every_split, rounded

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytest.importorskip("ml_dtypes")

#: Shapes of x, and of what it meets.
SHAPES = {
    "per channel": ((3, 4, 5, 2), (1, 4, 1, 1)),
    "a vector": ((2, 3, 5), (3,)),
    "per image": ((3, 2, 4, 2), (3, 1, 1, 1)),
    "per channel of an image": ((3, 2, 4, 3), (3, 2, 1, 1)),
    "per channel of a volume": ((2, 3, 3, 2, 2), (2, 3, 1, 1, 1)),
    "per site of an image": ((3, 4, 5, 2), (3, 1, 5, 2)),
    "per site of a line": ((1, 3, 7), (1, 1, 7)),
    "one of all": ((2, 3, 5), (1, 1, 1)),
    "a vector of one": ((2, 3, 2, 2, 2), (1,)),
    "no spatial axes": ((3, 4), (1, 4)),
}
#: dtype, alpha, beta
SCALES = [("float64", 1, 0), ("float16", 0.5, 1), ("float32", 1, 1), ("bfloat16", 1, 0)]


def scales(shape):
    """Half of them, in turn."""
    return SCALES[len(shape) % 2 :: 2]


def wide(b, axes):
    return b.reshape(1, -1, *[1] * (axes - 2)) if b.ndim == 1 else b


def drawn(random, shape, dtype):
    return rounded(random.standard_normal(shape), dtype)


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("factor", ["", "x"])
def test_gradients_of_what_is_broadcast(random, factor, shapes):
    shape, b_shape = shapes
    for dtype, alpha, beta in scales(b_shape):
        (dy, dy64), (x, x64), (old, _) = (drawn(random, s, dtype) for s in (shape, shape, b_shape))
        b = torch.zeros(b_shape, dtype=torch.float64, requires_grad=True)
        met = torch.from_numpy(x64) if factor else torch.ones(shape, dtype=torch.float64)
        (met * wide(b, len(shape))).backward(torch.from_numpy(dy64))
        call = BroadcastGradientCall(shape, dtype, b_shape, factor, alpha=alpha, beta=beta)
        arrays = {"dy": dy, "x": x} if factor else {"dy": dy}
        size = BroadcastSum(shape, b_shape, dtype, dtype).reference(
            abs(dy64) * (abs(x64) if factor else 1)
        )
        # A half's sum is kept in float32, and rounded once a piece.
        check_every_split(call, arrays, {"db": b.grad.numpy()}, sizes={"db": size}, terms=40,
                          old={"db": old} if beta else None, most=8)  # fmt: skip


@pytest.mark.parametrize("op", ["multiply", "add"])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_two_maps_forward_and_the_maps_gradient(random, shapes, op):
    """The gradient of a product's map is another product; that of a sum is dy itself."""
    shape, b_shape = shapes
    for dtype, alpha, beta in scales(b_shape):
        (x, x64), (b, b64), (old, _) = (drawn(random, s, dtype) for s in (shape, b_shape, shape))
        met = wide(b64, len(shape))
        value = x64 * met if op == "multiply" else x64 + met
        call = Chain((OpTensor(shape, b_shape, dtype, op),), dtype, alpha=alpha, beta=beta)
        check_every_split(call, {"x": x, "b": b}, {"y": value}, old={"y": old} if beta else None,
                          sizes={"y": abs(x64) + abs(met) + abs(value)}, most=5)  # fmt: skip


@pytest.mark.parametrize("shape", [(2, 3, 5, 2), (3, 4), (2, 2, 3, 2, 2)], ids=str)
@pytest.mark.parametrize("alone", [True, False], ids=["one slope", "a slope per channel"])
def test_prelu_and_its_gradients(random, alone, shape):
    w_shape = (1,) if alone else (shape[1],)
    for dtype, alpha, beta in SCALES[alone::2]:
        (x, x64), (dy, dy64), (old, _) = (drawn(random, shape, dtype) for _ in range(3))
        x[0, 0], x64[0, 0] = 0, 0  # at the kink the slope is w
        w, w64 = rounded(random.uniform(-0.5, 0.5, w_shape), dtype)
        (old_w, _) = drawn(random, w_shape, dtype)
        t, slope = (torch.from_numpy(a).requires_grad_() for a in (x64, w64))
        y = torch.nn.functional.prelu(t, slope)
        y.backward(torch.from_numpy(dy64))
        scale = {"alpha": alpha, "beta": beta}
        forward = Chain((OpTensor(shape, w_shape, dtype, "prelu"),), dtype, **scale)
        check_every_split(forward, {"x": x, "w": w}, {"y": y.detach().numpy()}, most=5,
                          old={"y": old} if beta else None)  # fmt: skip
        of_x = PreluGradientCall(shape, w_shape, dtype, **scale)
        check_every_split(of_x, {"x": x, "dy": dy, "w": w}, {"dx": t.grad.numpy()}, most=5,
                          old={"dx": old} if beta else None)  # fmt: skip
        of_w = BroadcastGradientCall(shape, dtype, w_shape, "negative_x", **scale)
        size = BroadcastSum(shape, w_shape, dtype, dtype).reference(abs(dy64 * x64))
        check_every_split(of_w, {"dy": dy, "x": x}, {"db": slope.grad.numpy()}, most=5, terms=40,
                          sizes={"db": size}, old={"db": old_w} if beta else None)  # fmt: skip


@pytest.mark.parametrize("gradient", [1.0, 0.0, np.nan, np.inf])
def test_a_prelu_at_nan_infinity_and_zero_is_pytorchs(gradient):
    x = np.array([np.nan, -1.0, 2.0, 0.0, np.inf, -np.inf])
    for value in x:  # one by one, and so each term of the sum over them
        t = torch.tensor([[[value]]], dtype=torch.float64, requires_grad=True)
        w = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
        dy = np.full((1, 1, 1), gradient)
        F.prelu(t, w).backward(torch.from_numpy(dy))
        arrays = {"x": t.detach().numpy(), "dy": dy}
        with np.errstate(all="ignore"):
            of_x = PreluGradientCall((1, 1, 1), (1,), "float64")
            check_every_split(of_x, {**arrays, "w": np.array([0.5])}, {"dx": t.grad.numpy()})
            of_w = BroadcastGradientCall((1, 1, 1), "float64", (1,), "negative_x")
            check_every_split(of_w, arrays, {"db": w.grad.numpy()}, sizes={"db": np.ones(1)})


def test_what_has_no_gradient_here_is_refused():
    with pytest.raises(ValueError, match="not known"):
        BroadcastGradientCall((2, 3, 4, 5), "float32", (1, 3, 4, 1))


@pytest.mark.parametrize("shape", [(3,), (1,), (1, 3, 1, 1)], ids=str)
def test_prelu_in_a_chain(random, shape):
    x, w = random.standard_normal((2, 2, 9, 6)), random.standard_normal((3, 2, 3, 3))
    slopes, again = random.standard_normal(shape), random.standard_normal((2, 3, 3, 3))
    steps = [
        operations.Convolution(w, padding=1), operations.PRelu(slopes),
        operations.Convolution(again, padding=1),
    ]  # fmt: skip
    t = torch.nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=1)
    t = torch.nn.functional.prelu(t, torch.from_numpy(slopes.ravel()))
    expected = torch.nn.functional.conv2d(t, torch.from_numpy(again), padding=1).numpy()
    for limit in ("1MiB", "6KiB"):
        with ooc_cudnn.settings(device="host", machine="host", memory_limit=limit, verify=2):
            found = ooc_cudnn.chain_forward(x, steps)
        assert np.allclose(found, expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="w must have shape"):
        ooc_cudnn.chain_forward(x, [operations.PRelu(np.ones(3))])
