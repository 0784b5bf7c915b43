"""Python's numbers of every kind in a model: computed as PyTorch does, or refused as it does."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc

NAN, INF = float("nan"), float("inf")
NUMBERS = (
    True, False, 0, 0.0, -0.0, 7, -3, 1 / 3, 0.1, 1e5, 1e-8, 1e-39, 1e40, 2**40, NAN, INF, -INF,
)  # fmt: skip
VALUES = (1e-3, -2.0, 0.0, -0.0, 3.0, INF, NAN, 100.0)

OPERATIONS = {
    "times": lambda x, number: x * number,
    "over": lambda x, number: x / number,
    "in place": lambda x, number: (x * 1).mul_(number).div_(number),
    "the number over": lambda x, number: number / x,
    "plus": lambda x, number: x + number,
    "the number plus": lambda x, number: number + x,
}
#: PyTorch refuses booleans here.
DIFFERENCES = {
    "minus": lambda x, number: x - number,
    "the number minus": lambda x, number: number - x,
    "alpha": lambda x, number: torch.add(x, x, alpha=number),
}
#: A CPU rounds the number to a half type before it adds, a card computes in float32. So does the
#: library, on both.
ROUNDED_ON_THE_HOST = ("plus", "the number plus", "minus", "the number minus", "alpha")


class Numbers(nn.Module):
    """What several operations make of a number, each of a map of its own."""

    def __init__(self, number, operations):
        super().__init__()
        self.number, self.operations = number, operations

    def forward(self, *maps):
        each = zip(self.operations.values(), maps, strict=True)
        return tuple(operation(x, self.number) for operation, x in each)


def gradients(model, x, count):
    """Results, and the gradient of each."""
    maps = [x.clone().requires_grad_() for _ in range(count)]
    results = model(*maps)
    found = torch.autograd.grad(results, maps, [torch.ones_like(y) for y in results])
    return [(y.detach(), dx) for y, dx in zip(results, found, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_a_number_is_taken_as_pytorch_takes_it(number, dtype, fewest_plans):
    operations = {**OPERATIONS, **({} if isinstance(number, bool) else DIFFERENCES)}
    if abs(number) > torch.finfo(dtype).max and math.isfinite(number):
        operations.pop("alpha", None)  # PyTorch refuses it
    x = torch.tensor(VALUES, dtype=dtype).reshape(1, 2, 2, 2)
    model = Numbers(number, operations)
    expected = gradients(model, x, len(operations))
    if dtype.itemsize == 2:
        wide = gradients(model, x.float(), len(operations))
    with ooc_cudnn.settings(device="host", machine="host"):
        found = gradients(ooc.limit(model, "1MiB"), x, len(operations))
    tolerance = {torch.float32: 3e-7, torch.float64: 1e-15}.get(dtype, 2 * torch.finfo(dtype).eps)
    for at, name in enumerate(operations):
        judge = expected[at]
        if dtype.itemsize == 2 and name in ROUNDED_ON_THE_HOST:
            judge = [each.to(dtype) for each in wide[at]]
        for what, one, other in zip(("y", "dx"), found[at], judge, strict=True):
            torch.testing.assert_close(
                one, other, rtol=tolerance, atol=0, equal_nan=True,
                msg=f"{what} of {name} {number}: {one.flatten()}, not {other.flatten()}",
            )  # fmt: skip


@pytest.mark.parametrize("number", [1e5, 1e-39, 0.1, 1e40, NAN, 0.0])
def test_a_number_is_not_rounded_to_a_half_type_under_the_least_limit(number):
    x = torch.linspace(-2, 2, 2 * 4 * 16 * 16).to(torch.float16).reshape(2, 4, 16, 16) * 1e-3
    model = Numbers(number, {"times": OPERATIONS["times"], "over": OPERATIONS["over"]})
    expected = gradients(model, x, 2)
    with ooc_cudnn.settings(device="host", machine="host"):
        found = gradients(ooc.limit(model, "12KiB"), x, 2)
    for each, judge in zip(found, expected, strict=True):
        for one, other in zip(each, judge, strict=True):
            torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("what", "operation"),
    [
        ("minus True", lambda x: x - True),
        ("True minus", lambda x: True - x),
        ("alpha of True", lambda x: torch.add(x, x, alpha=True)),
        ("alpha beyond the type", lambda x: torch.add(x, x, alpha=1e40)),
        ("an integer of 71 bits", lambda x: x * 2**70),
    ],
)
def test_what_pytorch_refuses_is_refused(what, operation):
    class Model(nn.Module):
        def forward(self, x):
            return operation(x)

    x = torch.ones(1, 2, 2, 2)
    with pytest.raises((RuntimeError, OverflowError)):
        Model()(x)
    with (
        ooc_cudnn.settings(device="host", machine="host"),
        pytest.raises(Exception, match=r"bool|overflow|too big|too large|Boolean"),
    ):
        ooc.limit(Model(), "1MiB")(x)


NUMPY = {
    "float": (lambda m, y: y * float(m.a), np.float64(2)),
    "int": (lambda m, y: y * int(m.a), np.int64(3)),
    "itself": (lambda m, y: y * m.a, np.float64(2)),
    "of single precision": (lambda m, y: y * m.a, np.float32(0.5)),
    "an array of single precision": (lambda m, y: y - torch.from_numpy(m.a), np.ones(4, "f4")),
    "a tensor of it": (lambda m, y: y - torch.tensor(m.a), np.ones(4, "f4")),
    "a bound": (lambda m, y: y.clamp(-float(m.a), float(m.a)), np.float64(0.5)),
    "an index": (lambda m, y: y[:, m.a], np.int64(1)),
}
REFUSED = {
    "of elements": (lambda m, y: sum(y * float(each) for each in m.a), np.linspace(0, 1, 3)),
}


class OfNumpy(torch.nn.Module):
    def __init__(self, use, a):
        super().__init__()
        self.conv, self.use, self.a = torch.nn.Conv2d(3, 4, 1), use, a

    def forward(self, x):
        return self.use(self, self.conv(x))


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("name", NUMPY)
def test_numbers_of_numpy_are_what_they_are(name):
    torch.manual_seed(0)
    eager, x = OfNumpy(*NUMPY[name]), torch.randn(2, 3, 4, 4)
    limited = ooc.limit(copy.deepcopy(eager), "1MiB")
    for factor in (1, 3):
        for model in (eager, limited):
            model.a = (NUMPY[name][1] * factor).astype(NUMPY[name][1].dtype)
        expected, found = eager(x), limited(x)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", REFUSED)
def test_numbers_of_numpy_that_hang_on_data_are_refused_with_their_line(name):
    said = r"number of Python outside of forward.*math\.prod"
    with pytest.raises(ooc.UnsupportedModelError, match=said):
        ooc.limit(OfNumpy(*REFUSED[name]), "1MiB")(torch.randn(2, 3, 4, 4))
