"""Input-independent operations of the graph, run by PyTorch before each call, with autograd.

Folded weights (weight_norm), drawn masks of whole images, constants, counters.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import torch

from ooc_cudnn.torch.autograd.function import tensor_of
from ooc_cudnn.torch.runtime.casts import cast_together
from ooc_cudnn.torch.tracing.graph import Graph, Operation, Value, Write, run_operation


def run_before(
    graph: Graph,
    more: Sequence[Operation],
    given: Mapping[Value, Any],
    *,
    together: Mapping[Value, Hashable] | None = None,
) -> dict[Value, Any]:
    """Run what comes before; return all values that are known then.

    Parameters
    ----------
    more : sequence of Operation
        What is run after what the graph says.
    given : mapping
        Inputs, parameters and buffers, as the model holds them.
    together : mapping, optional
        Parameters are cast all at once, and so their gradients, but for those that differ in this.
    """
    found = {**given, **graph.constants}
    operations: Sequence[Operation] = (*graph.before, *more)
    for operation in operations if together is None else cast_together(operations, found, together):
        run_operation(operation, found)
    return found


def follows(write: Write, target: torch.Tensor) -> bool:
    """True if what is written hands on its history."""
    is_own = target.is_leaf and target.requires_grad  # then autograd did not see it
    return write.value.requires_grad and not write.as_data and not is_own


def leave(
    writes: Sequence[Write], found: Mapping[Value, Any], with_history: Collection[Write]
) -> None:
    """Write what forward leaves in what it was given, and its history: the call has succeeded.

    Counters that go up alike do so together. Some have the history already.
    """
    together: dict[int, list[torch.Tensor]] = {}
    with torch.no_grad():
        for write in writes:
            target = found[write.target]
            if write.step is not None:
                together.setdefault(write.step, []).append(target)
            else:
                target = tensor_of(target)
                has_history = write in with_history
                # a view whose version changes has another node of its own
                as_data = write.as_data or (has_history and target._is_view())
                with torch.set_grad_enabled(not has_history and follows(write, target)):
                    (target.data if as_data else target).copy_(found[write.value])
        for more, counters in together.items():
            torch._foreach_add_(counters, more)
