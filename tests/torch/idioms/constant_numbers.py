"""Numbers of tensors that forward makes of shapes and numbers alone: no data say what they are."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tests.torch.idioms.judge import EQUAL, REFUSED, Idiom
from tests.torch.idioms.models import conv, drawn, image, model, train, training_on

#: Why what TorchDynamo captures may be refused.
BY_DATA = "a number that is known as the model runs"


def of(name, f, expected=EQUAL, though="", **parts):
    """An idiom of a map, f(s, y)."""
    made = model(lambda s, x: f(s, s.c(x)), c=conv(), **parts)
    return Idiom(name, made, train, expected, though)


def layers():
    return nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(3))


def one():
    return nn.Buffer(torch.tensor(1))


def global_norm(s, y):
    """GlobLN of asteroid."""
    dims = torch.arange(1, len(y.shape)).tolist()
    mean = y.mean(dim=dims, keepdim=True)
    return (y - mean) / ((y - mean) ** 2).mean(dims, keepdim=True).sqrt()


def sizes(s, y):
    height, width = torch.tensor(y.shape[2:]).tolist()
    return y.sum((2, 3)) / (height * width + 0.5)


def rates(s, y):
    """Rates of stochastic depth."""
    for rate in [float(v) for v in torch.linspace(0.1, 0.3, 3)]:
        y = y * (1 - rate) + rate
    for rate in torch.linspace(0, 0.5, 2).tolist():
        y = y - rate
    return y


def by_constant(s, y):
    """Embeddings of ClimaX."""
    ids = torch.from_numpy(np.array([0, 2, 1]))
    return sum((k + 1) * s.layers[ids[k]](y) for k in range(3))


def crops(s, x, other):
    """MultiCropWrapper of DINO: crops of one size go together."""
    inputs = [x, x.flip(1), other]
    sizes = torch.tensor([each.shape[-1] for each in inputs])
    ends = torch.cumsum(torch.unique_consecutive(sizes, return_counts=True)[1], 0)
    start, found = 0, torch.empty(0)
    for end in ends:
        y = s.c(torch.cat(inputs[start:end])).mean((2, 3))
        found = torch.cat((found, y))
        start = end
    return found


def small():
    return drawn(2, 4, 5, 3, seed=9)


def levels(s, y):
    """Deformable attention: shapes of levels are a tensor, and split by."""
    shapes = torch.as_tensor([(3, 2), (7, 2)], dtype=torch.long)
    tokens = y.flatten(2)
    parts = tokens.split([int(h * w) for h, w in shapes], 2)
    made = [part.unflatten(2, (h, w)) for part, (h, w) in zip(parts, shapes, strict=True)]
    return made[0] * 2, made[1]


def points_of(s, y):
    """Reference points of deformable attention, and masks taken apart."""
    found, begin, flat = [], 0, y.flatten(2)
    for height, width in torch.as_tensor([(3, 2), (7, 1)]):
        rows = torch.linspace(0.5, height - 0.5, height) / height
        columns = torch.linspace(0.5, width - 0.5, width) / width
        part = flat[:, :, begin : (begin + height * width)].view(y.shape[0], 4, height, width)
        found.append(part * rows[:, None] + columns)
        begin += height * width
    return found


def starts(s, y):
    shapes = torch.tensor([(5, 2), (5, 2)])
    begins = torch.cat((shapes.new_zeros(1), shapes.prod(1).cumsum(0)[:-1]))
    return y.flatten(2)[:, :, begins[1] :] * begins.sum().item()


def of_unique(s, y):
    """How many there are is known, and none is asked for."""
    kept = torch.unique(torch.tensor([2, 0, 2, y.shape[2] - y.shape[2]]))
    return y[:, kept]


def written_to(s, y):
    ids = torch.arange(3)
    ids[0] = 2
    return y * ids[0].item()


def written_behind(s, y):
    ids = torch.arange(3)
    ids.data.fill_(2)
    return y * ids[0].item()


def written_later(s, y):
    ids = torch.arange(1, 4)
    first = ids[0].item()
    ids += 1
    return y * first * ids[:, None, None].sum()


def drawn_number(s, y):
    return y * torch.rand(2)[0].item()


def of_a_buffer(s, y):
    return y.narrow(1, int(s.at), 2) * int(s.at + torch.tensor(1))


def by_numpy_of_shapes(s, y):
    remainder = (np.array(y.shape[2:]) % np.power((2, 2), 2)) > 0
    if not remainder.all():
        y = y * 2
    if np.array(y.shape).sum() > 12 and not np.array(y.shape[2:]).max() > 10:
        y = y.tanh()
    return y * 3 if remainder.any() else y


CASES = (
    of("axes from arange().tolist()", global_norm, REFUSED),
    of("a map over an extent in a tensor", lambda s, y: y / torch.tensor(y.shape[2])),
    of("sizes from tensor(shape).tolist()", sizes),
    of("numbers of linspace", rates, REFUSED),
    of("layers by elements of a constant", by_constant, REFUSED, layers=layers),
    Idiom("crops that go together by size", model(crops, c=conv()), training_on(image, small),
          REFUSED),
    of("a split by shapes in a tensor", levels),
    of("points of levels in a tensor", points_of, REFUSED),
    of("a slice from an element of cumsum()", starts),
    of("channels by unique()", of_unique),
    of("a branch on NumPy of shapes", by_numpy_of_shapes, REFUSED),
    of("an element of what was written to", written_to, REFUSED, BY_DATA),
    of("an element of what was written to by .data", written_behind, REFUSED, BY_DATA),
    of("an element, and then a write", written_later),
    of("an element of what is drawn", drawn_number, REFUSED, BY_DATA),
    of("an element of a buffer", of_a_buffer, REFUSED, BY_DATA, at=one),
)  # fmt: skip
