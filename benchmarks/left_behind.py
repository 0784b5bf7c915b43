"""What a call must not leave behind, whatever went wrong in it."""

from __future__ import annotations

import gc
import signal
import threading
from typing import Any

from ooc_cudnn import interrupts
from ooc_cudnn.devices import blas, loaded_devices
from ooc_cudnn.devices.base import STREAMS, Device
from ooc_cudnn.memory import pinned

_STREAMS = {f"ooc_cudnn {stream}" for stream in STREAMS}


def left_behind(array_bytes: int = 0, pinned_bytes: int = 0) -> list[str]:
    """Name what is left of a call, of all devices in use; empty if nothing is.

    Parameters
    ----------
    array_bytes, pinned_bytes : int
        What the caller still holds in arrays, on the device and pinned.
    """
    gc.collect()
    names = [thread.name for thread in threading.enumerate()]
    found = [f"the thread {name!r}" for name in names if name in _STREAMS]
    if interrupts._active is not None:
        found.append("an open block of deferred signals")
    if isinstance(signal.getsignal(signal.SIGINT), interrupts._Noting):
        found.append("a handler of ours")
    if blas._users:
        found.append(f"{blas._users} users of one thread for products")
    for device in loaded_devices():
        arena = device.arena
        if not _is_free(arena.lock):
            found.append(f"the lock of {device.name}'s arena, held")
        if arena.is_at_work:
            found.append(f"a call at work on {device.name}")
        if arena.array_bytes != array_bytes:
            found.append(f"{arena.array_bytes - array_bytes} bytes in arrays on {device.name}")
        held = pinned.held_bytes(device) - pinned.idle_bytes(device)
        if held != pinned_bytes:
            found.append(f"{held - pinned_bytes} bytes of pinned memory on {device.name}")
        if slabs := _slabs_away(device):
            found.append(f"{slabs} slabs of {device.name}'s staging that did not come back")
    return found


def in_use(device: Device) -> tuple[int, int]:
    """Bytes in arrays on a device, and bytes of pinned memory that somebody holds."""
    gc.collect()
    return device.arena.array_bytes, pinned.held_bytes(device) - pinned.idle_bytes(device)


def _slabs_away(device: Any) -> int:
    """Slabs of a GPU's staging that no queue holds, though nothing is copied."""
    staging = getattr(device, "_staging", None)
    if staging is None:
        return 0
    return len(staging._memory) - sum(slabs.qsize() for slabs in staging._free.values())


def _is_free(lock: threading.RLock) -> bool:
    """Whether another thread can have a lock."""
    got = []

    def take() -> None:
        if lock.acquire(timeout=5):
            lock.release()
            got.append(True)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return bool(got)
