"""Constraints that a step is lowered under: machine, memory, inputs, the order of maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ooc_cudnn.engines.target import Target
from ooc_cudnn.memory.pinned import Room
from ooc_cudnn.tensor import TensorSpec
from perfmodel.cached import cached_property


class LayoutSeconds(NamedTuple):
    """Seconds of computing a step in one piece.

    In each memory order throughout, the fastest first; and with each phase in its own fastest one,
    re-layouts not counted: what mixing orders could reach at the most.
    """

    throughout: tuple[tuple[str, float], ...]
    each: float

    @property
    def fastest(self) -> str:
        """The order in which all phases take least."""
        return self.throughout[0][0]


@dataclass(frozen=True)
class PlanConstraints:
    """Constraints under which a step is lowered.

    Attributes
    ----------
    target : Target
        The machine model, and the bytes that the block may take (`room_bytes`).
    given : mapping
        Name to the spec of the array that is handed in: inputs, parameters, running statistics,
        results, gradients on the device. What has none is packed in pinned memory, which the step
        keeps.
    order : str
        Memory order of maps on the device.
    by_order : LayoutSeconds, optional
        What computing takes in each, where there was a choice.
    synchronous : bool
        Whether computing waits at the end of a phase for the copies that leave there, as vDNN does.
    host : Room, optional
        Pinned memory that the step may keep; None for any.
    misaligned : frozenset of str
        Arrays that are handed in and begin on no 16-byte boundary.
    on_host : frozenset of str
        Phases that the host computes: `lowering/external_memory.py`.
    """

    target: Target
    given: Mapping[str, TensorSpec]
    order: str = "channels_first"
    by_order: LayoutSeconds | None = None
    synchronous: bool = False
    host: Room | None = None
    misaligned: frozenset[str] = frozenset()
    on_host: frozenset[str] = frozenset()

    @cached_property
    def on_device(self) -> frozenset[str]:
        """Names of arrays that are handed in on the device."""
        return frozenset(name for name, spec in self.given.items() if spec.placement == "device")
