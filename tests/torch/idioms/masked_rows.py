"""Rows at the places of a mask, computed and written back to them: a `where`, by another name."""

from __future__ import annotations

import math

import torch
from torch import nn

from tests.torch.idioms.judge import EQUAL, REFUSED, Idiom
from tests.torch.idioms.models import conv, drawn, held, infer, model, train, training_on

#: Why what TorchDynamo captures may be refused.
BY_DATA = "a shape that depends on data: nothing can be planned for it"


def parameter(*shape, seed=3):
    return lambda: nn.Parameter(drawn(*shape, seed=seed))


def of_mask(name, change, w=(4,), expected=EQUAL, steps=train, though="", seed=3):
    """An idiom of a map of channels last, y, which change(y, w, x) has written to."""

    def f(s, x):
        y = s.c(x).movedim(1, -1)
        made = change(y, s.w, x.movedim(1, -1)[:, 1:-1, 1:-1])
        return y if made is None else made

    return Idiom(name, model(f, c=conv(), w=parameter(*w, seed=seed)), steps, expected, though)


def prompts(s, points, labels):
    """The encoder of prompts of segment-anything."""
    e = torch.cat([torch.sin(points @ s.g), torch.cos(points @ s.g)], -1)
    e[labels == -1] = 0.0
    e[labels == -1] += s.nothing.weight
    e[labels == 0] += s.one.weight
    e[labels == 1] += s.other.weight
    return s.h(e)


def points():
    return drawn(2, 3, 2)


def labels():
    return torch.tensor([[1.0, 0.0, -1.0], [1.0, 1.0, -1.0]])


def none_of_them():
    return torch.full((2, 3), 5.0)


def embedding():
    return nn.Embedding(1, 4)


SAM = model(
    prompts,
    g=lambda: nn.Buffer(drawn(2, 2)),
    one=embedding,
    other=embedding,
    nothing=embedding,
    h=lambda: nn.Linear(4, 4),
)


def points_alone(run):
    with torch.no_grad():
        run(points(), labels())
    run(points(), labels())


def added(y, w, x):
    y[x[..., 0] > 0] += w


def scaled(y, w, x):
    y[x[..., 0] > 0] *= w


def written_out(y, w, x):
    mask = x[..., 0] > 0
    y[mask] = w + y[mask]


def told_twice(y, w, x):
    y[x[..., 0] > 0] = 2 * y[x[..., 0] > 0] - w


def of_all_elements(y, w, x):
    y[y > 0] *= 2


def roots(y, w, x):
    """At other places the root has no number, and its derivative is infinite at 0."""
    y = y.relu() * (y > 0.1)
    mask = y > 0
    y[mask] = y[mask].sqrt().log()
    return y


def shares(y, w, x):
    """Of which other places have none: 0 / 0."""
    mask = (y > 0).all(-1)
    total = y.clamp(min=0).sum(-1, keepdim=True) * mask[..., None]
    made = torch.zeros_like(y)
    made[mask] = y[mask] / total.expand_as(y)[mask]
    return made


def meets_infinity(y, w, x):
    y = y.clone()
    y[..., 0] = math.inf
    mask = y < 1
    y[mask] = y[mask] * w[0]
    return y[..., 1:]


def from_another(y, w, x):
    made = torch.zeros_like(y)
    mask = x[..., 1] < 0.5
    made[mask] = y[mask].tanh() * w + 1
    return made


def of_two(y, w, x):
    mask = x[..., 1] < 0.5
    y[mask] = (y[mask] - x[mask]).abs()


def in_a_part(y, w, x):
    mask = x[0, :, :, 0] > 0
    y[1, mask, 1:3] += w[:2]


def behind_two(y, w, x):
    y[:, :, x[0, 0, :, 1] > 0] *= w
    y[..., x[0, 0, 0] > 0] -= 1


def read_before(y, w, x):
    """What was read stays what it was."""
    mask = x[..., 0] > 0
    rows = y[mask]
    y[mask] = 0.0
    y[mask] = y[mask] + rows * w
    return y


def changed_itself(y, w, x):
    mask = x[..., 0] > 0
    rows = y[mask]
    same = rows
    rows += w
    rows.mul_(2)
    y[mask] = same
    return y


def in_a_view(y, w, x):
    y[0][x[0, :, :, 0] > 0] += w
    z = y.contiguous()
    flat = z.view(-1, 4)
    flat[x[..., 1].reshape(-1) > 0] *= w
    return z, y


def without_gradients(y, w, x):
    mask = x[..., 0] > 0
    with torch.no_grad():
        y[mask] *= w
    y[mask] -= 1


def of_integers(y, w, x):
    places, is_large = (y > 0).long(), y > 1
    mask = x > 0
    places[mask] = places[mask] * 3 - 1
    is_large[mask] = ~is_large[mask]
    return y * places, is_large


def of_half(y, w, x):
    half = y.half()
    mask = x[..., 0] > 0
    half[mask] *= w.half()
    half[mask] += 0.125
    return half


def hooked(y, w, x):
    y.register_hook(lambda gradient: gradient * 2)
    mask = x[..., 0] > 0
    y[mask] = y[mask] * w
    y.register_hook(lambda gradient: gradient + 1)
    return y


def hooked_whole(y, w, x):
    z = y * 1
    z.register_hook(lambda gradient: gradient * 2)
    mask = x[..., 0] > 0
    z[mask] = z[mask] * w
    z.register_hook(lambda gradient: gradient + 1)
    z[mask] = 0.5 - z[mask]
    return z


