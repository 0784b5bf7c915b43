"""Idioms of Python: branches, loops, errors, prints, hooks of modules, random numbers."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import operator
import random
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.idioms.judge import DIFFERENT, OWN_WARNING, REFUSED, Idiom
from tests.torch.idioms.models import (
    changed,
    conv,
    drawn,
    held,
    image,
    infer,
    leaf,
    loss_of,
    model,
    of_conv,
    train,
)

#: Why what TorchDynamo captures may be refused.
BY_DATA = "a number that depends on data"
LOGGER = logging.getLogger(__name__)


def by_mean(y, x):
    return y if y.mean() > 0 else -y


def by_float(y, x):
    return y * float(y.detach().mean())


def by_int(y, x):
    for _ in range(int(y.detach().abs().amax()) + 1):
        y = y * 0.5
    return y


def printing(y, x):
    print("shape", tuple(y.shape))
    return y


def warning(y, x):
    if y.shape[-1] < 10:
        warnings.warn(f"{OWN_WARNING}{y.shape[-1]} is small", stacklevel=2)
    return y


def logged(y, x):
    LOGGER.debug("shape %s", y.shape)
    return y


def clocked(y, x):
    began = time.perf_counter()
    y = y * 2
    return y if time.perf_counter() >= began else -y


def asserting(y, x):
    assert y.shape[-1] == 4, f"not four: {y.shape}"
    torch._assert(y.shape[1] == 4, "not four channels")
    return y


def fails_on_width(s, x):
    if x.shape[-1] != 6:
        raise ValueError(f"width {x.shape[-1]} is not 6")
    return s.c(x)


def good_and_bad(run):
    train(run)
    run.fails(lambda: run(leaf(drawn(2, 4, 7, 5))))
    train(run)


def fails_in_a_layer(run):
    train(run)
    run.fails(lambda: run(leaf(drawn(2, 5, 7, 6))))
    train(run)


def tried(s, x):
    try:
        return s.c(x) + s.missing
    except AttributeError:
        return s.c(x) * 2


def looked_up(y, x):
    try:
        scale = {"a": 2}["b"]
    except KeyError as error:
        scale = len(error.args)
    finally:
        y = y + 1
    return y * scale


def by_shape(s, x):
    height, width = x.shape[-2:]
    if height > width:
        x = x.transpose(2, 3)
    count = int(x.shape[-1] ** 0.5)
    return s.c(x) * count + x.shape[0] // 2 + torch.arange(5).view(1, 1, 1, 5)[..., :1]


def shapes_change(run):
    for shape in ((2, 4, 7, 6), (2, 4, 6, 7), (3, 4, 8, 8), (2, 4, 7, 6)):
        run.backward(loss_of(run(leaf(drawn(*shape)))))


def by_training(s, x):
    y = s.c(x)
    return (y, s.d(y)) if s.training else s.d(y).softmax(1)


def train_and_eval(run):
    train(run)
    run.model.eval()
    train(run)
    run.model.train()
    train(run)


def by_gradients(s, x):
    return s.c(x) if torch.is_grad_enabled() else s.d(x)


def with_and_without(run):
    train(run)
    with torch.no_grad():
        run(image())
    with torch.inference_mode():
        run(image())
    train(run)


def by_requires_grad(s, x):
    return s.c(x) if x.requires_grad else s.d(x)


def asked_and_not(run):
    for asks in (True, False, True):
        x = image().requires_grad_(asks)
        run.backward(loss_of(run(x)))


def by_kind(s, x):
    for part in s.parts:
        if isinstance(part, nn.Conv2d) and part.kernel_size == (1, 1):
            x = x + part(x)
        elif hasattr(part, "bias") and part.bias is not None:
            x = part(x)
        else:
            x = F.relu(part(x))
    return x


def several():
    return nn.ModuleList([conv(size=1)(), conv(padding=1)(), conv(padding=1, bias=False)()])


def over_a_list(s, x):
    maps = [part(x) for part in s.parts]
    return sum(weight * each for weight, each in zip((1, 2, 3), maps, strict=True))


def over_a_dict(s, x):
    return {name: part(x) for name, part in s.parts.items()}


def by_a_generator(s, x):
    def levels(y):
        for part in s.parts:
            y = part(y)
            yield y

    return list(levels(x))[-1] + sum(level.mean() for level in levels(x))


def recursion(s, x, depth=3):
    return x if depth == 0 else recursion(s, F.relu(s.parts[1](x)), depth - 1) + x


def walrus(y, x):
    if (extent := y.shape[-1]) > 3 and (rest := extent % 3):
        y = F.pad(y, (0, rest))
    return y


def with_statements(y, x):
    with contextlib.suppress(ZeroDivisionError):
        y = y * (1 / (len(x) - 2))
    with contextlib.nullcontext(y) as z:
        return z + 1


def spread_range(s, x):
    y = s.c(x)
    return y.permute(*range(y.dim())[::-1]) * max(*range(2, 9, 3))


def spread_to_parameters(s, x):
    def weighted(first, second=5, *others):
        return first + 10 * second + 100 * len(others)

    return s.c(x) * weighted(*range(2)) + functools.partial(weighted, *range(1, 4))()


def mapped_late(s, x):
    scales = [1, 2, 3]
    products = map(operator.mul, scales, range(9))
    odd = filter(lambda each: each % 2, scales)
    scales[0] = 9
    scales.append(7)
    return s.c(x) * sum(products) - sum(odd)


def by_fstring(s, x):
    return getattr(s, f"of_{x.shape[1]}_{x.shape[-1]}")(x)


def tools(y, x):
    total = functools.reduce(torch.add, (y[:, at] for at in range(4)))
    for a, b in itertools.combinations(range(3), 2):
        total = total + y[:, a] * y[:, b]
    return total


def while_small(y, x):
    times = 0
    while y.shape[-1] < 9:
        y, times = torch.cat([y, y], -1), times + 1
    return y * times


def matched(y, x):
    match y.dim():
        case 3:
            return y.sum()
        case 4:
            return y * 4
    return None


def by_random(y, x):
    return y * random.random()


def by_numpy(y, x):
    return y * float(np.random.rand())  # noqa: NPY002 - the generator that people use


def noisy(s, x):
    return s.c(x) + torch.rand_like(x[:, :, :5, :4])


def dropped(s, x):
    return F.dropout(s.c(x), 0.5, s.training), s.d(x)


def loosely(run):
    for seed in range(2):
        y = run(leaf(image(seed)), values=False)
        run.backward(loss_of(y), values=False)


def mean_of_noise(run):
    noise = run(torch.zeros(8, 4, 20, 20), values=False)
    run.note(bool(0.4 < float(noise.detach().mean()) < 0.6))


class Doubled:
    """A hook that is an object."""

    def __init__(self):
        self.calls = 0

    def __call__(self, module, args, output):
        self.calls += 1
        return output * 2


def hooked_on(put, f=lambda s, x: s.d(s.c(x)), **parts):
    """A model with hooks that its maker puts on."""

    def make():
        made = model(f, c=conv(), d=conv(), seen=list, **parts)()
        put(made)
        return made

    return make


def put_looking(q):
    q.c.register_forward_hook(lambda module, args, output: q.seen.append(output.detach().mean()))


def put_features(q):
    q.c.register_forward_hook(lambda module, args, output: setattr(q, "features", output))


def put_with_kwargs(q):
    def before(module, args, kwargs):
        return (args[0] * 2,), {**kwargs}

    q.c.register_forward_pre_hook(before, with_kwargs=True)
    q.c.register_forward_hook(lambda m, args, kwargs, out: out + 1, with_kwargs=True)


def put_backward(q):
    q.c.register_full_backward_hook(lambda module, to_inputs, of_outputs: (to_inputs[0] * 0.5,))


def put_on_the_model(q):
    q.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    q.register_forward_hook(lambda module, args, output: output * 3)
    q.register_forward_hook(lambda m, args, output: m.seen.append(len(args)), always_call=True)


def hook_and_remove(run):
    train(run)
    handle = run.model.c.register_forward_hook(lambda module, args, output: output * 2)
    train(run)
    handle.remove()
    train(run)


CASES = [
    of_conv("a branch on a mean", by_mean, REFUSED),
    of_conv("times a float of a mean", by_float, REFUSED, though=BY_DATA),
    of_conv("a loop as long as a value says", by_int, REFUSED),
    of_conv("a bool of a tensor", lambda y, x: y * bool((y > 100).any()), REFUSED, though=BY_DATA),
    of_conv("a branch by torch.where", lambda y, x: torch.where(y.mean() > 0, y, -y)),
    of_conv("print in forward", printing, REFUSED),
    of_conv("warnings.warn in forward", warning, REFUSED),
    of_conv("logging in forward", logged, REFUSED),
    of_conv("a clock in forward", clocked, REFUSED),
    of_conv("assert on shapes, torch._assert", asserting),
    Idiom("ValueError for a wrong width", model(fails_on_width, c=conv()), good_and_bad, REFUSED),
    Idiom(
        "wrong channels in a layer", model(lambda s, x: s.c(x), c=conv()), fails_in_a_layer, REFUSED
    ),
    Idiom("try and except of a missing attribute", model(tried, c=conv()), train),
    of_conv("try, except, finally of a KeyError", looked_up),
    Idiom("branches on shapes, numbers from shapes", model(by_shape, c=conv()), shapes_change),
    Idiom("if self.training", model(by_training, c=conv(), d=conv()), train_and_eval),
    Idiom("if torch.is_grad_enabled()", model(by_gradients, c=conv(), d=conv()), with_and_without),
    Idiom("if x.requires_grad", model(by_requires_grad, c=conv(), d=conv()), asked_and_not),
    Idiom("isinstance and hasattr", model(by_kind, parts=several), train),
    of_conv("a branch on a dtype", lambda y, x: y.half() if x.dtype is torch.float64 else y * 2),
    Idiom("a loop over a ModuleList", model(over_a_list, parts=several), train),
    Idiom(
        "a loop over a ModuleDict",
        model(over_a_dict, parts=lambda: nn.ModuleDict({"a": conv()(), "b": conv(size=1)()})),
        train,
    ),
    Idiom("a generator of levels", model(by_a_generator, parts=several), train),
    Idiom("recursion", model(recursion, parts=several), train),
    of_conv("a walrus", walrus),
    of_conv("with-statements", with_statements),
    Idiom("ranges spread over arguments", model(spread_range, c=conv()), train, beyond=REFUSED),
    Idiom(
        "a range spread over parameters",
        model(spread_to_parameters, c=conv()),
        train,
        beyond=DIFFERENT,
    ),
    Idiom("map and filter of a list that changes", model(mapped_late, c=conv()), train),
    Idiom("getattr by an f-string of shapes", model(by_fstring, of_4_6=conv()), train),
    of_conv("functools and itertools", tools),
    of_conv("a while loop on shapes", while_small),
    of_conv("match on the number of axes", matched),
    of_conv("an unused result", lambda y, x: (y.mean(), y * 2)[1]),
    of_conv("random.random()", by_random, REFUSED),
    of_conv("numpy.random.rand()", by_numpy, REFUSED),
    of_conv("torch.randint_like of a map", lambda y, x: y * torch.randint_like(y, 3, 4)),
    Idiom("torch.rand in forward", model(noisy, c=conv()), loosely),
    Idiom(
        "torch.rand: its mean", model(lambda s, x: torch.rand_like(s.c(x)), c=conv()), mean_of_noise
    ),
    Idiom("dropout in training", model(dropped, c=conv(), d=conv()), loosely),
    Idiom("dropout in eval, functional", model(dropped, c=conv(), d=conv()), infer),
    Idiom(
        "a part's hook that replaces",
        hooked_on(lambda q: q.c.register_forward_hook(Doubled())),
        train,
    ),
    Idiom("a part's hook that looks", hooked_on(put_looking), train),
    Idiom("a part's hook that keeps features", hooked_on(put_features), train),
    Idiom("a part's hooks with kwargs", hooked_on(put_with_kwargs), train),
    Idiom("a part's hook of backward", hooked_on(put_backward), train, REFUSED),
    Idiom("hooks of the model, always_call", hooked_on(put_on_the_model), train),
    Idiom("a hook is put on a part later, and removed", hooked_on(lambda q: None), hook_and_remove),
    Idiom(
        "a hook object's own state",
        hooked_on(lambda q: q.d.register_forward_hook(q.hook), hook=Doubled),
        train,
    ),
    Idiom(
        "a flag that turns a branch on",
        model(lambda s, x: s.c(x) + (s.d(x) if s.use else 0), c=conv(), d=conv(), use=held(False)),
        changed(lambda q: setattr(q, "use", True)),
    ),
]
