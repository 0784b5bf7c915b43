"""Idioms of torch.autograd.Function: a backward of one's own."""

from __future__ import annotations

import collections

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from tests.torch.idioms.judge import REFUSED, Idiom
from tests.torch.idioms.models import (
    conv,
    drawn,
    held,
    image,
    infer,
    loss_of,
    model,
    of_conv,
    train,
)

Pair = collections.namedtuple("Pair", "one two")


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Stacked(torch.autograd.Function):
    """Of as many maps as it is given."""

    @staticmethod
    def forward(ctx, *xs):
        ctx.count = len(xs)
        return torch.stack(xs).sum(0)

    @staticmethod
    def backward(ctx, gradient):
        return (2 * gradient,) * ctx.count


class Scaled(torch.autograd.Function):
    """Of a number, and as many maps as it is given."""

    @staticmethod
    def forward(ctx, n, *xs):
        ctx.n = n
        return xs[0] * xs[-1] * n

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient * ctx.n, gradient


class StackedApart(torch.autograd.Function):
    """The same, whose ctx another method is given."""

    @staticmethod
    def forward(*xs):
        return torch.stack(xs).sum(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.count = len(inputs)

    @staticmethod
    def backward(ctx, gradient):
        return (2 * gradient,) * ctx.count


def stacked(s, x):
    y = s.c(x)
    return Stacked.apply(y), Stacked.apply(y, 2 * y), Stacked.apply(y, 3 * y, x[:, :, 1:-1, 1:-1])


def scaled(s, x):
    y = s.c(x)
    return Scaled.apply(0.5, y, y + 1)


def stacked_apart(s, x):
    y = s.c(x)
    return StackedApart.apply(y), StackedApart.apply(y, 2 * y)


class ReverseBy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.neg() * ctx.alpha, None


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Clipped(torch.autograd.Function):
    """A hard step whose gradient passes where the input is small."""

    @staticmethod
    def forward(ctx, x, bound):
        ctx.save_for_backward(x)
        ctx.bound = bound
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= ctx.bound), None


class Swish(torch.autograd.Function):
    """A saved input instead of several, as EfficientNets have."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return gradient * gate * (1 + x * (1 - gate))


class Blend(torch.autograd.Function):
    """Two inputs and two outputs; a backward that asks which gradients are needed."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b, a + b

    @staticmethod
    def backward(ctx, of_product, of_sum):
        a, b = ctx.saved_tensors
        to_a = of_product * b + of_sum if ctx.needs_input_grad[0] else None
        to_b = of_product * a * 3 + of_sum if ctx.needs_input_grad[1] else None
        return to_a, to_b


class Largest(torch.autograd.Function):
    """Values and places, of which the places have no gradient."""

    @staticmethod
    def forward(ctx, x):
        values, places = x.max(1)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        ctx.extent = x.shape[1]
        return values, places

    @staticmethod
    def backward(ctx, gradient, _):
        (places,) = ctx.saved_tensors
        return F.one_hot(places, ctx.extent).movedim(-1, 1) * gradient.unsqueeze(1) * 2


class Rounded(torch.autograd.Function):
    """One result, which has no gradient."""

    @staticmethod
    def forward(ctx, x, of=torch.round):
        result = of(x.detach() * 2)
        ctx.mark_non_differentiable(result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        raise AssertionError("a gradient of a constant")


@torch.library.custom_op("ooc_cudnn_idioms::relu", mutates_args=())
def own_relu(self: torch.Tensor) -> torch.Tensor:
    return torch.where(self > 0, self, self * 0.5)


own_relu.register_fake(lambda self: torch.empty_like(self))
own_relu.register_autograd(lambda ctx, dy: 3 * dy)


@torch.library.custom_op("ooc_cudnn_idioms::mul_", mutates_args=("self",))
def own_mul(self: torch.Tensor, other: float) -> None:
    self += other


def multiplied_by_own(y, x):
    z = y.detach().clone()
    own_mul(z, 3.0)
    return y * z


class InAList(torch.autograd.Function):
    """Two maps in a list, in which autograd follows none."""

    @staticmethod
    def forward(ctx, x):
        return [x * 2, x * 3]

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0] * 2


class BesideATuple(InAList):
    @staticmethod
    def forward(ctx, x):
        return x * 2, (x * 3,), x.shape, None


class InAPair(torch.autograd.Function):
    """Two maps in a named tuple."""

    @staticmethod
    def forward(ctx, x):
        return Pair(x * 2, x * 3)

    @staticmethod
    def backward(ctx, one, two):
        return one * 2 + two


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return gradient * 5


