"""Idioms of loops around a model: several forwards and backwards, optimizers, copies, changes."""

from __future__ import annotations

import copy
import io
import pickle

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

from tests.torch.idioms.judge import EQUAL, REFUSED, Idiom
from tests.torch.idioms.models import (
    changed,
    conv,
    drawn,
    image,
    infer,
    leaf,
    loss_of,
    model,
    train,
)


class Small(nn.Module):
    """A model that can be pickled."""

    def __init__(self, channels=4):
        super().__init__()
        # without a bias, whose gradient is rounding alone: Adam would make steps of it
        self.c, self.n = nn.Conv2d(4, channels, 3, bias=False), nn.BatchNorm2d(channels)
        self.d = nn.Conv2d(channels, 4, 3)

    def forward(self, x):
        return self.d(F.relu(self.n(self.c(x))))


def two_forwards(run):
    a, b = run(leaf(image(0))), run(leaf(image(1)))
    run.backward(loss_of(a) * loss_of(b))


def backward_of_the_first_only(run):
    a = run(leaf(image(0)))
    run(leaf(image(1)))
    run.backward(loss_of(a))


def backward_in_order(run):
    a, b = run(leaf(image(0))), run(leaf(image(1)))
    run.backward(loss_of(a))
    run.backward(loss_of(b))


def one_behind_the_other(run):
    y = run(leaf(drawn(1, 4, 12, 12)))
    run.backward(loss_of(run(y)))


def retained(run):
    loss = loss_of(run(leaf(image())))
    run.backward(loss, retain_graph=True)
    run.backward(loss)


def twice_without(run):
    loss = loss_of(run(leaf(image())).tanh())
    run.backward(loss)
    run.fails(lambda: run.backward(loss))


def partly(run):
    a, b = run(leaf(image()))
    run.backward(a.sum(), retain_graph=True)
    run.backward(b.sum())


def to_inputs(run):
    x = leaf(image())
    run.gradients(run(x).square().sum(), x)


def allow_unused(run):
    x = leaf(image())
    run.gradients(run(x).sum(), [x, *run.model.parameters()], allow_unused=True)


def not_allowed(run):
    loss = run(leaf(image())).sum()
    run.fails(lambda: run.gradients(loss, list(run.model.parameters())))


def backward_to_some(run):
    x = leaf(image())
    run.backward(loss_of(run(x)), inputs=[run.model.c.weight])


def with_a_gradient(run):
    y = run(leaf(image()))
    run.backward(y, gradient=drawn(*y.shape, seed=3))


def accumulated(run):
    for seed in range(3):
        run.backward(loss_of(run(leaf(image(seed)))) / 3)


def zeroed(run):
    train(run)
    run.model.zero_grad(set_to_none=False)
    run(image())
    run.model.d.requires_grad_(False)
    train(run)
    run.model.zero_grad()
    train(run)


def by(optimizer, **how):
    def steps(run):
        stepping = optimizer(run.model.parameters(), **how)
        for seed in range(3):
            stepping.zero_grad()
            run.backward(loss_of(run(leaf(image(seed)))))
            stepping.step()
            run.note(seed)

    return steps


def clipped(run):
    train(run)
    nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
    run.note(None)
    train(run)


def loaded(run):
    kept = copy.deepcopy(run.model.state_dict())
    train(run)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.mul_(2)
    train(run)
    run.model.load_state_dict(kept)
    train(run)
    run.model.load_state_dict({name: each * 3 for name, each in kept.items()}, assign=True)
    infer(run)


def trained_and_not(run):
    for mode in (True, False, True):
        run.model.train(mode)
        run.backward(loss_of(run(leaf(image()))))
    infer(run)
    run.model.n.eval()
    train(run)


def copied(run):
    train(run)
    first, second = run.model, copy.deepcopy(run.model)
    run.enter(second)
    train(run)
    run.model = first
    train(run)


def pickled(run):
    train(run)
    run.enter(pickle.loads(pickle.dumps(run.model)))
    train(run)


def saved_whole(run):
    train(run)
    kept = io.BytesIO()
    torch.save(run.model, kept)
    kept.seek(0)
    run.enter(torch.load(kept, weights_only=False))
    train(run)


def set_parameter(q):
    q.c.weight = nn.Parameter(drawn(4, 4, 3, 3, seed=5))


def set_data(q):
    q.c.weight.data = drawn(4, 4, 3, 3, seed=5)


def tied(s, x):
    return F.conv2d(s.c(x), s.d.weight)


def tie(q):
    q.d.weight = q.c.weight


def tied_at_once():
    made = model(lambda s, x: s.d(s.c(x)), c=conv(), d=conv())()
    tie(made)
    return made


def ema(run):
    averaged = torch.optim.swa_utils.AveragedModel(
        run.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    )
    train(run)
    averaged.update_parameters(run.model)
    run.note([each.detach() for each in averaged.parameters()])


