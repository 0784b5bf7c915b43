"""A device's run, from its start to its end, whatever happens in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ooc_cudnn import interrupts
from ooc_cudnn.devices.base import Device, Run


@contextmanager
def running(device: Device, *, overlap: bool, staged: bool, timed: bool) -> Iterator[Run]:
    """Open a run, and cancel it if the block raises; its end is the block's to wait for.

    Ctrl-C is heard where the run waits, and where the block says so, so that no thread is left
    behind or half started, and cancelling is not interrupted itself.
    """
    with interrupts.deferred():
        run = device.start(overlap=overlap, staged=staged, timed=timed)
        try:
            yield run
        except BaseException:
            run.cancel()
            raise
