"""Halo rows kept from the tile before: which rows an operation computes, which it reuses.

The rows of an intermediate are clipped to the intermediate tensor, and what the next operation
needs beyond them is that operation's own padding. Where pieces follow each other down the rows, the
last rows of each intermediate stay on the device, so nothing is computed twice. And which
operations are launched as one: bias and activation, say, in one pass.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ooc_cudnn.operations.core.operation import Operation
from ooc_cudnn.operations.core.ranges import Range, Rows
from ooc_cudnn.operations.core.row_axis import height
from ooc_cudnn.operations.elementwise.activation import Activation
from ooc_cudnn.operations.elementwise.binary import AddTensor, OpTensor
from ooc_cudnn.operations.normalization.batch_launches import Normalise
from ooc_cudnn.operations.normalization.set_reduction import Normalising


class Flow(NamedTuple):
    """The rows of one operation in one piece.

    Attributes
    ----------
    made : (start, stop)
        Output rows that the piece computes: all it needs, less those that earlier pieces made.
    needed : Rows
        Input rows of those, with the padding that was clipped off.
    stored : (start, stop)
        Input rows that were kept from the pieces before, those among them that are not needed.
    kept : (start, stop)
        Of the needed input rows, those that are stored.
    keeps : (start, stop)
        Input rows to be stored for the pieces to come.
    """

    made: Range
    needed: Rows
    stored: Range
    kept: Range
    keeps: Range

    @property
    def key(self) -> Hashable:
        """Key of rows: how many it makes, needs, finds and keeps, and the padding it sees."""
        return (
            self.made[1] - self.made[0],
            self.needed.stop - self.needed.start,
            self.needed.before,
            self.needed.after,
            self.kept[1] - self.kept[0],
            self.kept[0] - self.stored[0],
            self.stored[1] - self.stored[0],
            self.keeps[1] - self.keeps[0],
            self.keeps[0] - self.needed.start,
        )


def needed_rows(operations: Sequence[Operation], h_y: Range, row_axis: int) -> tuple[Rows, ...]:
    """Input rows of every operation, first to last, when the last one gives output rows `h_y`."""
    needed: list[Rows] = []
    for operation in reversed(operations):
        needed.append(operation.input_rows(h_y, row_axis))
        h_y = (needed[-1].start, needed[-1].stop)
    return tuple(reversed(needed))


def flow(
    operations: Sequence[Operation], h_y: Range, after: Range | None, row_axis: int
) -> tuple[Flow, ...]:
    """The rows of every operation, first to last, in the piece that gives output rows `h_y`.

    With `after`, the rows of the piece before, only what that one (and those before it) did not
    make is computed; without, everything the piece needs.
    """

    def first_needed(index: int, row: int, end: int) -> int:
        """The first input row, before `end`, that an operation's output needs from `row` on."""
        return min(operations[index].input_rows((row, row + 1), row_axis).start, end)

    # Up to which row each operation's input, and at last y, was made by the pieces before.
    done = [0] * (len(operations) + 1)
    if after is not None:
        done = [*(rows.stop for rows in needed_rows(operations, after, row_axis)), after[1]]
    flows: list[Flow] = []
    outputs = h_y
    for index in reversed(range(len(operations))):
        operation = operations[index]
        needed = operation.input_rows(outputs, row_axis)
        if outputs[0] == outputs[1] and after is not None:
            needed = Rows(done[index], done[index], 0, 0)
        start = max(needed.start, done[index]) if index else needed.start
        earlier = (min(start, needed.stop), needed.stop)
        kept = (needed.start, max(needed.start, earlier[0]))
        stored = keeps = (earlier[1], earlier[1])
        if index and kept[0] < kept[1]:
            stored = (first_needed(index, done[index + 1], done[index]), done[index])
        if index and outputs[1] < height(operation.output_shape, row_axis):
            keeps = (first_needed(index, outputs[1], earlier[1]), earlier[1])
        flows.append(Flow(outputs, needed, stored, kept, keeps))
        outputs = earlier
    return tuple(reversed(flows))


class Fusion(NamedTuple):
    """Operations that are launched as one: indices [first, last], and what follows the first.

    `shift` is the operand of a bias, `addend` that of another tensor, `mode` and `coef` an
    activation.
    """

    first: int
    last: int
    shift: str = ""
    addend: str = ""
    mode: str = "identity"
    coef: float = 0.0


def fusions(
    operations: Sequence[Operation], parameter_names: Sequence[tuple[str, ...]]
) -> tuple[Fusion, ...]:
    """Group a chain's operations: bias and activation, normalisation, sum and activation."""
    groups: list[Fusion] = []
    for index, operation in enumerate(operations):
        previous = groups[-1] if groups else None
        if isinstance(operation, Activation):
            fused = previous is not None and previous.mode == "identity"
            if fused and isinstance(operations[previous.first], AddTensor | Normalising):  # type: ignore[union-attr]
                groups[-1] = previous._replace(  # type: ignore[union-attr]
                    last=index, mode=operation.mode, coef=operation.coef
                )
            else:
                groups.append(Fusion(index, index, mode=operation.mode, coef=operation.coef))
        elif _is_sum(operation) and previous is not None and _takes_addend(operations, previous):
            (addend,) = parameter_names[index]
            groups[-1] = previous._replace(last=index, addend=addend)
        elif isinstance(operation, AddTensor):
            groups.append(Fusion(index, index, shift=parameter_names[index][0]))
        else:
            groups.append(Fusion(index, index))
    return tuple(groups)


def _is_sum(operation: Operation) -> bool:
    """True if it adds a tensor of the same shape, and does nothing else."""
    if not isinstance(operation, OpTensor) or operation.op != "add":
        return False
    return operation.b_shape == operation.shape and operation.alpha_a == operation.alpha_b == 1


def _takes_addend(operations: Sequence[Operation], fusion: Fusion) -> bool:
    """True if a tensor can be added within a fusion, after all that it does so far."""
    normalises = isinstance(operations[fusion.first], Normalise)
    return normalises and not fusion.addend and fusion.mode == "identity"
