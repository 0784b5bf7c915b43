"""Sums over positions; those of a softmax and of one-hot labels share a node."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from ooc_cudnn.torch.lowering.class_sums import ClassSums
from ooc_cudnn.torch.lowering.lower import (
    RULES,
    GraphLowering,
    LoweredValue,
    UnsupportedPatternError,
    rule,
)
from ooc_cudnn.torch.tracing.graph import Operation, Value


def is_class_sum(to: GraphLowering, operation: Operation, computed: Collection[Value]) -> bool:
    """True if a sum is one of a node."""
    return operation in to.class_sums


@rule("sum", gathers=is_class_sum)
def position_sum(
    to: GraphLowering,
    self: Any,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> LoweredValue:
    found = None if to.operation is None else to.class_sums.get(to.operation)
    if found is not None and to.operation is not None:
        return _class_sum(to, found, to.operation)
    if not isinstance(self, LoweredValue) or not self.tensor.is_floating or not dim:
        raise UnsupportedPatternError("a sum over all axes, or of integers")
    if {self.axes[each] for each in dim} != {*range(2, len(self.tensor.shape))}:
        raise UnsupportedPatternError(f"a sum over axes {list(dim)} of {self.shape}")
    average = RULES["mean"](to, self=self, dim=dim, keepdim=keepdim, dtype=dtype)
    count = math.prod(self.tensor.shape[2:])
    made: Any = RULES["mul"](to, self=average, other=count)
    total: LoweredValue = made
    return total


def _class_sum(to: GraphLowering, found: ClassSums, operation: Operation) -> LoweredValue:
    key = (ClassSums, found.scores, found.labels)
    if key not in to.shared:
        scores = to.plain(to.gathered(to.argument(found.scores), 1), least=3)
        n, _, *sites = scores.shape
        labels = to.integers(found.labels, (n, 1, *sites))
        to.shared[key] = to.net.softmax_class_sums(scores, labels, name=to.name("class_sums"))
    first, last = (found.which * found.scores.shape[1] + at for at in found.classes)
    part = to.net.channel_slice(to.shared[key], first, last, name=to.name("sum"))
    (result,) = operation.results
    assert result is not None
    return to.cast(LoweredValue.of(part), str(result.dtype).removeprefix("torch."))
