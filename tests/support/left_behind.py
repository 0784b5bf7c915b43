"""What a call must not leave behind, whatever went wrong in it."""

from __future__ import annotations

import gc
import signal
import threading
from typing import Any

from ooc_cudnn import interrupts
from ooc_cudnn.devices import loaded_devices
from ooc_cudnn.devices.base import STREAMS, Device
from ooc_cudnn.devices.host import blas
from ooc_cudnn.memory import pinned

_STREAMS = {f"ooc_cudnn {stream}" for stream in STREAMS}


def left_behind(held: dict[str, tuple[int, int]] | None = None) -> list[str]:
    """Name what is left of a call, of all devices in use; empty if nothing is.

    Parameters
    ----------
    held : dict, optional
        What the caller held before, as `in_use` says it; nothing by default.
    """
    gc.collect()
    names = [thread.name for thread in threading.enumerate()]
    found = [f"the thread {name!r}" for name in names if name in _STREAMS]
    if interrupts._active is not None:
        found.append("an open block of deferred signals")
    if isinstance(signal.getsignal(signal.SIGINT), interrupts._SignalRecorder):
        found.append("a handler of ours")
    if blas._users:
        found.append(f"{blas._users} users of one thread for products")
    for device in loaded_devices():
        arena = device.arena
        if not _is_free(arena.lock):
            found.append(f"the lock of {device.name}'s arena, held")
        if arena.is_at_work:
            found.append(f"a call at work on {device.name}")
        arrays, locked = (held or {}).get(device.name, (0, 0))
        if arena.array_bytes != arrays:
            found.append(f"{arena.array_bytes - arrays} bytes in arrays on {device.name}")
        if _locked_bytes(device) != locked:
            more = _locked_bytes(device) - locked
            found.append(f"{more} bytes of pinned memory on {device.name}")
        if slabs := _slabs_away(device):
            found.append(f"{slabs} slabs of {device.name}'s staging that did not come back")
    return found


def in_use() -> dict[str, tuple[int, int]]:
    """Of each device: bytes in arrays, and bytes of pinned memory that somebody holds."""
    gc.collect()
    return {
        device.name: (device.arena.array_bytes, _locked_bytes(device))
        for device in loaded_devices()
    }


def _locked_bytes(device: Device) -> int:
    return pinned.held_bytes(device) - pinned.idle_bytes(device)


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
        if lock.acquire(timeout=60):
            lock.release()
            got.append(True)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return bool(got)
