"""Idioms of values: slices, indices, Python numbers, dtypes, autocast, writes in place."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.idioms.judge import REFUSED, Idiom
from tests.torch.idioms.models import (
    changed,
    conv,
    drawn,
    image,
    infer,
    leaf,
    loss_of,
    model,
    of_conv,
    train,
    training_on,
)

#: Why what TorchDynamo captures may be refused.
BY_DATA = "a shape that depends on data: nothing can be planned for it"
HALF, BRAIN = torch.float16, torch.bfloat16


def written(write):
    """Writes into a copy of what a convolution makes, and gives it."""

    def f(y, x):
        y = y.clone()
        write(y, x)
        return y

    return f


def by_its_type(s, x):
    y = s.c(x)
    if isinstance(s.gain, float):
        return y * 2
    return y * 3 if isinstance(s.gain, np.ndarray) else y


def by_the_type_of_a_sum(s, x):
    return s.c(x) * (2 if isinstance(s.gains.sum(), np.ndarray) else 3)


def assign(at, value):
    return written(lambda y, x: y.__setitem__(at, value))


def add_to_part(y, x):
    y[:, 1:3] += 1
    y[..., 0] *= 2


def change_lists(y, x):
    made = [y * 1, y.detach().clone()]
    torch._foreach_mul_(made, [2.0, 3.0])
    torch._foreach_add_(made, made[::-1], alpha=0.5)
    return made[0] + made[1]


def copy_halves(y, x):
    made = torch.empty_like(y)
    made[:, :2] = y[:, 2:]
    made[:, 2:].copy_(y[:, :2] * 2)
    return made


def by_out(y, x):
    made = torch.zeros_like(y)
    with torch.no_grad():
        torch.add(y, 1, out=made)
    return y + made


def into_zeros(y, x):
    made = y.new_zeros(y.shape[0], 6, *y.shape[2:])
    made[:, 1:5] = y
    return made


def shifted(y, x):
    """The shift of TSM, on channels."""
    out = torch.zeros_like(y)
    out[:-1, :1] = y[1:, :1]
    out[1:, 1:2] = y[:-1, 1:2]
    out[:, 2:] = y[:, 2:]
    return out


def scattered(y, x):
    at = y.argmax(1, keepdim=True)
    return torch.zeros_like(y).scatter_(1, at, 1.0) * y


def half_island(s, x):
    return s.d(s.c(x).half().float() * 2)


def half_layer(s, x):
    return s.h(s.c(x).to(HALF)).to(x.dtype)


def autocast_within(s, x):
    with torch.autocast("cpu", BRAIN):
        y = s.c(x)
        with torch.autocast("cpu", enabled=False):
            z = s.d(y.float())
        return s.e(z), z


def float_island(s, x):
    with torch.autocast("cpu", BRAIN):
        y = s.c(x)
    return y.float().softmax(1)


def around(run):
    with torch.autocast("cpu", BRAIN):
        train(run)


def in_float64(run):
    run.model.double()
    train(run, image().double())


def in_(dtype):
    def steps(run):
        run.model.to(dtype)
        train(run, image().to(dtype))

    return steps


def from_a_spectrum(y, x):
    """What istft makes is refused by PyTorch where its windows do not add up: it looks."""
    spectrum = torch.stft(y.flatten(1), 8, 2, window=torch.ones(8), return_complex=True)
    return torch.istft(spectrum, 8, 2, window=torch.ones(8))


def with_scalars(run):
    for gain in (np.float64(2), np.float32(2), np.int64(2), np.bool_(True), 2.0):
        run.backward(loss_of(run(leaf(image()), gain)))


CASES = [
    of_conv("istft", from_a_spectrum, REFUSED, infer, though="it looks at numbers of a tensor"),
    of_conv("the last ten of five", lambda y, x: y[:, :, -10:]),
    of_conv("the last ten of an input", lambda y, x: (y, x[..., -10:])),
    of_conv("a slice beyond the end", lambda y, x: y[:, :, 2:100]),
    of_conv("a slice of extent 0", lambda y, x: (y, y[:, :, 5:], x[:, 4:])),
    of_conv("a batch of extent 0", lambda y, x: y, steps=training_on(lambda: image()[:0])),
    of_conv("an empty slice joined", lambda y, x: torch.cat([y[:, :0], y], 1)),
    of_conv("slices with steps", lambda y, x: y[:, ::2, 1::2, ::3]),
    of_conv("flip for a negative step", lambda y, x: y.flip(-1, 2) + y),
    of_conv("Ellipsis, None and an int", lambda y, x: y[..., None, 0] + y[:, None, :, :, -1, None]),
    of_conv("a list for an index", lambda y, x: y[:, [3, 0, 0]]),
    of_conv("a tensor for an index", lambda y, x: y[:, torch.tensor([2, 1])]),
    of_conv(
        "a bool list for an index",
        lambda y, x: y[:, torch.tensor([True, False, True, True])],
        REFUSED,
        though=BY_DATA,  # a constant: its elements are not looked at
    ),
    of_conv("values by a mask", lambda y, x: y[y > 0], REFUSED, though=BY_DATA),
    of_conv("nonzero", lambda y, x: y.detach().nonzero(), REFUSED, though=BY_DATA),
    of_conv("gather by argmax", lambda y, x: y.gather(1, y.argmax(1, keepdim=True))),
    of_conv("topk and sort", lambda y, x: (*y.flatten(2).topk(3, -1), y.sort(1)[0])),
    of_conv("unbind, chunk, split", lambda y, x: (*y.unbind(1)[:2], *y.split([1, 3], 1))),
    of_conv("y[:, 0] = 0", assign((slice(None), 0), 0)),
    of_conv("y[..., -1:] = a tensor", assign((..., slice(-1, None)), torch.ones(5, 1))),
    of_conv("y[mask] = 0", written(lambda y, x: y.__setitem__(y > 0.2, 0.0))),
    of_conv("y[0] = y[1] of itself", written(lambda y, x: y.__setitem__(0, y[1].clone()))),
    of_conv("y[:, 1:3] += 1", written(add_to_part)),
    of_conv("into a new tensor, by halves", copy_halves),
    of_conv("into new zeros", into_zeros),
    of_conv("a shift over the batch", shifted),
    of_conv("fill_ and zero_ of a part", written(lambda y, x: (y[0].fill_(2.0), y[1, 0].zero_()))),
    of_conv("index_put_", written(lambda y, x: y.index_put_((torch.tensor([0, 1]),), y[:1] * 2))),
    of_conv("index_add", lambda y, x: y.index_add(1, torch.tensor([0, 0]), y[:, :2])),
    of_conv("scatter_ of argmax", scattered),
    of_conv("out= of a sum", by_out),
    of_conv("relu_ and add_", lambda y, x: F.relu_(y).add(1).add_(x.mean()).mul_(0.5)),
    of_conv("x is changed in place", lambda y, x: y + x.mul_(2).mean(), steps=infer),
    of_conv("x.clone() is changed in place", lambda y, x: y * x.clone().add_(1).amax()),
    of_conv("a list of tensors in place", change_lists),
    of_conv("masked_fill by -inf, softmax", lambda y, x: y.masked_fill(y < 0, -math.inf).exp()),
    Idiom(
        "masked_fill by an argument",
        model(lambda s, x, m: s.c(x).masked_fill(m, 0.5), c=conv()),
        training_on(image, lambda: drawn(2, 1, 5, 4) > 0),
    ),
    of_conv("where with numbers", lambda y, x: torch.where(y > 0, y, 0.1) + y.where(y < 1, 2)),
    of_conv("times True", lambda y, x: y * True + False),
    of_conv("divided by 0", lambda y, x: y / 0, steps=infer),
    of_conv("divided by 0.0 and by -0.0", lambda y, x: (y / 0.0, 1 / (y * 0 - 0.0)), steps=infer),
    of_conv("plus inf, times nan", lambda y, x: (y + math.inf, y * math.nan)),
    of_conv("plus 2**40, an int beyond int32", lambda y, x: (y + 2**40) / 2**40),
    of_conv("divided by 1e-39", lambda y, x: y * 1e-3 / 1e-39, steps=infer),
    of_conv("times 1e5 in float16", lambda y, x: y.half() * 1e-2 * 1e5, steps=infer),
    of_conv("times a small number in float16", lambda y, x: y.half() * 1e-8 * 1e8, steps=infer),
    of_conv("power 0, power of a number", lambda y, x: y**0 + 2**y + (y * y) ** 0.5),
    of_conv("floor division and remainder", lambda y, x: (y.detach() // 0.3, y % 0.3, -y % 1)),
    of_conv("comparisons, logic and sums of bools", lambda y, x: ((y > 0) & (y < 1)).sum((2, 3))),
    of_conv("a mask in integers", lambda y, x: (y > 0).int() * y + (y > 1).long()),
    of_conv("one_hot of argmax", lambda y, x: F.one_hot(y.argmax(1), 4).permute(0, 3, 1, 2) * y),
    of_conv("clamp by numbers and by tensors", lambda y, x: y.clamp(-0.5).clamp(max=y.mean())),
    of_conv("round, floor, sign, trunc, frac", lambda y, x: y.round() + y.sign() + y.frac()),
    of_conv("numbers of a tensor made within", lambda y, x: y * torch.tensor(0.5) + torch.ones(1)),
    of_conv("type_as, to(other)", lambda y, x: y.type_as(x).to(x) + torch.ones(1).to(x)),
    Idiom(
        "uint8 images",
        model(lambda s, x: s.c(x.float() / 255), c=conv()),
        training_on(lambda: (image() * 50 + 100).to(torch.uint8)),
    ),
    Idiom(
        "integer inputs beside",
        model(lambda s, x, n: s.c(x) * n.view(-1, 1, 1, 1), c=conv()),
        training_on(image, lambda: torch.tensor([2, 3])),
    ),
    Idiom("a model in float64", model(lambda s, x: s.c(x) * 0.1, c=conv()), in_float64),
    Idiom("a model in bfloat16", model(lambda s, x: s.c(x) * 0.1, c=conv()), in_(BRAIN)),
    Idiom("a model in float16", model(lambda s, x: s.c(x) * 0.1, c=conv()), in_(HALF)),
    of_conv("float64 within", lambda y, x: y.double().softmax(1).to(x.dtype)),
    of_conv(
        "float64 joined with float32",
        lambda y, x: y + torch.ones(4, 1, 1).double(),
        computed_in=torch.float32,
    ),
    Idiom(".half().float()", model(half_island, c=conv(), d=conv()), train, computed_in=HALF),
    Idiom(
        "a layer in float16",
        model(half_layer, c=conv(), h=lambda: nn.Conv2d(4, 4, 1).half()),
        train,
        computed_in=HALF,
    ),
    Idiom(
        "autocast within, an island without",
        model(autocast_within, c=conv(), d=conv(), e=conv(size=1)),
        train,
        computed_in=BRAIN,
    ),
    Idiom("float() behind autocast", model(float_island, c=conv()), train, computed_in=BRAIN),
    Idiom(
        "autocast around",
        model(lambda s, x: s.d(s.c(x)), c=conv(), d=conv()),
        around,
        computed_in=BRAIN,
    ),
    Idiom(
        "an argument is a NumPy scalar, of other types in turn",
        model(lambda s, x, gain: s.c(x) * (3 if isinstance(gain, float) else 2) * gain, c=conv()),
        with_scalars,
        REFUSED,
    ),
    Idiom(
        "an argument is a NumPy scalar, beside a tensor of integers",
        model(lambda s, x, gain: (s.c(x), torch.arange(4) * gain), c=conv()),
        with_scalars,
        REFUSED,
    ),
    Idiom(
        "abs of a NumPy boolean",
        model(lambda s, x: s.c(x) * abs(s.on), c=conv(), on=lambda: np.bool_(True)),
        train,
        REFUSED,
    ),
    Idiom(
        "a boolean of NumPy times a tensor of integers",
        model(lambda s, x: (s.c(x), torch.arange(4) * s.on), c=conv(), on=lambda: np.bool_(True)),
        train,
        REFUSED,
    ),
    Idiom(
        "a NumPy scalar is a float",
        model(by_its_type, c=conv(), gain=lambda: np.float64(2)),
        changed(lambda q: setattr(q, "gain", np.float32(2))),
        REFUSED,
    ),
    Idiom(
        "a NumPy scalar becomes an array",
        model(by_its_type, c=conv(), gain=lambda: np.float32(2)),
        changed(lambda q: setattr(q, "gain", np.array(2, np.float32))),
        REFUSED,
    ),
    Idiom(
        "a NumPy scalar that forward makes is asked for its type",
        model(by_the_type_of_a_sum, c=conv(), gains=lambda: np.ones(2)),
        train,
        REFUSED,
    ),
    Idiom(
        "positions times a NumPy scalar",
        model(lambda s, x: (y := s.c(x)) + torch.arange(y.shape[-1]) * -s.rate, c=conv(),
              rate=lambda: np.log(1e4)),
        train,
        REFUSED,
    ),
    of_conv("positions over a NumPy scalar that forward makes",
            lambda y, x: y + torch.arange(y.shape[-1]) / np.sqrt(y.shape[1]), REFUSED),
    of_conv("a mask times an integer of NumPy's",
            lambda y, x: y + (y > 0).mul(np.uint8(2)), REFUSED,
            though="beside booleans a NumPy scalar is no number of Python's"),
    Idiom(
        "a map and a float64 tensor times NumPy scalars",
        model(lambda s, x: s.c(x) * s.rate / np.sqrt(x.shape[1]) + torch.tensor(s.rate).float(),
              c=conv(), rate=lambda: np.log(1e4)),
        train,
    ),
]  # fmt: skip
