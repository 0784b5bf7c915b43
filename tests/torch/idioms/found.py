"""Idioms that helpers found when they looked for what is wrong in silence."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.idioms.judge import EQUAL_SINCE_2_13, REFUSED, Idiom
from tests.torch.idioms.models import (
    conv,
    drawn,
    forward,
    held,
    image,
    infer,
    leaf,
    model,
    of_conv,
    train,
    training_on,
)

BY_DATA = "a shape that depends on data: nothing can be planned for it"
SECOND = "a derivative of a derivative"
WRITTEN = "PyTorch's gradients are of the new numbers"
SHARED = "it shares memory with what forward has written to"


def mask():
    return drawn(2, 1, 5, 4, seed=5) > 0


def normalised(y):
    """Over channels, as ConvNeXt's LayerNorm2d spells it."""
    mean = y.mean(1, keepdim=True)
    variance = (y - mean).pow(2).mean(1, keepdim=True)
    return (y - mean) / torch.sqrt(variance + 1e-6)


def rectified_and_written(y, x):
    z = F.leaky_relu_(y, 0.1)
    z.data.mul_(-1.3)
    return z


def counted(s, x, mask):
    """A sum over the batch of what meets a map of images later."""
    y = s.c(x) / (1 + mask.sum())
    return y.masked_fill(mask, -1e4).softmax(1)


def weighed(s, x, mask):
    """The same along the axis of images, in float64, in an operation that PyTorch computes."""
    weights = mask.double()
    return (torch.sort(s.c(x) * weights.sum(0, keepdim=True)).values * weights).float()


def carried(s, x):
    """A state whose history goes on in a buffer: backward through two calls."""
    h = torch.tanh(s.c(x) + 0.5 * s.h.clone())
    s.h.copy_(h)
    return h


def followed(s, x):
    y = s.c(x)
    s.m.mul_(0.9).add_(y.mean((0, 2, 3), keepdim=True), alpha=0.1)
    return y - s.m


def over_two_calls(run):
    for seed in (0, 2):
        first = run(image(seed)).square().mean()
        run.backward(first + run(image(seed + 1)).square().mean())
        for buffer in run.model.buffers():
            buffer.detach_()


def over_four_calls(run):
    train(run, calls=4)


def normalized(y):
    return torch.native_group_norm(y, None, None, y.shape[0], 4, y[0, 0].numel(), 2, 1e-5)


def by_its_statistics(y, x):
    z, mean, rstd = normalized(y)
    return z, mean * rstd


def by_its_statistics_alone(y, x):
    z, mean, rstd = (each.detach() for each in normalized(y))
    return y * rstd.mean() + z + mean.mean()


def layers_of_integers(y, x):
    n = (4 * x).long()
    return (
        y,
        F.max_pool2d(n, 2, dilation=2),
        F.avg_pool1d(n.flatten(2), 2),
        F.linear(n, n[0, 0, :3]),
        F.conv2d(n, n[:2, :, :2, :2], padding=1),
    )


def squashed(y, x):
    y = torch.sigmoid(y)
    y.data.clamp_(0.3, 0.7)
    return y


def shifted(y, x):
    z = y * y
    y.data.add_(1)
    return z


def bounded_at_once(y, x):
    """No gradient needs the convolution's result."""
    y.data.clamp_(-0.1, 0.1)
    return y.sum((2, 3))


def lerped(s, x):
    z = s.c(x) / s.b
    s.b.data.lerp_(torch.ones(4, 1, 1), 0.5)
    return z


def clipped_late(s, x):
    y = F.linear(s.c(x).mean((2, 3)), s.w)
    s.w.data.clamp_(-0.1, 0.1)
    return y


def row_written(s, x):
    y = s.c(x)
    s.b[0] = y.detach().mean()
    return y, s.b[0]


def half_written(y, x):
    z = y[:, :2]
    z.mul_(2)
    return y, z


def banked(s, x):
    y = s.c(x)
    s.q.append(y.detach().mean())
    return y + sum(s.q)


def spread(s, x):
    """A tensor of its own, filled with one number."""
    w = torch.zeros(4)
    w.copy_(s.w.detach().mean())
    return s.c(x), w


def written_after(run):
    for seed in range(2):
        y, w = run(leaf(image(seed)))
        w[0] = 5.0
        run.backward(y.sum())
        run.note(w)


def encoder(**how):
    layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    return lambda: nn.TransformerEncoder(layer, 1, **how).eval().requires_grad_(False)


