"""Virtual steps of a replay: seconds by a machine's model, and when the host issues each."""

from __future__ import annotations

from perfmodel import MachineModel, Timeline, VirtualStep, Work, replay
from perfmodel.machine import STEPS_OF_A_PIECE
from perfmodel.rows import Rows
from perfmodel.staging import slabs_of


class StepCost:
    """Cost of a step: all that is done in it adds its seconds."""

    __slots__ = ("host_bytes", "latency", "launching", "placement", "seconds", "slabs", "turn")

    def __init__(self) -> None:
        self.seconds = self.launching = self.latency = self.turn = 0.0
        self.host_bytes, self.slabs = 0, 1
        self.placement = "pinned"

    def copy(
        self, machine: MachineModel, direction: str, placement: str, moved: int, rows: Rows,
        others: int = 0,
    ) -> None:  # fmt: skip
        """Add a copy of so many bytes: staged, `others` in flight make its slot turn slower."""
        transfer, self.placement = machine.transfer, placement
        self.seconds += transfer.copy_seconds(direction, placement, moved, rows=rows)
        self.latency = float(transfer.latency_seconds(direction, placement, moved))
        held = transfer.turn_seconds(direction, placement, moved, others) if self.latency else 0.0
        # its line is what the link and the threads take; it holds its slot while it is late, and
        # for what the link takes
        self.turn = max(float(held) - self.seconds, 0.0)
        self.slabs = int(slabs_of(moved))
        self.host_bytes = 0 if placement == "device" else moved

    def compute(self, machine: MachineModel, work: Work) -> None:
        """Add a launch: what its work takes on the device, and on the host."""
        self.seconds += machine.compute.seconds(work)
        self.launching += machine.compute.launching_seconds(work, machine.launch_seconds)


class VirtualCall:
    """The steps of one call as the host issues them, from `begun` on.

    Without overlap each waits for the last. Of a program that was recorded all are issued at once.
    """

    def __init__(
        self, machine: MachineModel, *, overlap: bool, staged: bool, begun: float = 0.0,
        recorded: bool = False,
    ) -> None:  # fmt: skip
        self.steps: list[VirtualStep] = []
        self._machine, self._overlap, self._recorded = machine, overlap, recorded
        self._step_seconds = machine.seconds_of_step(staged=staged)
        #: Steps that are still to be issued beside a thread that stages, and what each takes more.
        self._beside_staging = 0
        self._more_seconds = machine.seconds_of_step(staged=True) - self._step_seconds
        #: When the host has issued the last step.
        self.issued = begun
        #: What computing loses to a step, and to those issued since the last one that computes.
        self._lost_to_step = float(machine.lost_seconds(0.0, 0.0, self._step_seconds))
        self._lost_seconds = 0.0

    def add(self, stream: str, waits: tuple[int, ...], cost: StepCost) -> None:
        """Issue a step."""
        steps, seconds, latency = self.steps, cost.seconds, cost.latency
        if not self._recorded:
            self.issued += self._step_seconds + cost.launching
        self._lost_seconds += self._lost_to_step
        if stream == "compute":
            seconds += self._lost_seconds
            self._lost_seconds = 0.0
        if latency:
            self._beside_staging += STEPS_OF_A_PIECE
        if self._beside_staging:
            self._beside_staging -= 1
            self.issued += self._more_seconds
        if not self._overlap:
            waits = (len(steps) - 1,) if steps else ()
        steps.append(
            VirtualStep(
                stream, seconds, waits, cost.placement, self.issued, latency, cost.slabs, cost.turn
            )
        )

    def timeline(self) -> Timeline:
        """Starts and stops of each step."""
        loss = self._machine.losses.get("copies", 0.0)
        return replay(self.steps, self._machine.transfer, loss)
