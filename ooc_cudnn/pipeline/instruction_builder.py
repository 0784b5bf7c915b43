"""Builder of a program's instructions, each with those of other streams that it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.pipeline.hazards import Hazards, Latest, latest_steps
from ooc_cudnn.pipeline.instructions import NO_BUFFERS, Instruction, Place
from ooc_cudnn.pipeline.program import COMPUTE, COPY_OUT, Move, Program, chunks


class InstructionBuilder:
    """The steps of a program so far, and what they wait for."""

    def __init__(self, program: Program) -> None:
        self.program = program
        #: All of each step but whether it signals, and its stream.
        self.steps: list[tuple[Any, ...]] = []
        self.streams: list[str] = []
        self.signals: set[int] = set()
        self.pieces = 0
        self.item = 0
        self.sizes: list[Mapping[str, int]] = []
        #: None where there is but one item, which has nothing to wait for.
        self.hazards = Hazards(program.bindings) if len(program.items) > 1 else None
        #: The latest step of each stream, and what the next compute step is to wait for beside.
        self.latest: Latest = {}
        self.synchronised: Latest = {}

    def begin(self, item: int) -> None:
        """Start an item."""
        self.item = item
        self.sizes.append({})

    def end(self) -> None:
        """End an item: what it read and wrote counts for those that follow."""
        if self.hazards is not None:
            self.hazards.close()

    def add(
        self,
        stream: str,
        piece: int,
        places: tuple[Place, ...],
        used: Iterable[int],
        launches: tuple[Launch, ...] = (),
        buffers: Mapping[str, Buffer] = NO_BUFFERS,
        others: Latest | None = None,
        copies: str = "",
    ) -> int:
        """Append a step that waits for those used, and others, as far as on another stream.

        A copy out waits for those whose bytes on the host it writes over, too.
        """
        latest: Latest = dict(others) if others else {}
        for index in used:
            if index >= 0 and index > latest.get(self.streams[index], -1):
                latest[self.streams[index]] = index
        if stream == COMPUTE and self.synchronised:
            latest_steps(latest, self.synchronised)
            self.synchronised = {}
        if stream != COPY_OUT:  # what left may be written to the host later, by threads
            latest.pop(stream, None)
        waits = tuple(sorted(latest.values()))
        self.signals.update(waits)
        self.latest[stream] = len(self.steps)
        self.streams.append(stream)
        self.steps.append((stream, piece, places, launches, waits, buffers, self.item, copies))
        return len(self.steps) - 1

    def move(self, move: Move) -> None:
        """Copy a tensor over the link, in large copies."""
        spec, hazards = self.program.bindings[move.source].spec, self.hazards
        index, self.pieces = self.pieces, self.pieces + 1
        for region in chunks(spec):
            others: Latest = {}
            if hazards is not None:
                others = hazards.users(move.source, region, writes=False)
                latest_steps(others, hazards.users(move.target, region, writes=True))
            places, way = (Place("", region, -1),), move.stream
            step = self.add(way, index, places, (), others=others, copies=way)
            if hazards is not None:
                hazards.note(move.source, region, {move.stream: step}, writes=False)
                hazards.note(move.target, region, {move.stream: step}, writes=True)

    def synchronise(self) -> None:
        """Let the next compute step wait for all copies so far."""
        self.synchronised = {s: step for s, step in self.latest.items() if s != COMPUTE}

    def finish(self) -> tuple[Instruction, ...]:
        """Every step, with whether a later one waits for it."""
        signals = self.signals
        return tuple(
            Instruction._make((*step[:-2], index in signals, *step[-2:]))
            for index, step in enumerate(self.steps)
        )