def changed_in_place_before_backward(run):
    loss = run(leaf(image())).tanh().sum()
    with torch.no_grad():
        run.model.d.weight.mul_(2)
    run.fails(lambda: run.backward(loss))


def input_changed_before_backward(run):
    x = image()
    loss = run(x).tanh().sum()
    x.add_(1)
    run.fails(lambda: run.backward(loss))
    run.model.zero_grad()  # eager's backward leaves gradients of what it reached before it failed


def never_backward(run):
    for seed in range(3):
        run(leaf(image(seed)))


def within_another(run):
    head = nn.Linear(4, 2)
    y = head(run(leaf(image())).mean((2, 3)))
    run.backward(y.square().sum())
    run.note(head.weight.grad)


def other_dtype(run):
    train(run)
    run.model.double()
    train(run, image().double())


def pruned(run):
    prune.l1_unstructured(run.model.c, "weight", 0.5)
    train(run)


def by_default_there(run):
    train(run)
    with torch.device("cpu"):
        train(run)
        infer(run)
    torch.set_default_device("cpu")
    try:
        train(run)
    finally:
        torch.set_default_device(None)
    train(run)


def of_two(name, steps, expected=EQUAL):
    return Idiom(name, model(lambda s, x: s.d(s.c(x)), c=conv(), d=conv()), steps, expected)


def of_small(name, steps, expected=EQUAL, **how):
    return Idiom(name, Small, steps, expected, **how)


CASES = [
    of_small("two forwards before one backward", two_forwards),
    of_small("a backward of the first of two forwards", backward_of_the_first_only),
    of_small("two forwards, two backwards", backward_in_order),
    of_two("an output is the next input", one_behind_the_other),
    of_small("retain_graph", retained),
    of_small("a second backward without retain_graph", twice_without),
    Idiom(
        "backward of each output by itself",
        model(lambda s, x: (s.c(x), s.d(s.c(x))), c=conv(), d=conv()),
        partly,
    ),
    of_two("gradients with respect to inputs", to_inputs),
    Idiom(
        "autograd.grad with allow_unused",
        model(lambda s, x: s.c(x), c=conv(), d=conv()),
        allow_unused,
    ),
    Idiom(
        "autograd.grad of what is unused",
        model(lambda s, x: s.c(x), c=conv(), d=conv()),
        not_allowed,
    ),
    of_two("backward to some parameters", backward_to_some),
    of_two("backward with a gradient", with_a_gradient),
    of_small("gradients accumulate over three batches", accumulated),
    of_two("zero_grad(set_to_none=False), then frozen", zeroed),
    of_small(
        "SGD with momentum and decay", by(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
    ),
    of_small("AdamW", by(torch.optim.AdamW, lr=0.01)),
    of_small("gradients are clipped", clipped),
    of_small("state_dict loaded between calls", loaded),
    of_small("train and eval between calls", trained_and_not),
    of_small("deepcopy", copied),
    of_small("pickle", pickled),
    of_small("torch.save of the whole", saved_whole),
    of_two("a parameter is replaced", changed(set_parameter)),
    of_two("a parameter's data are replaced", changed(set_data)),
    of_two("a part is replaced", changed(lambda q: setattr(q, "d", conv(4, 2, 1)()))),
    Idiom(
        "a part is added to a Sequential",
        model(lambda s, x: s.parts(x), parts=lambda: nn.Sequential(conv()())),
        changed(lambda q: q.parts.add_module("more", conv()())),
    ),
    Idiom(
        "a part is appended to a ModuleList",
        model(
            lambda s, x: sum(part(x) for part in s.parts),
            parts=lambda: nn.ModuleList([conv()()]),
        ),
        changed(lambda q: q.parts.append(conv()())),
    ),
    of_two("a forward is replaced", changed(lambda q: setattr(q.c, "forward", torch.tanh))),
    of_two("the bias is removed", changed(lambda q: setattr(q.c, "bias", None))),
    Idiom(
        "a default device around calls, and in force",
        model(lambda s, x: s.c(x) * torch.arange(4.0).reshape(4, 1, 1), c=conv()),
        by_default_there,
    ),
    Idiom("a weight that two calls share", model(tied, c=conv(), d=conv()), train),
    Idiom("tied weights", tied_at_once, train),
    of_two("weights are tied between calls", changed(tie)),
    Idiom(
        "one module in two places",
        model(lambda s, x: s.c(s.again(x)), c=conv()),
        lambda run: (setattr(run.model, "again", run.model.c), train(run)),
    ),
    of_small("a moving average of the model", ema),
    of_small("a parameter changed between forward and backward", changed_in_place_before_backward),
    of_two("an input changed between forward and backward", input_changed_before_backward),
    of_small("forwards that no backward follows", never_backward),
    of_small("a head that is not limited", within_another),
    of_small("the dtype changes between calls", other_dtype, computed_in=torch.float32),
    of_small("pruning by a mask", pruned),
    Idiom(
        "LazyConv2d",
        lambda: nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.LazyConv2d(2, 1)),
        train,
        REFUSED,
    ),
]
