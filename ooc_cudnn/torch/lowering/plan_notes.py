"""Notes of a model's plan: memory that the library does not hold."""

from __future__ import annotations

import math
from collections.abc import Collection

from ooc_cudnn.torch.lowering.lower import LoweredGraph
from ooc_cudnn.torch.tracing.graph import Graph, Value
from ooc_cudnn.torch.tracing.image_axes import MOVES
from ooc_cudnn.units import format_bytes


def notes(
    graph: Graph, lowered: LoweredGraph, differentiable: Collection[Value]
) -> tuple[str, ...]:
    """Return the lines.

    Parameters
    ----------
    differentiable : collection of Value
        Those of what is given that have gradients.
    """
    held = [value for value in graph.given if value.kind in ("parameter", "buffer")]
    trained = _bytes([value for value in held if value in differentiable])
    lines = [
        f"parameters and buffers of {format_bytes(_bytes(held))} count where they are on the card"
    ]
    if trained:
        lines[0] += f", and so do gradients of {format_bytes(trained)}"
        lines.append(
            f"an optimizer's state does not count: {format_bytes(trained)} with momentum, "
            f"{format_bytes(2 * trained)} with Adam"
        )
    names = dict.fromkeys(each.name for each in lowered.after if each.name not in MOVES)
    if names:
        results = [value for each in lowered.after for value in each.results if value is not None]
        lines.append(
            f"behind the network PyTorch computes {', '.join(names)}, beyond the limit: results of "
            f"{format_bytes(_bytes(results))}; {lowered.why_after}"
        )
    return tuple(lines)


def _bytes(values: Collection[Value]) -> int:
    return sum(math.prod(value.shape) * value.dtype.itemsize for value in values)
