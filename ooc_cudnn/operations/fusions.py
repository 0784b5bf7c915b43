"""Operations of a chain that are launched as one: bias and activation, say, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ooc_cudnn.operations.activation import Activation
from ooc_cudnn.operations.base import Operation
from ooc_cudnn.operations.batch_normalization import Normalise
from ooc_cudnn.operations.op_tensor import AddTensor


class Fusion(NamedTuple):
    """Operations that are launched as one: indices [first, last], and what follows the first.

    `shift` is the operand of a bias, `mode` and `coef` an activation.
    """

    first: int
    last: int
    shift: str = ""
    mode: str = "identity"
    coef: float = 0.0


def fusions(
    operations: Sequence[Operation], parameter_names: Sequence[tuple[str, ...]]
) -> tuple[Fusion, ...]:
    """Group a chain's operations: bias and activation together, normalisation and activation."""
    found: list[Fusion] = []
    for index, operation in enumerate(operations):
        previous = found[-1] if found else None
        if isinstance(operation, Activation):
            fused = previous is not None and previous.mode == "identity"
            if fused and isinstance(operations[previous.first], AddTensor | Normalise):  # type: ignore[union-attr]
                found[-1] = previous._replace(  # type: ignore[union-attr]
                    last=index, mode=operation.mode, coef=operation.coef
                )
            else:
                found.append(Fusion(index, index, mode=operation.mode, coef=operation.coef))
        elif isinstance(operation, AddTensor):
            found.append(Fusion(index, index, shift=parameter_names[index][0]))
        else:
            found.append(Fusion(index, index))
    return tuple(found)
