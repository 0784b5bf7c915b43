"""A last, smaller batch: what of the full one's serves it, and that its numbers are its own."""

import copy

import pytest
import torch

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.network.runtime import lazy_step, plan_cache
from tests.support.torch_checks import close
from tests.support.torch_models import classifier, residual

pytestmark = pytest.mark.usefixtures("few_plans")

FULL, LIMIT = (8, 3, 16, 16), "200KiB"


@pytest.fixture(autouse=True)
def on_the_host():
    with ooc_cudnn.settings(device="host", machine="host"):
        yield


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
    eager = residual().double()
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
    check_step(pair, FULL)
    for images in (8, 5):
        x = torch.randn(images, *FULL[1:], dtype=torch.float64)
        with torch.no_grad():
            close(limited(x), eager(x), "scores")
    assert searched == ["training_step", "forward"]
    assert limited.forward.plan.derived == "8x3x16x16"


def test_what_waits_as_long_as_a_search_takes_is_searched(pair, searched, monkeypatch):
    small = (5, *FULL[1:])
    check_step(pair, FULL)
    assert check_step(pair, small).derived
    monkeypatch.setattr(lazy_step, "SEARCH_SECONDS", 0.0)
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


def test_another_limit_has_plans_of_its_own(pair, searched):
    check_step(pair, FULL)
    limited = ooc.limit(pair[0], "300KiB")
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
