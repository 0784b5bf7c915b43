"""Builders of attention, and of the heads that it takes."""

from __future__ import annotations

import math

from ooc_cudnn.network.graph.builders.base import Builders, builder
from ooc_cudnn.network.graph.nodes.attention import (
    Attention,
    PackedAttention,
    of_heads,
    of_scores,
)
from ooc_cudnn.network.graph.nodes.heads import Heads
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.attention.launches import MASK
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.core.window_arguments import is_int
from ooc_cudnn.tensor import ACCUMULATOR


class AttentionBuilders(Builders):
    """Attention, and channels as its heads."""

    @builder
    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        bias: Tensor | None = None,
        scale: float | None = None,
        causal: bool = False,
        images: int | None = None,
        name: str = "",
    ) -> Tensor:
        """Add attention: ``softmax(scale * q . k + bias) . v``, of each head and query.

        As PyTorch's ``scaled_dot_product_attention``, with the depth of a head as channels: its
        tensors (n, heads, queries, depth) are ours (n, depth, heads, queries). A query that sees no
        key is 0. Scores are never whole in memory, and none are kept for backward.

        Parameters
        ----------
        q : Tensor, shape (n, depth, heads, queries), or (n, depth, queries)
        k : Tensor, shape (n, depth, key heads, keys), or (n, depth, keys)
            Of as many heads, or of fewer that divide these: so many heads share each of them.
        v : Tensor, shape (n, depth of values, key heads, keys), or without heads
        bias : Tensor, optional
            Added to the scores (n, heads, queries, keys), to which it is broadcast; of q's dtype,
            or float32. Of uint8 it is a mask: keys where it is 0 are not seen.
        scale : float, optional
            One over the root of the depth where left out.
        causal : bool
            Whether a query sees the keys up to its own number alone.
        images : int, optional
            Of the batch, where an image has several of n, as windows are; n where left out.

        Returns
        -------
        Tensor, shape (n, depth of values, heads, queries), or without heads as q
        """
        q, k, v = (self._own(x, said) for x, said in ((q, "q"), (k, "k"), (v, "v")))
        for tensor, said in ((q, "q"), (k, "k"), (v, "v")):
            if len(tensor.shape) not in (3, 4):
                raise ValueError(
                    f"{said} must have shape (n, depth, heads, queries or keys), or (n, depth, "
                    f"queries or keys), but {tensor.name} has {tensor.shape}"
                )
            if tensor.dtype != q.dtype:
                raise TypeError(
                    f"{said} must be {q.dtype} as q, but {tensor.name} is {tensor.dtype}"
                )
        (n, depth, heads, queries), of_k = of_heads(q.shape), of_heads(k.shape)
        if (of_k[0], of_k[1]) != (n, depth):
            raise ValueError(
                f"k must have shape ({n}, {depth}, key heads, keys), but {k.name} has {k.shape}"
            )
        if heads % of_k[2]:
            raise ValueError(f"heads of k must divide the {heads} of q, not be {of_k[2]}")
        of_v = of_heads(v.shape)
        if (of_v[0], *of_v[2:]) != (n, *of_k[2:]):
            raise ValueError(
                f"v must have shape ({n}, depth of values, {of_k[2]}, {of_k[3]}), but {v.name} has "
                f"{v.shape}"
            )
        told = self._told((n, heads, queries, of_k[3]), depth, q.dtype, bias, scale, images)
        y = self._result(name, (n, v.shape[1], *q.shape[2:]), q.dtype)
        return self._add(Attention(name, y, *told[:2], bool(causal), told[2], q, k, v))

    @builder
    def packed_attention(
        self,
        x: Tensor,
        heads: int,
        *,
        bias: Tensor | None = None,
        scale: float | None = None,
        causal: bool = False,
        images: int | None = None,
        name: str = "",
    ) -> Tensor:
        """Add attention of q, k and v that one linear layer makes: each a third of its channels.

        Parameters
        ----------
        x : Tensor, shape (n, 3 * heads * depth, sites)
            Of each third, channels are of one head after the other.
        heads : int
        bias, scale, causal, images
            As `attention` has them.

        Returns
        -------
        Tensor, shape (n, depth, heads, sites)
        """
        x = self._own(x)
        if len(x.shape) != 3:
            raise ValueError(f"x must have shape (n, channels, sites), but {x.name} has {x.shape}")
        n, channels, sites = x.shape
        if not is_int(heads) or heads < 1 or channels % (3 * heads):
            raise ValueError(f"3 * heads must divide the {channels} channels of x, not {heads!r}")
        depth = channels // (3 * heads)
        told = self._told((n, heads, sites, sites), depth, x.dtype, bias, scale, images)
        y = self._result(name, (n, depth, heads, sites), x.dtype)
        made = PackedAttention(name, y, *told[:2], bool(causal), told[2], x, int(heads))
        return self._add(made)

    @builder
    def split_heads(self, x: Tensor, heads: int, *, name: str = "") -> Tensor:
        """Channels (n, heads * depth, sites) as heads, (n, depth, heads, sites)."""
        x = self._own(x)
        if len(x.shape) != 3:
            raise ValueError(f"x must have shape (n, channels, sites), but {x.name} has {x.shape}")
        n, channels, sites = x.shape
        if not is_int(heads) or heads < 1 or channels % heads:
            raise ValueError(f"heads must divide the {channels} channels of x, not be {heads!r}")
        y = self._result(name, (n, channels // heads, int(heads), sites), x.dtype)
        return self._add(Heads(name, y, x))

    @builder
    def join_heads(self, x: Tensor, *, name: str = "") -> Tensor:
        """Heads (n, depth, heads, sites) as channels, (n, heads * depth, sites)."""
        x = self._own(x)
        if len(x.shape) != 4:
            raise ValueError(
                f"x must have shape (n, depth, heads, sites), but {x.name} has {x.shape}"
            )
        n, depth, heads, sites = x.shape
        return self._add(Heads(name, self._result(name, (n, heads * depth, sites), x.dtype), x))

    def _told(
        self,
        scores: Shape,
        depth: int,
        dtype: str,
        bias: Tensor | None,
        scale: float | None,
        images: int | None,
    ) -> tuple[Tensor | None, float, int]:
        """Check what is told beside the maps, and fill in what is left out."""
        n = scores[0]
        if images is not None and (not is_int(images) or images < 1 or n % images):
            raise ValueError(f"images must divide {n}, the first axis of q, not be {images!r}")
        added = None if bias is None else self._bias(bias, scores, dtype)
        return added, 1 / math.sqrt(depth) if scale is None else float(scale), int(images or n)

    def _bias(self, bias: Tensor, scores: Shape, dtype: str) -> Tensor:
        """Check a bias of these scores."""
        found = self.graph.check_own(bias, "bias")
        allowed = dict.fromkeys((dtype, ACCUMULATOR[dtype], MASK))
        if found.dtype not in allowed:
            raise TypeError(
                f"bias must be {' or '.join(allowed)}, but {found.name} is {found.dtype}"
            )
        if len(found.shape) > 4 or any(
            extent not in (1, full)
            for extent, full in zip(of_scores(found.shape), scores, strict=True)
        ):
            raise ValueError(
                f"bias must be broadcast to the scores {scores}, but {found.name} has {found.shape}"
            )
        return found
