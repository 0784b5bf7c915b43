"""Slowdown of both directions of the link while both are busy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .record import Record, number


@dataclass(frozen=True, slots=True)
class Slowdown(Record):
    """Factor by which copies of each direction take longer while the other direction is busy.

    Parameters
    ----------
    copy_in, copy_out : float
        At least 1.

    Examples
    --------
    >>> Slowdown(1.1, 1.2).copy_out
    1.2
    """

    copy_in: float = 1.0
    copy_out: float = 1.0

    def __post_init__(self) -> None:
        for name in ("copy_in", "copy_out"):
            factor = number(f"slowdown of {name}", getattr(self, name), at_least=1.0)
            object.__setattr__(self, name, factor)

    def together(self, in_seconds: Any, out_seconds: Any) -> tuple[Any, Any]:
        """Return the seconds that each direction takes when both start together.

        Parameters
        ----------
        in_seconds, out_seconds : float or array
            What each would take if it had the link alone.

        Examples
        --------
        >>> Slowdown(1.5, 1.5).together(2.0, 6.0)
        (3.0, 7.0)
        """
        ways = in_seconds * self.copy_in, out_seconds * self.copy_out
        # both are busy until the first is done: T = min(t_in * s_pre, t_out * s_off);
        # until then T / s of each is done, and what is left of the other takes what it takes alone
        both = min(ways) if isinstance(ways[0] + ways[1], float) else np.minimum(*ways)
        return (
            in_seconds + both * (1.0 - 1.0 / self.copy_in),
            out_seconds + both * (1.0 - 1.0 / self.copy_out),
        )
