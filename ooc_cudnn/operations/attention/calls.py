"""Attention and its gradients as calls: cut along images, and heads or queries; keys are whole.

Of q (n, depth, heads, queries) rows are heads or queries, whichever axis hY is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc_cudnn.operations.attention.launches import (
    Attention,
    AttentionBackward,
    as_channels,
    as_rows,
    softmax,
    sum_to,
)
from ooc_cudnn.operations.core.call import Operand, Piece, Read, Region, Rounding, random_range
from ooc_cudnn.operations.core.launch_builder import Builder, BuiltCall
from ooc_cudnn.operations.core.operation import Array
from ooc_cudnn.operations.core.row_axis import ROW_AXIS
from ooc_cudnn.operations.core.single_op import ForwardTypedCall
from perfmodel import Split
from perfmodel.cached import cached_property

IMAGES, ROWS = frozenset({"n"}), frozenset({"h_y"})
#: The axis of heads, among the sites; that of queries follows.
HEADS = ROW_AXIS


class _OfAttention(ForwardTypedCall, BuiltCall):
    """Shared by both directions.

    Operands are taken and made in channels-last order, a bias as it lies. Heads that share keys are
    not cut.

    Parameters
    ----------
    forward : Attention
    images : int
        Of the batch, where each has several of its first axis: windows. 0: as many as that has.
    """

    forward: Attention
    images: int

    @property
    def _count(self) -> int:
        return self.images or self.forward.q_shape[0]

    @property
    def cuts_rows(self) -> bool:
        """True if heads or queries may be cut."""
        return True

    @property
    def _cuts_heads(self) -> bool:
        return self.cuts_rows and self.row_axis == HEADS and self.forward.group == 1

    @property
    def _cuts_queries(self) -> bool:
        return self.cuts_rows and self.row_axis != HEADS

    @cached_property
    def _taken(self) -> dict[str, Operand]:
        forward, dtype = self.forward, self.dtype
        of_keys = IMAGES | ROWS if self._cuts_heads else IMAGES
        found = {
            "q": Operand(forward.q_shape, dtype, self._of_queries),
            "k": Operand(forward.k_shape, dtype, of_keys),
            "v": Operand(forward.v_shape, dtype, of_keys),
        }
        if forward.bias_shape is not None:
            n, heads, queries, _ = forward.bias_shape
            along = heads if self._cuts_heads else queries if self._cuts_queries else 1
            axes = (IMAGES if n > 1 else frozenset()) | (ROWS if along > 1 else frozenset())
            found["bias"] = Operand(forward.bias_shape, forward.bias_dtype, axes)
        return found

    @property
    def _of_queries(self) -> frozenset[str]:
        return IMAGES | ROWS if self._cuts_heads or self._cuts_queries else IMAGES

    @property
    def _made(self) -> dict[str, Operand]:
        forward = self.forward
        return {
            "y": Operand(forward.y_shape, self.dtype, self._of_queries),
            "lse": Operand(forward.lse_shape, forward.lse_dtype, self._of_queries),
        }

    @cached_property
    def extents(self) -> Split:
        shape = self.forward.q_shape
        cut = self._cuts_heads or self._cuts_queries
        return Split(n=self._count, c_y=1, c_x=1, h_y=shape[self.row_axis] if cut else 1)

    @property
    def row_axes(self) -> tuple[int, ...]:
        return (HEADS, HEADS + 1)

    def region(self, name: str, piece: Piece) -> Region:
        whole = tuple((0, extent) for extent in self.operands[name].shape)
        each = self.forward.q_shape[0] // self._count
        images = (piece.n[0] * each, piece.n[1] * each)
        _, _, heads, queries = ((0, extent) for extent in self.forward.q_shape)
        if self._cuts_heads:
            heads = piece.h_y
        elif self._cuts_queries:
            queries = piece.h_y
        if name in ("bias", "dbias"):
            cut = (images, heads, queries, whole[3])
            return tuple(
                every if every == (0, 1) else part for every, part in zip(whole, cut, strict=True)
            )
        if name in ("k", "v", "dk", "dv"):
            return (images, whole[1], heads if self._cuts_heads else whole[2], whole[3])
        return (images, whole[1], heads, queries)

    def _first(self, piece: Piece) -> int:
        """The number of a piece's first query."""
        return self.forward.first + (piece.h_y[0] if self._cuts_queries else 0)

    def launch_key(self, piece: Piece) -> Hashable:
        """Key of a piece's launches; with its position where that says which keys are seen."""
        return super().launch_key(piece), self._first(piece) if self.forward.causal else None

    def on_piece(self, piece: Piece, dtype: str) -> Attention:
        """Operation that is launched on a piece of data of that type."""
        shapes = {
            name: tuple(stop - start for start, stop in self.region(name, piece))
            for name in self._taken
        }
        return replace(
            self.forward,
            q_shape=shapes["q"],
            k_shape=shapes["k"],
            bias_shape=shapes.get("bias"),
            first=self._first(piece) if self.forward.causal else 0,
            dtype=dtype,
        )

    def launch_with(self, build: Builder, operation: Any, *reads: str) -> None:
        """Launch on q, k, v, the bias and what else is read; the first result is the output."""
        order = "channels_last"
        taken = [build.in_order(name, order) for name in ("q", "k", "v")]
        taken.append("bias" if "bias" in self.operands else "")
        taken += [name if name == "lse" else build.in_order(name, order) for name in reads]
        orders = {"lse": "", "dbias": "channels_first"}  # one number a query is in either order
        targets = {name: build.target(name, orders.get(name, order)) for name in self.results}
        first, *beside = targets.values()
        build.launch(operation, (*taken, *beside), first)
        build.release(*taken)
        for result, target in targets.items():
            build.complete(result, target)

    # Checking ---------------------------------------------------------------------------------

    def patch(self, random: np.random.Generator) -> Piece:
        """Some rows of one image; all of those that are summed."""
        whole = self.extents
        alone = self.may_cut("h_y") and "h_y" not in self.reduced
        rows = random_range(random, whole.h_y, 2) if alone else (0, whole.h_y)
        return Piece(random_range(random, whole.n, 1), (0, 1), rows, (0, 1))

    def read_all(self, piece: Piece, read: Read) -> tuple[Array, Array, Array, Array | None]:
        """Read q, k, v and the bias of a piece; None for one that is absent."""
        q, k, v, *more = (read(name, self.region(name, piece)) for name in self._taken)
        return q, k, v, more[0] if more else None

    def rounding(self) -> Rounding:
        forward = self.forward
        tf32 = forward.dtype == "float32" and forward.allow_tf32
        terms = forward.depth + forward.k_shape[3] + forward.group * forward.q_shape[3]
        return Rounding(terms, "tf32" if tf32 else forward.dtype, 8)