def padded(s, x):
    """A frozen encoder in a model that is trained."""
    y = s.c(x).flatten(2).transpose(1, 2)
    beyond = torch.arange(y.shape[1])[None] >= torch.tensor([[20], [11]])
    return s.h(s.e(y.detach(), src_key_padding_mask=beyond).mean(1))


def kendall(s, x):
    """Losses weighed by parameters."""
    y = s.c(x)
    losses = (y.square().mean(), F.mse_loss(y, x[:, :, 1:-1, 1:-1]))
    return sum(torch.exp(-s.w[at]) * each + s.w[at] for at, each in enumerate(losses))


def energy(s, x):
    """A model whose output is a gradient: forces from an energy."""
    return torch.func.grad(lambda z: s.c(z).square().sum())(x)


def pushed(s, x):
    return torch.func.jvp(s.c, (x,), (torch.ones_like(x),))[1]


def without_hooks(s, x):
    with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
        return s.c(x).sin()


def attended(y, x):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(y, y, y)


def attended_where_positive(y, x):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        y = F.scaled_dot_product_attention(y, y, y)
        return y[y > 0]


def positive_in_inference_mode(s, x):
    with torch.inference_mode():
        y = s.c(x)
        return y[y > 0]


def without_hooks_where_positive(y, x):
    with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
        return y[y > 0]


def flagged(s, x):
    s.step += 1
    s.warm = s.step > 2
    return s.c(x)


def by_random_array(y, x):
    return y * torch.from_numpy(np.random.rand(4, 1, 1))  # noqa: NPY002 - as people write it


def counted_by_numpy(s, x):
    s.k = s.k + np.int64(1)
    return s.c(x)


def by_array(make):
    """A map times what NumPy makes of the numbers from 1 on."""
    return lambda y, x: y * torch.from_numpy(make(np.arange(1, 5))).reshape(4, 1, 1)


def taught(s, x):
    """A teacher that follows in forward has no gradient, which is not a gradient of 0."""
    with torch.no_grad():
        for each in s.t.parameters():
            each.mul_(0.9)
    return s.c(x) + s.t(x).detach()


def taught_by_data(s, x):
    s.t.weight.data.mul_(0.9)
    return s.c(x) + F.linear(x.mean((2, 3)), s.t.weight).detach()[:, :, None, None]


def written_in_vain(s, x):
    with torch.no_grad():
        s.t.bias.mul_(0.9)
    return s.c(x), s.t(x)


class NoGradient(torch.autograd.Function):
    """Is of no use to what it reads."""

    @staticmethod
    def forward(ctx, y):
        return y * 2

    @staticmethod
    def backward(ctx, gradient):
        return None


class Heads(torch.autograd.Function):
    """Looks which of its results have gradients."""

    @staticmethod
    def forward(ctx, y):
        ctx.set_materialize_grads(False)
        return y * 2, y * 3

    @staticmethod
    def backward(ctx, a, b):
        return a * 5 if b is None else b * 7 if a is None else a + b


class Head(Heads):
    @staticmethod
    def forward(ctx, y):
        ctx.set_materialize_grads(False)
        return y * 2

    @staticmethod
    def backward(ctx, a):
        return None if a is None else a * 5


