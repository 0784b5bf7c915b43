"""The way of every call, one direction: operands -> chain -> plan -> schedule -> executor."""

from __future__ import annotations

from typing import Any

from ooc_cudnn import interrupts
from ooc_cudnn.arrays.operands import wrap
from ooc_cudnn.devices import get_device
from ooc_cudnn.errors import DeviceOutOfMemoryError
from ooc_cudnn.functions.bound import bind
from ooc_cudnn.functions.description import Description
from ooc_cudnn.functions.prepared import prepare, remembered
from ooc_cudnn.functions.run import run
from ooc_cudnn.memory.limit import forget_limits
from ooc_cudnn.settings import current


def call(function: str, description: Description) -> Any:
    """Run a function on its operands and return its results, written to `out` if that is given."""
    settings = current()
    device = get_device(settings.device)
    bound = bind(function, description, wrap, device)
    key = bound.key(settings)
    with device.arena.lock:
        prepared = remembered(key, device, settings) or prepare(key, bound, device, settings)
        # From here on Ctrl-C is heard between two pieces, and where the run waits.
        with interrupts.deferred():
            try:
                run(prepared, bound, device, settings)
            except DeviceOutOfMemoryError:
                # The driver has less than the limit promised. Nothing has been copied yet.
                device.release_caches()
                forget_limits()
                try:
                    run(prepared, bound, device, settings)
                except DeviceOutOfMemoryError:
                    prepared = prepare(key, bound, device, settings, share=0.5)
                    run(prepared, bound, device, settings)
    return bound.returned(prepared.chain.lead)