def counted(s, x):
    """What lasts from call to call."""
    mask = x[0, 0] > 0
    s.seen[mask] += 1
    x[:, 0, mask] *= 2
    return s.c(x) * s.seen[1:-1, 1:-1]


def another_mask(y, w, x):
    """As many rows, at other places."""
    mask = x[..., 0] > 0
    y[mask.flip(1)] = y[mask] + w
    return y


def a_mask_that_changes(y, w, x):
    mask = x[..., 0] > 0
    rows = y[mask.clone()] + w
    mask.copy_(mask.flip(1))
    y[mask] = rows
    return y


def over_rows(y, w, x):
    mask = x[..., 0] > 0
    y[mask] = y[mask] - y[mask].mean(0)
    return y


def along_a_row(y, w, x):
    mask = x[..., 0] > 0
    y[mask] = y[mask].softmax(-1)
    return y


def dropped(y, w, x):
    mask = x[..., 0] > 0
    y[mask] = torch.nn.functional.dropout(y[mask], 0.5)
    return y


def divided(y, w, x):
    mask = x[..., 0] > 0
    y[mask] = y[mask] / w
    return y


def handed_out(y, w, x):
    return y[x[..., 0] > 0] + w


def at_where(y, w, x):
    y[torch.where(x[..., 0] > 0)] = 0.5


def at_nonzero(y, w, x):
    y[torch.nonzero(x[..., 0] > 0, as_tuple=True)] = w


def at_indices(y, w, x):
    images, rows, columns = (x[..., 0] > 0).nonzero(as_tuple=True)
    y[images, rows, columns] *= w


def at_one_axis(y, w, x):
    y[:, torch.where(x[0, :, 0, 0] > 0)[0]] = w


def at_rows_alone(y, w, x):
    images, _, _ = torch.where(x[..., 0] > 0)
    y[images] = 0.0


def attention(s, x):
    """Mask2Former: a query that would see nothing sees all."""
    y = s.c(x)
    a = (y.flatten(2).sigmoid() < s.threshold).detach()
    a[torch.where(a.sum(-1) == a.shape[-1])] = False
    return y.flatten(2).masked_fill(a, -10.0).softmax(-1)


CASES = (
    Idiom("embeddings added to prompts of a label", SAM, training_on(points, labels)),
    Idiom("embeddings added to prompts, of which none is so", SAM,
          training_on(points, none_of_them)),
    Idiom("embeddings added to prompts in evaluation", SAM, points_alone),
    of_mask("y[mask] += w", added),
    of_mask("y[mask] += w of one row", added, w=(1, 4)),
    of_mask("y[mask] *= w", scaled),
    of_mask("y[mask] = w + y[mask]", written_out),
    of_mask("y[mask] = w + y[mask], w with an axis more", written_out, w=(1, 1, 4)),
    of_mask("y[mask] += w, in evaluation", added, steps=infer),
    of_mask("y[m(x)] = y[m(x)], the mask computed twice", told_twice),
    of_mask("y[y > 0] *= 2", of_all_elements),
    of_mask("logarithms of roots at a mask", roots),
    of_mask("shares at a mask, 0 / 0 beside it", shares),
    of_mask("infinity beside a mask", meets_infinity),
    of_mask("z[mask] = f(y[mask])", from_another),
    of_mask("y[mask] = |y[mask] - x[mask]|", of_two),
    of_mask("y[1, mask, 1:3] += w", in_a_part, w=(4,)),
    of_mask("y[:, :, mask] *= w", behind_two),
    of_mask("rows that were read before a write", read_before),
    of_mask("rows that are changed themselves", changed_itself),
    of_mask("rows of views", in_a_view),
    of_mask("rows where no gradients are", without_gradients),
    of_mask("rows of integers, and of truths", of_integers),
    of_mask("rows of a half type", of_half, steps=infer),
    of_mask("rows between hooks of a view", hooked),
    of_mask("rows between hooks", hooked_whole),
    Idiom("rows of a buffer and an argument",
          model(counted, c=conv(), seen=lambda: nn.Buffer(torch.zeros(7, 6))), infer),
    of_mask("rows in places of another mask", another_mask, expected=REFUSED, though=BY_DATA),
    of_mask("rows in places of a mask that changes", a_mask_that_changes, expected=REFUSED,
            though=BY_DATA),
    of_mask("a mean over rows of a mask", over_rows, expected=REFUSED, though=BY_DATA),
    of_mask("a softmax along rows of a mask", along_a_row, expected=REFUSED, though=BY_DATA),
    of_mask("dropout of rows of a mask", dropped, expected=REFUSED, though=BY_DATA),
    of_mask("y[mask] / w", divided, expected=REFUSED, though=BY_DATA),
    of_mask("rows of a mask handed out", handed_out, expected=REFUSED, though=BY_DATA),
    of_mask("y[torch.where(mask)] = 0.5", at_where),
    of_mask("y[torch.nonzero(mask, as_tuple=True)] = w", at_nonzero),
    of_mask("y[i, j, k] *= w, of mask.nonzero(as_tuple=True)", at_indices),
    of_mask("y[:, torch.where(m)[0]] = w", at_one_axis),
    of_mask("y[torch.where(mask)[0]] = 0", at_rows_alone, expected=REFUSED, though=BY_DATA),
    Idiom("masks of attention that would hide all",
          model(attention, c=conv(), threshold=held(0.45)), train),
)  # fmt: skip
