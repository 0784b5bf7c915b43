"""Attention."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch

from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.torch.graph import Operation, Value
from ooc_cudnn.torch.lower import GraphLowering, LoweredValue, UnsupportedPatternError, rule

#: The axes of a value (n, heads, queries, depth), or (n, queries, depth): depth is of channels.
AXES = {3: (0, 2, 1), 4: (0, 2, 3, 1)}


def is_taken(operation: Operation, computed: Collection[Value]) -> bool:
    """True if the rule has an attention of these arguments, wherever its queries and keys lie.

    Not by a mask that PyTorch computes of the inputs, or is given as booleans.
    """
    told = operation.arguments
    query, key, value = (told[name] for name in ("query", "key", "value"))
    mask = told.get("attn_mask")
    shapes = [each.shape for each in (query, key, value)]
    if mask is not None:
        given = mask.kind == "input" and not mask.dtype.is_floating_point
        if given or mask in computed:
            return False
    return (
        len({len(shape) for shape in shapes}) == 1
        and len(shapes[0]) in AXES
        and len({shape[0] for shape in shapes}) == 1
        and not any(0 in shape for shape in shapes)
        and not told.get("dropout_p")
    )


@rule("scaled_dot_product_attention", gathers=is_taken)
def attention(
    to: GraphLowering,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> LoweredValue:
    if dropout_p:
        raise UnsupportedPatternError("with dropout")
    told: dict[str, Any] = {"scale": scale, "causal": bool(is_causal)}
    batch = next((each.shape[0] for each in to.graph.inputs if each.shape), 1)
    axes = AXES[len(query.shape)]
    if attn_mask is not None:
        told["bias"] = _bias(to, attn_mask, len(axes))
    thirds = _thirds(to, (query, key, value))
    if thirds is not None:
        x, heads = thirds
        made = to.net.packed_attention(
            x, heads, images=math.gcd(x.shape[0], batch), name=to.name(), **told
        )
        return LoweredValue(made, axes)
    tensors = [_rows(to.gathered(each, -1)) for each in (query, key, value)]
    images = math.gcd(tensors[0].shape[0], batch)
    made = to.net.attention(*tensors, images=images, name=to.name(), **told)
    return LoweredValue(made, axes)


def _thirds(to: GraphLowering, values: Sequence[Any]) -> tuple[Tensor, int] | None:
    """The tensor of which queries, keys and values are thirds of the channels, and its heads."""
    found = [
        to.fallbacks.heads_of(each) if isinstance(each, Value) and each in to.fallbacks else None
        for each in values
    ]
    first = found[0]
    if first is None or first.source.shape[1] != 3 * first.heads * first.depth:
        return None
    width = first.heads * first.depth
    if found != [first._replace(start=at * width) for at in range(3)]:
        return None
    return first.source, first.heads


def _rows(value: Any) -> Tensor:
    """The tensor of queries, keys or values."""
    if not isinstance(value, LoweredValue):
        raise UnsupportedPatternError("it does not read the inputs first")
    if value.axes != AXES.get(len(value.axes)):
        raise UnsupportedPatternError(f"of shape {value.shape}, with its depth not in channels")
    return value.tensor


def _bias(to: GraphLowering, mask: Any, axes: int) -> Tensor:
    """What is added to the scores, or which are seen: its axes are those of the scores."""
    if isinstance(mask, LoweredValue):
        if not mask.is_plain or (axes == 3 and len(mask.axes) > 2):
            raise UnsupportedPatternError(f"a mask of shape {mask.shape} made of the inputs")
        return mask.tensor
    shape = list(mask.shape)
    if axes == 3 and len(shape) == 3:  # there is one head
        shape.insert(1, 1)
    if mask.dtype == torch.bool:
        return to.given(to.made_as("seen", _seen, mask, torch.uint8), shape)
    declare = to.parameter if mask.kind == "parameter" else to.given
    return declare(mask, shape)


def _seen(mask: Any) -> Any:
    """A mask as bytes."""
    return mask.to(torch.uint8) if isinstance(mask, torch.Tensor) else mask.astype("uint8")
