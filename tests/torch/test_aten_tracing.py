"""What a capture notes: operations as modules call them, in what order, and where they stand."""

import copy
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ooc_cudnn.torch as ooc
from tests.support.torch_checks import Result, close, followed_in_calls, modes, same

pytestmark = pytest.mark.usefixtures("fewest_plans")

LIMIT = "1MiB"


def drawn():
    torch.manual_seed(0)
    return torch.randn(2, 3, 4, 4, dtype=torch.float64)


class Of(nn.Module):
    """A convolution, and a function of the model and its result."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.w = nn.Conv2d(3, 4, 1), nn.Parameter(torch.randn(4, 1, 1))
        self.function = function

    def forward(self, x):
        return self.function(self, self.conv(x))


def made(function):
    torch.manual_seed(0)
    return Of(function).double()


def checked(function, **options):
    return followed_in_calls(made(function), drawn(), memory_limit=LIMIT, **options)


def recorded(model, x=None):
    """The graph of a call."""
    under = ooc.limit(model, LIMIT)
    under(drawn() if x is None else x)
    return under.forward.last.graph


def test_operations_are_as_modules_call_them():
    """Above autograd and autocast: the library has rules of these, not of what they are made of."""
    layers = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(64, 2)
    graph = recorded(nn.Sequential(*layers, nn.LayerNorm(2)).double())
    names = [each.name for each in graph.operations]
    assert names == ["conv2d", "batch_norm", "gelu", "flatten", "linear", "layer_norm"]
    assert [each.module for each in graph.operations] == ["0", "1", "2", "3", "4", "5"]


def test_operations_know_their_line_and_what_is_given_its_name():
    graph = recorded(made(lambda model, y: y * model.w.exp()))
    assert {value.source for value in graph.given} == {"0", "conv.weight", "conv.bias", "w"}
    assert {value.kind for value in graph.given} == {"input", "parameter"}
    (product,) = (each for each in graph.operations if each.name == "mul")
    assert __file__ in product.where
    assert product.where.endswith("y * model.w.exp()))")


def test_what_depends_on_no_input_comes_before():
    graph = recorded(made(lambda model, y: y * model.w.exp().sin() + torch.arange(4.0)))
    assert {"exp", "sin", "arange"} <= {each.name for each in graph.before}
    assert not {"exp", "sin", "arange"} & {each.name for each in graph.operations}


def test_what_nobody_reads_is_not_computed():
    def function(model, y):
        (y * 2).sin()
        return y

    assert [each.name for each in recorded(made(function)).operations] == ["conv2d"]


def test_values_have_names_of_their_own():
    graph = recorded(made(lambda model, y: ((y + 1) + 1).add(1) + y))
    values = [value for each in graph.operations for value in each.results]
    names = [value.name for value in (*graph.given, *values)]
    assert len({*names}) == len(names)


def like_an_input(model, y):
    mask = y.new_zeros(4, 4)
    mask[1:, :2] = 2.0
    return y * mask + torch.ones_like(y) + torch.full_like(y, 0.5) + y.new_full((4, 4), 3.0)


def filled(model, y):
    h = torch.empty_like(y).fill_(2.0)
    h[:, 0].zero_()
    return y * h + torch.empty_like(y).copy_(y)


def by_a_tensor(model, y):
    return y * torch.full_like(y, 0.0).fill_(model.w.detach().sum())


def constants(model, y):
    table = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=y.dtype)
    return y * table + torch.arange(4, dtype=y.dtype)[:, None] * torch.eye(4, dtype=y.dtype)


def not_a_number(model, y):
    return F.pad(y, (1, 1), value=float("inf")).clamp(max=1)


def without_gradients(model, y):
    with torch.no_grad():
        scale = y.exp() * model.w
    return y * scale


def with_gradients_within(model, y):
    with torch.no_grad():
        one = y * 2
        with torch.enable_grad():
            other = y.sin() * model.w
    return one + other


def detached(model, y):
    return y * y.detach().sigmoid() + y.data.mean()


def by_numpy(model, y):
    return y * torch.from_numpy(y.detach().numpy() * 2)


def of_another_dtype(model, y):
    return y * y.float().double() + (y > 0) * y.to(torch.int64).clamp(-1, 1)


FUNCTIONS = [
    like_an_input, filled, by_a_tensor, constants, not_a_number, without_gradients,
    with_gradients_within, detached, by_numpy, of_another_dtype,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_what_is_recorded_is_what_pytorch_computes(function):
    checked(function)


def test_what_is_like_an_input_reads_no_more_than_a_shape():
    graph = recorded(made(lambda model, y: y * torch.ones_like(y)))
    assert "ones_like" in {each.name for each in graph.before}


class Named(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


STRUCTURES = {
    "a dict": lambda model, y: {"b": y, "a": [y.sin(), (y.cos(),)]},
    "twice the same": lambda model, y: (y, y, y + 1),
    "beside numbers": lambda model, y: (y, 3, None, "text", 0.5, True),
    "a named tuple": lambda model, y: Named(y, y.detach()),
    "a parameter": lambda model, y: (y, model.w * 1),
    "views": lambda model, y: y.chunk(2, 1),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_results_have_the_structure_of_pytorchs(name):
    eager = made(STRUCTURES[name])
    under = ooc.limit(copy.deepcopy(eager), LIMIT)
    for _ in range(2):
        same(Result(under, [drawn()]), Result(eager, [drawn()]))
        found, expected = under(drawn()), eager(drawn())
        assert type(found) is type(expected)
        if name == "beside numbers":
            assert found[1:] == expected[1:]
        if name == "twice the same":
            assert found[0] is found[1]


def test_what_is_asserted_of_data_is_asserted_in_each_call():
    def function(model, y):
        torch._assert_async((y.detach() < 100).all(), "too large")
        return y * 2

    eager = made(function)
    under = ooc.limit(copy.deepcopy(eager), LIMIT)
    for _ in range(2):
        close(under(drawn()), eager(drawn()), "output")
        with pytest.raises(RuntimeError, match="too large"):
            under(1000 * drawn())
        with pytest.raises(RuntimeError, match="too large"):
            eager(1000 * drawn())


@pytest.mark.parametrize("function", [without_gradients, with_gradients_within])
def test_under_autocast_and_no_grad_casts_are_made(function):
    """What was read without its history was no longer known to be cast: a bias stayed float32."""
    torch.manual_seed(0)
    eager, x = Of(function), drawn().float()
    exact = copy.deepcopy(eager).double()
    under = ooc.limit(copy.deepcopy(eager), LIMIT)
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            true = exact(x.double())
            with torch.autocast("cpu", torch.bfloat16):
                found, own = under(x), eager(x)
        assert found.dtype == own.dtype
        off, pytorchs = (
            float((each.double() - true).detach().abs().max()) for each in (found, own)
        )
        assert off <= 2 * pytorchs + 2**-6 * float(true.detach().abs().max())


def unordered(x):
    return x.nonzero()


def of_a_number(x):
    return x * x.max().item()


@pytest.mark.parametrize(
    ("function", "message"),
    [(unordered, "shape depends on data"), (of_a_number, "number that depends on data")],
    ids=["a shape", "a number"],
)
def test_what_depends_on_data_is_refused_with_its_line(function, message):
    model, in_force = ooc.limit(made(lambda model, y: function(y)), LIMIT), modes()
    before = copy.deepcopy(model.state_dict())
    for _ in range(2):
        with pytest.raises(
            ooc.UnsupportedModelError, match=rf"(?s){message}.*, in {function.__name__}: return"
        ):
            model(drawn())
        assert modes() == in_force
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
