"""One small model an operation: outputs, every gradient and buffers as PyTorch has them."""

import copy

import pytest
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.network.search import plan_search
from tests.support import sampling
from tests.support.torch_checks import TOLERANCE, check, close
from tests.support.torch_operations import MAP, OPERATIONS, around

#: PyTorch's own gradient has a sixth in single precision.
ROUNDED = {"Hardsigmoid()": 1e-7}


@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel lengths")
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_pytorchs(name, fewest_plans, monkeypatch):
    """Maps are kept and made again, for every second operation each; in `make test-all` for all."""
    policies = ("keep", "remake")
    if not sampling.EVERY:
        policies = policies[list(OPERATIONS).index(name) % 2 :][:1]
    monkeypatch.setattr(plan_search, "BEST_OF", policies)
    make, shape = OPERATIONS[name]
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    tolerance = ROUNDED.get(name, TOLERANCE)
    (limit,) = check(make().double(), x, shares=(1 / 4,), tolerance=tolerance)
    assert limit > 0


def test_the_gradient_of_equal_maxima_goes_where_pytorchs_does(few_plans):
    x = torch.randint(0, 3, MAP, generator=torch.Generator().manual_seed(0)).double()
    check(nn.MaxPool2d(3, 2, 1), x)
    check(nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True)), 1 - x)


@pytest.mark.parametrize("module", [nn.Dropout(0.4), nn.Dropout2d(0.4)], ids=str)
def test_dropout_draws_anew_in_each_call_and_the_same_after_a_seed_under_any_limit(
    module, fewest_plans
):
    torch.manual_seed(0)
    model = around(module).double()
    x = torch.randn(MAP, dtype=torch.float64)
    found = []
    for limit in ("4GiB", "30KiB"):
        own = ooc.limit(copy.deepcopy(model), limit)
        torch.manual_seed(7)
        with ooc_cudnn.settings(device="host", machine="host"):
            one, two = own(x), own(x)
            two.square().sum().backward()
        assert not torch.equal(one, two)
        found.append((one, two, own.before.weight.grad))
    for at, (large, small) in enumerate(zip(*found, strict=True)):
        close(small, large, f"number {at} under the small limit")


def test_dropout_drops_as_many_as_it_should_and_scales_the_rest():
    model = ooc.limit(nn.Sequential(nn.Dropout(0.25), nn.ReLU()), "1MiB")
    torch.manual_seed(0)
    with ooc_cudnn.settings(device="host", machine="host"):
        y = model(torch.ones(4, 4, 50, 50))
    kept = y[y > 0]
    assert torch.allclose(kept, torch.tensor(4 / 3))
    assert abs(len(kept) / y.numel() - 0.75) < 0.01


class Shifted(nn.Module):
    """Parameters and buffers that are taken from maps, and maps from them."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.mean = nn.Parameter(torch.rand(3, 1, 1))
        self.shift = nn.Parameter(torch.rand(4, 1, 1))
        self.register_buffer("kept", torch.rand(1, 4, 1, 1))

    def forward(self, x):
        """Subtract everything."""
        y = self.conv(x - self.mean)
        return self.kept - torch.sub(torch.add(y, self.shift, alpha=3.0), self.shift, alpha=0.5)


def test_what_is_subtracted_from_maps_is_in_the_network(few_plans):
    """Nothing of it is left to PyTorch, and gradients go through."""
    torch.manual_seed(0)
    model, x = Shifted().double(), torch.randn(2, 3, 10, 9, dtype=torch.float64)
    check(model, x, shares=())
    with ooc_cudnn.settings(device="host", machine="host"):
        strict = ooc.limit(copy.deepcopy(model), "1MiB", strict=True)
        close(strict(x), model(x), "with strict")
    whole = nn.Conv2d(3, 4, 1)
    whole.register_buffer("number", torch.tensor([3]))
    whole.forward = lambda x: nn.functional.conv2d(x, whole.weight) - whole.number
    check(whole, torch.randn(1, 3, 4, 4), shares=(), tolerance=1e-6)


@pytest.mark.parametrize(("one", "other", "alpha"), [(6e4, 4e4, -2), (0.7, 0.9, 0.3)])
def test_a_factor_of_half_types_is_rounded_with_the_sum(one, other, alpha):
    """A float16 product by itself would be infinite, or rounded once more."""
    maps = [torch.full((2, 3, 4, 5), value).half().requires_grad_() for value in (one, other)]

    class Sum(nn.Module):
        def forward(self, x, y):
            return torch.add(x, y, alpha=alpha)

    with ooc_cudnn.settings(device="host", machine="host"):
        z = ooc.limit(Sum(), "1MiB")(*maps)
        z.sum().backward()
    expected = (maps[0].double() + alpha * maps[1].double()).half()
    assert torch.equal(z, expected)
    assert torch.equal(maps[1].grad, torch.full_like(z, alpha))
