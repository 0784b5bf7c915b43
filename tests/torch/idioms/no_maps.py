"""Outputs of no, one or six axes that operations make of parameters, or layers.

The network holds their elements as a row.
"""

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.idioms.judge import Idiom
from tests.torch.idioms.models import conv, drawn, infer, model, train


class Scaled(torch.autograd.Function):
    """A map by a weight, and the norm of each image."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        y = x * w
        return y, y.flatten(1).norm(dim=1)

    @staticmethod
    def backward(ctx, dy, _):
        (w,) = ctx.saved_tensors
        return 2 * dy * w, None


def similarity(s, x):
    y = s.c(x)
    return y, F.cosine_similarity(y.mean((2, 3)), s.w.expand(len(x), 4))


def with_a_norm(s, x):
    y, norm = Scaled.apply(s.c(x), s.w[:, None, None])
    return y, norm.detach()


def distance(s, x):
    return F.pairwise_distance(s.c(x).mean((2, 3)), s.w[None]), s.d(x)


def product(s, x):
    return s.c(x).mean((2, 3)) @ s.w, s.d(x)


def all_of_it(s, x):
    return torch.tensordot(s.c(x).mean((2, 3)).mean(0), s.w, 1)


def six_axes(s, x):
    return torch.einsum("nchw,k->nchwk", s.c(x), s.w)[:, None]


def read_again(s, x):
    gate = s.c(x).mean((2, 3)) @ s.w
    return gate, s.d(x) * gate[:, None, None, None]


def of(name, f, steps=train):
    parts = {each: conv(padding=1) for each in ("c", "d")}
    parts["w"] = lambda: nn.Parameter(drawn(4, seed=5))
    return Idiom(f"no map: {name}", model(f, **parts), steps)


CASES = [
    of("a cosine similarity", similarity),
    of("a cosine similarity, without gradients", similarity, infer),
    of("a norm that a Function makes beside a map", with_a_norm),
    of("a distance", distance),
    of("a product with a vector", product),
    of("one number", all_of_it),
    of("six axes", six_axes),
    of("one that a layer reads, too", read_again),
]
