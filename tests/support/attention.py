"""Attention by PyTorch, in float64: what the library's must be, and cases of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from ooc_cudnn.operations.attention.launches import MASK, as_channels, as_rows
from ooc_cudnn.tensor import ACCUMULATOR, numpy_dtype
from tests.support.host_operations import UNIT

torch = pytest.importorskip("torch")


class Case(NamedTuple):
    """Shapes, and what meets the scores: a bias (or mask) of this shape, or causality."""

    heads: tuple[int, int]  # of queries, and of keys
    extents: tuple[int, int, int, int, int]  # images, queries, keys, depth, depth of values
    bias: tuple[int, ...] | None = None
    is_mask: bool = False
    causal: bool = False
    scale: float = 0.4

    @property
    def q_shape(self):
        n, queries, _, depth, _ = self.extents
        return (n, depth, self.heads[0], queries)

    @property
    def k_shape(self):
        n, _, keys, depth, _ = self.extents
        return (n, depth, self.heads[1], keys)

    @property
    def v_shape(self):
        n, _, *sites = self.k_shape
        return (n, self.extents[4], *sites)

    @property
    def y_shape(self):
        n, _, *sites = self.q_shape
        return (n, self.extents[4], *sites)

    @property
    def lse_shape(self):
        n, _, *sites = self.q_shape
        return (n, 1, *sites)


CASES = {
    "plain": Case((2, 2), (2, 5, 7, 4, 3)),
    "one query": Case((3, 3), (2, 1, 6, 3, 3)),
    "one key": Case((2, 2), (1, 4, 1, 2, 5)),
    "windows with a bias": Case((3, 3), (4, 4, 4, 2, 2), (1, 3, 4, 4)),
    "a bias of images": Case((2, 2), (3, 4, 5, 3, 3), (3, 1, 1, 5)),
    "a bias of queries": Case((2, 2), (2, 4, 5, 3, 3), (1, 1, 4, 1)),
    "a whole bias": Case((2, 2), (2, 3, 4, 3, 3), (2, 2, 3, 4)),
    "a mask of keys": Case((2, 2), (3, 4, 6, 3, 4), (3, 1, 1, 6), True),
    "a mask of all": Case((2, 2), (2, 5, 4, 3, 4), (2, 2, 5, 4), True),
    "causal": Case((2, 2), (2, 6, 6, 4, 4), causal=True),
    "causal, more keys": Case((2, 2), (1, 4, 9, 3, 3), causal=True),
    "causal, fewer keys": Case((2, 2), (1, 7, 3, 3, 3), causal=True),
    "shared keys": Case((6, 2), (2, 5, 4, 3, 2)),
    "shared keys, causal": Case((4, 1), (2, 5, 6, 3, 3), causal=True),
    "shared keys with a bias": Case((4, 2), (2, 3, 5, 3, 3), (1, 4, 3, 5)),
}


def draw(case, random, dtype="float64"):
    """Operands by name, as a dtype has them; of a mask some queries see nothing."""
    kind = numpy_dtype(dtype)
    shapes = {"q": case.q_shape, "k": case.k_shape, "v": case.v_shape, "dy": case.y_shape}
    made = {name: random.standard_normal(shape).astype(kind) for name, shape in shapes.items()}
    if case.is_mask:
        made["bias"] = random.integers(0, 2, case.bias).astype(MASK)
        made["bias"][-1, -1, -1] = 0
    elif case.bias is not None:
        made["bias"] = random.standard_normal(case.bias).astype(kind)
        made["bias"][0, 0, 0, 0] = -np.inf
    return made


def by_pytorch(case, operands):
    """Y, lse, dq, dk, dv and dbias in float64, by autograd: (n, depth, heads, queries) as ours."""
    operands = {
        name: each if name == "bias" else np.ascontiguousarray(as_rows(each))
        for name, each in operands.items()
    }
    given = {name: torch.from_numpy(each.astype("f8")) for name, each in operands.items()}
    for name in ("q", "k", "v"):
        given[name].requires_grad_()
    q, k, v, bias = (given.get(name) for name in ("q", "k", "v", "bias"))
    group = case.heads[0] // case.heads[1]
    keys, values = (each.repeat_interleave(group, 1) for each in (k, v))
    if case.is_mask:
        bias = bias != 0
    elif bias is not None:
        bias.requires_grad_()
    y = torch.nn.functional.scaled_dot_product_attention(
        q, keys, values, bias, is_causal=case.causal, scale=case.scale
    )
    y.backward(given["dy"])
    with torch.no_grad():
        scores = case.scale * q @ keys.mT
        if case.is_mask:
            scores = scores.masked_fill(~bias, -torch.inf)
        elif bias is not None:
            scores = scores + bias
        if case.causal:
            seen = torch.ones(scores.shape[2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~seen, -torch.inf)
        made = {"y": y, "lse": scores.logsumexp(3, True), "dq": q.grad, "dk": k.grad, "dv": v.grad}
    found = {name: as_channels(each.detach().numpy()) for name, each in made.items()}
    if case.bias is not None and not case.is_mask:
        found["dbias"] = bias.grad.numpy()
    return found


def bias_dtype(case, dtype):
    """The dtype of a case's bias."""
    return "" if case.bias is None else MASK if case.is_mask else dtype


def terms_of(dtype, *, backward=False):
    """Roundings in the type of sums that a result may have: a card rounds weights of half types.

    Backward y is read as it was rounded, and its error goes into each row.
    """
    wide = UNIT[ACCUMULATOR[dtype]]
    rounded = UNIT[dtype] / wide if UNIT[dtype] != wide else 0
    return 64 + 24 * rounded if backward else 32 + 4 * rounded
