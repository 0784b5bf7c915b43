"""Algorithms of phases: what each takes, by what is known of the engines of their convolutions."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from ooc_cudnn.devices.tuning_database import tables_of
from ooc_cudnn.engines.target import Target
from ooc_cudnn.memory.alignment import align
from ooc_cudnn.network.ir.step import Phase
from ooc_cudnn.network.search.mo_sos.problem import Choice
from ooc_cudnn.operations.convolution.gradients import AnyConvolution
from ooc_cudnn.operations.core.launch import Buffer

#: Smaller pieces of a call take so many times less beside their operands.
PIECES = 64


class PhaseChoices:
    """The choices that phases have on a target, in a memory order."""

    def __init__(self, target: Target, order: str) -> None:
        self.target, self.order, self.options = target, order, target.options
        device = target.trial_device
        if self.options is None and device is not None and device.engines is not None:
            self.options = tables_of(device).options

    def rate(self, direction: str) -> float:
        """Bytes a second that a long copy of pinned memory moves."""
        nbytes = 2**30
        return nbytes / float(
            self.target.machine.transfer.copy_seconds(direction, "pinned", nbytes)
        )

    def choices(self, phase: Phase, beside: int = 0) -> tuple[Choice, ...]:
        """Return the choices of a phase in one piece, the fastest first; and in small ones.

        Parameters
        ----------
        beside : int
            Bytes that it takes in any case.
        """
        machine, call = self.target.machine, phase.call
        orders = dict.fromkeys(call.operands, self.order)
        of, scratch = list[tuple[Choice, ...]](), 0
        for sweep in range(call.sweeps):
            piece = call.whole_piece(sweep)
            launches, buffers = call.launches(piece, layout=self.order, orders=orders)
            scratch = max(scratch, _scratch_bytes(buffers, call.operands))
            for launch in launches:
                seconds = float(machine.compute.seconds(launch.operation.work()))
                of.append(self._of_launch(launch.operation, seconds))
        joined = run_together(of)
        options = [Choice(each.seconds, each.workspace_bytes + scratch + beside) for each in joined]
        if scratch:  # cut along its images it takes less, and the algorithms that take least
            options.append(Choice(joined[-1].seconds, scratch // PIECES + beside))
        return run_together([tuple(options)])

    def _of_launch(self, operation: object, seconds: float) -> tuple[Choice, ...]:
        """Choices of engines; without any, the model's seconds are those of the fastest."""
        if not isinstance(operation, AnyConvolution) or self.options is None:
            return (Choice(seconds),)
        options = self.options(operation)
        if not options:
            return (Choice(seconds),)
        fastest = options[0].seconds
        return tuple(
            Choice(seconds * option.seconds / fastest, option.workspace_bytes) for option in options
        )


def _scratch_bytes(buffers: Mapping[str, Buffer], operands: Container[str]) -> int:
    """The bytes that intermediates take: those of different times share blocks."""
    blocks = dict[str, int]()
    for name, buffer in buffers.items():
        block = buffer.block or name
        if block not in operands:
            blocks[block] = max(blocks.get(block, 0), align(buffer.nbytes))
    return sum(blocks.values())


def run_together(of: Sequence[tuple[Choice, ...]]) -> tuple[Choice, ...]:
    """Combine choices of phases in a row that share a workspace: the fastest first.

    >>> both = run_together([(Choice(1.0, 8), Choice(2.0)), (Choice(3.0, 6), Choice(5.0))])
    >>> [(choice.seconds, choice.workspace_bytes) for choice in both]
    [(4.0, 8), (5.0, 6), (7.0, 0)]
    """
    joined = list[Choice]()
    for limit in sorted({choice.workspace_bytes for choices in of for choice in choices}):
        fitting = [[c.seconds for c in choices if c.workspace_bytes <= limit] for choices in of]
        if all(fitting):
            seconds = sum(map(min, fitting))
            if not joined or seconds < joined[-1].seconds:
                joined.append(Choice(seconds, limit))
    return tuple(joined[::-1])
