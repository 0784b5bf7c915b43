"""Functions of functions in forward: checkpoints, hooks of tensors, a user's own backward, vmap."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ooc_cudnn.torch as ooc
from tests.support.torch_checks import close, followed_in_calls

pytestmark = pytest.mark.usefixtures("fewest_plans")

LIMIT = "1MiB"
once = partial(checkpoint, use_reentrant=False)


def drawn():
    torch.manual_seed(0)
    return torch.randn(2, 3, 4, 4, dtype=torch.float64)


class Of(nn.Module):
    """A convolution, a function of the model and its result, and another convolution."""

    def __init__(self, function):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.w = nn.Parameter(torch.randn(1, 4, 1, 1))
        self.function = function

    def forward(self, x):
        return self.last(self.function(self, self.first(x)))


def checked(function, **options):
    torch.manual_seed(0)
    model = Of(function).double()
    return followed_in_calls(model, drawn(), memory_limit=LIMIT, **options)


# Checkpoints ----------------------------------------------------------------------------------


def a_checkpoint(model, y):
    return once(model.inner[0], y) * model.w


def nested(model, y):
    def outer(y):
        return once(model.inner[0], y.sin()) * model.w

    return once(outer, y)


def with_several(model, y):
    one, other = once(lambda a, b: (a * b, a + b), y, model.w)
    return one.sin() + other


def with_dropout(model, y):
    return once(lambda y: nn.functional.dropout(model.inner[0](y), 0.5), y)


CHECKPOINTS = [a_checkpoint, nested, with_several]


@pytest.mark.parametrize("function", CHECKPOINTS, ids=lambda each: each.__name__)
def test_a_checkpoint_computes_what_it_calls(function):
    checked(function)


def test_a_checkpoint_around_batch_normalization_updates_statistics_once():
    """PyTorch's updates them once more as it recomputes; here nothing runs twice for it."""
    torch.manual_seed(0)
    eager = Of(lambda model, y: once(model.inner, y) * model.w).double()
    plain = copy.deepcopy(eager)
    plain.function = lambda model, y: model.inner(y) * model.w
    under, x = ooc.limit(copy.deepcopy(eager), LIMIT), drawn()
    for model in (under, eager, plain):
        model.y = model(x)
        model.y.square().sum().backward()
    close(under.y, eager.y, "output")
    largest = max(float(each.grad.abs().max()) for each in eager.parameters())
    for (name, one), other in zip(under.named_parameters(), eager.parameters(), strict=True):
        close(one.grad, other.grad, name, least=largest)
    for (name, one), other in zip(under.named_buffers(), plain.buffers(), strict=True):
        close(one, other, name)


def test_masks_that_a_checkpoint_draws_are_those_of_its_backward():
    torch.manual_seed(0)
    model = ooc.limit(Of(with_dropout).double(), LIMIT)
    x = drawn().requires_grad_()
    y = model(x)
    with torch.no_grad():
        y.add_(0)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.abs().max() > 0
    torch.manual_seed(3)
    one = model(x)
    torch.manual_seed(3)
    moved = x.detach() + 1e-6 * torch.ones_like(x)
    two = model(moved)
    (gradient,) = torch.autograd.grad(one.sum(), x)
    assert float((two - one).detach().sum()) == pytest.approx(1e-6 * float(gradient.sum()), 1e-4)


# Hooks of tensors -----------------------------------------------------------------------------


def a_hook(model, y):
    h = y * 2
    h.register_hook(lambda gradient: gradient * 3)
    return h.sin()


def behind_readers(model, y):
    h = y * 2
    made = h.sin() + h.cos()
    h.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    return made * h


def two_hooks(model, y):
    y.register_hook(lambda gradient: gradient * 3)
    made = y.sin()
    y.register_hook(lambda gradient: gradient + 1)
    return made


def that_returns_nothing(model, y):
    y.register_hook(lambda gradient: None)
    return y.sin()


def that_reads_a_tensor(model, y):
    y.register_hook(lambda gradient: gradient * model.w.detach())
    return y.sin()


def of_what_has_no_gradient(model, y):
    h = y.detach().sin()
    if h.requires_grad:
        h.register_hook(lambda gradient: gradient * 3)
    return h + y


HOOKS = [
    a_hook, behind_readers, two_hooks, that_returns_nothing, that_reads_a_tensor,
    of_what_has_no_gradient,
]  # fmt: skip


@pytest.mark.parametrize("function", HOOKS, ids=lambda each: each.__name__)
def test_hooks_of_tensors_change_gradients_as_in_pytorch(function):
    checked(function)


# A user's own backward ------------------------------------------------------------------------


class Clamped(torch.autograd.Function):
    """Hands on, and backward no more than 0.1."""

    @staticmethod
    def forward(ctx, x, most):
        ctx.most = most
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-ctx.most, ctx.most), None


