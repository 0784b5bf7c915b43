"""A user's autograd.Function, as TorchDynamo is to trace it."""

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.errors import UnsupportedModelError
from tests.support.torch_checks import close
from tests.torch.idioms import functions, own_checkpoints
from tests.torch.idioms.judge import EQUAL, EQUAL_SINCE_2_13, REFUSED, under_an_ample

FOLLOWS_REQUIRES_GRAD = pytest.mark.skipif(
    torch.__version__ < "2.13", reason="requires_grad_ is not followed there"
)

pytestmark = pytest.mark.usefixtures("fewest_plans")


class Doubled(torch.autograd.Function):
    """Changes its input in place, and says so."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class InContainers(torch.autograd.Function):
    """Two maps in what a function makes of them."""

    @staticmethod
    def forward(ctx, x, held):
        return held(x * 2, x * 3)

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0] * 2, None


class Again(torch.autograd.Function):
    """Computes a part of the model again in backward, and differentiates it."""

    @staticmethod
    def forward(ctx, part, x, *parameters):
        ctx.part = part
        ctx.save_for_backward(x)
        return part(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.part(x)
        return None, *torch.autograd.grad(y, [x, *ctx.part.parameters()], gradient)


class Accumulating(Again):
    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.part(x)
        y.backward(gradient)
        return None, x.grad, None, None


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.function = nn.Conv2d(3, 4, 3), function
        self.part = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Tanh())

    def forward(self, x):
        return self.function(self.conv(x))


def made(function):
    return Model(function).double(), ooc.limit(Model(function).double(), "1MiB")


class Differentiating(Model):
    """A part of it is differentiated by a function of the user's."""

    def forward(self, x):
        return self.function.apply(self.part, self.conv(x), *self.part.parameters())


@FOLLOWS_REQUIRES_GRAD
def test_backward_may_take_a_derivative():
    gradients = []
    for limit in (None, "1MiB"):
        model = Differentiating(Again).double()
        if limit:
            ooc.limit(model, limit)
        for _ in range(2):
            model(torch.ones(2, 3, 6, 7, dtype=torch.float64)).square().sum().backward()
        gradients.append([each.grad for each in model.parameters()])
    for ours, pytorchs in zip(gradients[1], gradients[0], strict=True):
        close(ours, pytorchs, "gradient")


def derived(y):
    return torch.autograd.grad(y.square().sum(), y, create_graph=True)[0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(
            lambda: Differentiating(Accumulating),
            r"calls backward\(\) of a tensor",
            marks=FOLLOWS_REQUIRES_GRAD,
        ),
        (lambda: Model(derived), "forward takes a derivative"),
    ],
)
def test_other_derivatives_are_refused(make, said):
    model = ooc.limit(make(), "1MiB")
    with pytest.raises(UnsupportedModelError, match=rf"(?s){said}.*torch\.autograd\.grad.*line"):
        model(torch.ones(2, 3, 6, 7))


@pytest.mark.parametrize("trains", [False, True])
def test_a_dirty_input_is_changed(trains):
    if trains and torch.__version__ < "2.13":
        pytest.skip("PyTorch before 2.13 does not follow the mark")
    outputs = []
    for model in made(lambda y: (Doubled.apply(y), y + 1)):
        with torch.set_grad_enabled(trains):
            outputs.append(model(torch.ones(2, 3, 6, 7, dtype=torch.float64)))
    for ours, pytorchs in zip(outputs[1], outputs[0], strict=True):
        close(ours, pytorchs, "output")


@pytest.mark.parametrize(
    "held",
    [
        lambda *maps: list(maps),
        lambda one, other: (one, [other]),
        lambda one, other: (one, (other,)),
        lambda one, other: {"one": one, "other": other},
    ],
    ids=["a list", "a list in a tuple", "a tuple in a tuple", "a dictionary"],
)
def test_a_container_is_returned_where_autograd_is_off_and_refused_where_it_is_on(held):
    eager, limited = made(lambda y: InContainers.apply(y, held))
    x = torch.ones(2, 3, 6, 7, dtype=torch.float64)
    with torch.no_grad():
        pairs = zip(*(torch.utils._pytree.tree_leaves(m(x)) for m in (limited, eager)), strict=True)
    for ours, pytorchs in pairs:
        close(ours, pytorchs, "output")
    with pytest.raises(UnsupportedModelError, match="let it return a tensor, or one tuple"):
        limited(x)


@pytest.mark.parametrize(
    "idiom", [e for e in own_checkpoints.CASES if "checkpoint" in e.name], ids=lambda e: e.name
)
def test_a_checkpoint_that_is_a_function_is_computed_or_may_be_left_out(idiom):
    verdict, _ = under_an_ample(idiom)
    assert verdict.kind == EQUAL_SINCE_2_13
    assert verdict.kind == EQUAL or "may be left out" in verdict.why


def test_a_reversible_block_is_told_what_to_leave_out():
    (idiom,) = (each for each in own_checkpoints.CASES if "reversible" in each.name)
    verdict, _ = under_an_ample(idiom)
    assert verdict.kind == REFUSED
    assert "may be left out" in verdict.why


@pytest.mark.parametrize(
    "idiom", [e for e in functions.CASES if e.name.startswith("Function of")], ids=lambda e: e.name
)
def test_forward_is_given_ctx_where_it_takes_it(idiom):
    assert under_an_ample(idiom)[0].kind == EQUAL
