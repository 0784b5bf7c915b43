"""Host memory that is free: of the machine, and of the control group that a process runs in."""

from __future__ import annotations

import os
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def free_host_bytes() -> int:
    """Bytes that the machine has left, what it can drop among them."""
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_host_bytes() -> int:
    """Bytes that a process could still take: of the machine, and of its control group."""
    free = free_host_bytes()
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit.isdigit():
            # Pages of files that can be dropped count as used there, but can be had.
            stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
            used = int((_CGROUP / "memory.current").read_text()) - int(stat["inactive_file"])
            free = min(free, int(limit) - used)
    except (OSError, KeyError):
        pass  # no control group, or one of the first version
    return max(free, 0)
