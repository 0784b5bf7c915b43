"""Consistency of a record: one that disagrees with itself is of a disturbed machine.

What the link bounds takes as long as its bytes take, whoever sends them and however they are
rounded. So calls of one record that move as many bytes agree, and so do the same calls in strict
float32 and in TF32. Rounds of the library and of bounds agree, too. A record where they do not is
not stored: a disturbed machine made it, or it has found a fault of the library.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: The slowest round of the library, or of a bound, over the median one.
ROUNDS_AGREE_WITHIN = 1.25
#: The slowest over the fastest of calls that the link bounds and that move as many bytes.
LINK_AGREES_WITHIN = 1.25
#: Of the processors' time, what other processes may take while a case is measured.
MOST_FOR_NEIGHBOURS = 0.15
_STATISTICS = Path("/proc/stat")
_IDLE = (3, 4)  # idle and waiting for a disk, of the columns of /proc/stat

Record = Mapping[str, Any]


def disturbances(record: Record) -> list[str]:
    """Say what in a record disagrees; nothing where all is well.

    A run at tiny sizes is never disturbed: its times mean nothing.
    """
    if record["quick"]:
        return []
    return [*_neighbours(record), *_rounds(record), *_equal_bytes(record)]


def disagreements(strict: Record, tf32: Record) -> list[str]:
    """Say which calls of a case the link bounds in both precisions, and take longer in one."""
    if strict["quick"] or tf32["quick"]:
        return []
    messages = []
    for name, contender in _measured(strict):
        other = tf32["contenders"].get(name, {})
        others = other.get("details", {}).get("calls", ())
        for call, same in zip(contender["details"].get("calls", ()), others, strict=False):
            if not (_is_of_the_link(call) and _is_of_the_link(same)):
                continue
            seconds = [each["seconds_while_profiled"] for each in (call, same)]
            if max(seconds) > LINK_AGREES_WITHIN * min(seconds):
                messages.append(
                    f"{name}: {call['function']} takes {_ms(seconds[0])} in strict float32 and "
                    f"{_ms(seconds[1])} in TF32, though the link bounds both"
                )
    return messages


def _neighbours(record: Record) -> Iterator[str]:
    share = record.get("neighbours_share")
    if share is not None and share > MOST_FOR_NEIGHBOURS:
        yield f"other processes took {share:.0%} of the processors' time"


def _rounds(record: Record) -> Iterator[str]:
    for name, found in _measured(record):
        seconds = found["seconds"]
        steady = found.get("ours") or found["bound"]
        if steady and seconds["max"] > ROUNDS_AGREE_WITHIN * seconds["median"]:
            yield f"{name}: a round took {_ms(seconds['max'])}, the median {_ms(seconds['median'])}"


def _equal_bytes(record: Record) -> Iterator[str]:
    for name, contender in _measured(record):
        groups: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
        for call in contender["details"].get("calls", ()):
            if _is_of_the_link(call):
                groups.setdefault((call["bytes_in"], call["bytes_out"]), []).append(call)
        for calls in groups.values():
            by_time = sorted(calls, key=lambda call: float(call["seconds_while_profiled"]))
            fast, slow = by_time[0], by_time[-1]
            seconds = [each["seconds_while_profiled"] for each in (slow, fast)]
            if seconds[0] > LINK_AGREES_WITHIN * seconds[1]:
                yield (
                    f"{name}: {slow['function']} takes {_ms(seconds[0])} and {fast['function']} "
                    f"{_ms(seconds[1])}, though the link bounds both and they move as many bytes"
                )


def _measured(record: Record) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, found in record["contenders"].items():
        if found["status"] == "measured":
            yield name, found


def _is_of_the_link(call: Mapping[str, Any]) -> bool:
    """True if copies bind a profiled call; calls of a training step are summed up otherwise."""
    return "seconds_while_profiled" in call and call["binding_stage"] in ("copy_in", "copy_out")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


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
