"""Idioms of indices that are numbers in tensors: a step of a schedule, the end of a ring.

Where TorchDynamo asks for a number that forward has made, it refuses; under a limit it is computed.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.torch.idioms.judge import EQUAL, REFUSED, Idiom
from tests.torch.idioms.models import conv, drawn, image, infer, leaf, loss_of, model, train

#: Why what TorchDynamo captures may be refused.
SHARED = "an output at a place that depends on data has memory of its own"
BY_NUMBER = "a slice from a number that depends on data: an index by a tensor is computed"


def buffer(*shape):
    return lambda: nn.Buffer(drawn(*shape, seed=3))


def parameter(*shape):
    return lambda: nn.Parameter(drawn(*shape, seed=3))


def number(value, dtype=torch.int64):
    return lambda: nn.Buffer(torch.tensor(value, dtype=dtype))


def at_steps(*steps, dtype=torch.int64):
    """Train, each call with another number in a tensor."""

    def run_all(run):
        for seed, step in enumerate(steps):
            train(run, image(seed), torch.tensor(step, dtype=dtype), calls=1)

    return run_all


def of_step(name, f, steps=None, expected=EQUAL, though=""):
    """An idiom of a map and a number in a tensor: f(y, t)."""
    made = model(lambda s, x, t: f(s.c(x), t), c=conv())
    return Idiom(name, made, steps or at_steps(2, 0, -1), expected, though)


def ring(s, x):
    y = s.c(x)
    s.q[s.ptr] = y[0].detach()
    s.ptr = (s.ptr + 1) % 3
    return y + s.q.mean(0)


def ring_by_counter(s, x):
    y = s.c(x)
    s.q[s.step % 3] = y[0].detach()
    s.step += 1
    return y + s.q.sum(0)


def column(y, t):
    y = y.clone()
    y[:, t] = y[:, 0] * 2
    return y


def places(y, t):
    y = y.clone()
    y[0, t, ..., None] = 1.0
    y[t % 2, :, 1:3, t] *= 3
    y[1, t, y[0, 0] > 0] = y.mean()
    return y


def by_view(y, t):
    """What a number shows is a view: written to, and read when its base has changed."""
    y = y * 1
    row, other = y[:, t], y.select(1, t)
    row += other.mean()
    y[..., 0] = 2.0
    return y, row * other


def by_old_number(s, x):
    """A view stays where it was when the number goes on."""
    y = s.c(x) * 1
    row = y[:, s.ptr]
    s.ptr.add_(1).remainder_(4)
    row.mul_(y[:, s.ptr].exp())
    return y


def narrowed(y, t):
    y = y.clone()
    y.narrow(1, t, 2).mul_(3)
    return y, torch.narrow(y, -1, t, 1) * 2


def queue(s, x):
    """The queue of MoCo, written by a tensor."""
    k = s.c(x).mean((2, 3))
    n = k.shape[0]
    s.q[:, (s.ptr + torch.arange(n)) % 11] = k.detach().T
    s.ptr = (s.ptr + n) % 11
    return k @ s.q.clone()


def queue_by_number(s, x):
    """The queue of MoCo, as its authors write it."""
    k = s.c(x).mean((2, 3))
    p = int(s.ptr)
    s.q[:, p : p + 2] = k.detach().T
    s.ptr[0] = (p + 2) % 10
    return k @ s.q.clone()


class Column(torch.autograd.Function):
    """Takes a column by the number of a tensor."""

    @staticmethod
    def forward(ctx, y, t):
        ctx.save_for_backward(t)
        ctx.shape = y.shape
        return y[:, t] * 2

    @staticmethod
    def backward(ctx, gradient):
        (t,) = ctx.saved_tensors
        made = gradient.new_zeros(ctx.shape)
        made[:, t] = gradient * 2
        return made, None


def changed_between(run):
    """The number goes on between forward and backward."""
    t = torch.tensor(1)
    loss = loss_of(run(leaf(image()), t))
    run.backward(loss)
    t.add_(1)
    run.backward(loss_of(run(leaf(image(1)), t)))


def checkpointed(y, t):
    return torch.utils.checkpoint.checkpoint(lambda z: z[:, t].exp(), y, use_reentrant=False)


CASES = [
    Idiom("a schedule by a number in a tensor", model(lambda s, x, t: s.c(x) * s.alphas[t] + (1 -
          s.alphas[t]).sqrt(), c=conv(), alphas=lambda: nn.Buffer(torch.linspace(0.9, 0.1, 6))),
          at_steps(3, 0, 5, -1)),
    Idiom("a row of a parameter by a counter", model(lambda s, x: s.c(x) * s.w[s.step], c=conv(),
          w=parameter(3, 4), step=number(1)), train),
    Idiom("a ring of maps", model(ring, c=conv(), q=buffer(3, 4, 5, 4), ptr=number(1)), train),
    Idiom("a ring of maps by a counter", model(ring_by_counter, c=conv(), q=buffer(3, 4, 5, 4),
          step=number(1)), train, REFUSED),
    Idiom("a ring of maps without gradients", model(ring, c=conv(), q=buffer(3, 4, 5, 4),
          ptr=number(2)), infer),
    Idiom("a queue by a tensor", model(queue, c=conv(), q=buffer(4, 11), ptr=number(9)), train),
    Idiom("a queue by a number of a tensor", model(queue_by_number, c=conv(), q=buffer(4, 10),
          ptr=lambda: nn.Buffer(torch.zeros(1, dtype=torch.int64))), train, REFUSED,
          though=BY_NUMBER),
    Idiom("a view by a number that goes on", model(by_old_number, c=conv(), ptr=number(1)), train,
          REFUSED),
    of_step("y[:, t]", lambda y, t: y[:, t]),
    of_step("y[:, t] of int16", lambda y, t: y[:, t], at_steps(1, -2, dtype=torch.int16),
            REFUSED),
    of_step("y[t], y[t, u]", lambda y, t: y[t % 2] * y[t % 2, t % 4], at_steps(2, 3),
            REFUSED),
    of_step("y[..., t, None, :] and y[None, :, t]",
            lambda y, t: (y[..., t, None, :] * 2, y[None, :, t])),
    of_step("y[t, :, a list of places]", lambda y, t: y[0, :, torch.tensor([0, 2]), t]),
    of_step("select and torch.select by t", lambda y, t: y.select(-1, t) * torch.select(y, dim=-1,
            index=t)),
    of_step("y[:, t] = v", column),
    of_step("parts written to by t", places, expected=REFUSED),
    of_step("what t shows is written to", by_view),
    of_step("narrow by t", narrowed, at_steps(1, 0, 2)),
    of_step("a number of forward's own", lambda y, t: y[:, y.mean((0, 2, 3)).argmax()],
            expected=REFUSED),
    of_step("y[:, t] in an autograd.Function", lambda y, t: Column.apply(y, t)),
    of_step("y[:, t] in vmap", lambda y, t: torch.vmap(lambda row: row[t] * 2)(y)),
    of_step("y[:, t] in a checkpoint", checkpointed),
    of_step("y[:, t] where t goes on", lambda y, t: y[:, t], changed_between),
    of_step("y beside y[:, t]", lambda y, t: (y, y[:, t]), expected=REFUSED, though=SHARED),
    Idiom("a number of a buffer beside", model(lambda s, x, t: (s.c(x), s.q[t]), c=conv(),
          q=buffer(4)), at_steps(2, 0), REFUSED, though=SHARED),
    of_step("y[:, t:t + 1]", lambda y, t: y[:, t : t + 1], expected=REFUSED, though=BY_NUMBER),
]  # fmt: skip
