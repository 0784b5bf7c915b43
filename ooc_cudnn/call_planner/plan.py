"""The plan: the whole decision for one call, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ooc_cudnn.call_planner.explain import explain_lines
from ooc_cudnn.operations.core.row_axis import ROW_AXIS
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.units import format_bytes, format_seconds
from perfmodel import Split, machine_label


@dataclass(frozen=True)
class Alternative:
    """Another split that was examined, and what it would have cost."""

    split: Split
    layout: str
    seconds: float
    device_bytes: int


#: Slots of the deepest rings of what flows by: enough for both copies and compute at once.
DEEPEST = 3


@dataclass(frozen=True)
class Plan:
    """Plan of one call: the solver decides it, the runtime obeys it and `explain` prints it.

    Attributes
    ----------
    function : str
        The public function's name.
    operands : tuple of (name, TensorSpec)
        The call's operands, results last.
    split : Split
        Piece sizes d_n, d_cY, d_cX, d_hY.
    pieces : int
        Number of pieces.
    order : tuple of str
        Loop order, outermost axis first.
    row_axis : int
        The axis of the tensors that hY is, and d_hY cuts: any spatial one.
    rings : tuple of (name, int)
        Slots of each operand's ring; 0 for an operand that is computed on where it lies.
    layout : str
        Memory order in which windows are computed; of a chain one for each window, where these
        differ, joined by commas.
    algorithms : tuple of str
        What the device chose for each distinct window operation; empty before it was asked.
    workspace_bytes : int
        Scratch memory, as asked from the device.
    memory : tuple of (purpose, bytes)
        Device memory by purpose; the sum is `device_bytes`.
    memory_limit : int
        Bytes the call may hold on the device.
    bytes_in, bytes_out : int
        Bytes over the link, halo rows and reloads included.
    copy_in_seconds, compute_seconds, copy_out_seconds, seconds : float
        Predicted: each stage by itself, and the call.
    binding_stage : str
        The stage that takes longest.
    overlap : bool
        Whether the three streams run at once.
    machine : str
        Name of the machine model that predicted.
    alternatives : tuple of Alternative
        Runners-up that were priced: a search may end without any, but `plan` adds one where there
        is one. Plans that differ in nothing else are equal.
    by_layout : tuple of (layout, float)
        Of a chain of several windows: seconds of computing it uncut in each layout that was looked
        at, re-layouts included.
    parts : tuple of Plan
        Where a chain is cut into shorter ones, their plans; the figures above are their sums, the
        split is that of the slowest, the memory that of the largest.
    reason : str
        Why it is cut, and where.
    """

    function: str
    operands: tuple[tuple[str, TensorSpec], ...]
    split: Split
    pieces: int
    order: tuple[str, ...]
    rings: tuple[tuple[str, int], ...]
    layout: str
    algorithms: tuple[str, ...]
    workspace_bytes: int
    memory: tuple[tuple[str, int], ...]
    memory_limit: int
    bytes_in: int
    bytes_out: int
    copy_in_seconds: float
    compute_seconds: float
    copy_out_seconds: float
    seconds: float
    binding_stage: str
    overlap: bool
    machine: str
    alternatives: tuple[Alternative, ...] = field(default=(), compare=False)
    by_layout: tuple[tuple[str, float], ...] = field(default=(), compare=False)
    row_axis: int = ROW_AXIS
    parts: tuple[Plan, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        if self.pieces < 1:
            raise ValueError(f"pieces must be at least 1, not {self.pieces}")
        if self.device_bytes > self.memory_limit:
            raise ValueError(
                f"a plan of {self.device_bytes} bytes does not fit its limit of "
                f"{self.memory_limit} bytes"
            )

    @property
    def device_bytes(self) -> int:
        """Device memory the call takes: exactly what it will reserve."""
        return sum(count for _, count in self.memory)

    @property
    def in_core(self) -> bool:
        """True if nothing is copied: every operand is computed on where it lies."""
        return not any(slots for _, slots in self.rings)

    @property
    def takes_turns(self) -> bool:
        """True if the streams wait for each other: each operand has one slot, so pieces follow.

        The next piece comes in when the last one is computed. Pieces can be larger for it.
        """
        return self.overlap and self.pieces > 1 and all(slots < 2 for _, slots in self.rings)

    def with_deeper_rings(self, limit_bytes: int) -> Plan:
        """The same with more slots, of what flows by, as far as these bytes allow.

        It is no faster by itself; but its copies run further ahead, beside what computes before it.
        """
        deep = {name for name, slots in self.rings if slots == DEEPEST}
        bytes_of = {f"{name}: {DEEPEST} slots": name for name in deep}
        one = sum(count for entry, count in self.memory if entry in bytes_of) // DEEPEST
        more = min((limit_bytes - self.device_bytes) // max(one, 1), self.pieces - DEEPEST)
        if not one or more < 1:
            return self
        slots = DEEPEST + more
        memory = tuple(
            (f"{bytes_of[entry]}: {slots} slots", count // DEEPEST * slots)
            if entry in bytes_of
            else (entry, count)
            for entry, count in self.memory
        )
        rings = tuple((name, slots if name in deep else count) for name, count in self.rings)
        return replace(self, rings=rings, memory=memory)

    def explain(self) -> str:
        """Return a table a person reads: split, seconds, memory by purpose, alternatives."""
        if not self.parts:
            return "\n".join(explain_lines(self))
        lines = [
            f"{self.function} on {machine_label(self.machine)}: {len(self.parts)} chains one after "
            f"the other, {format_seconds(self.seconds)} predicted",
            f"  {self.reason}",
        ]
        for part in self.parts:
            lines += ["", *explain_lines(part)]
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """A line: what is planned for which machine, its seconds, and its memory of the limit."""
        held, most = format_bytes(self.device_bytes), format_bytes(self.memory_limit)
        return (
            f"{self.function} on {machine_label(self.machine)}, {self.pieces} "
            f"piece{'s' * (self.pieces > 1)}: {format_seconds(self.seconds)} predicted, {held} of "
            f"memory_limit {most}"
        )

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        return f"<Plan: {self.summary}>"  # fields go on for pages

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain JSON values."""
        data = {each.name: getattr(self, each.name) for each in fields(self)}
        data["operands"] = [[name, spec.to_json()] for name, spec in self.operands]
        data["split"] = self.split.to_json()
        data["alternatives"] = [
            [a.split.to_json(), a.layout, a.seconds, a.device_bytes] for a in self.alternatives
        ]
        data["parts"] = [part.to_json() for part in self.parts]
        return {
            key: [list(v) if isinstance(v, tuple) else v for v in value]
            if isinstance(value, tuple)
            else value
            for key, value in data.items()
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_json` described."""
        known = dict(data)
        known["operands"] = tuple((n, TensorSpec.from_json(s)) for n, s in data["operands"])
        known["split"] = Split.from_json(data["split"])
        for name in ("order", "algorithms"):
            known[name] = tuple(data[name])
        for name in ("rings", "memory", "by_layout"):
            known[name] = tuple((key, value) for key, value in data.get(name, ()))
        known["alternatives"] = tuple(
            Alternative(Split.from_json(split), *rest) for split, *rest in data["alternatives"]
        )
        known["parts"] = tuple(cls.from_json(part) for part in data.get("parts", ()))
        return cls(**known)
