"""Attention on the host: blocks of images, heads and queries, whose scores are a chunk.

Of a block of some queries all that they see is there, so each row of scores is made once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.devices.host import chunks as host_chunks
from ooc_cudnn.devices.host.chunks import Array, Inputs, Runner, arithmetic_dtype
from ooc_cudnn.operations.attention.heads import Heads
from ooc_cudnn.operations.attention.launches import (
    Attention,
    AttentionBackward,
    as_rows,
    sum_to,
)
from ooc_cudnn.operations.core.operation import Shape


class _Block(NamedTuple):
    """Some images, heads of keys and queries of an operation."""

    operation: Attention
    images: slice
    key_heads: slice
    queries: slice

    @property
    def heads(self) -> slice:
        """Heads of the queries."""
        group = self.operation.group
        return slice(self.key_heads.start * group, self.key_heads.stop * group)

    @property
    def seen(self) -> int:
        """Number of keys that its last query sees."""
        keys, last = self.operation.k_shape[3], self.operation.first + self.queries.stop
        return min(keys, last) if self.operation.causal else keys

    @property
    def scores_shape(self) -> Shape:
        """Shape of its scores."""
        cut = (self.images, self.heads, self.queries)
        return (*(each.stop - each.start for each in cut), self.seen)

    def of_queries(self, array: Array) -> Array:
        """Rows of queries in the type of arithmetic: (images, key heads, rows, depth).

        Heads that share keys lie one after the other, so that one product takes them all.
        """
        part = array[self.images, self.heads, self.queries]
        wide = np.ascontiguousarray(part, arithmetic_dtype(self.operation.dtype))
        return wide.reshape(*self._rows_shape, part.shape[3])

    def of_keys(self, array: Array) -> Array:
        """The keys or values that are seen, in the type of arithmetic."""
        part = array[self.images, self.key_heads, : self.seen]
        return part.astype(arithmetic_dtype(self.operation.dtype), copy=False)

    def place_of_bias(self) -> tuple[slice, ...]:
        """The part of a bias that meets the scores."""
        assert self.operation.bias_shape is not None
        whole = (self.images, self.heads, self.queries, slice(0, self.seen))
        pairs = zip(self.operation.bias_shape, whole, strict=True)
        return tuple(slice(0, 1) if extent == 1 else part for extent, part in pairs)

    def scores(self, q: Array, k: Array, bias: Array | None) -> Array:
        """The scores, with -infinity where a key is not seen: (images, heads, queries, keys)."""
        operation = self.operation
        rows = self.of_queries(q) @ self.of_keys(k).swapaxes(2, 3)
        scores = rows.reshape(self.scores_shape)
        scores *= operation.scale
        if bias is not None:
            part = bias[self.place_of_bias()]
            if operation.is_mask:
                part = np.where(part != 0, scores.dtype.type(0), scores.dtype.type(-np.inf))
            scores += part.astype(scores.dtype, copy=False)
        if operation.causal:
            numbers = operation.first + np.arange(self.queries.start, self.queries.stop)
            np.copyto(scores, -np.inf, where=np.arange(self.seen) > numbers[:, None])
        return scores

    def as_rows(self, scores: Array) -> Array:
        """Scores as rows of heads of keys, as products take them."""
        return scores.reshape(*self._rows_shape, self.seen)

    def as_queries(self, rows: Array) -> Array:
        """The rows of a product as queries of heads."""
        return rows.reshape(*self.scores_shape[:3], rows.shape[3])

    @property
    def _rows_shape(self) -> Shape:
        images, heads, queries, _ = self.scores_shape
        group = self.operation.group
        return images, heads // group, group * queries


def _blocks(operation: Attention) -> Iterator[list[_Block]]:
    """Blocks, in lists of those with the same keys."""
    n, heads, queries, keys = operation.scores_shape
    of_query = max(operation.group * keys, 1)
    rows = min(max(host_chunks.CHUNK_ELEMENTS // of_query, 1), queries)
    at_once = max(host_chunks.CHUNK_ELEMENTS // (of_query * rows), 1) if rows == queries else 1
    key_heads = heads // operation.group
    steps = max(at_once // key_heads, 1), min(at_once, key_heads)
    for image in range(0, n, steps[0]):
        images = slice(image, min(image + steps[0], n))
        for head in range(0, key_heads, steps[1]):
            some = slice(head, min(head + steps[1], key_heads))
            yield [
                _Block(operation, images, some, slice(row, min(row + rows, queries)))
                for row in range(0, queries, rows)
            ]


def attention(operation: Attention, inputs: Inputs, output: Array, workspace: Array) -> None:
    """y = softmax(scale * q . k + bias) . v, and the logarithms of the sums."""
    *arrays, bias, lse = inputs
    q, k, v, y_rows, lse_rows = map(as_rows, (*arrays, output, lse))
    for block in (each for same in _blocks(operation) for each in same):
        scores = block.scores(q, k, bias)
        largest = scores.max(axis=3, keepdims=True)
        scores -= np.where(largest == -np.inf, 0, largest)
        np.exp(scores, out=scores)
        total = scores.sum(axis=3, keepdims=True)
        place = (block.images, block.heads, block.queries)
        lse_rows[place] = largest + np.log(total)
        y = block.as_queries(block.as_rows(scores) @ block.of_keys(v))
        y /= np.where(total == 0, 1, total)
        y_rows[place] = y


def attention_backward(
    operation: AttentionBackward, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """dq, dk, dv and dbias, of scores that are made again."""
    bias, dbias = inputs[3], inputs[9] if operation.bias_gradient else None
    q, k, v, y, dy, lse, dk, dv = map(as_rows, (*inputs[:3], *inputs[4:9]))
    dq = as_rows(output)
    forward = operation.forward
    dtype = arithmetic_dtype(forward.dtype)
    bias_sum = None if dbias is None else np.zeros(dbias.shape, dtype)
    for same in _blocks(forward):
        place_of_keys = (same[0].images, same[0].key_heads)
        sums: list[Array] = [np.zeros(each[place_of_keys].shape, dtype) for each in (dk, dv)]
        for block in same:
            place = (block.images, block.heads, block.queries)
            weights = block.scores(q, k, bias)
            logarithm = lse[place]
            weights -= np.where(logarithm == -np.inf, np.inf, logarithm)
            np.exp(weights, out=weights)
            rows, values = block.of_queries(dy), block.of_keys(v)
            sums[1][:, :, : block.seen] += block.as_rows(weights).swapaxes(2, 3) @ rows
            scores = (rows @ values.swapaxes(2, 3)).reshape(block.scores_shape)
            products = rows * block.of_queries(y)
            scores -= block.as_queries(products.sum(axis=3, keepdims=True))
            scores *= weights
            if bias_sum is not None:
                part = block.place_of_bias()
                bias_sum[part] += sum_to(scores, bias_sum[part].shape)
            scores *= forward.scale
            dscores = block.as_rows(scores)
            dq[place] = block.as_queries(dscores @ block.of_keys(k))
            sums[0][:, :, : block.seen] += dscores.swapaxes(2, 3) @ block.of_queries(q)
        dk[place_of_keys], dv[place_of_keys] = sums
    if dbias is not None:
        dbias[...] = bias_sum


def heads(operation: Heads, inputs: Inputs, output: Array, workspace: Array) -> None:
    """The same elements in their other places."""
    source, target = operation.views(inputs[0], output)
    np.copyto(target, source)


RUNNERS: dict[type[Any], Runner] = {
    Attention: attention,
    AttentionBackward: attention_backward,
    Heads: heads,
}
