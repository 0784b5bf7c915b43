"""Idioms of gradients: hooks of tensors, detach, no_grad, frozen parts, checkpoints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.torch.idioms.judge import REFUSED, Idiom
from tests.torch.idioms.models import (
    conv,
    drawn,
    held,
    image,
    infer,
    leaf,
    model,
    train,
    training_on,
)


def hooked(scale):
    def f(s, x):
        y = s.c(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * scale)
        return s.d(y)

    return f


def looked_at(s, x):
    y = s.c(x)
    if y.requires_grad:
        y.register_hook(lambda gradient: s.seen.append(gradient.norm()))
    return y


def input_hooked(s, x):
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    return s.c(x)


def retained(s, x):
    s.features = s.c(x)
    if s.features.requires_grad:
        s.features.retain_grad()
    return s.d(s.features)


def statistic(s, x):
    with torch.no_grad():
        scale = x.abs().amax()
    return s.c(x / scale)


@torch.no_grad()
def targets_of(teacher, x):
    return teacher(x)


def distilled(s, x):
    return s.c(x), targets_of(s.t, x)


def enabled_within(s, x):
    with torch.no_grad():
        y = s.c(x)
        with torch.enable_grad():
            z = s.d(x)
    return y + z


def switched(s, x):
    with torch.set_grad_enabled(s.tune):
        y = s.c(x)
    return s.d(y)


def inference_island(s, x):
    with torch.inference_mode():
        scale = float(1 / x.shape[1])
        gate = torch.sigmoid(x.mean()) * scale
    return s.c(x) * gate.clone()


def frozen(s, x):
    return s.d(s.c(x))


def freeze(parts):
    parts.requires_grad_(False)
    return parts


def flip(run):
    train(run)
    run.model.c.requires_grad_(False)
    train(run)
    run.model.c.requires_grad_(True)
    run.model.d.bias.requires_grad_(False)
    train(run)


def requires_grad_in_forward(s, x):
    z = s.c(x).detach().requires_grad_()
    return s.d(z)


def gradient_in_forward(s, x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        energy = s.c(x).square().sum()
        (force,) = torch.autograd.grad(energy, x)
    return force


def penalty(run):
    x = leaf(image())
    y = run(x)
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    run.backward((gradient.norm() - 1).square())


def straight_by_detach(s, x):
    y = s.c(x)
    return s.d(y + (y.round() - y).detach())


def blocks():
    return nn.Sequential(conv(padding=1)(), nn.ReLU(), conv(padding=1)(), nn.ReLU(), conv()())


def checkpointed(reentrant):
    return lambda s, x: s.d(checkpoint(s.c, x, use_reentrant=reentrant))


def hook_removed(s, x):
    y = s.c(x)
    y.register_hook(lambda gradient: gradient * 2)
    handle = y.register_hook(lambda gradient: gradient * 3)
    z = y * 4
    handle.remove()
    return z + y


def counted_in_a_checkpoint(s, x):
    def body(y):
        s.n += 1
        return s.c(y).sin()

    return checkpoint(body, x, use_reentrant=False)


def checkpointed_without_gradient(s, x):
    y = s.c(x)
    return y + checkpoint(s.d, y.detach(), use_reentrant=True)


def penalized(self, x):
    y = self.c(x)
    return F.mse_loss(y, torch.zeros_like(y)) + 0.1 * sum(
        p.square().sum() for p in self.parameters()
    )


def modes():
    return nn.Parameter(drawn(4, 4, 2, 2, 2))


def spectral(self, x):
    y = self.c(x)
    found = torch.fft.rfft2(y)
    made = torch.zeros_like(found)
    made[:, :, :2, :2] = torch.einsum(
        "bihw,iohw->bohw", found[:, :, :2, :2], torch.view_as_complex(self.w)
    )
    return y + torch.fft.irfft2(made, s=y.shape[-2:])


def kept_gradient(run):
    y = run(image())
    y.register_hook(lambda gradient: gradient * 3)
    y.retain_grad()
    run.backward(y.square().sum())
    run.note(y.grad)


CASES = [
    Idiom("a tensor's hook that replaces", model(hooked(0.1), c=conv(), d=conv()), train),
    Idiom("a tensor's hook that looks", model(looked_at, c=conv(), seen=list), train, REFUSED),
    Idiom("an input's hook", model(input_hooked, c=conv()), train),
    Idiom("retain_grad within forward", model(retained, c=conv(), d=conv()), train, REFUSED),
    Idiom(
        "a detached branch has no gradient",
        model(lambda s, x: s.c(x).detach() + s.d(x), c=conv(), d=conv()),
        train,
    ),
    Idiom(
        "detach between two layers",
        model(lambda s, x: s.d(s.c(x).detach()), c=conv(), d=conv()),
        train,
    ),
    Idiom(
        "a hard mask of a layer",
        model(lambda s, x: s.d((s.e(x) > 0).float()), d=conv(), e=conv()),
        train,
    ),
    Idiom("straight through by detach", model(straight_by_detach, c=conv(), d=conv()), train),
    Idiom("no_grad around a statistic", model(statistic, c=conv()), train),
    Idiom("a function decorated by no_grad", model(distilled, c=conv(), t=conv()), train),
    Idiom("enable_grad within no_grad", model(enabled_within, c=conv(), d=conv()), train),
    Idiom(
        "set_grad_enabled by a flag",
        model(switched, c=conv(), d=conv(), tune=held(False)),
        lambda run: (train(run), setattr(run.model, "tune", True), train(run)),
    ),
    Idiom("inference_mode within", model(inference_island, c=conv()), train),
    Idiom(
        "a frozen part in front",
        model(frozen, c=lambda: freeze(conv()()), d=conv()),
        training_on(image),
    ),
    Idiom("requires_grad flips between calls", model(frozen, c=conv(), d=conv()), flip),
    Idiom(
        "detach().requires_grad_()",
        model(requires_grad_in_forward, c=conv(), d=conv()),
        train,
        REFUSED,
    ),
    Idiom("autograd.grad within forward", model(gradient_in_forward, c=conv()), train, REFUSED),
    Idiom(
        "gradient penalty",
        model(lambda s, x: s.c(x).tanh(), c=conv()),
        penalty,
        REFUSED,
        though="docs/pytorch.md says that create_graph=True is refused",
    ),
    Idiom("checkpoint, not reentrant", model(checkpointed(False), c=blocks, d=conv(size=1)), train),
    Idiom("checkpoint, reentrant", model(checkpointed(True), c=blocks, d=conv(size=1)), train),
    Idiom("hook that is removed", model(hook_removed, c=conv()), train, REFUSED),
    Idiom(
        "checkpoint of spectral norm",
        model(checkpointed(False), c=lambda: spectral_norm(conv()()), d=conv(size=1)),
        train,
        REFUSED,
    ),
    Idiom(
        "checkpoint that counts",
        model(counted_in_a_checkpoint, c=conv(), n=held(0)),
        train,
        REFUSED,
    ),
    Idiom(
        "checkpoint that counts, without gradients",
        model(counted_in_a_checkpoint, c=conv(), n=held(0)),
        infer,
        REFUSED,
    ),
    Idiom(
        "checkpoint, reentrant, of what has no gradient",
        model(checkpointed_without_gradient, c=conv(), d=conv(size=1)),
        train,
        REFUSED,  # by TorchDynamo it has one
    ),
    Idiom(
        "checkpoint_sequential",
        model(lambda s, x: checkpoint_sequential(s.c, 2, x, use_reentrant=False), c=blocks),
        train,
        REFUSED,
    ),
    Idiom(
        "a tensor attribute that asks for gradients",
        model(
            lambda s, x: s.c(x) * s.t,
            c=conv(),
            t=lambda: torch.tensor(2.0, requires_grad=True),
        ),
        train,
    ),
    Idiom(
        "nothing needs a gradient",
        model(lambda s, x: s.c(x), c=lambda: freeze(conv()())),
        lambda run: (run(image()), run.fails(lambda: run.backward(run(image()).sum()))),
    ),
    Idiom(
        "retain_grad of what forward has put a hook on",
        model(hooked(0.5), c=conv(), d=nn.Identity),
        kept_gradient,
    ),
    Idiom(
        "a parameter that forward does not use",
        model(lambda s, x: s.c(x), c=conv(), d=conv()),
        train,
    ),
    Idiom(
        "vmap within forward",
        model(lambda s, x: s.c(torch.vmap(lambda each: each - each.mean())(x)), c=conv()),
        train,
    ),
    Idiom(
        "torch.func.functional_call within forward",
        model(
            lambda s, x: torch.func.functional_call(
                s.c, {"weight": s.c.weight * 0.5, "bias": s.c.bias}, (x,)
            ),
            c=conv(),
        ),
        train,
    ),
    Idiom(
        "a loss within forward",
        model(
            lambda s, x, t: (y := s.c(x), F.cross_entropy(y, t)),
            c=conv(),
        ),
        training_on(image, lambda: (drawn(2, 5, 4) > 0).long()),
    ),
    Idiom("a penalty on parameters beside a loss", model(penalized, c=conv()), train),
    Idiom(
        "a loss of two predictions",
        model(
            lambda s, x: F.binary_cross_entropy_with_logits(s.c(x), s.d(x).sigmoid()),
            c=conv(),
            d=conv(),
        ),
        train,
    ),
    Idiom(
        "fake quantization of a map",
        model(
            lambda s, x: s.d(torch.fake_quantize_per_tensor_affine(s.c(x), 0.1, 0, -128, 127)),
            c=conv(),
            d=conv(4),
        ),
        train,
    ),
    Idiom("a spectral convolution (FNO)", model(spectral, c=conv(), w=modes), train),
]
