"""Numbers that forward keeps in attributes: counters, flags and factors are as PyTorch has them."""

import copy
import itertools
import random

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.calls import calls_of
from tests.support.torch_checks import close, followed_in_calls, modes

pytestmark = pytest.mark.usefixtures("fewest_plans")

LIMIT, X = "1MiB", torch.linspace(-1, 1, 2 * 3 * 4 * 4, dtype=torch.float64).reshape(2, 3, 4, 4)


class Of(nn.Module):
    """A convolution, and a function of the model and its result."""

    def __init__(self, function, **attributes):
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 1), function
        for name, each in attributes.items():
            setattr(self, name, each)

    def forward(self, x):
        return self.function(self, self.conv(x))


def checked(function, times=4, **attributes):
    torch.manual_seed(0)
    model = Of(function, **attributes).double()
    return followed_in_calls(model, X, calls=times, memory_limit=LIMIT)


def counted(model, y):
    model.calls += 1
    return y


def by_two(model, y):
    model.calls += 2
    return y


def downwards(model, y):
    model.calls -= 3
    return y


@pytest.mark.parametrize("function", [counted, by_two, downwards], ids=lambda each: each.__name__)
@pytest.mark.parametrize("first", [0, 5])
def test_a_counter_goes_on_and_is_no_reason_to_capture_again(function, first):
    """0 and 1 are constants to TorchDynamo; any other is a number that the graph is given."""
    under = checked(function, times=6, calls=first)
    assert under.calls != first
    assert len(calls_of(under)) <= 2


def test_several_counters_go_on():
    def function(model, y):
        model.calls += 1
        model.images += len(y)
        model.both = model.calls * model.images - 1
        return y

    under = checked(function, times=6, calls=0, images=4, both=0)
    assert (under.calls, under.images) == (6, 16)


def test_a_counter_that_is_returned_is_that_of_the_call():
    def function(model, y):
        model.calls += 1
        return y, model.calls, 2 * model.calls + 1

    torch.manual_seed(0)
    eager = Of(function, calls=3).double()
    under = ooc.limit(copy.deepcopy(eager), LIMIT)
    for _ in range(4):
        (found, *numbers), (expected, *others) = under(X), eager(X)
        close(found, expected, "output")
        assert numbers == others
        assert [type(each) for each in numbers] == [int, int]


def scaled(model, y):
    model.step += 1
    return y * model.step


def branching(model, y):
    model.step += 1
    return y.relu() if model.step % 2 else y.sin()


def warmed_up(model, y):
    model.step += 1
    return y * min(1.0, model.step / 3)


def sized(model, y):
    model.step += 1
    return y[:, : model.step % 4 + 1]


def ending(model, y):
    model.step += 1
    return (y, y.relu()) if model.step % 2 else (y.relu(), y)


@pytest.mark.parametrize(
    "function", [scaled, branching, warmed_up, sized, ending], ids=lambda each: each.__name__
)
def test_what_is_computed_with_a_counter_is_that_of_each_call(function):
    """It stayed that of the first call, or was refused under `strict`."""
    checked(function, step=0)


def test_flags_and_factors_change():
    def function(model, y):
        made = y * model.scale if model.on else y
        model.on, model.scale = not model.on, model.scale / 2
        model.name = "on" if model.on else "off"
        return made

    checked(function, on=True, scale=1.5, name="")


def test_numbers_that_the_user_changes_between_calls_are_read():
    torch.manual_seed(0)
    eager = Of(lambda model, y: y * model.scale if model.on else y + model.count).double()
    eager.scale, eager.on, eager.count = 0.5, True, 3
    under = ooc.limit(copy.deepcopy(eager), LIMIT)
    for name, each in (("scale", 0.25), ("on", False), ("count", 7), ("on", True), ("scale", 0.5)):
        for model in (under, eager):
            setattr(model, name, each)
        close(under(X), eager(X), f"with {name} = {each}")


def test_numbers_in_lists_and_dicts_go_on():
    def function(model, y):
        model.seen.append(len(model.seen))
        model.of["calls"] += 1
        return y * len(model.seen) + model.of["calls"]

    under = checked(function, seen=[], of={"calls": 0})
    assert under.seen == [0, 1, 2, 3]
    assert under.of == {"calls": 4}


def drawn_integer(model, y):
    return y * random.randint(2, 99)


def drawn_factor(model, y):
    return y * random.uniform(0.5, 2.0)


def drawn_twice(model, y):
    return y * random.uniform(0.5, 2.0) + y.sin() * random.randrange(9) - random.uniform(1, 3)


def drawn_by_c(model, y):
    return y * random.random()


@pytest.mark.parametrize(
    ("function", "strict"),
    [
        (drawn_integer, False),
        (drawn_factor, False),
        (drawn_factor, True),
        (drawn_twice, False),
        pytest.param(
            drawn_by_c,
            False,
            marks=pytest.mark.skipif(torch.__version__ < "2.14", reason="TorchDynamo refuses it"),
        ),
    ],
)
def test_what_python_draws_is_drawn_in_each_call(function, strict):
    """It stayed that of the first call, or was refused under `strict`."""
    torch.manual_seed(0)
    eager = Of(function).double()
    under = ooc.limit(copy.deepcopy(eager), LIMIT, strict=strict)
    found = []
    for model in (under, eager):
        random.seed(0)
        found.append([model(X) for _ in range(3)])
        found[-1].append(torch.tensor(random.random()))
    for at, (one, other) in enumerate(zip(*found, strict=True)):
        close(one, other, f"call {at}")
    assert not torch.equal(found[0][0], found[0][1])
    assert len(calls_of(under)) == 1


@pytest.mark.skipif(torch.__version__ >= "2.14", reason="TorchDynamo draws random.random()")
def test_what_dynamo_does_not_draw_is_refused_with_its_line():
    """`random.random` is a function of C."""
    model = ooc.limit(Of(lambda model, y: y * random.random()), LIMIT)
    state, in_force = random.getstate(), modes()
    for _ in range(2):
        with pytest.raises(ooc.UnsupportedModelError, match=r"(?s)random.*y \* random\.random\(\)"):
            model(X.float())
        assert random.getstate() == state
        assert modes() == in_force


def test_planning_draws_nothing():
    model, state = Of(drawn_factor), random.getstate()
    assert ooc.output_shape(model, (2, 3, 4, 4)) == (2, 4, 4, 4)
    ooc.plan(model, (2, 3, 4, 4), memory_limit=LIMIT)
    assert random.getstate() == state


CALLS = itertools.count(1)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="TorchDynamo refuses next() of a count")
def test_what_python_counts_is_counted_in_each_call():
    """It stayed that of the first call, or was refused under `strict`."""
    torch.manual_seed(0)
    eager = Of(lambda model, y: y + torch.tensor([float(next(CALLS))], dtype=y.dtype)).double()
    first = next(CALLS)
    under = ooc.limit(copy.deepcopy(eager), LIMIT)
    for count in range(first + 1, first + 4):
        close(under(X), eager.conv(X) + count, f"number {count}")


def test_a_counter_stays_where_the_call_fails():
    def function(model, y):
        model.calls += 1
        return y[:, :9].reshape(2, 9)

    model = Of(function, calls=4).double()
    ooc.limit(model, LIMIT)
    for _ in range(2):
        with pytest.raises(ValueError, match="does not take this input"):
            model(X)
        assert model.calls == 4
