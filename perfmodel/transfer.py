"""Cost of moving bytes between the device and where an array lives.

Section 4.1 of the paper: a copy takes alpha * bytes + beta. Each placement of the host side has a
line of its own for each direction. The link is not two independent roads: while both directions are
busy, each runs slower by a factor, which depends on where either side's host memory is. (Two pinned
copies share the link; copies that are staged share the host's memory and its threads as well.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .linear import Line
from .missing_line import MissingLineError
from .record import Record, Table, number, whole
from .rows import GATHERED_ALONE, WHOLE, Rows, is_gathered, narrow_rows
from .slowdown import Slowdown
from .staging import STAGED_BYTES

PLACEMENTS = ("device", "pinned", "pageable", "disk")

#: What stands in for a placement whose pairs were not measured, the furthest from pinned memory
#: first: files are staged like plain memory.
_STANDS_IN = {"disk": "pageable", "pageable": "pinned"}


@dataclass(frozen=True)
class TransferModel(Record):
    """The link of one machine, by placement.

    Parameters
    ----------
    copy_in, copy_out : mapping from placement to Line
        One-way seconds over host bytes, with a term for "rows" that lie apart (of pinned memory
        for narrow ones). The placements are "pinned", "pageable" and "disk"; what is on the device
        already costs nothing and has no line.
    slowdowns : mapping from "IN/OUT" to Slowdown
        For the placement that is copied from and the one that is copied to, "pinned/pageable" say,
        while both are busy. A pair with "disk" that is missing is that with "pageable", less what
        a file is slower by; and one with "pageable" that with "pinned"; where that is missing too,
        nothing is slowed down.
    latency : mapping from "copy_in/PLACEMENT" or "copy_out/PLACEMENT" to Line
        Seconds that the first copy in of a call, or the last copy out, takes beside: staging has to
        start, and trails. Over the bytes of that copy up to `STAGED_BYTES`, with a term for each
        of the "others" in flight. Where missing, "disk" takes what "pageable" takes, and others
        nothing.

    Examples
    --------
    >>> line = Line(alpha=1 / 50e9, beta=1e-5)
    >>> link = TransferModel({"pinned": line}, {"pinned": line},
    ...                      {"pinned/pinned": Slowdown(1.1, 1.1)})
    >>> link.copy_seconds("copy_in", "pinned", 50_000_000, copies=2)
    0.00102
    >>> link.copy_seconds("copy_in", "device", 50_000_000)
    0.0
    >>> link.slowdown("pinned", "pinned")
    Slowdown(copy_in=1.1, copy_out=1.1)
    """

    copy_in: Mapping[str, Line]
    copy_out: Mapping[str, Line]
    slowdowns: Mapping[str, Slowdown] = field(default_factory=dict)
    latency: Mapping[str, Line] = field(default_factory=dict)

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
        for pair in self.slowdowns:
            if not set(pair.split("/")) <= set(PLACEMENTS[1:]) or pair.count("/") != 1:
                raise ValueError(
                    f"slowdowns has {pair!r}; it must name two placements, as 'pinned/pageable'"
                )
        object.__setattr__(self, "slowdowns", Table(self.slowdowns))
        object.__setattr__(self, "latency", Table(self.latency))

    def copy_seconds(
        self, direction: str, placement: str, host_bytes: float, copies: int = 1, rows: Rows = WHOLE
    ) -> float:
        """Return the one-way seconds of `copies` copies of `host_bytes` in all."""
        moved, times = number("host_bytes", host_bytes), whole("copies", copies)
        if placement == "device" or times == 0:
            return 0.0
        line = self._line(direction, placement)
        # t = alpha * bytes + beta * copies, as `copies` equal copies one after the other
        plain = times * line.seconds(moved / times)
        return plain + moved * self.apart_seconds_per_byte(direction, placement, rows)

    def apart_seconds_per_byte(self, direction: str, placement: str, rows: Rows) -> float:
        """Return what a byte takes longer because it lies in rows apart from each other."""
        if rows.width_bytes == math.inf:
            return 0.0
        line = self._line(direction, placement)
        row_seconds = line.terms.get("rows", 0.0)
        if placement != "pinned":
            return row_seconds / rows.width_bytes
        lines: Mapping[str, Line] = getattr(self, direction)
        if is_gathered(rows) and "pageable" in lines:
            staged = lines["pageable"]
            gathered = staged.alpha + staged.terms.get("rows", 0.0) / rows.width_bytes
            return max(GATHERED_ALONE * gathered - line.alpha, 0.0)
        return row_seconds * narrow_rows(rows.width_bytes, rows.pitch_bytes)

    def _line(self, direction: str, placement: str) -> Line:
        lines: Mapping[str, Line] = getattr(self, direction)
        if placement not in lines:
            way = direction.replace("_", " ")
            raise MissingLineError(f"{way} of {placement} memory", ["device", *lines])
        return lines[placement]

    def latency_of(self, direction: str, placement: str) -> Line | None:
        """Return the line of what a copy is late by; None where copies are not staged."""
        known = self.latency.get(f"{direction}/{placement}")
        if known is None and placement == "disk":
            known = self.latency.get(f"{direction}/pageable")
        return known

    def latency_seconds(
        self, direction: str, placement: str, copy_bytes: Any, others: Any = 0
    ) -> Any:
        """Latency added by the first copy-in or last copy-out.

        Parameters
        ----------
        copy_bytes : float or array
            Bytes of that one copy.
        others : float or array
            Staged copies in flight beside it, of all operands: the threads wait for each other.

        Examples
        --------
        >>> link = TransferModel({}, {}, {}, {"copy_in/pageable": Line(1e-10, 5e-4)})
        >>> [f"{link.latency_seconds('copy_in', 'disk', count):.4f}" for count in (1e6, 1e9)]
        ['0.0006', '0.0009']
        """
        line = self.latency_of(direction, placement)
        if line is None:
            return 0.0
        alone = line.beta + line.alpha * np.minimum(copy_bytes, STAGED_BYTES)
        return alone + line.terms.get("others", 0.0) * others

    def turn_seconds(self, direction: str, placement: str, copy_bytes: Any, others: Any = 0) -> Any:
        """Return for how long a staged copy holds its slot: it is late, and crosses the link.

        What is computed on the slot meanwhile is in nobody's way: the next copy is staged before
        the slot is free.
        """
        late = self.latency_seconds(direction, placement, copy_bytes, others)
        lines: Mapping[str, Line] = getattr(self, direction)
        link = lines.get("pinned")
        return late if link is None else late + link.alpha * copy_bytes

    def slowdown(self, in_placement: str, out_placement: str) -> Slowdown:
        """Return how much copies from one placement and to another slow each other down.

        Examples
        --------
        >>> lines = {"pageable": Line(1e-11, 0.0), "disk": Line(4e-11, 0.0)}
        >>> link = TransferModel(lines, lines, {"pageable/pageable": Slowdown(1.8, 1.4)})
        >>> link.slowdown("disk", "pageable")
        Slowdown(copy_in=1.2, copy_out=1.1)
        """
        slowdown = self.slowdowns.get(f"{in_placement}/{out_placement}")
        if slowdown is not None:
            return slowdown
        # the further one from pinned memory first
        pair = in_placement, out_placement
        replaced = next((placement for placement in _STANDS_IN if placement in pair), None)
        if replaced is None:
            return Slowdown()
        instead = self.slowdown(
            *(_STANDS_IN[replaced] if placement == replaced else placement for placement in pair)
        )
        if replaced != "disk":
            return instead
        # what a file takes longer than plain memory, memory is in nobody's way
        shared = 1.0
        for lines, placement in (self.copy_in, in_placement), (self.copy_out, out_placement):
            if placement == "disk" and "pageable" in lines and "disk" in lines:
                plain, disk = lines["pageable"].alpha, lines["disk"].alpha
                shared *= min(plain / disk, 1.0) if disk else 1.0
        return Slowdown(
            1.0 + (instead.copy_in - 1.0) * shared, 1.0 + (instead.copy_out - 1.0) * shared
        )

    def mean_slowdown(
        self, in_seconds: Mapping[str, float], out_seconds: Mapping[str, float]
    ) -> Slowdown:
        """Return the mean slowdown of a call whose operands lie in several placements.

        Parameters
        ----------
        in_seconds, out_seconds : mapping from placement to float
            What the copies from and to each placement take alone: the weights of its pairs.

        Examples
        --------
        >>> link = TransferModel({}, {}, {"pinned/pinned": Slowdown(1.1, 1.1),
        ...                               "pageable/pinned": Slowdown(1.3, 1.1)})
        >>> link.mean_slowdown({"pinned": 1.0, "pageable": 3.0}, {"pinned": 2.0})
        Slowdown(copy_in=1.25, copy_out=1.1)
        """
        total = copy_in = copy_out = 0.0
        for source, seconds in in_seconds.items():
            for target, others in out_seconds.items():
                weight = seconds * others
                if weight:
                    pair = self.slowdown(source, target)
                    total += weight
                    copy_in += weight * pair.copy_in
                    copy_out += weight * pair.copy_out
        if not total:
            return Slowdown()
        # a mean of ones may come out a rounding error below one
        return Slowdown(max(1.0, copy_in / total), max(1.0, copy_out / total))
