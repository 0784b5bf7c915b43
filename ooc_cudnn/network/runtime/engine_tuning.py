"""Engines of a step's convolutions, measured: in every memory order that it may be planned in."""

from __future__ import annotations

from collections.abc import Callable

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engines import Measurement
from ooc_cudnn.engines.workload import Effort, PlannedWork
from ooc_cudnn.functions.tune.rounds import BATCH_SECONDS, Tell, measure_what_is_launched
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.pipeline.program import Task

#: Launches that take longer are measured on fewer images, as long as a batch of them lasts. With a
#: tenth of them, transforms of filters outweighed the rest, and in strict float32 FFT never won.
LAUNCH_SECONDS = BATCH_SECONDS


def measure_engines(
    device: Device,
    look: Callable[[], LoweredStep],
    plan: Callable[[], LoweredStep],
    *,
    every: bool,
    seconds: float,
    tell: Tell | None,
) -> list[Measurement]:
    """Measure what a step launches, and plan it again, until all of that is known.

    Parameters
    ----------
    look : callable
        Plans the step quickly, without asking the device for workspace.
    plan : callable
        Plans it as it will run.
    """
    looks = iter((look,))

    def planned() -> PlannedWork:
        quick = next(looks, None)
        step = (quick or plan)()
        tasks = [
            (item.request, item.plan)
            for item in step.lowered.program.items
            if isinstance(item, Task)
        ]
        return PlannedWork("the step", tasks, step.plan.memory_limit, is_as_run=quick is None)

    effort = Effort(
        every=every,
        seconds=seconds,
        again=False,
        launch_seconds=LAUNCH_SECONDS,
        borders=every,
        scouts=not every,
        own_size=True,
    )
    return measure_what_is_launched(device, planned, effort, tell)
