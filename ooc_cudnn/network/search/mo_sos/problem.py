"""Problem of MO-SOS: the maps that forward makes, and the stages of a step.

A stage is one or a few phases that run one after the other. Of the paper's joint graph of forward
and backward, each node is computed for the first time in a stage of its own; only maps of forward
are managed, all other tensors stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Choice(NamedTuple):
    """One way to compute something: its seconds, and the workspace that it takes meanwhile."""

    seconds: float
    workspace_bytes: int = 0


@dataclass(frozen=True)
class Map:
    """A result of forward that is managed.

    Attributes
    ----------
    name : str
    nbytes : int
    parents : tuple of int
        Numbers of the maps that making it reads; each is less than its own.
    choices : tuple of Choice
        How it is made again; empty for what cannot be.
    """

    name: str
    nbytes: int
    parents: tuple[int, ...] = ()
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class Stage:
    """Phases that run after each other.

    Attributes
    ----------
    choices : tuple of Choice
        How they may run, at least one way.
    reads, makes : tuple of int
        Numbers of maps; what is read is there throughout.
    adds_to : tuple of int
        Of the maps that it reads those that it writes, too: before that they are not whole.
    fixed_bytes : int
        What tensors that are not managed take, at the most.
    is_backward : bool
    phases : tuple of int
        Their numbers in the step.
    """

    choices: tuple[Choice, ...]
    reads: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    fixed_bytes: int = 0
    is_backward: bool = True
    phases: tuple[int, ...] = ()
    adds_to: tuple[int, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds with the fastest algorithms."""
        return min(choice.seconds for choice in self.choices)


@dataclass(frozen=True)
class Problem:
    """Maps in the order in which they are made, and stages in the order in which they run.

    Attributes
    ----------
    bytes_out, bytes_in : float
        Of the link, in a second.
    """

    maps: tuple[Map, ...]
    stages: tuple[Stage, ...]
    bytes_out: float
    bytes_in: float

    @property
    def forward_count(self) -> int:
        """Number of stages of forward."""
        return sum(not stage.is_backward for stage in self.stages)

    def whole_after(self, at: int) -> int:
        """The last stage that writes a map."""
        return max(t for t, stage in enumerate(self.stages) if at in (*stage.makes, *stage.adds_to))

    def ancestors(self, of: Iterable[int], deep: int) -> list[int]:
        """Maps that can be made again and may serve to have some there, those among them.

        What is so many steps before them, or more, is not looked for.
        """
        maps, level = set[int](), set(of)
        for _ in range(deep):
            level = {at for at in level if self.maps[at].choices} - maps
            maps |= level
            level = {parent for at in level for parent in self.maps[at].parents}
        return sorted(maps)

    def copy_ends(self, at: int, start: int, rate: float) -> int | None:
        """The stage in which a copy that starts with a stage ends; None if the step ends before.

        By the seconds of the fastest algorithms, as the paper has it: slower ones only hide more.
        """
        left = self.maps[at].nbytes / rate
        for stage in range(start, len(self.stages)):
            left -= self.stages[stage].seconds
            if left <= 0:
                return stage
        return None
