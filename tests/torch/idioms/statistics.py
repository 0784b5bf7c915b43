"""Idioms of norms and buffers: running statistics, moving averages, reparametrised weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, spectral_norm, weight_norm

from tests.torch.idioms.judge import REFUSED, Idiom
from tests.torch.idioms.models import changed, conv, drawn, image, model, train


def norm(**how):
    return lambda: nn.BatchNorm2d(4, **how)


def normed_zeros(self, x):
    """What is normalized depends on no input."""
    y = self.c(x)
    self.n(torch.zeros_like(y))
    return y - self.n.running_var.clone().view(1, -1, 1, 1)


def after_a_norm(**how):
    return model(lambda s, x: s.n(s.c(x)), c=conv(), n=norm(**how))


def unused(s, x):
    s.bn(x)
    return s.c(x)


def frozen_norm(s, x):
    s.n.eval()
    return s.n(s.c(x))


class Frozen(nn.Module):
    """Batch normalization by buffers alone, as detectors have it."""

    def __init__(self, channels):
        super().__init__()
        for name, value in (("weight", 1.5), ("bias", 0.1), ("mean", 0.2), ("var", 0.7)):
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x):
        scale = self.weight * (self.var + 1e-5).rsqrt()
        shift = self.bias - self.mean * scale
        return x * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1)


class StandardConv(nn.Conv2d):
    """Weight standardization."""

    def forward(self, x):
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        weight = (self.weight - mean) / torch.sqrt(variance + 1e-5)
        return F.conv2d(x, weight, self.bias)


class Normed(nn.Conv2d):
    """timm's weight standardization, by batch normalization of the weight."""

    def forward(self, x):
        weight = F.batch_norm(
            self.weight.reshape(1, self.out_channels, -1), None, None, training=True, momentum=0.0
        ).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias)


class Averaged(nn.Module):
    """A moving average of what passes."""

    def __init__(self):
        super().__init__()
        self.c = conv()()
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        y = self.c(x)
        if self.training:
            with torch.no_grad():
                self.average.mul_(0.9).add_(y.mean((0, 2, 3)), alpha=0.1)
                self.steps += 1
        return y - self.average[:, None, None]


class Replaced(nn.Module):
    """A buffer that is assigned, not written."""

    def __init__(self):
        super().__init__()
        self.c = conv()()
        self.register_buffer("center", torch.zeros(1, 4, 1, 1), persistent=False)

    def forward(self, x):
        y = self.c(x)
        self.center = self.center * 0.9 + y.detach().mean((0, 2, 3), keepdim=True) * 0.1
        return y - self.center


class Codebook(nn.Module):
    """Vector quantization with codes that follow the inputs by a moving average (VQ-VAE)."""

    def __init__(self, codes=5, channels=4):
        super().__init__()
        self.c = conv()()
        self.register_buffer("codes", drawn(codes, channels))
        self.register_buffer("count", torch.ones(codes))
        self.register_buffer("total", self.codes.clone())

    def forward(self, x):
        y = self.c(x)
        flat = y.permute(0, 2, 3, 1).reshape(-1, 4)
        nearest = torch.cdist(flat, self.codes).argmin(1)
        taken = F.embedding(nearest, self.codes)
        quantized = taken.view(y.shape[0], *y.shape[2:], 4).permute(0, 3, 1, 2)
        if self.training:
            hot = F.one_hot(nearest, len(self.codes)).type(flat.dtype)
            self.count.data.mul_(0.9).add_(hot.sum(0), alpha=0.1)
            self.total.data.mul_(0.9).add_(hot.t() @ flat.detach(), alpha=0.1)
            self.codes.data.copy_(self.total / self.count.unsqueeze(1))
        commitment = F.mse_loss(y, quantized.detach())
        return y + (quantized - y).detach(), commitment, nearest