class SineAndCosine(torch.autograd.Function):
    """Two results of two inputs; the second input has no gradient."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x.sin() * scale, x.cos()

    @staticmethod
    def backward(ctx, of_sine, of_cosine):
        x, scale = ctx.saved_tensors
        return of_sine * x.cos() * scale - 2 * of_cosine * x.sin(), None


class Marked(torch.autograd.Function):
    """One result that has a gradient, and one that has none."""

    @staticmethod
    def forward(ctx, x):
        values, places = x.sort(1)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        return values, places

    @staticmethod
    def backward(ctx, gradient, _):
        (places,) = ctx.saved_tensors
        return torch.zeros_like(gradient).scatter(1, places, 2 * gradient)


def clamped(model, y):
    return Clamped.apply(y.sin(), 0.1)


def of_several(model, y):
    one, other = SineAndCosine.apply(y, model.w)
    return one * other + one


def of_one_of_several(model, y):
    one, _ = SineAndCosine.apply(y, model.w.detach())
    return one


def marked(model, y):
    values, places = Marked.apply(y)
    return values * places


def without_gradients(model, y):
    with torch.no_grad():
        scale = Clamped.apply(y, 0.1)
    return y * scale


FUNCTIONS = [clamped, of_several, of_one_of_several, marked, without_gradients]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_a_users_own_backward_runs(function):
    checked(function)


# Transformations ------------------------------------------------------------------------------


def a_vmap(model, y):
    return torch.vmap(lambda image: image * 2 + image.sum())(y)


def along_another_axis(model, y):
    return torch.vmap(lambda channel, w: channel * w.sin(), in_dims=(1, 1), out_dims=1)(y, model.w)


def nested_vmap(model, y):
    return torch.vmap(torch.vmap(lambda channel: channel / (1 + channel.norm())))(y)


def with_a_parameter(model, y):
    return torch.vmap(lambda image: torch.tensordot(model.inner[0].weight.mean((2, 3)), image, 1))(
        y
    )


VMAPS = [a_vmap, along_another_axis, nested_vmap, with_a_parameter]


@pytest.mark.parametrize("function", VMAPS, ids=lambda each: each.__name__)
def test_a_vmap_is_pytorchs(function):
    checked(function)


def test_a_vmap_may_make_a_number_of_each_image_with_parameters():
    def means(model, y):
        return torch.vmap(lambda image: model.inner[0](image[None]).mean())(y)

    torch.manual_seed(0)
    model = Of(means).double()
    model.last = nn.Identity()
    followed_in_calls(model, drawn(), memory_limit=LIMIT)


class Features(nn.Module):
    """Hands out what it reads further, as for Grad-CAM; and a view of it."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        y = self.body(x)
        return y, self.head(y.relu()), y.flatten(2)


@pytest.mark.parametrize("how", ["hook", "kept"])
def test_a_hook_on_an_output_sees_all_gradients_or_is_refused(how):
    """What is made of it within the network would not reach it; what shows it does."""
    torch.manual_seed(0)
    eager = Features().double()
    limited = ooc.limit(copy.deepcopy(eager), LIMIT)
    for wanted, refused in (((0,), False), ((0, 2), False), ((1,), True), ((0, 1, 2), True)):
        seen = []
        for model in (eager, limited):
            outputs, found = model(drawn()), []
            if how == "hook":
                outputs[0].register_hook(found.append)
            else:
                outputs[0].retain_grad()
            model.zero_grad()
            loss = sum(outputs[at].square().sum() for at in wanted)
            if refused and model is limited:
                with pytest.raises(ooc.UnsupportedModelError, match=r"hook in forward"):
                    loss.backward()
                assert all(each.grad is None for each in model.parameters())
                break
            loss.backward()
            found = found if how == "hook" else [outputs[0].grad]
            seen.append([*found, *(each.grad for each in model.parameters())])
        else:
            for one, other in zip(seen[1], seen[0], strict=True):
                close(one, other, f"{wanted}")


def test_a_hook_that_is_gone_is_none():
    torch.manual_seed(0)
    model = ooc.limit(Features().double(), LIMIT)
    outputs = model(drawn())
    outputs[0].register_hook(lambda g: g * 2).remove()
    outputs[1].sum().backward()


class Hooking(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        y = self.body(x)
        y.register_hook(torch.neg)
        return y


def test_hooks_stay_where_an_output_is_changed_in_place_behind_them():
    torch.manual_seed(0)
    eager = Hooking().double()
    limited = ooc.limit(copy.deepcopy(eager), LIMIT)
    for model in (eager, limited):
        y = model(drawn())
        y.register_hook(lambda g: g * 5)
        y *= 2
        y.square().sum().backward()
    for one, other in zip(limited.parameters(), eager.parameters(), strict=True):
        close(one.grad, other.grad, "gradient")
