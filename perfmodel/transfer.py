"""What it costs to move bytes between the device and where an array lives.

Section 4.1 of the paper: a copy takes alpha * bytes + beta. Each placement of the host side has a
line of its own for each direction, and one more number says that the link is not two independent
roads: while both directions are busy, each runs slower by `duplex_slowdown`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .linear import Line
from .record import Table, mapping, members, number, whole

PLACEMENTS = ("device", "pinned", "pageable", "disk")


@dataclass(frozen=True)
class TransferModel:
    """The link of one machine, by placement.

    Parameters
    ----------
    copy_in, copy_out : mapping from placement to Line
        One-way seconds over host bytes. The placements are "pinned", "pageable" and "disk"; what
        is on the device already costs nothing and has no line.
    duplex_slowdown : float
        At least 1: the factor by which one-way seconds grow while the other direction is busy.

    Examples
    --------
    >>> line = Line(alpha=1 / 50e9, beta=1e-5)
    >>> link = TransferModel({"pinned": line}, {"pinned": line}, duplex_slowdown=1.1)
    >>> link.copy_in_seconds("pinned", 50_000_000, copies=2)
    0.00102
    >>> link.copy_in_seconds("device", 50_000_000)
    0.0
    """

    copy_in: Mapping[str, Line]
    copy_out: Mapping[str, Line]
    duplex_slowdown: float

    def __post_init__(self) -> None:
        for direction in ("copy_in", "copy_out"):
            lines: Mapping[str, Line] = getattr(self, direction)
            for placement in lines:
                if placement not in PLACEMENTS[1:]:
                    raise ValueError(
                        f"{direction} has a line for {placement!r}; "
                        f"the placements that cost time are {', '.join(PLACEMENTS[1:])}"
                    )
            object.__setattr__(self, direction, Table(lines))
        slowdown = number("duplex_slowdown", self.duplex_slowdown, at_least=1.0)
        object.__setattr__(self, "duplex_slowdown", slowdown)

    def copy_in_seconds(self, placement: str, host_bytes: float, copies: int = 1) -> float:
        """Return the one-way seconds of `copies` copies of `host_bytes` in all to the device."""
        return _copy_seconds("copy_in", self.copy_in, placement, host_bytes, copies)

    def copy_out_seconds(self, placement: str, host_bytes: float, copies: int = 1) -> float:
        """Return the one-way seconds of `copies` copies of `host_bytes` in all to the host."""
        return _copy_seconds("copy_out", self.copy_out, placement, host_bytes, copies)

    def duplex(self, in_seconds: float, out_seconds: float) -> tuple[float, float]:
        """Return the seconds that each direction takes when both start together.

        Parameters
        ----------
        in_seconds, out_seconds : float
            What each would take if it had the link alone.

        Examples
        --------
        >>> TransferModel({}, {}, duplex_slowdown=1.5).duplex(2.0, 6.0)
        (3.0, 7.0)
        """
        # the shorter is slowed all along, t' = t * s; the longer only while the shorter runs
        extra = (self.duplex_slowdown - 1.0) * min(in_seconds, out_seconds)
        return in_seconds + extra, out_seconds + extra

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain JSON values."""
        return {
            "copy_in": {placement: line.to_json() for placement, line in self.copy_in.items()},
            "copy_out": {placement: line.to_json() for placement, line in self.copy_out.items()},
            "duplex_slowdown": self.duplex_slowdown,
        }

    @classmethod
    def from_json(cls, data: object) -> TransferModel:
        """Return what `to_json` described."""
        held = members("TransferModel", data, ("copy_in", "copy_out", "duplex_slowdown"))
        return cls(
            copy_in=_lines("copy_in", held["copy_in"]),
            copy_out=_lines("copy_out", held["copy_out"]),
            duplex_slowdown=held["duplex_slowdown"],
        )


def _lines(name: str, data: object) -> dict[str, Line]:
    return {placement: Line.from_json(line) for placement, line in mapping(name, data).items()}


def _copy_seconds(
    direction: str, lines: Mapping[str, Line], placement: str, host_bytes: float, copies: int
) -> float:
    moved, times = number("host_bytes", host_bytes), whole("copies", copies)
    if placement == "device" or times == 0:
        return 0.0
    if placement not in lines:
        known = ", ".join(["device", *lines])
        raise KeyError(f"no {direction} line for placement {placement!r}; this machine has {known}")
    # t = alpha * bytes + beta * copies, as `copies` equal copies one after the other
    return times * lines[placement].seconds(moved / times)
