"""OpTensor's and ActivationBackward's kernels, against NumPy and PyTorch in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import arguments, launch
from ooc_cudnn.devices.kernels.elementwise import activation_backward, op_tensor, prelu_backward
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.core.activation_modes import needs_x
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationBackward, PreluBackward
from ooc_cudnn.operations.elementwise.binary import OpTensor
from ooc_cudnn.tensor import ACCUMULATOR
from tests.support.activation_modes import MODES
from tests.support.card import cupy
from tests.support.device_operand import DTYPES, EPSILON, Operand, assert_close, random

torch = pytest.importorskip("torch")
F = torch.nn.functional

OPS = {
    "add": lambda a, b: a + b,
    "multiply": lambda a, b: a * b,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "divide": np.divide,
}
LAYOUTS = ["first", "last", "first_rows", "last_rows"]


def check_op_tensor(a, b, c, op, alpha_a, alpha_b):
    shape, dtype = c.view.shape, c.view.dtype
    operation = OpTensor(shape, b.view.shape, dtype, op, alpha_a, alpha_b)
    with np.errstate(all="ignore"):
        second = alpha_b * np.broadcast_to(b.wide, shape)
        if op == "add" and alpha_a == 0:
            expected = size = second
        else:
            expected = OPS[op](alpha_a * a.wide, second)
            size = np.abs(alpha_a * a.wide) + np.abs(second)
    op_tensor(operation, Call((a and a.view, b.view), c.view))
    real = EPSILON[ACCUMULATOR[dtype]]
    slack = 8 * real * np.where(np.isfinite(size), np.abs(size), 0)
    assert_close(c.result(), expected, dtype, slack)


def specials(shape, seed):
    data = random(shape, seed)
    where = np.random.default_rng(seed)
    for value in (np.nan, np.inf, -np.inf, 0.0, -0.0):
        data.ravel()[where.integers(0, data.size, 1 + data.size // 50)] = value
    return data


B_SHAPES = [(1, 24, 1, 1), (2, 24, 1, 1), (2, 24, 5, 16), (1, 1, 1, 1), (1, 1, 5, 16),
            (2, 1, 5, 1), (1, 24, 1, 16)]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("b_shape", B_SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_op_tensor(dtype, b_shape, layout):
    shape = (2, 24, 5, 16)
    for op, b_layout in zip(OPS, ("first", "last", "first_rows", "last", "first"), strict=True):
        a = Operand(shape, dtype, layout, data=specials(shape, 1))
        b = Operand(b_shape, dtype, b_layout, data=specials(b_shape, 2))
        check_op_tensor(a, b, Operand(shape, dtype, layout), op, 1.0, 1.0)
        check_op_tensor(a, b, Operand(shape, dtype, layout), op, -0.5, 1.5)
        check_op_tensor(a, b, a, op, 2.0, 1.0)
    c = Operand(shape, dtype, layout)
    b = Operand(b_shape, dtype, layout, data=specials(b_shape, 2))
    check_op_tensor(None, b, c, "add", 0.0, 3.0)


SHAPES = [(3, 64, 7, 7), (2, 1, 9, 9), (1, 5, 1000), (2, 3, 4, 5, 6), (70_000, 2, 3, 1), (4, 33),
          (1, 1), (2, 20_001, 3), (1, 3, 100, 100)]  # fmt: skip


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("layouts", ["first first", "last last", "last_rows last", "first last"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_op_tensor_shapes(shape, dtype, layouts, offset):
    layout, other = layouts.split()
    for b_shape in ((1, shape[1], *[1] * (len(shape) - 2)), shape):
        a = Operand(shape, dtype, layout, data=random(shape, 1), offset=offset)
        b = Operand(b_shape, dtype, layout, data=random(b_shape, 2), offset=offset)
        check_op_tensor(a, b, Operand(shape, dtype, other), "add", 1.0, 1.0)
        check_op_tensor(a, b, a, "multiply", 1.0, 1.0)


COEFFICIENTS = {"clipped_relu": 1.5, "elu": 0.7, "swish": 1.3, "leaky_relu": 0.1}


#: Of half types: the last bit of the least float16; and what is lost where exp(-x^2 / 2) is no
#: longer a normal float32.
GELU_ENDS = {"float16": 2.0**-24, "bfloat16": 2.0**-122}


def check_activation(mode, coef, dtype, layouts, shape=(2, 16, 6, 8), *, offset=0, into=None):
    x_layout, y_layout, dy_layout, dx_layout = layouts.split()
    data = np.clip(3 * random(shape, 1), -9, 9)
    data.ravel()[:1] = 0.0
    x = Operand(shape, dtype, x_layout, data=data, offset=offset)
    t = torch.from_numpy(x.wide).requires_grad_()
    found = MODES[mode].pytorch(t, coef)
    y = Operand(shape, dtype, y_layout, data=found.detach().numpy(), offset=offset)
    dy = Operand(shape, dtype, dy_layout, data=random(shape, 2), offset=offset)
    dx = {"y": y, "dy": dy, "x": x}.get(into) or Operand(shape, dtype, dx_layout)
    found.backward(torch.from_numpy(dy.wide))
    expected = t.grad.numpy()
    real = EPSILON[ACCUMULATOR[dtype]]
    slack = np.abs(dy.wide) * (1 + MODES[mode].cancels) * 8 * real
    if mode == "gelu" and dtype in GELU_ENDS:
        slack = slack + 5e-6 * np.abs(dy.wide) + GELU_ENDS[dtype]
    if not needs_x(mode, coef):  # y was rounded
        rounding = EPSILON[dtype] * (1 + np.abs(y.wide)) if mode not in ("relu", "identity") else 0
        slack = slack + 2 * np.abs(dy.wide) * rounding
        if mode in ("clipped_relu", "elu", "leaky_relu"):  # and may be on the other side of a kink
            at_kink = np.abs(y.wide - coef) <= EPSILON[dtype] * 2
            slack = slack + np.where(at_kink, np.abs(dy.wide), 0)
        if mode == "hardsigmoid":
            at_kink = np.abs(y.wide - 1) <= EPSILON[dtype] * 2
            slack = slack + np.where(at_kink, np.abs(dy.wide), 0)
    operation = ActivationBackward(shape, mode, coef, dtype)
    inputs = (y.view, dy.view, x.view if needs_x(mode, coef) else None)
    activation_backward(operation, Call(inputs, dx.view))
    assert_close(dx.result(), expected, dtype, slack)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_activation_backward(dtype, mode, layout):
    check_activation(mode, COEFFICIENTS.get(mode, 0.0), dtype, " ".join([layout] * 4))
    if mode in ("elu", "leaky_relu"):
        check_activation(mode, -0.4, dtype, " ".join([layout] * 4))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gelu_of_every_half(dtype):
    """Its gradient at every number that is finite: a hundredth of a rounding from the exact one."""
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    data = bits.view(getattr(torch, dtype)).double().numpy()
    data = data[np.isfinite(data)].reshape(1, -1)
    x, dy = Operand(data.shape, dtype, data=data), Operand(data.shape, dtype, data=1 + 0 * data)
    t = torch.from_numpy(data)
    below = torch.special.erfc(-t / math.sqrt(2)) / 2
    density = torch.exp(-t.square() / 2) / math.sqrt(2 * math.pi)
    operation = ActivationBackward(data.shape, "gelu", 0.0, dtype)
    activation_backward(operation, Call((x.view, dy.view, x.view), x.view))
    expected, size = below + t * density, below + t.abs() * density
    assert_close(x.result(), expected.numpy(), dtype, 5e-6 * size.numpy() + GELU_ENDS[dtype])


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("layouts", ["first first first first", "last last last last",
                                     "first_rows first first first_rows",
                                     "last last_rows last_rows last"])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_activation_backward_shapes(shape, dtype, layouts, offset):
    for mode in ("relu", "gelu"):
        check_activation(mode, 0.0, dtype, layouts, shape, offset=offset)


@pytest.mark.parametrize("into", ["y", "dy", "x"])
def test_activation_backward_in_place(into):
    check_activation("swish", 1.0, "float32", "first first first first", into=into)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_nan_and_infinity(mode, dtype):
    coef = COEFFICIENTS.get(mode, 0.0)
    shape = (1, 4, 2)
    y = Operand(shape, dtype, data=np.array([np.nan, 0, -1, 1, 1, 0, np.nan, 0.5]).reshape(shape))
    x = Operand(shape, dtype, data=y.wide)
    gradient = np.array([1, np.nan, np.inf, np.nan, np.inf, 0, 0, -2]).reshape(shape)
    dy = Operand(shape, dtype, data=gradient)
    dx = Operand(shape, dtype)
    operation = ActivationBackward(shape, mode, coef, dtype)
    activation_backward(operation, Call((y.view, dy.view, x.view), dx.view))
    result = dx.result().astype("f8").ravel()
    for at in (0, 6):  # as PyTorch has it, of an element by itself
        t = torch.tensor([np.nan], dtype=torch.float64, requires_grad=True)
        function = MODES[mode].own or MODES[mode].pytorch
        function(t, coef).backward(torch.tensor([gradient.flat[at]]))
        np.testing.assert_allclose(result[at], t.grad[0], rtol=4 * EPSILON[dtype])
    if mode in ("relu", "clipped_relu"):
        assert (result[[1, 2, 5]] == 0).all()  # flat: whatever dy is
        assert np.isnan(result[3])
        assert result[4] == np.inf
    with np.errstate(all="ignore"):
        slack = 8 * EPSILON[ACCUMULATOR[dtype]] * 4
        assert_close(dx.result(), operation.reference(y.array, dy.array, x.array), dtype, slack)


@pytest.mark.parametrize("layout", ["first", "last_rows"])
@pytest.mark.parametrize("shape", [(3, 10, 7, 7), (2, 64, 4, 4)], ids=str)
def test_offsets_in_64_bits(shape, layout, monkeypatch):
    monkeypatch.setattr(arguments, "SMALL_OFFSETS", 0)
    launch._prepared.clear()
    test_op_tensor_shapes(shape, "float16", f"{layout} {layout}", 0)
    check_activation("swish", 1.0, "float16", " ".join([layout] * 4), shape)
    launch._prepared.clear()


def test_empty_tensors_do_nothing():
    empty = DeviceView(0, "float32", (0, 2, 3), (6, 3, 1))
    operation = OpTensor(empty.shape, empty.shape, "float32")
    op_tensor(operation, Call((empty, empty), empty))
    activation_backward(
        ActivationBackward(empty.shape, "relu", 0.0, "float32"),
        Call((empty, empty, None), empty),
    )  # fmt: skip


def test_arguments_that_are_missing_are_named():
    a = DeviceView(0, "float32", (1, 2), (2, 1))
    with pytest.raises(ValueError, match="a is absent"):
        op_tensor(OpTensor((1, 2), (1, 2), "float32"), Call((None, a), a))
    with pytest.raises(ValueError, match="lacks one"):
        activation_backward(
            ActivationBackward((1, 2), "gelu", 0.0, "float32"), Call((a, a, None), a)
        )


@pytest.mark.parametrize("layout", ["first", "last"])
def test_beyond_two_to_the_31(layout):
    n, c, s = 1, 2, 1_100_000_003
    if cupy.cuda.runtime.memGetInfo()[0] < 6 * n * c * s:
        pytest.skip("needs 13 GB of device memory")
    memory = cupy.arange(n * c * s, dtype=np.int16) % 64
    memory = memory.astype(np.float16)
    strides = (c * s, s, 1) if layout == "first" else (c * s, 1, c)
    view = DeviceView(memory.data.ptr, "float16", (n, c, s), strides)
    b = Operand((1, c, 1), "float16", data=np.array([[[-10.0], [100.0]]]))
    op_tensor(OpTensor((n, c, s), (1, c, 1), "float16"), Call((view, b.view), view))
    for at in (0, 1, 2**31 - 1, 2**31, 2**31 + 12345, math.prod((n, c, s)) - 1):
        channel = at // s if layout == "first" else at % c
        before = int(np.int64(at).astype(np.int16)) % 64
        assert float(memory[at]) == before + (-10.0, 100.0)[channel]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 24, 5, 16), (3, 5, 7, 7), (2, 3, 4, 5, 6), (4, 33)], ids=str)
def test_prelu_and_its_gradient(shape, dtype, layout):
    x = Operand(shape, dtype, layout, data=specials(shape, 1))
    dy = Operand(shape, dtype, layout, data=random(shape, 2))
    for w_shape in ((shape[1],), (1,)):
        w = Operand(w_shape, dtype, data=random(w_shape, 3))
        check_prelu(x, dy, w, Operand(shape, dtype, layout))


def check_prelu(x, dy, w, result):
    shape, dtype = x.view.shape, x.view.dtype
    real = EPSILON[ACCUMULATOR[dtype]]
    forward = OpTensor(shape, w.view.shape, dtype, "prelu")
    op_tensor(forward, Call((x.view, w.view), result.view))
    with np.errstate(all="ignore"):
        expected = forward.reference(x.wide, w.wide)
        slack = 4 * real * np.where(np.isfinite(expected), np.abs(expected), 0)
    assert_close(result.result(), expected, dtype, slack)
    backward = PreluBackward(shape, w.view.shape, dtype)
    prelu_backward(backward, Call((x.view, dy.view, w.view), result.view))
    expected = backward.reference(x.wide, dy.wide, w.wide)
    assert_close(result.result(), expected, dtype, 4 * real * np.abs(dy.wide))
