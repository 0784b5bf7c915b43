"""Attention and its gradients, as a device computes them on some images, heads and queries.

The scores of a query and all keys are ``scale * q . k + bias``; their softmax weighs the values:
``y = softmax(scores) . v``. A device makes the scores of some queries at a time, and never keeps
them: of each query the logarithm of the sum of exponentials is saved, which makes its row again.

Keys and values may have fewer heads than queries: as many heads of queries share one of theirs.

The depth of a head is the axis of channels, and heads and queries are sites: (n, depth, heads,
queries). In channels-last order each row of memory is a query, as products of matrices take it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.external.calls import DENSE_FLOPS_PER_BYTE
from ooc_cudnn.tensor import ACCUMULATOR, ITEM_BYTES
from perfmodel import Work, pass_work

#: The dtype of a bias that is a mask: keys where it is 0 are not seen.
MASK = "uint8"
#: Of half types, most queries and keys, and the deepest heads, whose scores stay on a card's chip
#: (attention_small.cu): windows. Depths are multiples of what a thread reads at once.
ON_CHIP, DEEPEST_ON_CHIP, DEPTH_STEP = 64, 64, 8


def is_on_chip(dtype: str, rows: tuple[int, int], depths: tuple[int, int]) -> bool:
    """True if scores of so many queries and keys, and heads so deep, need not leave a card's chip.

    >>> is_on_chip("bfloat16", (49, 49), (32, 32)), is_on_chip("bfloat16", (197, 197), (64, 64))
    (True, False)
    """
    return (
        dtype in ("float16", "bfloat16")
        and max(rows) <= ON_CHIP
        and depths[0] == depths[1] <= DEEPEST_ON_CHIP
        and depths[0] % DEPTH_STEP == 0
    )


@dataclass(frozen=True)
class Attention:
    """y from (q, k, v, bias, lse); lse is written beside.

    A query that sees no key has y = 0 and lse = -infinity.

    Source: torch.nn.functional.scaled_dot_product_attention.

    Parameters
    ----------
    q_shape : tuple of int
        (n, depth, heads, queries).
    k_shape : tuple of int
        (n, depth, key heads, keys); the key heads divide the heads.
    v_depth : int
        Of the values (n, v_depth, key heads, keys) and of y (n, v_depth, heads, queries).
    dtype : str
        Of q, k, v and y. lse (n, 1, heads, queries) is in its accumulator's.
    scale : float
    bias_shape : tuple of int, optional
        Of the bias: each extent 1, or that of (n, heads, queries, keys). None: it is absent.
    bias_dtype : str
        Of the bias; `MASK` of a mask.
    causal : bool
        Whether a query sees the keys up to its own number alone.
    first : int
        The number of the first query.
    allow_tf32, deterministic : bool
        Whether products of float32 may be made in TF32; whether gradients are the same each time.
    """

    q_shape: Shape
    k_shape: Shape
    v_depth: int
    dtype: str
    scale: float
    bias_shape: Shape | None = None
    bias_dtype: str = ""
    causal: bool = False
    first: int = 0
    allow_tf32: bool = False
    deterministic: bool = False

    name = "attention_forward"

    @property
    def y_shape(self) -> Shape:
        """Shape of y."""
        return (self.q_shape[0], self.v_depth, *self.q_shape[2:])

    @property
    def v_shape(self) -> Shape:
        """Shape of the values."""
        return (self.k_shape[0], self.v_depth, *self.k_shape[2:])

    @property
    def lse_shape(self) -> Shape:
        """Shape of the logarithms of sums."""
        return (self.q_shape[0], 1, *self.q_shape[2:])

    @property
    def output_shape(self) -> Shape:
        return self.y_shape

    @property
    def depth(self) -> int:
        """Depth of q and k."""
        return self.q_shape[1]

    @property
    def group(self) -> int:
        """Heads of queries that share one of keys."""
        return self.q_shape[2] // self.k_shape[2]

    @property
    def scores_shape(self) -> Shape:
        """Shape of the scores: (n, heads, queries, keys)."""
        n, _, heads, queries = self.q_shape
        return (n, heads, queries, self.k_shape[3])

    @property
    def lse_dtype(self) -> str:
        """Dtype of the logarithms of sums, and of all arithmetic."""
        return ACCUMULATOR[self.dtype]

    def work(self) -> Work:
        """Two products with matrices of scores."""
        return self.work_of(self.name, 2)

    def work_of(self, name: str, products: int) -> Work:
        """Work by their arithmetic where the heads are deep, else by passes over the scores.

        Each product writes or reads these; of causal ones half are seen.
        """
        scores = math.prod(self.scores_shape) / (2 if self.causal else 1)
        flops = products * scores * (self.depth + self.v_depth)
        data = 2 * products * (math.prod(self.q_shape) + math.prod(self.k_shape))
        moved = data * ITEM_BYTES[self.dtype] + 2 * products * scores * ITEM_BYTES[self.lse_dtype]
        problem = f"{name}; {self.depth} deep"
        if flops > DENSE_FLOPS_PER_BYTE * moved:
            precision = "tf32" if self.dtype == "float32" and self.allow_tf32 else self.dtype
            key = f"convolution/{precision}/channels_first"
            return Work(key, flops, moved, problem=problem)
        key = f"pointwise/{self.dtype}/softmax"
        return pass_work(
            key, device_bytes=moved, elements=scores, exponentials=scores, problem=problem
        )

    def scores(self, q: Array, k: Array, bias: Array | None) -> Array:
        """The scores of all heads, with -infinity where a key is not seen."""
        found = self.scale * (as_rows(q) @ self.of_heads(k).swapaxes(2, 3))
        if bias is not None:
            found = found + (np.where(bias != 0, 0.0, -np.inf) if self.is_mask else bias)
        if self.causal:
            queries, keys = found.shape[2:]
            unseen = np.arange(keys) > self.first + np.arange(queries)[:, None]
            found = np.where(unseen, -np.inf, found)
        return found

    @property
    def is_mask(self) -> bool:
        """True if the bias is a mask."""
        return self.bias_dtype == MASK

    def of_heads(self, array: Array) -> Array:
        """Rows of keys or values, for each head of the queries."""
        return np.repeat(as_rows(array), self.group, axis=1)

    def of_key_heads(self, array: Array) -> Array:
        """Sum the rows that heads of queries give keys over those that share these."""
        n, heads, *rest = array.shape
        grouped = array.reshape(n, heads // self.group, self.group, *rest)
        return as_channels(np.asarray(grouped.sum(axis=2)))

    def reference(
        self, q: Array, k: Array, v: Array, bias: Array | None = None
    ) -> tuple[Array, Array]:
        """Y and lse."""
        weights, lse = softmax(self.scores(q, k, bias))
        return as_channels(weights @ self.of_heads(v)), lse[:, None]


@dataclass(frozen=True)
class AttentionBackward:
    """dq from (q, k, v, bias, y, dy, lse, dk, dv, dbias); dk, dv and dbias are written beside.

    Results may be wider than what is read. Where dbias is not made, the launch has no such input.

    Parameters
    ----------
    forward : Attention
    bias_gradient : bool
        Whether dbias is made, of the bias's shape.
    """

    forward: Attention
    bias_gradient: bool = False

    name = "attention_backward"

    @property
    def dtype(self) -> str:
        """Dtype of what it reads."""
        return self.forward.dtype

    @property
    def output_shape(self) -> Shape:
        return self.forward.q_shape

    def work(self) -> Work:
        """Five products with matrices of scores."""
        return self.forward.work_of(self.name, 5)

    def reference(
        self, q: Array, k: Array, v: Array, bias: Array | None, dy: Array
    ) -> tuple[Array, Array, Array, Array | None]:
        """Dq, dk, dv and dbias; y and lse are made again."""
        forward = self.forward
        weights, _ = softmax(forward.scores(q, k, bias))
        rows = as_rows(dy)
        dweights = rows @ forward.of_heads(v).swapaxes(2, 3)
        dscores = weights * (dweights - (weights * dweights).sum(axis=3, keepdims=True))
        dq = as_channels(forward.scale * dscores @ forward.of_heads(k))
        dk = forward.of_key_heads(forward.scale * dscores.swapaxes(2, 3) @ as_rows(q))
        dv = forward.of_key_heads(weights.swapaxes(2, 3) @ rows)
        dbias = None
        if self.bias_gradient:
            assert forward.bias_shape is not None
            dbias = sum_to(dscores, forward.bias_shape)
        return dq, dk, dv, dbias


def as_rows(array: Array) -> Array:
    """View (n, depth, heads, queries) as (n, heads, queries, depth).

    >>> as_rows(np.zeros((2, 3, 5, 7))).shape
    (2, 5, 7, 3)
    """
    return array.transpose(0, 2, 3, 1)


def as_channels(rows: Array) -> Array:
    """View (n, heads, queries, depth) as (n, depth, heads, queries)."""
    return rows.transpose(0, 3, 1, 2)


def softmax(scores: Array) -> tuple[Array, Array]:
    """Softmax over the last axis, 0 where nothing is seen, and the logarithms of the sums."""
    largest = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(largest == -np.inf, 0, largest))
    total = powers.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(total == 0, -np.inf, largest + np.log(total))
    return powers / np.where(total == 0, 1, total), lse[..., 0]


def sum_to(array: Array, shape: Shape) -> Array:
    """Sum over the axes along which something of that shape is broadcast.

    >>> sum_to(np.ones((2, 3)), (1, 3))
    array([[2., 2., 2.]])
    """
    axes = tuple(
        axis for axis, extents in enumerate(zip(array.shape, shape, strict=True))
        if extents[1] != extents[0]
    )  # fmt: skip
    return np.asarray(array.sum(axis=axes, keepdims=True))
