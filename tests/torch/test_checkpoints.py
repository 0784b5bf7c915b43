"""Checkpoints in forward: what has a history under a limit is what has one in eager."""

import copy
import functools
import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils import checkpoint as of_torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.errors import UnsupportedModelError
from tests.support.torch_checks import close

pytestmark = [
    pytest.mark.usefixtures("fewest_plans"),
    pytest.mark.filterwarnings("ignore:.*use_reentrant"),
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad"),
]

again = functools.partial(checkpoint, use_reentrant=True)
asked_for = torch.ones(1, requires_grad=True)


class Around(nn.Module):
    """A convolution, and what a function makes of its map by others."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1)
        self.row = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Tanh(), nn.Conv2d(4, 4, 1))

    def forward(self, x):
        y = self.first(x)
        return self.function(self, y), y


def closed_over(m, y):
    h = m.row(y)
    return again(lambda z: m.second(z) * h, y.detach())


def beside_a_list(m, y):
    one, (two,) = again(lambda z: (m.second(z), [z * 2]), y)
    return one * two


REENTRANT = {
    "of a map": lambda m, y: again(m.second, y),
    "of what has no gradient": lambda m, y: again(m.second, y.detach()),
    "by default": lambda m, y: checkpoint(m.second, y.detach()),
    "by its module": lambda m, y: of_torch.checkpoint(m.second, y.detach(), use_reentrant=True),
    "that closes over a map": closed_over,
    "of a parameter": lambda m, y: again(
        lambda z, w: nn.functional.conv2d(z, w), y.detach(), m.second.weight
    ),
    "of a tensor that asks for one and is not read": lambda m, y: again(
        lambda z, _: m.second(z), y.detach(), asked_for
    ),
    "of a list": lambda m, y: again(lambda few: m.second(few[0]), [y]),
    "that returns several": lambda m, y: sum(again(lambda z: (m.second(z), z * 2), y)),
    "that returns a list": lambda m, y: again(lambda z: [m.second(z), z * 2], y)[0],
    "that returns a dictionary": lambda m, y: again(lambda z: {"a": m.second(z)}, y)["a"],
    "that returns a list beside a map": beside_a_list,
    "within another one": lambda m, y: again(
        lambda z: again(m.second, z) + again(m.row, z.detach()), y
    ),
    "a row of modules": lambda m, y: checkpoint_sequential(m.row, 2, y.detach()),
    "a row of functions": lambda m, y: checkpoint_sequential([torch.sin, m.second, *m.row], 3, y),
}
OTHERS = {
    "of a map": lambda m, y: checkpoint(m.second, y, use_reentrant=False),
    "of what has no gradient": lambda m, y: checkpoint(m.second, y.detach(), use_reentrant=False),
    "that returns a list": lambda m, y: checkpoint(
        lambda z, *, k: [m.second(z) * k], y, k=2, use_reentrant=False
    )[0],
    "a row of modules": lambda m, y: checkpoint_sequential(m.row, 2, input=y, use_reentrant=False),
}


@pytest.mark.parametrize("of_x", [False, True], ids=["parameters", "x"])
@pytest.mark.parametrize(
    "function",
    [*REENTRANT.values(), *OTHERS.values()],
    ids=[*REENTRANT, *map("other {}".format, OTHERS)],
)
def test_a_checkpoint_has_the_history_that_it_has_in_eager(function, of_x):
    eager = Around(function).double()
    under = ooc.limit(copy.deepcopy(eager), "1MiB")
    for trains in (True, False):
        for model in (eager, under):
            model.x = (
                torch.linspace(-1, 1, 252, dtype=torch.float64)
                .reshape(2, 3, 6, 7)
                .requires_grad_(of_x)
            )
            with torch.set_grad_enabled(trains):
                model.y, beside = model(model.x)
            if trains:
                (model.y.square().sum() + beside.sum()).backward()
        close(under.y, eager.y, "output")
        assert under.y.requires_grad == eager.y.requires_grad
    pairs = itertools.zip_longest((under.x, *under.parameters()), (eager.x, *eager.parameters()))
    for at, (one, other) in enumerate(pairs):
        assert (one.grad is None) == (other.grad is None), at
        if other.grad is not None:
            close(one.grad, other.grad, str(at))


def plain(function, *args, **_):
    return function(*args) * 3


def calls_its_global(model, y):
    return again_or_not(model.second, y.detach(), use_reentrant=True)


again_or_not = checkpoint


def test_another_function_in_its_place_is_seen(monkeypatch):
    eager = Around(calls_its_global).double()
    under = ooc.limit(copy.deepcopy(eager), "1MiB")
    x = torch.ones(2, 3, 6, 7, dtype=torch.float64)
    for function in (checkpoint, plain, checkpoint):
        monkeypatch.setitem(globals(), "again_or_not", function)
        (ours, _), (pytorchs, _) = under(x), eager(x)
        close(ours, pytorchs, "output")
        assert ours.requires_grad == pytorchs.requires_grad


def counted(m, y):
    def body(z):
        m.calls += 1
        return m.second(z)

    return checkpoint(body, y, use_reentrant=False)


def appended(m, y):
    return again(lambda z: (m.seen.append(z.detach().mean()), m.second(z))[1], y)


def of_spectral_norm(m, y):
    return checkpoint(m.normed, y, use_reentrant=False)


def writing(function):
    model = Around(function)
    model.calls, model.seen, model.normed = 0, [], spectral_norm(nn.Conv2d(4, 4, 1))
    return model.double()


@pytest.mark.parametrize("function", [counted, appended, of_spectral_norm])
def test_a_checkpoint_of_what_writes_outside_is_to_be_left_out(function):
    model = ooc.limit(writing(function), "1MiB")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UnsupportedModelError, match=r"leave the checkpoint out(.|\n)*py\", line"):
        model(torch.ones(2, 3, 6, 7, dtype=torch.float64))
    assert (model.calls, model.seen) == (0, [])
    for name, each in model.state_dict().items():
        close(each, before[name], name)


def test_without_gradients_a_checkpoint_may_write_outside():
    for function in (counted, appended):
        pair = writing(function), ooc.limit(writing(function), "1MiB")
        with torch.no_grad():
            (pytorchs, _), (ours, _) = (
                model(torch.ones(2, 3, 6, 7, dtype=torch.float64)) for model in pair
            )
        close(ours, pytorchs, "output")
        assert pair[0].calls == pair[1].calls
        for one, other in zip(pair[1].seen, pair[0].seen, strict=True):
            close(one, other, "seen")