class Momentum(nn.Module):
    """A teacher whose parameters follow those of the student in forward (MoCo, BYOL)."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = conv()(), conv()()
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            parameters = zip(self.student.parameters(), self.teacher.parameters(), strict=True)
            for own, of_teacher in parameters:
                of_teacher.data = of_teacher.data * 0.9 + own.data * 0.1
            target = self.teacher(x)
        return self.student(x + 1), target


class Queue(nn.Module):
    """A queue of what was seen, written at a pointer that moves."""

    def __init__(self):
        super().__init__()
        self.c = conv()()
        self.register_buffer("queue", torch.zeros(6, 4))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        keys = self.c(x).mean((2, 3))
        scores = keys @ self.queue.clone().t()
        with torch.no_grad():
            at = (self.place + torch.arange(len(keys))) % 6
            self.queue[at] = keys.detach()
            self.place.copy_((self.place + len(keys)) % 6)
        return keys, scores


class Symmetric(nn.Module):
    def forward(self, weight):
        return (weight + weight.flip(-1)) / 2


def renorm(s, x):
    s.c.weight.data = torch.renorm(s.c.weight.data, 2, 0, 0.1)
    return s.c(x)


def clamped(s, x):
    with torch.no_grad():
        s.c.weight.clamp_(-0.1, 0.1)
    return s.c(x)


def shared_norm(s, x):
    return s.n(s.c(x)) + s.n(s.d(x) * 2)


def parametrized():
    part = conv()()
    parametrize.register_parametrization(part, "weight", Symmetric())
    return part


def then_eval(run):
    train(run)
    run.model.eval()
    train(run)
    run.model.train()
    train(run)


def first_eval(run):
    run.model.eval()
    train(run)


def of(name, f=None, **parts):
    make = model(f or (lambda s, x: s.c(x)), **parts)
    return Idiom(name, make, train)


CASES = [
    of("batch norm whose result nobody needs", unused, c=conv(), bn=norm()),
    of(
        "running_mean read after its batch norm",
        lambda s, x: (s.bn(x), s.bn.running_mean * 1),
        bn=norm(),
    ),
    of(
        "instance norm and batch norm of one map, whose average is read",
        lambda s, x: (s.one(x) + s.bn(x), s.bn.running_mean * 1, s.one.running_var * 1),
        one=lambda: nn.InstanceNorm2d(4, track_running_stats=True),
        bn=norm(),
    ),
    of(
        "running_mean read before its batch norm",
        lambda s, x: (s.bn.running_mean * 1, s.bn(x))[::-1],
        bn=norm(),
    ),
    of(
        "x - running_mean beside its batch norm",
        lambda s, x: s.c(s.bn(x) + x - s.bn.running_mean.view(1, 4, 1, 1)),
        c=conv(),
        bn=norm(),
    ),
    of(
        "running_var as an output",
        lambda s, x: (s.bn(s.c(x)), s.bn.running_var),
        c=conv(),
        bn=norm(),
    ),
    Idiom("batch norm, trained, evaluated, trained", after_a_norm(), then_eval),
    Idiom("batch norm in eval, with gradients", after_a_norm(), first_eval),
    Idiom("batch norm without affine", after_a_norm(affine=False), then_eval),
    Idiom("batch norm that tracks nothing", after_a_norm(track_running_stats=False), then_eval),
    Idiom("batch norm with momentum None", after_a_norm(momentum=None), then_eval, REFUSED),
    Idiom("batch norm with momentum 0", after_a_norm(momentum=0.0), then_eval),
    Idiom("batch norm with momentum 1", after_a_norm(momentum=1.0), then_eval),
    Idiom(
        "batch norm whose momentum changes",
        after_a_norm(),
        changed(lambda q: setattr(q.n, "momentum", 0.5)),
    ),
    Idiom(
        "batch norm whose eps changes",
        after_a_norm(),
        changed(lambda q: setattr(q.n, "eps", 0.5)),
    ),
    Idiom(
        "batch norm whose statistics are reset between",
        after_a_norm(),
        changed(lambda q: q.n.reset_running_stats()),
    ),
    of("batch norm called twice", shared_norm, c=conv(), d=conv(), n=norm()),
    of("batch norm set to eval in forward", frozen_norm, c=conv(), n=norm()),
    of(
        "frozen batch norm of buffers",
        lambda s, x: s.n(s.c(x)),
        c=conv(),
        n=lambda: Frozen(4),
    ),
    of(
        "F.batch_norm with buffers of the model's own",
        lambda s, x: F.batch_norm(s.c(x), s.mean, s.var, training=True, momentum=0.3),
        c=conv(),
        mean=lambda: nn.Buffer(torch.zeros(4)),
        var=lambda: nn.Buffer(torch.ones(4)),
    ),
    of(
        "instance norm with running statistics",
        lambda s, x: s.n(s.c(x)),
        c=conv(),
        n=lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    ),
    of(
        "group norm and layer norm",
        lambda s, x: s.l(s.g(s.c(x)).permute(0, 2, 3, 1)),
        c=conv(),
        g=lambda: nn.GroupNorm(2, 4),
        l=lambda: nn.LayerNorm(4),
    ),
    of("weight_norm of old", c=lambda: weight_norm(conv()())),
    of("weight_norm, parametrized", c=lambda: parametrizations.weight_norm(conv()())),
    Idiom(
        "spectral_norm of old",
        model(lambda s, x: s.c(x), c=lambda: spectral_norm(conv()())),
        then_eval,
    ),
    Idiom(
        "spectral_norm, parametrized",
        model(lambda s, x: s.c(x), c=lambda: parametrizations.spectral_norm(conv()())),
        then_eval,
    ),
    of(
        "orthogonal, parametrized",
        lambda s, x: s.l(s.c(x).mean((2, 3))),
        c=conv(),
        l=lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    ),
    of("a parametrization of one's own", c=parametrized),
    of("weight standardization", c=lambda: StandardConv(4, 4, 3)),
    of("weight standardization by batch norm", c=lambda: Normed(4, 4, 3)),
    of("weight.data = renorm(weight.data)", renorm, c=conv()),
    of("weight.clamp_ in forward", clamped, c=conv()),
    of("a norm of zeros, and its statistics", normed_zeros, c=conv(), n=norm()),
    Idiom("a moving average in a buffer", Averaged, then_eval),
    Idiom("a buffer that is assigned", Replaced, train),
    Idiom("a codebook that follows (VQ-VAE)", Codebook, then_eval),
    Idiom("a teacher that follows (MoCo)", Momentum, train),
    Idiom("a queue of keys", Queue, train),
    Idiom(
        "statistics recomputed by a loop (update_bn)",
        after_a_norm(momentum=0.1),
        lambda run: (
            torch.optim.swa_utils.update_bn([image(1), image(2)], run.model),
            run(image(3)),
        ),
        REFUSED,  # it sets momentum to None for a while
    ),
    Idiom(
        "a buffer's values set between",
        model(lambda s, x: s.c(x) * s.b, c=conv(), b=lambda: nn.Buffer(torch.ones(4, 1, 1))),
        changed(lambda q: q.b.fill_(3.0)),
    ),
]