class ReluInPlace(torch.autograd.Function):
    """Changes what it is given, and hands that on."""

    @staticmethod
    def forward(ctx, y):
        ctx.mark_dirty(y)
        y.clamp_(min=0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (y > 0) * 2


class ScaledInPlace(torch.autograd.Function):
    """Changes the second alone."""

    @staticmethod
    def forward(ctx, a, y, w):
        ctx.mark_dirty(y)
        ctx.save_for_backward(w)
        y.mul_(w)
        return a * 2, y

    @staticmethod
    def backward(ctx, a, y):
        return a * 2, y * ctx.saved_tensors[0], None


def scaled_in_place(s, x):
    y = s.c(x)
    z = y * 1
    a, b = ScaledInPlace.apply(y.relu(), z, s.w)
    return a * b, b + z.sin()


def part_in_place(y, x):
    z = ReluInPlace.apply(y[:, :2])
    return y * 1, z * 2


def of_first(run):
    for seed in range(2):
        y, _ = run(image(seed))
        run.backward(y.square().sum())


def with_none(run):
    """Backward comes to outputs without a gradient."""
    y, *others = run(image())
    run.backward(y.square().sum() + sum(NoGradient.apply(each).sum() for each in others))


def gathered_halves(s, x):
    """What is empty counts for the dtype."""
    y = s.c(x)
    wide = torch.hstack([torch.zeros(2, 0, dtype=torch.float64), y.mean((2, 3))])
    return torch.cat([torch.empty(0), y.bfloat16().flatten()]), wide


def gathered_numbers(s, x):
    many = torch.cat([torch.empty(0), (x > 0).long().flatten()])
    return s.c(x), many, torch.cat([x.new_zeros(2, 0, 7, 6, dtype=torch.float64), x], 1)


def added_in_half(s, x):
    """What is wider is rounded to what it is added to."""
    with torch.autocast("cpu", torch.bfloat16):
        y = s.c(x)
        y += x
        z = s.c(x)
        z.sub_(y.float()).relu_()
    return y, z.float().sin()


def none_of_a_layer(s, x):
    """What is empty has a gradient of zeros, and not None; -0 stays -0."""
    y = torch.cat([s.t(x)[:, :0], s.c(x).relu() * -1], 1)
    return y, torch.atan2(y, y.detach() - 1), torch.cat([s.p, y.mean((2, 3))[0]])


def labels_of_the_input(s, x):
    """Made of an input alone, which has a gradient that goes another way."""
    y = s.c(x)
    return F.cross_entropy(y, x.argmax(1)), x.argsort(2), x[:, 0] > 0, x[:, :2].detach()


def nearest(s, x, q):
    return torch.quantile(s.c(x), q, dim=1, interpolation="nearest")


def between_two(s, x, q):
    return torch.quantile(s.c(x), q, dim=1)


def tokens(s, x, mask):
    """A vector in place of what a mask covers, as masked autoencoders do."""
    y = s.c(x).flatten(2).transpose(1, 2)
    y[mask] = s.w
    return y


def channels_masked(s, x, mask):
    y = s.c(x).clone()
    y[:, mask] = s.w[:, None, None, None].sum(0)
    return y


def added_by_mask(s, x, mask, v):
    return s.c(x).index_put((mask,), v, accumulate=True)


def put_by_mask(s, x, mask, v):
    return s.c(x).index_put((mask,), v)


def hinged(s, x, y):
    return F.hinge_embedding_loss(s.c(x), y, reduction="none")


of_quantiles = training_on(image, torch.tensor([0.2, 0.7]))
by_an_argument = training_on(image, drawn(4))


def numbers(*shape):
    return lambda: nn.Parameter(drawn(*shape, seed=3))


def buffer(*shape):
    return lambda: nn.Buffer(torch.full(shape, 2.0))


CASES = [
    Idiom("a mask summed over the batch, then met", model(counted, c=conv()),
          training_on(image, mask)),
    Idiom("weights summed over the batch, then met", model(weighed, c=conv()),
          training_on(image, mask)),
    Idiom("a state that is carried with its history", model(carried, c=conv(padding=1),
          h=buffer(2, 4, 7, 6)), over_two_calls),
    Idiom("an average that is followed with its history", model(followed, c=conv(),
          m=buffer(1, 4, 1, 1)), over_two_calls),
    of_conv(".data of what a sigmoid has made", squashed, REFUSED, though=WRITTEN),
    of_conv(".data of what a product has read", shifted, REFUSED, though=WRITTEN),
    of_conv(".data of what no gradient needs", bounded_at_once),
    Idiom(".data of a buffer that was read", model(lerped, c=conv(), b=buffer(4, 1, 1)), train,
          REFUSED, though=WRITTEN),
    Idiom(".data of a weight that was read", model(clipped_late, c=conv(), w=numbers(3, 4)), train,
          REFUSED, though=WRITTEN),
    Idiom("a row of a buffer that was written to", model(row_written, c=conv(), b=buffer(2, 4)),
          train, REFUSED, though=SHARED),
    of_conv("a part that was written to, beside the whole", half_written, REFUSED, though=SHARED),
    Idiom("two views of a buffer", model(lambda s, x: (s.c(x), s.b[1:], s.b[:1]), c=conv(),
          b=buffer(2, 4)), train),
    Idiom("a deque that forgets", model(banked, c=conv(), q=lambda: deque(maxlen=2)), train,
          REFUSED, though="in other writes TorchDynamo has it forget nothing"),
    Idiom("random.Random on the model", model(lambda s, x: s.c(x) * s.r.random(), c=conv(),
          r=lambda: random.Random(3)), train, REFUSED),
    Idiom("random.Random of each call", model(lambda s, x: s.c(x) * random.Random(3).random(),
          c=conv()), train),
    Idiom("copy_ of one number", model(spread, c=conv(), w=numbers(4)), written_after),
    Idiom("an encoder with padding, in evaluation", model(padded, c=conv(), e=encoder(),
          h=lambda: nn.Linear(4, 3)), train, REFUSED),
    Idiom("the same without nested tensors", model(padded, c=conv(),
          e=encoder(enable_nested_tensor=False), h=lambda: nn.Linear(4, 3)), train),
    Idiom("losses weighed by parameters", model(kendall, c=conv(), w=numbers(2)), train),
    Idiom("a number of a map beside a vector", model(lambda s, x: s.w + s.c(x).mean(), c=conv(),
          w=numbers(4)), train),
    Idiom("torch.func.grad within forward", model(energy, c=conv()), train, REFUSED,
          though=SECOND),
    Idiom("torch.func.jvp within forward", model(pushed, c=conv()), train, REFUSED, though=SECOND),
    Idiom("disabled hooks of saved tensors", model(without_hooks, c=conv()), train),
    of_conv("attention by one kernel", attended),
    of_conv("a refusal within sdpa_kernel", attended_where_positive, REFUSED, though=BY_DATA),
    of_conv("a refusal where hooks are disabled", without_hooks_where_positive, REFUSED,
            though=BY_DATA),
    Idiom("a refusal within inference_mode", model(positive_in_inference_mode, c=conv()), forward,
          REFUSED, though=BY_DATA),
    Idiom("a flag of a counter", model(flagged, c=conv(), step=held(0)), over_four_calls),
    of_conv("an array of numpy.random", by_random_array, REFUSED),
    Idiom("a counter that is a NumPy scalar", model(counted_by_numpy, c=conv(),
          k=held(np.int64(1))), train, REFUSED),
    of_conv("NumPy: integers over an integer", by_array(lambda a: a / 7), REFUSED),
    of_conv("NumPy: integers over a float", by_array(lambda a: a / 7.0),
            computed_in=torch.float32),
    of_conv("NumPy: one of two numbers", by_array(lambda a: np.where(a > 2, 1.0, 0.5)), REFUSED),
    of_conv("NumPy: a reciprocal of integers", by_array(np.reciprocal), REFUSED),
    of_conv("NumPy: a bell", by_array(lambda a: np.exp(-(a**2) / 2.0)),
            computed_in=torch.float32),
    of_conv("NumPy: a scalar as a factor", lambda y, x: y * np.sqrt(x.shape[1])),
    Idiom("a teacher written to", model(taught, c=conv(padding=1), t=conv(padding=1)), train),
    Idiom("a teacher written to, linear", model(taught_by_data, c=conv(),
          t=lambda: nn.Linear(4, 4)), train),
    Idiom("a teacher written to, of two normalizations", model(taught, c=conv(padding=1),
          t=lambda: nn.Sequential(nn.BatchNorm2d(4), nn.GroupNorm(2, 4))), train),
    Idiom("a layer written to that no loss needs", model(written_in_vain, c=conv(), t=conv()),
          of_first),
    Idiom("outputs whose readers give no gradient", model(lambda s, x: (s.c(x), s.t(x), s.w * 2),
          c=conv(), t=conv(), w=numbers(3)), with_none),
    Idiom("empty parts of wider dtypes", model(gathered_halves, c=conv()), train,
          computed_in=torch.float32),
    Idiom("empty parts beside integers", model(gathered_numbers, c=conv()),
          training_on(image)),
    Idiom("an empty part of a parameter", model(lambda s, x: torch.cat([s.c(x), s.w[:, :0]], 1),
          c=conv(), w=numbers(2, 3, 5, 4)), train),
    Idiom("an empty part of a layer", model(none_of_a_layer, c=conv(), t=conv(), p=numbers(0)),
          train),
    Idiom("a wider one added in place", model(added_in_half, c=conv(padding=1)), train,
          computed_in=torch.bfloat16),
    Idiom("labels made of the input", model(labels_of_the_input, c=conv(padding=1)), train),
    of_conv("sums of the input beside", lambda y, x: (y, x.cumsum(1), x.sort(1))),
    of_conv("a dirty input", lambda y, x: (ReluInPlace.apply(y), y * 2)[1], EQUAL_SINCE_2_13),
    of_conv("a dirty input that is a part", part_in_place, EQUAL_SINCE_2_13),
    Idiom(
        "a dirty input of several", model(scaled_in_place, c=conv(), w=numbers(4, 1, 1)), train,
        EQUAL_SINCE_2_13),
    of_conv("layers of integers", layers_of_integers),
    of_conv("statistics of a group normalization", by_its_statistics, REFUSED,
            though="PyTorch's gradients hang on which of them are used"),
    of_conv("statistics of a group normalization, detached", by_its_statistics_alone),
    of_conv("statistics of a group normalization, without gradients", by_its_statistics,
            steps=infer),
    of_conv("a backward that looks for None", lambda y, x: Heads.apply(y)[0], REFUSED),
    of_conv("the same without gradients", lambda y, x: Heads.apply(y)[0], steps=infer),
    Idiom("a quantile's place, which has no gradient", model(nearest, c=conv()), of_quantiles,
          EQUAL_SINCE_2_13),
    Idiom("a quantile's place, which has one", model(between_two, c=conv()), of_quantiles,
          EQUAL_SINCE_2_13),
    Idiom("a vector at the places of a mask", model(tokens, c=conv(), w=numbers(4)),
          training_on(image, drawn(2, 20) > 0)),
    Idiom("one number in channels of a mask", model(channels_masked, c=conv(), w=numbers(4)),
          training_on(image, drawn(4) > 0)),
    Idiom("a number added at the places of a mask", model(added_by_mask, c=conv()),
          training_on(image, drawn(2, 4, 5, 4) > 0, torch.tensor(2.0))),
    Idiom("a row added in images of a mask", model(added_by_mask, c=conv()),
          training_on(image, torch.tensor([True, False]), drawn(1, 4, 1, 4))),
    Idiom("rows put in images of a mask", model(put_by_mask, c=conv()),
          training_on(image, torch.tensor([True, True]), drawn(2, 4, 5, 4)), REFUSED,
          though=BY_DATA),
    Idiom("a target without a gradient", model(hinged, c=conv(padding=1)),
          training_on(image, image(1).sign())),
    Idiom("a map that is asked for a sign alone", model(lambda s, x: F.hinge_embedding_loss(s.c(x),
          s.d(x), reduction="none"), c=conv(), d=conv()), train),
    Idiom("a map filled with a number, not in place", model(lambda s, x: (s.c(x),
          torch.fill(x, 5.0)), c=conv()), train),
    of_conv("what a layer makes filled with a number", lambda y, x: torch.fill(y, 5.0) * x.mean()),
    Idiom("group normalization by an argument", model(lambda s, x, w, b: F.group_norm(s.c(x), 2, w,
          b), c=conv()), training_on(image, drawn(4), drawn(4, seed=1))),
    Idiom("layer normalization by an argument", model(lambda s, x, w: F.layer_norm(s.c(x), (4,), w),
          c=conv()), by_an_argument),
    Idiom("instance normalization by an argument", model(lambda s, x, w: F.instance_norm(s.c(x),
          None, None, w), c=conv()), by_an_argument),
    Idiom("batch normalization by an argument", model(lambda s, x, w: F.batch_norm(s.c(x), None,
          None, w, training=True), c=conv()), by_an_argument),
    Idiom("the same by running statistics", model(lambda s, x, w: F.batch_norm(s.c(x), s.m, s.v,
          w), c=conv(), m=buffer(4), v=buffer(4)), by_an_argument),
    Idiom("the same with running statistics", model(lambda s, x, w: F.batch_norm(s.c(x), s.m, s.v,
          w, training=True), c=conv(), m=buffer(4), v=buffer(4)), by_an_argument, REFUSED,
          though="the library updates running statistics with its own normalization alone"),
    of_conv("a backward of one result that looks for None", lambda y, x: Head.apply(y)),
    Idiom("a map of whole numbers, normalised by hand", model(lambda s, x: s.c(normalised(
          (s.c(x) * 10).int().float())), c=conv(4, 4, padding=1)), train),
    of_conv("labels that are normalised by hand", lambda y, x: normalised((y * 9).long().double())),
    Idiom("a map that was rounded to half, normalised by hand", model(lambda s, x: normalised(
          (100 * s.c(x)).half().float()), c=conv()), train, computed_in=torch.float16),
    Idiom("a map that is made wider, normalised by hand", model(lambda s, x: normalised(
          s.c(x).double()), c=conv()), train, computed_in=torch.float32),
    of_conv("data written over what leaky_relu makes in place", rectified_and_written, REFUSED,
            though="its gradient needs what it made"),
]  # fmt: skip
