"""Threads that call models under limits at once, and what a call leaves of Python and PyTorch."""

from __future__ import annotations

import copy
import sys
import threading
from contextlib import suppress

import pytest
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.devices import get_device
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.torch.errors import UnsupportedModelError
from tests.support.torch_checks import close
from tests.support.torch_state import changed_state, global_state, mend_functorch

pytestmark = pytest.mark.usefixtures("fewest_plans")

LIMIT, SECONDS = 2**17, 120


def on_the_host():
    return ooc_cudnn.settings(device="host", machine="host", progress=False)


def model(width=4):
    torch.manual_seed(width)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, 2, 3), nn.Tanh(),
    ).double()  # fmt: skip


def drawn(images=2, size=7, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(images, 3, size, size, dtype=torch.float64, generator=random)


def step(model, x):
    """The result and the gradients of a step, which are left nowhere."""
    y = model(x)
    return [y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))]


def at_once(*work):
    """Run functions in threads that begin together; raise what one of them raised."""
    barrier, errors, made = threading.Barrier(len(work)), [], [None] * len(work)

    def run(at):
        try:
            with on_the_host():
                barrier.wait(SECONDS)
                made[at] = work[at]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(at,), daemon=True) for at in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    if errors:
        raise errors[0]
    return made


def agree(found, expected):
    """Compare by the largest of all: a bias before batch norm has gradients of rounding alone."""
    least = max(float(each.detach().abs().max()) for each in expected)
    for at, (one, other) in enumerate(zip(found, expected, strict=True)):
        close(one, other, f"value {at}", least)


def test_first_calls_of_several_models_at_once():
    eager = [model(width) for width in (3, 4, 5)]
    limited = [ooc.limit(copy.deepcopy(each), LIMIT) for each in eager]
    x, before = drawn(), global_state()
    made = at_once(*[lambda each=each: step(each, x) for each in limited])
    for found, each in zip(made, eager, strict=True):
        agree(found, step(each, x))
    for one, other in zip(limited, eager, strict=True):
        close(one[1].running_mean, other[1].running_mean, "running mean")
    assert changed_state(before) == []


def test_first_calls_of_one_model_at_once():
    eager = model().eval()
    limited = ooc.limit(copy.deepcopy(eager), LIMIT)
    x = drawn()
    for found in at_once(*[lambda: step(limited, x)] * 3):
        agree(found, step(eager, x))


def test_a_copy_makes_its_first_call_while_another_does():
    eager = model().eval()
    first = ooc.limit(copy.deepcopy(eager), LIMIT)
    second, x = copy.deepcopy(first), drawn()
    for found in at_once(lambda: step(first, x), lambda: step(second, x)):
        agree(found, step(eager, x))


def test_known_calls_are_limited_and_right_while_another_thread_captures():
    """One thread brings new shapes; all calls of the other stay within the plan that they had."""
    eager = model().eval()
    limited = ooc.limit(copy.deepcopy(eager), LIMIT)
    known, forward = drawn(), limited.forward
    captured, runs, outside = threading.Event(), [], []
    arena = get_device("host").arena
    arena.reset_peak()
    with on_the_host():
        expected = step(limited, known)
    agree(expected, step(eager, known))
    own = nn.Conv2d._conv_forward.__code__

    def watch(frame, event, argument):
        """A known call does not come to the layers' own forward, which no limit holds."""
        if event == "call" and frame.f_code is own:
            outside.append(frame.f_lineno)

    def new():
        try:
            return [(size, step(limited, drawn(size=size))) for size in (8, 9, 10, 11)]
        finally:
            captured.set()

    def old():
        sys.setprofile(watch)
        try:
            while not captured.is_set() or not runs:
                runs.append(step(limited, known))
                assert limited.forward is forward
        finally:
            sys.setprofile(None)

    made, _ = at_once(new, old)
    for size, found in made:
        agree(found, step(eager, drawn(size=size)))
    for found in runs:
        assert all(type(each) is torch.Tensor for each in found)
        agree(found, expected)
    assert arena.peak_bytes <= LIMIT
    assert outside == []


def test_training_in_two_threads_is_that_of_each_alone():
    eager = [model(width) for width in (3, 4)]
    limited = [ooc.limit(copy.deepcopy(each), LIMIT) for each in eager]

    def train(each):
        optimizer = torch.optim.SGD(each.parameters(), 0.05)
        for at in range(4):
            optimizer.zero_grad()
            each(drawn(size=6 + at % 2, seed=at)).square().sum().backward()
            optimizer.step()
        return list(each.state_dict().values())

    for found, each in zip(
        at_once(*[lambda each=each: train(each) for each in limited]), eager, strict=True
    ):
        agree(found, train(each))


def test_one_thread_is_refused_while_another_is_not():
    eager, x = model(), drawn()
    limited = ooc.limit(copy.deepcopy(eager), LIMIT)
    refused = ooc.limit(Branching(), LIMIT)

    def fails():
        with pytest.raises(UnsupportedModelError):
            refused(x)
        return True

    before = global_state()
    found, failed = at_once(lambda: step(limited, x), fails)
    assert failed
    agree(found, step(eager, x))
    assert changed_state(before) == []


class Branching(nn.Module):
    def forward(self, x):
        return x if x.mean() > 0 else -x


class Reading(nn.Module):
    def forward(self, x):
        return x * x.sum().item()


class Raising(nn.Module):
    def forward(self, x):
        raise KeyError("what the user's forward raises")


class Mapping(nn.Module):
    def forward(self, x):
        return torch.vmap(lambda each: each * 2)(x) * x.sum().item()


class Casting(nn.Module):
    def forward(self, x):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return x * x.sum().item()


class Printing(nn.Module):
    def forward(self, x):
        print(float(x.sum()), file=sys.stderr)
        return x


@pytest.mark.parametrize("kind", [Branching, Reading, Raising, Mapping, Casting, Printing])
@pytest.mark.parametrize("gradients", [True, False])
def test_a_refusal_leaves_everything_as_it_was(kind, gradients):
    """Whether it is refused or computed: modes, levels, streams, and the model's forward."""
    limited = ooc.limit(kind(), LIMIT)
    forward, before = limited.forward, global_state()
    try:
        with on_the_host(), torch.set_grad_enabled(gradients):
            inner = global_state()
            with suppress(UnsupportedModelError, KeyError):
                limited(drawn())
            assert changed_state(inner) == []
        assert changed_state(before) == []
        assert limited.forward is forward
        agree([torch.vmap(torch.sum)(torch.ones(2, 3))], [torch.full((2,), 3.0)])
    finally:
        mend_functorch()


def test_success_leaves_everything_as_it_was():
    for limit in (LIMIT, 2**12):
        limited = ooc.limit(model(), limit)
        forward, before = limited.forward, global_state()
        with on_the_host():
            for _ in range(2):
                step(limited, drawn())
                assert changed_state(before) == []
        assert limited.forward is forward


def test_a_limit_that_is_too_small_leaves_everything_as_it_was():
    limited = ooc.limit(model(), 1)
    forward, before = limited.forward, global_state()
    state = copy.deepcopy(limited.state_dict())
    with on_the_host(), pytest.raises(PlanInfeasibleError):
        limited(drawn())
    assert changed_state(before) == []
    assert limited.forward is forward
    agree(list(limited.state_dict().values()), list(state.values()))
