"""Memory guards: a contender that wants more than is free is refused, with numbers."""

from __future__ import annotations

from ooc_cudnn.bench.contender import Unavailable
from ooc_cudnn.bench.placing import available_host_bytes
from ooc_cudnn.units import format_bytes

GIB = 2**30
#: Left to the system, and to what nobody counts.
HOST_MARGIN, DEVICE_MARGIN, MANAGED_MARGIN = 4 * GIB, GIB, 4 * GIB

_managed_bytes = 0


def need_host(nbytes: int, what: str) -> None:
    """Raise `Unavailable` unless the host can give this much, and 4 GiB beside it."""
    _need(nbytes, what, "host", available_host_bytes(), HOST_MARGIN)


def free_device_bytes() -> int:
    """Device memory that is free, less the managed memory that may yet move there."""
    import cupy

    return int(cupy.cuda.runtime.memGetInfo()[0]) - _managed_bytes


def need_device(nbytes: int, what: str) -> None:
    """Raise `Unavailable` unless the card has this much free, and 1 GiB beside it."""
    _need(nbytes, what, "device", free_device_bytes(), DEVICE_MARGIN)


def _need(nbytes: int, what: str, kind: str, free_bytes: int, margin: int, more: str = "") -> None:
    if nbytes > free_bytes - margin:
        raise Unavailable(
            f"{what} would take {format_bytes(nbytes)} of {kind} memory; "
            f"{format_bytes(max(free_bytes - margin, 0))} can be had beside the "
            f"{format_bytes(margin)} that are left alone{more}"
        )


def take_managed(nbytes: int) -> None:
    """Count managed memory that is about to be allocated.

    Raises
    ------
    Unavailable
        If all managed memory together could not be on the card at once, 4 GiB to spare: what
        over-subscription does to a machine is not for a benchmark to find out.
    """
    global _managed_bytes
    more = "; over-subscription is therefore not exercised"
    _need(nbytes, "an array", "managed", free_device_bytes(), MANAGED_MARGIN, more)
    _managed_bytes += nbytes


def return_managed(nbytes: int) -> None:
    """Count managed memory that was freed."""
    global _managed_bytes
    if nbytes > _managed_bytes:
        raise ValueError(f"{nbytes} bytes returned, {_managed_bytes} taken")
    _managed_bytes -= nbytes