@dataclass(frozen=True)
class AttentionCall(_OfAttention):
    """y and lse, the logarithms of the sums of exponentials, from q, k, v and the bias.

    Alpha and beta are those of y.
    """

    forward: Attention
    images: int = 0

    lead = "q"
    results = ("y", "lse")
    reduced = ()

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        return {**self._taken, **self._made}

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        return (*self._taken, "y") if self.beta else tuple(self._taken)

    def scaling(self, result: str) -> tuple[float, float]:
        return (self.alpha, self.beta) if result == "y" else (1.0, 0.0)

    def build(self, build: Builder) -> None:
        self.launch_with(build, self.on_piece(build.piece, self.dtype))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        (q, k, v, bias), forward = self.read_all(piece, read), self.on_piece(piece, "float64")
        y, lse = forward.reference(q, k, v, bias)
        reach = _reach(forward, q, k, bias)
        size = softmax(forward.scores(q, k, bias))[0] @ np.abs(forward.of_heads(v))
        return {"y": (y, as_channels(size * reach)), "lse": (lse, as_channels(reach))}


@dataclass(frozen=True)
class AttentionGradientCall(_OfAttention):
    """dq, dk, dv, and with `bias_gradient` dbias, from q, k, v, the bias, y, dy and lse.

    dk and dv are summed over the queries. Where dbias is made, images alone are cut: it is summed
    over those that share it, and alpha and beta are its own, else those of all results.
    """

    forward: Attention
    bias_gradient: bool = False
    images: int = 0

    lead = "dy"

    @property
    def results(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the results."""
        return ("dq", "dk", "dv", "dbias") if self.bias_gradient else ("dq", "dk", "dv")

    @property
    def cuts_rows(self) -> bool:
        return not self.bias_gradient

    @property
    def reduced(self) -> tuple[str, ...]:  # type: ignore[override]
        """The queries; or the images that share the bias."""
        if self.bias_gradient:
            return () if self._taken["bias"].axes else ("n",)
        return ("h_y",) if self._cuts_queries else ()

    @property
    def loop_order(self) -> tuple[str, ...]:  # type: ignore[override]
        """Reduced axes innermost."""
        kept = tuple(axis for axis in ("n", "c_y", "h_y", "c_x") if axis not in self.reduced)
        return (*kept, *self.reduced)

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        taken, made = self._taken, self._made
        reads = {**taken, "y": made["y"], "dy": made["y"], "lse": made["lse"]}
        return {**reads, **{result: taken[result[1:]] for result in self.results}}

    def scaling(self, result: str) -> tuple[float, float]:
        scaled = not self.bias_gradient or result == "dbias"
        return (self.alpha, self.beta) if scaled else (1.0, 0.0)

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        results = {result for result in self.results if self.scaling(result)[1] == 0}
        return tuple(name for name in self.operands if name not in results)

    def build(self, build: Builder) -> None:
        forward = self.on_piece(build.piece, self.dtype)
        operation = AttentionBackward(forward, self.bias_gradient)
        self.launch_with(build, operation, "y", "dy", "lse")

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Gradients of a patch; of the bias only where it is of this patch alone."""
        (q, k, v, bias), forward = self.read_all(piece, read), self.on_piece(piece, "float64")
        dy = read("dy", self.region("dy", piece))
        made = AttentionBackward(forward, self.bias_gradient).reference(q, k, v, bias, dy)
        values = dict(zip(("dq", "dk", "dv", "dbias"), made, strict=True))
        reach = _reach(forward, q, k, bias)
        weights, _ = softmax(forward.scores(q, k, bias))
        rows = np.abs(as_rows(dy))
        products = rows @ forward.of_heads(np.abs(v)).swapaxes(2, 3)
        totals = (weights * products).sum(axis=3, keepdims=True)
        scores = weights * (products + totals) * reach
        scaled = abs(forward.scale) * scores
        sizes = {
            "dq": as_channels(scaled @ forward.of_heads(np.abs(k))),
            "dk": forward.of_key_heads(scaled.swapaxes(2, 3) @ np.abs(as_rows(q))),
            "dv": forward.of_key_heads((weights * reach).swapaxes(2, 3) @ rows),
        }
        if self.bias_gradient and not self._is_summed(piece):
            assert forward.bias_shape is not None
            sizes["dbias"] = sum_to(scores, forward.bias_shape)
        return {name: (np.asarray(values[name]), size) for name, size in sizes.items()}

    def _is_summed(self, piece: Piece) -> bool:
        """True if a piece makes a part of the sums alone."""
        whole = self.whole_piece()
        return any(getattr(piece, axis) != getattr(whole, axis) for axis in self.reduced)


def _reach(forward: Attention, q: Array, k: Array, bias: Array | None) -> Array:
    """Scale of the rounding errors of a query's scores: (n, heads, queries, 1)."""
    size = abs(forward.scale) * (np.abs(as_rows(q)) @ forward.of_heads(np.abs(k)).swapaxes(2, 3))
    if bias is not None and not forward.is_mask:
        size = size + np.where(np.isfinite(bias), np.abs(bias), 0)
    return np.asarray(1 + size.max(axis=3, keepdims=True))
