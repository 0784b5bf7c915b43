"""Idioms of what is changed in place by an autograd.Function, vmap, a hook, a user's operator."""

from __future__ import annotations

import torch
from torch import nn

from tests.torch.idioms.judge import EQUAL_SINCE_2_13, REFUSED, Idiom
from tests.torch.idioms.models import conv, image, infer, model, of_conv, train


def buffer(*shape):
    """A function that makes a buffer of zeros."""
    return lambda: nn.Buffer(torch.zeros(*(shape or (1,))))


#: Why bodies may not draw.
DRAWN = "it runs again in backward, with other numbers"


class Masked(torch.autograd.Function):
    """A dropout of one's own."""

    @staticmethod
    def forward(ctx, x):
        mask = (torch.rand_like(x) > 0.5).float()
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return gradient * mask


class ByARule(torch.autograd.Function):
    """Has a rule for vmap made of it, and a derivative that is not forward's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


class ByItsRule(ByARule):
    """Has a rule of its own, which computes something else."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, x):
        return x * 9, in_dims[0]


class Scaled(torch.autograd.Function):
    """Reads numbers of its class."""

    factor, offset = 2.0, torch.ones(1)

    @staticmethod
    def forward(ctx, x):
        return x * Scaled.factor + Scaled.offset

    @staticmethod
    def backward(ctx, gradient):
        return gradient * Scaled.factor


#: Why vmap calls no function.


#: Why what backward reads of a module may not change.
LATER = "the graph has the number that was there when forward came by"


class ByItsBuffer(torch.autograd.Function):
    """Reads a buffer in backward, as it is then."""

    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.n + 1), None


def by_a_buffer(y, n):
    """Scale the gradient of y by a buffer."""
    y.register_hook(lambda gradient: gradient * (n + 1))
    return y * 1


class OfLayers(torch.autograd.Function):
    """A weight with a gradient, statistics of channels, a count of integers."""

    @staticmethod
    def forward(ctx, x, weight, mean, count):
        mean.mul_(0.9).add_(x.mean((0, 2, 3)), alpha=0.1)
        count.add_(1)
        ctx.save_for_backward(x, weight)
        return x * weight.reshape(-1, 1, 1)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight.reshape(-1, 1, 1), (gradient * x).sum((0, 2, 3)), None, None


class Counting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seen):
        seen.add_(1)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


class CountingAsData(Counting):
    @staticmethod
    def forward(ctx, x, seen):
        seen.data[0] += 1
        return x * 2


class Normalized(torch.autograd.Function):
    """Running statistics of a user's own, in a view of a buffer."""

    @staticmethod
    def forward(ctx, x, running):
        running[0].mul_(0.9).add_(x.mean((0, 2, 3)), alpha=0.1)
        scale = 1 / (1 + running[0].abs()).reshape(1, -1, 1, 1)
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx, gradient):
        (scale,) = ctx.saved_tensors
        return gradient * scale, None


class Saving(torch.autograd.Function):
    """Changes what it saves."""

    @staticmethod
    def forward(ctx, x, factor):
        factor.add_(1)
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


class Unmarked(torch.autograd.Function):
    """Changes an input that has a gradient, which autograd is not told."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class SavesItsOwn(torch.autograd.Function):
    """A backward that changes what forward has made for it."""

    @staticmethod
    def forward(ctx, x):
        made = x * 2
        ctx.save_for_backward(made)
        return made * 1

    @staticmethod
    def backward(ctx, gradient):
        (made,) = ctx.saved_tensors
        return made.mul_(gradient)


class Sigmoid(torch.autograd.Function):
    """Saves its result."""

    @staticmethod
    def forward(x):
        return x.sigmoid()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y * (1 - y)


class Exponential(torch.autograd.Function):
    """Keeps its result."""

    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return ctx.y

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.y


class LargestChannel(torch.autograd.Function):
    """Saves which it is, which it returns, too."""

    @staticmethod
    def forward(ctx, x):
        values, index = x.max(1, keepdim=True)
        ctx.save_for_backward(index)
        ctx.mark_non_differentiable(index)
        ctx.shape = x.shape
        return values, index

    @staticmethod
    def backward(ctx, gradient, _):
        (index,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=gradient.dtype).scatter(1, index, gradient)


def noted(s, y):
    """The same, and forward writes something on the model."""
    s.last = 1
    return y


class CountingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seen):
        ctx.seen = seen
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.seen.add_(1)
        return gradient * 2, None


class TakingTheGradient(torch.autograd.Function):
    """A backward that changes its gradient, which the other summand reads, too."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.mul_(3)