class Stops(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


class MeanOfSquares(torch.autograd.Function):
    """A loss, which autocast computes in float32."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.mse_loss(x, torch.zeros_like(x))

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 * x.float() / x.numel()


class Pointwise(torch.autograd.Function):
    """A convolution by a weight in float32, of maps that are not under autocast."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        gradient, x = gradient.float(), x.float()
        return F.conv_transpose2d(gradient, weight), torch.einsum(
            "nohw,nihw->oi", gradient, x
        ).reshape(weight.shape)


class AsItWasCalled(torch.autograd.Function):
    """A product whose backward is under the autocast of its forward."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, gradient):
        _, weight = ctx.saved_tensors
        return gradient @ weight.mT, None


class Separate(torch.autograd.Function):
    """The newer form, with a `setup_context`."""

    @staticmethod
    def forward(x, weight):
        return x * weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight * 0.5, (gradient * x).sum((0, 2, 3), keepdim=True) * 2


def under(dtype, times=1):
    """Steps with calls under autocast, and backward outside of it."""

    def steps(run):
        for seed in range(2):
            with torch.autocast("cpu", dtype):
                outputs = run(image(seed) * times)
            run.backward(loss_of(outputs))

    return steps


class Weighted(torch.autograd.Function):
    """Tensors of a shape, made in forward and in backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x + torch.arange(x.shape[-1], device=x.device, dtype=x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        made = torch.ones(ctx.shape, device=gradient.device)
        made[:, torch.tensor([0, 2])] = 3
        return gradient * made * torch.linspace(0, 1, ctx.shape[-1])


def made_in_vmap(image):
    rows = torch.vmap(lambda row: row * torch.ones(row.shape, device="cpu"))(image[0])
    moved = image.cpu().to("cpu").to(device=image.device, dtype=torch.float64)
    return moved @ torch.eye(image.shape[-1]).double() + rows * torch.tensor(2.0)


def made_in_a_hook(y, x):
    y.register_hook(lambda g: g * torch.ones(4, 1, 1, device=g.device) + torch.zeros(g.shape))
    return y * 1


def twice_applied(s, x):
    return ReverseBy.apply(s.c(x), 0.5) + ReverseBy.apply(s.d(x), 2.0)


def scheduled(run):
    train(run)
    run.model.alpha = 0.25
    train(run)


class ByAutograd(torch.autograd.Function):
    """Computes again in backward, and differentiates it."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return (x * weight).sin()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = (each.detach().requires_grad_() for each in ctx.saved_tensors)
        with torch.enable_grad():
            y = (x * weight).sin()
        return torch.autograd.grad(y, (x, weight), gradient)


CASES = [
    Idiom("Function: reversed", model(lambda s, x: Reverse.apply(s.c(x)), c=conv()), train),
    Idiom("Function of any number of maps", model(stacked, c=conv()), train),
    Idiom(
        "Function of any number of maps, in evaluation", model(stacked, c=conv()), infer, REFUSED
    ),
    Idiom("Function of a number and maps, in evaluation", model(scaled, c=conv()), infer, REFUSED),
    Idiom(
        "Function of any number of maps, with setup_context", model(stacked_apart, c=conv()), train
    ),
    Idiom(
        "Function of any number of maps, with setup_context, in evaluation",
        model(stacked_apart, c=conv()),
        infer,
        REFUSED,
    ),
    Idiom("Function: reversed by a number", model(twice_applied, c=conv(), d=conv()), train),
    Idiom(
        "Function: reversed by a number that changes",
        model(lambda s, x: ReverseBy.apply(s.c(x), s.alpha), c=conv(), alpha=held(1.0)),
        scheduled,
    ),
    Idiom(
        "Function: straight through",
        model(lambda s, x: StraightThrough.apply(s.c(x)), c=conv()),
        train,
    ),
    Idiom("Function: clipped", model(lambda s, x: Clipped.apply(s.c(x), 0.3), c=conv()), train),
    Idiom(
        "Function: swish that saves its input",
        model(lambda s, x: s.d(Swish.apply(s.c(x))), c=conv(), d=conv()),
        train,
    ),
    Idiom(
        "Function: two inputs, two outputs",
        model(lambda s, x: Blend.apply(s.c(x), s.d(x)), c=conv(), d=conv()),
        train,
    ),
    Idiom(
        "Function: needs_input_grad of a frozen branch",
        model(lambda s, x: Blend.apply(s.c(x), s.d(x).detach())[0], c=conv(), d=conv()),
        train,
    ),
    Idiom(
        "Function: one of its two outputs is used",
        model(lambda s, x: Blend.apply(s.c(x), s.d(x))[1], c=conv(), d=conv()),
        train,
    ),
    Idiom(
        "Function: mark_non_differentiable",
        model(lambda s, x: Largest.apply(s.c(x)), c=conv()),
        train,
    ),
    of_conv(
        "Function: its one result has no gradient",
        lambda y, x: y * Rounded.apply(y),
        beyond=REFUSED,
    ),
    of_conv(
        "Function: its one result is places, and an output",
        lambda y, x: (
            places := Rounded.apply(y, lambda y: y.argmax(1, keepdim=True)),
            y.gather(1, places) * Rounded.apply(Rounded.apply(y)),
        ),
        beyond=REFUSED,
    ),
    of_conv("Function: returns a list", lambda y, x: InAList.apply(y)[0] + y, REFUSED),
    of_conv(
        "Function: returns a list, without gradients", lambda y, x: InAList.apply(y), steps=infer
    ),
    of_conv(
        "Function: returns a tuple in a tuple", lambda y, x: (BesideATuple.apply(y)[:2], y), REFUSED
    ),
    of_conv("Function: returns a named tuple", lambda y, x: sum(InAPair.apply(y))),
    Idiom("Function: once_differentiable", model(lambda s, x: Once.apply(s.c(x)), c=conv()), train),
    Idiom(
        "Function: None for a gradient",
        model(lambda s, x: Stops.apply(s.c(x)) + s.d(x), c=conv(), d=conv()),
        train,
    ),
    Idiom(
        "Function: setup_context and a parameter",
        model(
            lambda s, x: Separate.apply(s.c(x), s.w),
            c=conv(),
            w=lambda: nn.Parameter(drawn(1, 4, 1, 1)),
        ),
        train,
    ),
    of_conv("Function: tensors made of a shape", lambda y, x: Weighted.apply(y)),
    of_conv(
        "vmap: tensors made of a shape",
        lambda y, x: torch.vmap(made_in_vmap)(y),
        computed_in=torch.float32,
    ),
    of_conv("a hook that makes a tensor of a shape", made_in_a_hook),
    Idiom(
        "Function: a loss under autocast, in float32",
        model(lambda s, x: MeanOfSquares.apply(s.c(x)), c=conv()),
        under(torch.float16, 300),
        computed_in=torch.float16,
    ),
    Idiom(
        "Function: maps in bfloat16 and a weight in float32 under autocast",
        model(lambda s, x: Pointwise.apply(s.c(x), s.d.weight), c=conv(), d=conv(size=1)),
        under(torch.bfloat16),
        computed_in=torch.bfloat16,
    ),
    Idiom(
        "Function: custom_fwd and custom_bwd under autocast",
        model(
            lambda s, x: AsItWasCalled.apply(s.c(x), s.w),
            c=conv(),
            w=lambda: drawn(4, 5),
        ),
        under(torch.bfloat16),
        computed_in=torch.bfloat16,
    ),
    Idiom(
        "vmap: a loss under autocast, in float32",
        model(
            lambda s, x: torch.vmap(lambda y: F.mse_loss(y, torch.zeros_like(y)))(s.c(x)), c=conv()
        ),
        under(torch.float16, 300),
        computed_in=torch.float16,
    ),
    Idiom(
        "vmap: maps in bfloat16 and a weight in float32 under autocast",
        model(
            lambda s, x: torch.vmap(lambda y: y @ s.w)(s.c(x)),
            c=conv(),
            w=lambda: nn.Parameter(drawn(4, 5)),
        ),
        under(torch.bfloat16),
        computed_in=torch.bfloat16,
    ),
    Idiom(
        "Function: backward takes a derivative",
        model(
            lambda s, x: s.d(ByAutograd.apply(s.c(x), s.w)),
            c=conv(),
            d=conv(size=1),
            w=lambda: nn.Parameter(drawn(4, 1, 1)),
        ),
        train,
        REFUSED,
    ),
    Idiom(
        "Function: on a parameter alone",
        model(
            lambda s, x: F.conv2d(x, StraightThrough.apply(s.w)),
            w=lambda: nn.Parameter(drawn(3, 4, 3, 3)),
        ),
        train,
    ),
    of_conv("an operator of the user's, by the name of one of PyTorch's", lambda y, x: own_relu(y)),
    of_conv("an operator of the user's in place, by such a name", multiplied_by_own),
]
