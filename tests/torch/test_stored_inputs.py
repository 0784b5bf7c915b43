"""Inputs of every dtype beside a map: read bit by bit, as tensors and as NumPy arrays."""

import copy

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.lowering.bitcast import store_bits

pytestmark = pytest.mark.usefixtures("fewest_plans")

SHAPE = (2, 2, 4, 7)
FLOAT8 = [
    getattr(torch, name) for name in dir(torch) if name.startswith(("float8_e4", "float8_e5"))
]
INTEGERS = [torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
            torch.uint16, torch.uint32, torch.uint64]  # fmt: skip


class Apply(nn.Module):
    """A function of a map and something else, behind a convolution."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.function = nn.Conv2d(2, 2, 1), function

    def forward(self, x, *others):
        return self.function(self.conv(x), *others)


def results(model, x, *others):
    x = x.clone().requires_grad_()
    y = model(x, *others)
    y.sum().backward()
    return y.detach(), x.grad, model.conv.weight.grad


def check(function, x, *others, given=None):
    model = Apply(function)
    expected = results(copy.deepcopy(model), x, *others)
    found = results(ooc.limit(model, "1MiB"), x, *(others if given is None else given))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def drawn(dtype, shape=SHAPE):
    """All patterns of bits that there are, or many of them."""
    torch.manual_seed(1)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool()
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    least, most = torch.iinfo(dtype).min, min(torch.iinfo(dtype).max, 2**62)
    return torch.randint(max(least, -(2**62)), most, shape).to(dtype)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOAT8], ids=str)
def test_an_input_of_a_dtype_is_read_as_eager_reads_it(dtype):
    check(lambda x, other: x + other.float(), torch.randn(SHAPE), drawn(dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_a_numpy_array_of_a_dtype_is_read_as_a_tensor(dtype):
    other = drawn(dtype)
    check(lambda x, a: x + a.float(), torch.randn(SHAPE), other, given=(other.numpy(),))


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOAT8], ids=str)
def test_what_is_held_has_as_many_bytes_and_the_same_bits(dtype):
    tensor = drawn(dtype)
    held = store_bits(tensor)
    assert held.dtype.itemsize == dtype.itemsize
    assert held.data_ptr() == tensor.data_ptr()
    assert torch.equal(held.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_a_gradient_of_float8_is_refused(dtype):
    model = ooc.limit(Apply(lambda x, other: x + other.float()), "1MiB")
    other = drawn(dtype).requires_grad_()
    with pytest.raises(ooc.UnsupportedModelError, match="requires a gradient, which the library"):
        model(torch.randn(SHAPE), other)


@pytest.mark.parametrize("shape", [SHAPE, (2, 1, 4, 7), (1, 1, 4, 7), (7,), ()], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, mask: x.masked_fill(mask, -1.5),
        lambda x, mask: x.masked_fill(mask, -float("inf")).softmax(1).nan_to_num(),
        lambda x, mask: torch.where(mask, x, 0.5),
        lambda x, mask: x * mask,
        lambda x, mask: x.masked_fill(~mask, 0.0),
    ],
    ids=["filled", "filled with -inf", "where", "product", "not"],
)
def test_a_mask_that_is_an_argument(function, shape):
    check(function, torch.randn(SHAPE), drawn(torch.bool, shape))
