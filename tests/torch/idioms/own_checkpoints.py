"""Checkpoints and reversible blocks that people write as a `torch.autograd.Function`."""

from __future__ import annotations

import torch
from torch import nn

from tests.torch.idioms.judge import REFUSED, Idiom
from tests.torch.idioms.models import conv, model, train


class Checkpoint(torch.autograd.Function):
    """That of improved-diffusion, consistency_models and latent-diffusion."""

    @staticmethod
    def forward(ctx, run_function, length, *args):
        ctx.run_function = run_function
        ctx.input_tensors = list(args[:length])
        ctx.input_params = list(args[length:])
        with torch.no_grad():
            return ctx.run_function(*ctx.input_tensors)

    @staticmethod
    def backward(ctx, *output_grads):
        ctx.input_tensors = [x.detach().requires_grad_(True) for x in ctx.input_tensors]
        with torch.enable_grad():
            copies = [x.view_as(x) for x in ctx.input_tensors]
            output_tensors = ctx.run_function(*copies)
        input_grads = torch.autograd.grad(
            output_tensors, ctx.input_tensors + ctx.input_params, output_grads, allow_unused=True
        )
        del ctx.input_tensors
        del ctx.input_params
        del output_tensors
        return (None, None, *input_grads)


class Kept(Checkpoint):
    """The same, which deletes nothing."""

    @staticmethod
    def backward(ctx, *output_grads):
        inputs = [x.detach().requires_grad_(True) for x in ctx.input_tensors]
        with torch.enable_grad():
            outputs = ctx.run_function(*[x.view_as(x) for x in inputs])
        found = torch.autograd.grad(outputs, inputs + ctx.input_params, output_grads)
        return (None, None, *found)


class Reassigned(Checkpoint):
    """The same, which keeps on ctx what it has made."""

    @staticmethod
    def backward(ctx, *output_grads):
        ctx.input_tensors = [x.detach().requires_grad_(True) for x in ctx.input_tensors]
        with torch.enable_grad():
            outputs = ctx.run_function(*[x.view_as(x) for x in ctx.input_tensors])
        found = torch.autograd.grad(outputs, ctx.input_tensors + ctx.input_params, output_grads)
        return (None, None, *found)


class Block(nn.Module):
    """A block with a checkpoint of its own."""

    def __init__(self, function):
        super().__init__()
        self.c, self.n, self.function = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), function

    def forward(self, x):
        e = x.mean((2, 3), keepdim=True)
        return self.function.apply(self._forward, 2, x, e, *self.parameters())

    def _forward(self, x, e):
        return x + self.n(self.c(x)).relu() * e


class Reversed(torch.autograd.Function):
    """Reversible blocks, as of axial attention and reformers."""

    @staticmethod
    def forward(ctx, x, block):
        ctx.block = block
        with torch.no_grad():
            first, second = x.chunk(2, 1)
            y = torch.cat((first + block(second), second), 1)
        ctx.y = y.detach()
        return y

    @staticmethod
    def backward(ctx, dy):
        _, y2 = ctx.y.chunk(2, 1)
        d1, d2 = dy.chunk(2, 1)
        with torch.enable_grad():
            y2.requires_grad = True
            made = ctx.block(y2)
            torch.autograd.backward(made, d1)
        with torch.no_grad():
            return torch.cat((d1, d2 + y2.grad), 1), None


def small():
    return nn.Conv2d(2, 2, 3, padding=1)


CASES = (
    Idiom("a checkpoint of its own", lambda: nn.Sequential(conv()(), Block(Checkpoint)), train,
          REFUSED),
    Idiom("checkpoints of its own in a row",
          lambda: nn.Sequential(conv()(), *(Block(Checkpoint) for _ in range(3))), train, REFUSED),
    Idiom("checkpoints of its own that delete nothing, in a row",
          lambda: nn.Sequential(conv()(), *(Block(Reassigned) for _ in range(3))), train, REFUSED),
    Idiom("a checkpoint of its own that deletes nothing",
          lambda: nn.Sequential(conv()(), Block(Kept)), train, REFUSED),
    Idiom("a reversible block",
          model(lambda s, x: Reversed.apply(s.c(x), s.b), c=conv(), b=small), train, REFUSED),
)  # fmt: skip
