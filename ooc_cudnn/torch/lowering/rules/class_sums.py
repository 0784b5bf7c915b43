"""Class sums: those of the same scores and labels share a node."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ooc_cudnn.torch.lowering.class_sums import ClassSums
from ooc_cudnn.torch.lowering.lower import (
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
def class_sum(to: GraphLowering, **arguments: Any) -> LoweredValue:
    found = None if to.operation is None else to.class_sums.get(to.operation)
    if found is None or to.operation is None:
        raise UnsupportedPatternError("the library has no such operation")
    return _class_sum(to, found, to.operation)


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
