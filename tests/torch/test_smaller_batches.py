"""Other sizes of arguments: what is there serves them, and their numbers are their own."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.network.runtime import plan_cache
from ooc_cudnn.torch.calls import calls_of
from ooc_cudnn.torch.capture import backend
from ooc_cudnn.torch.runtime import ready_model
from tests.support.torch_checks import close
from tests.support.torch_models import Residual, classifier

pytestmark = pytest.mark.usefixtures("fewest_plans")

FULL, LIMIT = (8, 3, 16, 16), "300KiB"


@pytest.fixture
def searched(monkeypatch):
    """The names of steps whose plans were searched, in order."""
    names, plan_step = [], plan_cache.plan_step

    def noted(name, *args, **kwargs):
        names.append(name)
        return plan_step(name, *args, **kwargs)

    monkeypatch.setattr(plan_cache, "plan_step", noted)
    return names


@pytest.fixture
def pair():
    """A model under a limit, and the same one without."""
    torch.manual_seed(0)
    eager = nn.Sequential(
        Residual(3, 8), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(8, 5)
    ).double()
    return ooc.limit(copy.deepcopy(eager), LIMIT), eager


def check_step(pair, shape):
    """A step of both: outputs, gradients and running statistics agree."""
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))
    results = []
    for model in pair:
        model.zero_grad()
        y = model(x)
        y.square().sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        results.append([y.detach(), *gradients, *model.buffers()])
    least = max(float(each.abs().max()) for each in results[1][1:])
    for at, (found, expected) in enumerate(zip(*results, strict=True)):
        close(found, expected, f"{shape}, value {at}", least)
    plan = pair[0].forward.plan
    assert plan.device_bytes <= plan.memory_limit
    return plan


@pytest.mark.parametrize("smaller", [5, 2, 1])
def test_a_smaller_batch_goes_by_the_plan_of_the_full_one(pair, searched, smaller):
    full = check_step(pair, FULL)
    assert len(searched) == 1
    assert not full.derived
    plan = check_step(pair, (smaller, *FULL[1:]))
    assert len(searched) == 1
    assert plan.derived == "8x3x16x16"
    assert "derived    from the plan for 8x3x16x16" in plan.explain()
    assert (plan.taken, plan.live_ranges) == (full.taken, full.live_ranges)
    assert check_step(pair, FULL) == full


def test_smaller_images_go_by_the_plan_of_the_next_larger_ones(pair, searched):
    for extent in (24, 16):
        check_step(pair, (4, 3, extent, extent))
    assert searched == ["training_step"]  # 16 by that of 24
    check_step(pair, (4, 3, 32, 32))
    assert len(searched) == 2  # larger than all before
    plan = check_step(pair, (4, 3, 20, 20))
    assert len(searched) == 2
    assert plan.derived == "4x3x24x24"


def test_neither_size_may_be_larger(pair, searched):
    check_step(pair, (4, 3, 24, 24))
    check_step(pair, (8, 3, 16, 16))
    assert len(searched) == 2


def test_forward_goes_by_the_plan_of_forward(pair, searched):
    limited, eager = (model.eval() for model in pair)
    ooc.limit(limited, "400KiB")  # in parts of a batch there are other phases
    check_step(pair, FULL)
    for images in (8, 5):
        x = torch.randn(images, *FULL[1:], dtype=torch.float64)
        with torch.no_grad():
            close(limited(x), eager(x), "scores")
    assert searched == ["training_step", "forward"]
    assert limited.forward.plan.derived == "8x3x16x16"


def test_what_waits_as_long_as_a_search_takes_is_searched(pair, searched):
    small = (5, *FULL[1:])
    with ooc_cudnn.settings(planning_seconds=1e-6):
        check_step(pair, FULL)
        assert check_step(pair, small).derived
        assert len(searched) == 1
        plan = check_step(pair, small)
        assert len(searched) == 2
        assert not plan.derived
        assert check_step(pair, small) == plan
        assert len(searched) == 2


def test_a_model_captured_anew_keeps_its_plan(pair, searched):
    full = check_step(pair, FULL)
    for model in pair:
        next(e for e in model.modules() if isinstance(e, torch.nn.BatchNorm2d)).momentum = 0.3
    plan = check_step(pair, FULL)
    assert len(searched) == 1
    assert plan.live_ranges == full.live_ranges


@pytest.mark.every_case
def test_another_limit_has_plans_of_its_own(pair, searched):
    check_step(pair, FULL)
    limited = ooc.limit(pair[0], "600KiB")
    check_step((limited, pair[1]), (5, *FULL[1:]))
    assert len(searched) == 2


def test_what_was_planned_with_less_memory_is_searched_again(searched):
    """Plans that were searched for this very step do not come back when there is more room."""
    model = ooc.limit(classifier().double())
    x = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    for limit in ("300KiB", "600KiB"):
        with ooc_cudnn.settings(memory_limit=limit):
            model(x).sum().backward()
        assert not model.forward.plan.derived
    assert len(searched) == 2


def test_a_third_size_is_not_captured(pair, searched):
    """The second one is captured for all sizes; the first keeps its own."""
    for count, images in ((1, 8), (2, 5), (2, 8), (2, 7), (2, 3), (2, 5)):
        check_step(pair, (images, *FULL[1:]))
        assert len(calls_of(pair[0])) == count
    assert len(searched) == 1
    check_step(pair, (4, 3, 24, 24))  # neither height nor width was another one before
    assert len(calls_of(pair[0])) == 3
    check_step(pair, (2, 3, 20, 20))
    check_step(pair, (3, 3, 12, 12))
    assert len(calls_of(pair[0])) == 3


class Branching(torch.nn.Conv2d):
    """Looks into the size of its batch, and keeps what it saw."""

    seen = 0

    def forward(self, x):
        self.seen = x.shape[0]
        y = super().forward(x)
        if x.shape[0] > 4:
            return y * x.shape[0]
        return y.reshape(x.shape[0], -1) + x.shape[-1]


def test_what_forward_makes_of_a_size_is_that_of_each_call():
    torch.manual_seed(0)
    eager = Branching(3, 2, 3).double()
    limited = ooc.limit(copy.deepcopy(eager), LIMIT)
    for images, extent in ((8, 8), (5, 8), (6, 8), (3, 8), (2, 8), (4, 8), (7, 9), (3, 9), (1, 8)):
        x = torch.randn(images, 3, extent, extent, dtype=torch.float64)
        expected = eager(x)
        for _ in range(2):
            close(limited(x), expected, f"{images} images of {extent}")
            assert limited.seen == images
    assert len(calls_of(limited)) <= 6


class OfAnother(nn.Module):
    """What it makes hangs on the sizes of a tensor that it reads nothing else of."""

    def __init__(self, make):
        super().__init__()
        self.conv, self.make, self.seen = nn.Conv2d(3, 2, 3, padding=1), make, 0

    def forward(self, x, other):
        self.seen += other.shape[0]
        return self.make(self.conv(x), other), other.shape[2]


@pytest.mark.parametrize(
    "make",
    [
        lambda y, other: nn.functional.interpolate(y, size=other.shape[2:]),
        lambda y, other: y * other.shape[0] / other.shape[2],
        lambda y, other: y + other.stride(1),
        lambda y, other: y[:, :, : other.shape[2] - 4] * 2,
    ],
)
def test_sizes_of_what_is_read_for_its_shape_alone_are_those_of_each_call(make):
    """TorchDynamo hands in numbers, not the tensor; from the second size on they are free."""
    torch.manual_seed(0)
    eager, x = OfAnother(make).double(), torch.randn(2, 3, 10, 10, dtype=torch.float64)
    under = ooc.limit(copy.deepcopy(eager), "1MiB")
    for size in (8, 10, 12, 14, 8):
        other = torch.zeros(size, 1, size, size)
        (due, rows), (made, same_rows) = eager(x, other), under(x, other)
        assert same_rows == rows
        assert under.seen == eager.seen
        torch.testing.assert_close(made, due)
        for each in (eager, under):
            each.zero_grad()
        due.square().sum().backward()
        made.square().sum().backward()
        torch.testing.assert_close(under.conv.weight.grad, eager.conv.weight.grad)


def test_sizes_are_kept_as_far_as_memory_is_for_them(monkeypatch):
    monkeypatch.setattr(backend, "FEWEST_SIZES", 2)
    monkeypatch.setattr(backend, "MOST_OPERATIONS", 0)
    made, lower_graph = [], ready_model.lower_graph

    def lowered(graph, *args, **kwargs):
        made.append(weakref.ref(graph))
        return lower_graph(graph, *args, **kwargs)

    monkeypatch.setattr(ready_model, "lower_graph", lowered)
    model = ooc.limit(torch.nn.Conv2d(3, 2, 3).double(), LIMIT)
    for images in (2, 3, 4, 5, 6, 5, 6, 3):
        model(torch.randn(images, 3, 8, 8, dtype=torch.float64)).sum().backward()
    assert len(made) == 6  # 3 was let go of
    gc.collect()
    # that of 2 is its capture's; 3 is also what the capture was traced with
    assert sum(each() is not None for each in made) <= 4