@torch.library.custom_op("idioms::doubled", mutates_args=("seen", "largest"))
def doubled(
    x: torch.Tensor, seen: torch.Tensor, largest: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Operator of a user's own that changes two tensors, and makes two."""
    seen.add_(1)
    largest.copy_(x.max())
    return x * 2, x + seen


@doubled.register_fake
def _(x, seen, largest):
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("idioms::all_counted", mutates_args=("several",))
def all_counted(x: torch.Tensor, several: list[torch.Tensor]) -> torch.Tensor:
    """Operator of a user's own that changes a list."""
    for each in several:
        each.add_(1)
    return x * 2


@all_counted.register_fake
def _(x, several):
    return torch.empty_like(x)


def with_an_operator(s, x):
    y = s.c(x)
    largest = torch.zeros(())
    one, other = doubled(y.detach(), s.n, largest)
    return y * one + other * s.n, largest


def counted(image, seen):
    seen.add_(1)
    return image * 2


def twice_as_much(image):
    return image.mul_(2) * 1


def added(sums, image):
    sums.add_(image.sin())
    return image * 1


def scaled_by(image, factor):
    factor.add_(1)
    return image * factor


def a_map_changed_in_vmap(y, x):
    q = y * 1
    return torch.vmap(twice_as_much)(q) + q


def a_part_changed_in_vmap(y, x):
    q = y * 1
    made = torch.vmap(twice_as_much)(q[:, 1:])
    return q, made


def a_detached_map_changed_in_vmap(y, x):
    q = y.detach() * 1
    torch.vmap(twice_as_much)(q)
    return y * q


def sums_that_get_a_history(y, x):
    q = torch.zeros_like(y, requires_grad=False)
    torch.vmap(added)(q, y)
    return q * q


def saved_and_read(y, x):
    factor = torch.zeros(1)
    return Saving.apply(y, factor) * factor


def unmarked_and_read(y, x):
    q = y * 1
    return Unmarked.apply(q) + q


def written_behind_a_view(y, x):
    q = y * 1
    torch.vmap(lambda image: image[1:])(q).mul_(2)
    return q


def alike(image):
    made = image * 1
    return made, made[1:]


def written_beside_a_view(y, x):
    one, other = torch.vmap(alike)(y)
    one.mul_(2)
    return other


def written_and_multiplied(y, x):
    one, other = torch.vmap(alike)(y)
    other.mul_(0)
    return one * 1  # an operator of Python's, which takes a TypeError for "not by me"


def zeroed(run):
    """Write to the last output, behind the call."""
    run.model.eval()
    with torch.no_grad():
        *others, last = run(image())
        last.zero_()
        run.note([*others, last])


class Shown(torch.autograd.Function):
    """A view, with a gradient of one's own."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def hooked(s, x):
    y = s.c(x)

    def counts(gradient):
        s.n.add_(1)
        return gradient * 2

    y.register_hook(counts)
    return y * 1


def hooked_in_place(y, x):
    y.register_hook(lambda gradient: gradient.mul_(3))
    return y * 1


def in_train_and_eval(run):
    train(run)
    infer(run)


EVERY = "eager writes in backward, which may run more than once, or never"
SHARED = "what eager writes to a gradient reaches others that share it"
VIEW = "nothing is known of a view that vmap makes"
CASES = [
    Idiom(
        "Function: counts in a buffer",
        model(lambda s, x: Counting.apply(s.c(x), s.n), c=conv(), n=buffer()),
        in_train_and_eval,
    ),
    Idiom(
        "Function: counts in a buffer by way of data",
        model(lambda s, x: CountingAsData.apply(s.c(x), s.n), c=conv(), n=buffer()),
        train,
    ),
    Idiom(
        "Function: running statistics of its own",
        model(lambda s, x: s.d(Normalized.apply(s.c(x), s.n)), c=conv(), d=conv(), n=buffer(2, 4)),
        in_train_and_eval,
    ),
    Idiom(
        "Function: a weight, statistics of channels and a count",
        model(
            lambda s, x: OfLayers.apply(s.c(x), s.w, s.mean, s.count),
            c=conv(),
            w=lambda: nn.Parameter(torch.ones(4)),
            mean=buffer(4),
            count=lambda: nn.Buffer(torch.tensor(0)),
        ),
        in_train_and_eval,
    ),
    of_conv("Function: changes what it saves, and what is read behind it", saved_and_read),
    of_conv("Function: changes an input without mark_dirty", unmarked_and_read),
    of_conv(
        "Function: backward changes what forward has saved",
        lambda y, x: SavesItsOwn.apply(y),
        EQUAL_SINCE_2_13,
    ),
    Idiom(
        "Function: backward counts in a buffer",
        model(lambda s, x: CountingBackward.apply(s.c(x), s.n), c=conv(), n=buffer()),
        train,
        REFUSED,
        EVERY,
    ),
    of_conv(
        "Function: backward changes its gradient",
        lambda y, x: TakingTheGradient.apply(y) + y,
        REFUSED,
        though=SHARED,
    ),
    Idiom(
        "vmap: counts in a buffer",
        model(lambda s, x: torch.vmap(counted, (0, None))(s.c(x), s.n), c=conv(), n=buffer()),
        in_train_and_eval,
    ),
    of_conv("vmap: changes a map", a_map_changed_in_vmap),
    of_conv("vmap: changes a part of a map", a_part_changed_in_vmap),
    of_conv("vmap: changes a detached map", a_detached_map_changed_in_vmap),
    of_conv("vmap: sums that get a history", sums_that_get_a_history),
    of_conv("vmap: changes in place, and returns it", lambda y, x: torch.vmap(torch.relu_)(y * 1)),
    of_conv(
        "vmap: changes a factor of each image",
        lambda y, x: torch.vmap(scaled_by)(y, torch.zeros(len(y))),
    ),
    of_conv(
        "a condition of torch.cond",
        lambda y, x: torch.cond(y.sum() > 0, lambda z: z * 2, lambda z: z * 3, (y,)),
        REFUSED,
        though="PyTorch cannot say what it takes",
    ),
    of_conv(
        "vmap: a condition within",
        lambda y, x: torch.vmap(
            lambda z: torch.cond(z.sum() > 0, lambda z: z * 2, lambda z: z * 3, (z,))
        )(y),
    ),
    Idiom(
        "vmap: counts in a buffer beside a parameter",
        model(
            lambda s, x: torch.vmap(lambda y: counted(y, s.n) * s.w)(s.c(x)),
            c=conv(),
            w=lambda: nn.Parameter(torch.ones(4, 1, 1)),
            n=buffer(),
        ),
        train,
    ),
    of_conv(
        "vmap: a result that shows another one, which is written to",
        written_beside_a_view,
        REFUSED,
        though=VIEW,
    ),
    of_conv(
        "vmap: a result that shows another one, which is written to, and multiplied",
        written_and_multiplied,
        REFUSED,
        though=VIEW,
    ),
    of_conv(
        "vmap: outputs that show one another",
        lambda y, x: torch.vmap(alike)(y),
        REFUSED,
        zeroed,
        though=VIEW,
    ),
    of_conv(
        "vmap: an output that shows another one",
        lambda y, x: (y, torch.vmap(lambda image: image[1:])(y)),
        REFUSED,
        zeroed,
        though=VIEW,
    ),
    of_conv(
        "vmap: an output that shows what is no output",
        lambda y, x: (y * 1, torch.vmap(lambda image: image[1:])(y)),
        steps=zeroed,
    ),
    of_conv(
        "vmap: an output that shows an argument",
        lambda y, x: (y, torch.vmap(lambda image: image[1:])(x)),
        REFUSED,
        zeroed,
        though=VIEW,
    ),
    of_conv(
        "Function: an output that shows another one",
        lambda y, x: (y, Shown.apply(y)),
        REFUSED,
        though=VIEW,
    ),
    of_conv("vmap: a view that is written to", written_behind_a_view, REFUSED, though=VIEW),
    Idiom(
        "an operator that changes tensors and returns others",
        model(with_an_operator, c=conv(), n=buffer()),
        in_train_and_eval,
    ),
    Idiom(
        "an operator that changes a list of tensors",
        model(lambda s, x: s.c(x) + all_counted(x, [s.n])[:, :, 1:-1, 1:-1], c=conv(), n=buffer()),
        infer,
        REFUSED,
        "a list that an operation changes is not followed",
    ),
    Idiom(
        "an operator that is given a tensor twice, and changes it",
        model(
            lambda s, x: s.c(x) + doubled(x, s.n, s.n)[0][:, :, 1:-1, 1:-1], c=conv(), n=buffer()
        ),
        infer,
        REFUSED,
        "what each of two clones has become is no value of the memory that they share",
    ),
    of_conv(
        "vmap: a derivative by torch.func",
        lambda y, x: torch.vmap(torch.func.grad(lambda z: (z**3).sum()))(y),
        REFUSED,
        though="the library has no derivative of a derivative",
    ),
    of_conv(
        "vmap: draws random numbers",
        lambda y, x: torch.vmap(lambda z: z * torch.rand_like(z), randomness="different")(y),
        REFUSED,
        though=DRAWN,
    ),
    of_conv("Function: reads numbers of its class", lambda y, x: Scaled.apply(y), beyond=REFUSED),
    Idiom(
        "vmap: a layer by itself",
        model(lambda s, x: torch.vmap(s.c)(x), c=conv()),
        train,
        beyond=REFUSED,
    ),
    of_conv(
        "vmap: a Function whose rule is made of it",
        lambda y, x: torch.vmap(lambda z: ByARule.apply(z))(y),
        REFUSED,
    ),
    of_conv(
        "vmap: a Function whose rule is made of it, without gradients",
        lambda y, x: torch.vmap(lambda z: ByARule.apply(z))(y),
        steps=infer,
    ),
    of_conv(
        "vmap: a Function with a rule of its own",
        lambda y, x: torch.vmap(lambda z: ByItsRule.apply(z))(y),
        REFUSED,
        steps=infer,
    ),
    of_conv(
        "vmap: a derivative of a Function, without gradients",
        lambda y, x: torch.vmap(torch.func.grad(lambda z: ByARule.apply(z).sum()))(y),
        REFUSED,
        steps=infer,
    ),
    of_conv("Function: draws random numbers", lambda y, x: Masked.apply(y), REFUSED, though=DRAWN),
    Idiom(
        "Function: backward reads a buffer that forward has changed before it",
        model(lambda s, x: (s.n.add_(1), ByItsBuffer.apply(s.c(x), s.n))[1], c=conv(), n=buffer()),
        in_train_and_eval,
    ),
    Idiom(
        "Function: backward reads a buffer that forward changes behind it",
        model(lambda s, x: (ByItsBuffer.apply(s.c(x), s.n), s.n.add_(1))[0], c=conv(), n=buffer()),
        train,
        REFUSED,
        LATER,
    ),
    Idiom(
        "a hook that reads a buffer",
        model(lambda s, x: (s.n.add_(1), by_a_buffer(s.c(x), s.n))[1], c=conv(), n=buffer()),
        train,
    ),
    Idiom(
        "a hook that reads a buffer, which forward changes behind it",
        model(lambda s, x: (by_a_buffer(s.c(x), s.n), s.n.add_(1))[0], c=conv(), n=buffer()),
        train,
        REFUSED,
        LATER,
    ),
    Idiom(
        "Function: saves its result, and is used twice",
        model(lambda s, x: Sigmoid.apply(s.d(Sigmoid.apply(s.c(x)))), c=conv(), d=conv()),
        train,
    ),
    Idiom(
        "Function: keeps its result, and forward writes something behind it",
        model(lambda s, x: noted(s, Exponential.apply(s.c(x))), c=conv()),
        train,
    ),
    Idiom(
        "Function: saves an index that it returns, and forward writes something behind it",
        model(lambda s, x: noted(s, LargestChannel.apply(s.c(x))[0]), c=conv()),
        train,
    ),
    Idiom("a hook that counts", model(hooked, c=conv(), n=buffer()), train, REFUSED, EVERY),
    of_conv("a hook that changes its gradient", hooked_in_place, REFUSED, though=SHARED),
]
