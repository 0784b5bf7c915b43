"""Fit of workspaces between the tensors' addresses, which the MILP does not know.

Where a block has no range for all workspaces that were decided on, some phases take less: those
that lose least by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ooc_cudnn.memory.offset_assignment import LiveBuffer, assign_offsets
from ooc_cudnn.network.search.mo_sos.problem import Choice

#: Of each phase its choices, from the one that was decided on to slower ones of less workspace.
Wanted = Mapping[int, Sequence[Choice]]


def fit_workspaces(
    tensors: Sequence[LiveBuffer], wanted: Wanted, room_bytes: int
) -> dict[int, int] | None:
    """Bytes of workspace by phase, so that all has an address; None if not even tensors have.

    Examples
    --------
    Bytes 256 to 512 are free before the tensor at 0 ends, then those below 256.

    >>> held = [LiveBuffer(0, 1, 256)]
    >>> fit_workspaces(held, {1: (Choice(1.0, 512), Choice(3.0, 256)), 2: (Choice(1.0, 512),)}, 512)
    {1: 256, 2: 512}
    """
    return _WorkspaceFit(tensors, wanted, room_bytes).found()


class _WorkspaceFit:
    def __init__(self, tensors: Sequence[LiveBuffer], wanted: Wanted, room_bytes: int) -> None:
        self.tensors, self.wanted, self.room = tensors, wanted, room_bytes
        #: Of each phase which of its choices it has.
        self.level = dict.fromkeys(wanted, 0)

    def found(self) -> dict[int, int] | None:
        """Lower what is in the way, then raise again what that made room for."""
        while over := self._over():
            lower = [index for index in over if self.level[index] + 1 < len(self.wanted[index])]
            if not lower:
                return None
            self.level[min(lower, key=self._loss)] += 1
        for index in sorted(self.level, key=lambda index: -self._lost(index)):
            while self.level[index]:
                self.level[index] -= 1
                if self._over():
                    self.level[index] += 1
                    break
        return {index: choice.workspace_bytes for index, choice in self._choices().items()}

    def _choices(self) -> dict[int, Choice]:
        return {at: self.wanted[at][level] for at, level in self.level.items()}

    def _over(self) -> list[int] | None:
        """Phases in which something lies beyond the room; empty where nothing does."""
        spaces = [LiveBuffer(at, at, c.workspace_bytes) for at, c in self._choices().items()]
        buffers = [*self.tensors, *(each for each in spaces if each.nbytes)]
        offsets, peak = assign_offsets(buffers)
        if peak <= self.room:
            return []
        beyond = [
            buffer
            for buffer, offset in zip(buffers, offsets, strict=True)
            if offset + buffer.nbytes > self.room
        ]
        phases = [at for at in self.wanted if any(e.first <= at <= e.last for e in beyond)]
        return phases or list(self.wanted)

    def _loss(self, at: int) -> float:
        """Seconds that the next lower choice takes more."""
        level, choices = self.level[at], self.wanted[at]
        return choices[level + 1].seconds - choices[level].seconds

    def _lost(self, at: int) -> float:
        return self.wanted[at][self.level[at]].seconds - self.wanted[at][0].seconds
