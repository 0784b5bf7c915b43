"""One launch, timed as well as there is time for: for a call that waits, and for `tune`."""

from __future__ import annotations

import math

from ooc_cudnn.devices.measuring import Bench, Launched, Timing

#: What takes so many times as long as predicted is timed again, and the shorter time counts: it may
#: have been disturbed.
SUSPICIOUS = 1.5
#: Launches that are timed, after as many that only warm up; of those that take longer than so many
#: seconds, one.
LAUNCHES, LONG_SECONDS = 3, 5e-3


def launches_of(seconds: float) -> int:
    """Return how often a launch is timed that takes about so long."""
    return 1 if seconds > LONG_SECONDS else LAUNCHES


def timing_seconds(seconds: float, expected: float) -> float:
    """Seconds to time a launch of so many seconds, of which others were expected."""
    return 2 * launches_of(expected) * seconds


class Allowance:
    """Seconds that timing several launches may take.

    Examples
    --------
    >>> allowance = Allowance(1.0)
    >>> allowance.take(0.25, expected=0.1)
    >>> allowance.left, allowance.allows(0.25, expected=0.1), allowance.allows(0.3, expected=0.1)
    (0.5, True, False)
    """

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def allows(self, seconds: float, expected: float) -> bool:
        """True if there is time for a launch that takes so long, of which others were expected."""
        return timing_seconds(seconds, expected) <= self.left

    def take(self, seconds: float, expected: float) -> None:
        """Take the time for such a launch from what is left."""
        self.left -= timing_seconds(seconds, expected)


def time_well(
    bench: Bench,
    launched: Launched,
    *,
    scratch_bytes: int,
    expected: float,
    allowed_seconds: float = math.inf,
) -> tuple[Timing, float | None] | None:
    """Time a launch, again where it seems to have been disturbed; None if there is no room.

    What is far slower than expected is launched no more once it has taken what is allowed.
    """
    most, suspicious = launches_of(expected), SUSPICIOUS * expected
    patience = max(suspicious, allowed_seconds / timing_seconds(1.0, expected))
    first = bench.time_launch(launched, scratch_bytes, most=most, patience=patience)
    if first is None or first[0].seconds <= suspicious:
        return first
    # at the first launch of all the host loads its code, once
    by_itself = first[0].seconds - (first[1] or 0.0)
    if 2 * timing_seconds(by_itself, expected) > allowed_seconds:
        return first
    again = bench.time_launch(launched, scratch_bytes, most=most, patience=patience)
    return min(first, again or first, key=lambda each: each[0].seconds)
