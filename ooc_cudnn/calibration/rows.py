"""Rows that lie apart: what each costs beside its bytes.

The host gathers rows of plain memory one by one, and narrow rows of pinned memory take the link
longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from ooc_cudnn.calibration.session import DIRECTIONS, Session
from ooc_cudnn.devices.base import HostArray
from ooc_cudnn.devices.measuring import HostMemory, Next, Timing
from perfmodel.rows import narrow_rows

#: Bytes of a copy; where little memory is used, the second.
COPY_BYTES = 2**24, 2**20
#: A row of a channel is copied of every channel and image: (channels, rows, elements of a row).
NARROW = (32, 8, 16)
#: Pinned memory each way through which rows lie; where little memory is used, the second.
PINNED_BYTES = 2**30, 2**26
#: Rows of it, as a few channels of a map of 28 x 28: elements of one, from one to the next, and
#: where the first one starts.
PINNED_ROWS = (3 * 784, 64 * 784, 784)
#: Copies that follow each other, where what they take together counts; and how often.
MANY, REPEATS = 5, 5


def copy_bytes(session: Session) -> int:
    """Bytes of a copy whose rows are measured."""
    return COPY_BYTES[session.little]


def rows_apart(session: Session) -> None:
    """Rows of plain memory one way, of pinned memory both ways at once; where memory allows."""
    size, bench = copy_bytes(session), session.bench
    if not bench.fits(2 * size):
        return
    base = bench.reserve(size)
    for direction in DIRECTIONS:
        memory = session.hosts["pageable"][direction]
        regions = partial(_narrow, memory, size), partial(memory.next, size)
        apart, whole = ({direction: bench.copies(direction, base, of)} for of in regions)
        narrow = size // (4 * NARROW[2])
        _record(session, f"rows/{direction}/pageable", apart, whole, narrow, staged=True)
    width, pitch = (4 * elements for elements in PINNED_ROWS[:2])
    count = PINNED_BYTES[session.little] // pitch
    if not bench.fits(2 * count * width):
        return
    hosts = [session.device.allocate_pinned(count * pitch).view(np.float32) for _ in DIRECTIONS]
    if session.on_host:  # elsewhere, pinning has touched every page
        for host in hosts:
            host[...] = 1.0
    base = bench.reserve(2 * count * width)
    apart, whole = (
        {
            way: bench.copies(way, base + at * count * width, partial(lying, hosts[at], count))
            for at, way in enumerate(DIRECTIONS)
        }
        for lying in (_every_pitch, _in_one_piece)
    )
    rows = count * width * narrow_rows(width, pitch)
    _record(session, "rows/pinned", apart, whole, rows, staged=False)


def _record(
    session: Session, key: str, apart: Mapping[str, Next], whole: Mapping[str, Next],
    rows: float, *, staged: bool,
) -> None:  # fmt: skip
    """Record what each row adds to a copy, one among many."""
    wanted = [(of, number) for of in (apart, whole) for number in (MANY, 3 * MANY)]
    found = session.bench.walls(wanted, staged=staged, turns=REPEATS)
    few, many, whole_few, whole_many = (timing.seconds for timing in found)
    extra = (many - few - (whole_many - whole_few)) / (2 * MANY)
    session.record(key, 1.0, Timing(max(extra / rows, 0.0), found[1].spread))


def _narrow(memory: HostMemory, size: int) -> HostArray:
    """One row of eight; parts come again, but the other rows of them first."""
    channels, rows, width = NARROW
    lying = memory.next(rows * size).reshape(-1, channels, rows, width)
    row = memory.round % rows
    return lying[:, :, row : row + 1]


def _every_pitch(host: HostArray, count: int) -> HostArray:
    width, pitch, start = PINNED_ROWS
    return host.reshape(count, pitch)[:, start : start + width]


def _in_one_piece(host: HostArray, count: int) -> HostArray:
    return host[: count * PINNED_ROWS[0]]
