"""What else the machine is doing while something is timed: seconds of other processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STATISTICS = Path("/proc/stat")
_IDLE = (3, 4)  # idle and waiting for a disk, of the columns of /proc/stat


class Neighbours:
    """The share of the processors that other processes take, from one look to the next."""

    def __init__(self) -> None:
        self._last = _now()

    def share(self) -> float:
        """Their share since the last look; NaN where the system does not say.

        Counted in ticks of 10 ms, so a few tenths of a second are the least that tells anything.
        """
        before, self._last = self._last, _now()
        wall, busy, own = (now - then for now, then in zip(self._last, before, strict=True))
        return max((busy - own) / (wall * (os.cpu_count() or 1)), 0.0)  # of NaN and 0, NaN


def _now() -> tuple[float, float, float]:
    """Seconds on the clock, of all processors at work, and of this process on any of them."""
    try:
        columns = _STATISTICS.read_text().splitlines()[0].split()[1:9]
        ticks = [int(column) for column in columns]
        busy = sum(ticks) - sum(ticks[column] for column in _IDLE)
        seconds = busy / os.sysconf("SC_CLK_TCK")
    except OSError:
        seconds = float("nan")
    return time.perf_counter(), seconds, time.process_time()
