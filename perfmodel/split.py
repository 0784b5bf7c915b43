"""The split of a call: the paper's piece sizes."""

from __future__ import annotations

from dataclasses import dataclass

from .record import Record, whole


@dataclass(frozen=True, slots=True)
class Split(Record):
    """The piece sizes d_n, d_cY, d_cX and d_hY: what one piece holds of each axis.

    Examples
    --------
    >>> Split(n=2, c_y=64, c_x=64, h_y=128)
    Split(n=2, c_y=64, c_x=64, h_y=128)
    """

    n: int
    c_y: int
    c_x: int
    h_y: int

    def __post_init__(self) -> None:
        for axis in ("n", "c_y", "c_x", "h_y"):
            size = getattr(self, axis)
            if type(size) is not int or size < 1:
                object.__setattr__(self, axis, whole(axis, size, at_least=1))
