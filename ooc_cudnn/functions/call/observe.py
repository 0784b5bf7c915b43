"""A program run as its user sees it: with a progress bar, and recorded inside of `profile`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from ooc_cudnn.activity import activity
from ooc_cudnn.devices.base import Device
from ooc_cudnn.pipeline.execute import Executor
from ooc_cudnn.pipeline.views import Source
from ooc_cudnn.profiling import Call, recording
from ooc_cudnn.progress import Reporter, reporter, shows
from ooc_cudnn.settings import current


class Predicted(Protocol):
    """The plan of a call, or of a network's step."""

    @property
    def pieces(self) -> int:
        """Into how many it is cut."""

    @property
    def seconds(self) -> float:
        """Predicted."""


def is_observed(plan: Predicted) -> bool:
    """Return whether `run_observed` would show or record a run of a plan, or a part of one."""
    return recording() is not None or shows(current().progress, plan.seconds)


def run_observed(
    name: str,
    plan: Predicted,
    executor: Executor,
    device: Device,
    arrays: Mapping[str, Source],
    *,
    staged: bool,
    wait: bool,
    limit_bytes: int,
    block: int | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Run a program, show its progress, and record it where calls are recorded.

    Parameters
    ----------
    name : str
        What the user called.
    plan : Predicted
    executor, device, arrays, staged, wait, limit_bytes, block, meanwhile
        As for `Executor.run`.
    """
    calls = recording()
    device.arena.reset_peak()
    begin = time.perf_counter()
    with (
        reporter(
            current().progress,
            total=plan.pieces,
            label=name,
            predicted_seconds=plan.seconds,
        ) as progress,
        _first_run(name, executor, progress),
    ):
        trace = executor.run(
            device,
            arrays,
            staged=staged,
            wait=wait,
            timed=calls is not None,
            on_piece=None if type(progress) is Reporter else progress.update,
            limit_bytes=limit_bytes,
            block=block,
            meanwhile=meanwhile,
        )
    if calls is not None and trace is not None:
        calls.append(
            Call(
                function=name,
                plan=plan,
                seconds=time.perf_counter() - begin,
                predicted_seconds=plan.seconds,
                peak_device_bytes=device.arena.peak_bytes,
                trace=trace,
            )
        )


def _first_run(name: str, executor: Executor, progress: Reporter) -> AbstractContextManager[None]:
    """Tell of a program's first run, which compiles, loads and checks, where no bar does."""
    if executor.has_run or type(progress) is not Reporter:
        return nullcontext()
    return activity(f"{name}, first run", current().progress)
