"""Buffers of a task: offsets of its rings and intermediates in the program's block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.memory.alignment import align


@dataclass(frozen=True)
class TaskBuffers:
    """Offset and slot size of every buffer of a task in the block, in bytes.

    Attributes
    ----------
    slots : mapping
        Operand -> (offset, bytes of one slot, slots).
    buffers : mapping
        Intermediate -> (offset, bytes).
    workspace : (int, int)
        Offset and bytes.
    total_bytes : int
        All of it.
    """

    slots: Mapping[str, tuple[int, int, int]]
    buffers: Mapping[str, tuple[int, int]]
    workspace: tuple[int, int]
    total_bytes: int

    def span(self, name: str, slot: int = 0) -> tuple[int, int] | None:
        """First byte, and the one after the last, of a slot, an intermediate or the workspace.

        None for what takes no memory of the block.
        """
        if name in self.slots:
            offset, nbytes, _ = self.slots[name]
            offset += slot * nbytes
        else:
            offset, nbytes = self.workspace if name == "workspace" else self.buffers[name]
        return (offset, offset + nbytes) if nbytes else None


def place_buffers(plan: Plan, sizes: Mapping[str, int], start: int = 0) -> TaskBuffers:
    """Place rings, intermediates (of these largest bytes) and workspace in a row, aligned.

    Raises
    ------
    ValueError
        If the total is not what the plan promised.
    """
    slots: dict[str, tuple[int, int, int]] = {}
    buffers: dict[str, tuple[int, int]] = {}
    rings, offset = dict(plan.rings), start
    for name, size in sizes.items():
        count, nbytes = rings.get(name, 1), align(size)
        if name not in rings:
            buffers[name] = offset, nbytes
        elif count:
            slots[name] = offset, nbytes, count
        offset += count * nbytes
    workspace = (offset, plan.workspace_bytes)
    total = offset + align(plan.workspace_bytes) - start
    if total != plan.device_bytes:
        raise ValueError(f"the plan counts {plan.device_bytes} bytes, its buffers take {total}")
    return TaskBuffers(slots, buffers, workspace, total)
