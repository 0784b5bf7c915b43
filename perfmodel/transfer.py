"""What it costs to move bytes between the device and where an array lives.

Section 4.1 of the paper: a copy takes alpha * bytes + beta. Each placement of the host side has a
line of its own for each direction. The link is not two independent roads: while both directions are
busy, each runs slower by a factor, which depends on where either side's host memory is. (Two pinned
copies share the link; copies that are staged share the host's memory and its threads as well.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .linear import Line
from .record import Record, Table, mapping, members, number, whole

PLACEMENTS = ("device", "pinned", "pageable", "disk")

NARROWEST_ROW_BYTES = 128
"""Narrower rows of pinned memory are gathered by the host, as those of plain memory are."""

GATHERED_ALONE = 5.0
"""Pinned memory that has to be gathered is gathered in the caller's own time, without the threads
that stage plain memory: so many times slower (measured on an H200: 3 to 10 GB/s against 35)."""

FAR_BYTES = 2**21
"""Rows of pinned memory that lie so far apart take longer while both directions run, and nearer
ones by as much less: the link looks up where the pages of each of them are."""

FAR_LEAST, FAR_WIDTH_BYTES = 0.17, 200_000.0
"""A row takes longer by all of a line's term for rows from this width on, and the narrowest one by
such a share of it: of those, several are looked up at once (measured on an H200: 0.2 us for a row
of 16 KiB, 0.8 to 1.5 us for one of 170 or 256 KiB)."""

NARROW_BYTES, GAP_BYTES = (2**12, 2**15), 2**16
"""Narrow rows of pinned memory take longer however far they lie apart (a line's "near"): by as much
less the wider they are than the first of these, and by nothing from the second one on; still
narrower ones by a share of it, and so do those with a smaller gap from one to the next. Measured on
an H200, both ways (`benchmarks.copies`): 0.02 us for a row of 1 KiB, 0.03 to 0.1 for those of 4 to
18, hardly anything for one of 24; and nothing where the gap is 336 bytes (`model_accuracy`)."""

STAGED_BYTES = 2**22
"""What one thread stages of a copy before it starts, at most: several stage the rest beside it.
(Of twelve pieces and ways on an H200, parts twice as large were faster in one, of large pieces both
ways, and half as large ones in two, of small pieces: `benchmarks.copies`.)"""

AT_ONCE_BYTES = 2**16
"""What is smaller is staged on the caller's time: it is copied before another thread is awake."""

SLAB_BYTES, SLABS = 2**24, 8
"""Staged copies go through so many pieces of pinned memory each way, of so many bytes."""

#: What stands in for a placement whose pairs were not measured, the furthest from pinned memory
#: first: files are staged like plain memory.
_STANDS_IN = {"disk": "pageable", "pageable": "pinned"}


@dataclass(frozen=True, slots=True)
class Slowdown(Record):
    """By what factor copies of each direction take longer while the other direction is busy.

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
        # both are busy until the first is done: T = min(t_in * s_in, t_out * s_out);
        # until then T / s of each is done, and what is left of the other takes what it takes alone
        both = min(ways) if isinstance(ways[0] + ways[1], float) else np.minimum(*ways)
        return (
            in_seconds + both * (1.0 - 1.0 / self.copy_in),
            out_seconds + both * (1.0 - 1.0 / self.copy_out),
        )


class Rows(NamedTuple):
    """How the host's side of a copy lies: rows of so many bytes, so many bytes apart.

    `scattered` where they lie so unevenly that the host gathers them, whatever memory they are in.
    `outer_jumps` of a byte: those from one group of rows to the next (`jumps`), where there are
    groups.
    """

    width_bytes: float
    pitch_bytes: float
    scattered: bool = False
    outer_jumps: float = 0.0


#: What lies in one piece.
WHOLE = Rows(math.inf, 0.0)


def jumps(own_bytes: float, reach_bytes: float, pitch_bytes: float) -> float:
    """Return the far jumps of a byte: 1 a row of wide rows that lie far apart.

    Parameters
    ----------
    own_bytes : float
        Of a row, or of a group of rows.
    reach_bytes : float
        From its first byte to its last.
    pitch_bytes : float
        From its first byte to that of the next.

    Examples
    --------
    >>> 1 / jumps(500_000, 500_000, 4_000_000), jumps(500, 500, 500)
    (500000.0, 0.0)
    """
    far = min(max(pitch_bytes - reach_bytes, 0.0) / FAR_BYTES, 1.0)
    wide = min(FAR_LEAST + own_bytes / FAR_WIDTH_BYTES, 1.0)
    return far * wide / own_bytes


def narrow_rows(width_bytes: float, pitch_bytes: float) -> float:
    """Return the narrow rows of a byte: one a row of 4 KiB far from the next, less of others.

    Examples
    --------
    >>> [round(width * narrow_rows(width, 2**20), 2) for width in (2**10, 2**12, 2**14, 2**16)]
    [0.28, 1.0, 0.57, 0.0]
    >>> round(2**12 * narrow_rows(2**12, 2**12 + 2**14), 2)
    0.25
    """
    least, most = NARROW_BYTES
    gap = min(max(pitch_bytes - width_bytes, 0.0) / GAP_BYTES, 1.0)
    return gap * max(most - width_bytes, 0.0) / (most - least) / max(width_bytes, least)


@dataclass(frozen=True)
class TransferModel:
    """The link of one machine, by placement.

    Parameters
    ----------
    copy_in, copy_out : mapping from placement to Line
        One-way seconds over host bytes, with a term for "rows" that lie apart (of pinned memory:
        for wide ones that lie `FAR_BYTES` or more apart, and for narrow ones "near"). The
        placements are "pinned", "pageable" and "disk"; what is on the device already costs nothing
        and has no line.
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
    >>> link.copy_in_seconds("pinned", 50_000_000, copies=2)
    0.00102
    >>> link.copy_in_seconds("device", 50_000_000)
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

    def copy_in_seconds(
        self, placement: str, host_bytes: float, copies: int = 1, rows: Rows = WHOLE
    ) -> float:
        """Return the one-way seconds of `copies` copies of `host_bytes` in all to the device."""
        return self._copy_seconds("copy_in", placement, host_bytes, copies, rows)

    def copy_out_seconds(
        self, placement: str, host_bytes: float, copies: int = 1, rows: Rows = WHOLE
    ) -> float:
        """Return the one-way seconds of `copies` copies of `host_bytes` in all to the host."""
        return self._copy_seconds("copy_out", placement, host_bytes, copies, rows)

    def _copy_seconds(
        self, direction: str, placement: str, host_bytes: float, copies: int, rows: Rows
    ) -> float:
        moved, times = number("host_bytes", host_bytes), whole("copies", copies)
        if placement == "device" or times == 0:
            return 0.0
        line = self._line(direction, placement)
        # t = alpha * bytes + beta * copies, as `copies` equal copies one after the other
        plain = times * line.seconds(moved / times)
        return plain + moved * self.apart_seconds_per_byte(direction, placement, rows)

    def apart_seconds_per_byte(
        self, direction: str, placement: str, rows: Rows, meanwhile: float = 1.0
    ) -> float:
        """Return what a byte takes longer because it lies in rows apart from each other.

        Parameters
        ----------
        meanwhile : float
            Share of the copies beside which the other direction runs, too.
        """
        if rows.width_bytes == math.inf:
            return 0.0
        line = self._line(direction, placement)
        lines: Mapping[str, Line] = getattr(self, direction)
        if placement != "pinned":
            return line.terms.get("rows", 0.0) / rows.width_bytes
        if is_gathered(rows) and "pageable" in lines:
            staged = lines["pageable"]
            each = staged.alpha + staged.terms.get("rows", 0.0) / rows.width_bytes
            return max(GATHERED_ALONE * each - line.alpha, 0.0)
        near = narrow_rows(rows.width_bytes, rows.pitch_bytes) * line.terms.get("near", 0.0)
        return near + meanwhile * self.far_seconds_per_byte(direction, placement, rows)

    def far_seconds_per_byte(self, direction: str, placement: str, rows: Rows) -> float:
        """Return the part of that which a byte takes longer only while the other direction runs.

        Rows of pinned memory that lie far apart do, unless the host has to gather them.
        """
        if placement != "pinned" or rows.width_bytes == math.inf or is_gathered(rows):
            return 0.0
        inner = jumps(rows.width_bytes, rows.width_bytes, rows.pitch_bytes)
        return (inner + rows.outer_jumps) * self._line(direction, placement).terms.get("rows", 0.0)

    def _line(self, direction: str, placement: str) -> Line:
        lines: Mapping[str, Line] = getattr(self, direction)
        if placement not in lines:
            known = ", ".join(["device", *lines])
            raise KeyError(
                f"no {direction} line for placement {placement!r}; this machine has {known}"
            )
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
        """Return what a call's first copy from there, or last copy to there, takes beside.

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
        found = self.slowdowns.get(f"{in_placement}/{out_placement}")
        if found is not None:
            return found
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
        shared = self._memory_share("copy_in", in_placement)
        shared *= self._memory_share("copy_out", out_placement)
        return Slowdown(
            1.0 + (instead.copy_in - 1.0) * shared, 1.0 + (instead.copy_out - 1.0) * shared
        )

    def _memory_share(self, direction: str, placement: str) -> float:
        """The share of the seconds of a file's bytes that those of plain memory take."""
        lines: Mapping[str, Line] = getattr(self, direction)
        if placement != "disk" or not {"pageable", "disk"} <= set(lines):
            return 1.0
        plain, disk = lines["pageable"].alpha, lines["disk"].alpha
        return min(plain / disk, 1.0) if disk else 1.0

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

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain JSON values."""
        return {
            "copy_in": {placement: line.to_json() for placement, line in self.copy_in.items()},
            "copy_out": {placement: line.to_json() for placement, line in self.copy_out.items()},
            "slowdowns": {pair: held.to_json() for pair, held in self.slowdowns.items()},
            "latency": {name: line.to_json() for name, line in self.latency.items()},
        }

    @classmethod
    def from_json(cls, data: object) -> TransferModel:
        """Return what `to_json` described."""
        held = members("TransferModel", data, ("copy_in", "copy_out", "slowdowns", "latency"))
        return cls(
            copy_in=_lines("copy_in", held["copy_in"]),
            copy_out=_lines("copy_out", held["copy_out"]),
            slowdowns={
                pair: Slowdown.from_json(data)
                for pair, data in mapping("slowdowns", held["slowdowns"]).items()
            },
            latency=_lines("latency", held["latency"]),
        )


def is_gathered(rows: Rows) -> bool:
    """Return whether the host gathers such rows, whatever memory they are in."""
    return rows.scattered or rows.width_bytes < NARROWEST_ROW_BYTES


def slabs_of(copy_bytes: Any) -> Any:
    """Return how many slabs a staged copy goes through.

    Examples
    --------
    >>> [int(slabs_of(mib * 2**20)) for mib in (1, 16, 17)]
    [1, 1, 2]
    """
    return np.maximum(np.ceil(copy_bytes / SLAB_BYTES), 1.0)


def staging_slots(direction: str, copy_bytes: Any, slots: Any) -> Any:
    """Return how many staged copies can be under way at once, with a ring of `slots`.

    A result leaves its slot as soon as it is in slabs: of small ones more are under way than the
    ring has slots.

    Examples
    --------
    >>> [int(staging_slots("copy_out", mib * 2**20, 2)) for mib in (10, 20, 100)]
    [8, 4, 2]
    >>> staging_slots("copy_in", 10 * 2**20, 2)
    2
    """
    if direction == "copy_in":
        return slots
    return np.maximum(slots, SLABS // slabs_of(copy_bytes))


def _lines(name: str, data: object) -> dict[str, Line]:
    return {placement: Line.from_json(line) for placement, line in mapping(name, data).items()}
