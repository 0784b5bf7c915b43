"""Copies of memory: by placement and size, one way and both ways; and what they cost beside that.

Pieces follow each other through more host memory than any processor cache holds. One way and both
ways take turns, so that their ratio, the slowdown, does not depend on when they were measured.
Rows that lie apart cost something beside their bytes: the host gathers those of plain memory one by
one, and narrow ones of pinned memory take the link longer. And copies that threads stage are late:
staging takes a while to start, and trails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from ooc_cudnn.calibration.session import DIRECTIONS, Session
from ooc_cudnn.devices.base import HostArray
from ooc_cudnn.devices.measuring import HostMemory, Next, Timing
from perfmodel.rows import narrow_rows
from perfmodel.staging import STAGED_BYTES

MIB = 2**20
PAIRS = ("pinned/pinned", "pinned/pageable", "pageable/pinned", "pageable/pageable")
#: Bytes of pieces; for a quick calibration, the second of each.
GPU_SIZES = tuple(MIB * n for n in (1, 4, 16, 32, 64, 128)), tuple(MIB * n for n in (1, 16, 32))
HOST_SIZES = tuple(MIB * n // 4 for n in (1, 4, 16, 32, 64)), (MIB // 4, 2 * MIB, 8 * MIB)
#: Bytes of plain memory each way, several times a processor cache; of pinned memory a quarter.
GPU_PLAIN, HOST_PLAIN = (2**30, 2**28), 2**26
#: Pieces from this size on say how much the directions slow each other down: they are what calls
#: move, and what each copy costs beside its bytes no longer counts.
GPU_LARGE, HOST_LARGE = 16 * MIB, MIB
#: Most copies of a batch.
MOST_COPIES = 128
#: Bytes of a copy whose rows are measured; where little memory is used, the second.
ROWS_BYTES = 16 * MIB, MIB
#: A row of a channel is copied of every channel and image: (channels, rows, elements of a row).
NARROW = (32, 8, 16)
#: Pinned memory each way through which rows lie; where little memory is used, the second.
PINNED_BYTES = 2**30, 2**26
#: Rows of it, as a few channels of a map of 28 x 28: elements of one, from one to the next, and
#: where the first one starts.
PINNED_ROWS = (3 * 784, 64 * 784, 784)
#: Copies that follow each other, where what they take together counts.
MANY = 5
#: What a small copy has, beside which the latency grows with the bytes.
SMALL_BYTES = 2**16

#: What copies of each direction take after each other.
Regions = Mapping[str, Callable[[], HostArray]]


def pieces(session: Session) -> tuple[int, ...]:
    """Bytes of the copies that are measured: of the smallest, where none fits, the error tells."""
    sizes = (HOST_SIZES if session.on_host else GPU_SIZES)[session.quick]
    return tuple(size for size in sizes if session.bench.fits(2 * size)) or sizes[:1]


def large_pieces(session: Session) -> tuple[int, ...]:
    """Those that say how much the directions slow each other down."""
    sizes, large = pieces(session), HOST_LARGE if session.on_host else GPU_LARGE
    return tuple(size for size in sizes if size >= min(large, sizes[-1]))


def host_memory(session: Session) -> None:
    """Allocate host memory for copies each way, and touch every page of it with random numbers."""
    bench, largest = session.bench, pieces(session)[-1]
    plain = HOST_PLAIN if session.on_host else GPU_PLAIN[session.quick]
    base = bench.reserve(2 * largest)
    bench.fill(base, largest, "float32")
    for placement, count in ("pinned", max(plain // 4, 2 * largest)), ("pageable", plain):
        session.hosts[placement] = {}
        for way in DIRECTIONS:
            if placement == "pageable":
                array: HostArray = np.empty(count // 4, np.float32)
            else:
                array = session.device.allocate_pinned(count).view(np.float32)
            memory = session.hosts[placement][way] = HostMemory(array)
            (copy,) = bench.copies(base, 0, {"copy_out": partial(memory.next, largest)}).values()
            touching = [copy() for _ in range(count // largest)]
            bench.spans({"copy_out": touching}, staged=placement == "pageable")


def copy_seconds(session: Session, way: str, nbytes: int) -> float:
    """Seconds that a copy of pinned memory takes."""
    copies = _copies(session, nbytes, {way: "pinned"})
    return session.bench.steady([copies], staged=False)[0][way].seconds


def reference(session: Session) -> float:
    """Seconds of one copy that is measured first and last, to see whether clocks drift."""
    return copy_seconds(session, "copy_in", min(pieces(session)[-1], GPU_LARGE))


def all_pairs(session: Session) -> None:
    """Record copies one way, and both ways at once: one tells what the other lost."""
    for placement in ("pinned", "pageable"):
        ways = [{way: placement} for way in DIRECTIONS] + [dict.fromkeys(DIRECTIONS, placement)]
        wanted = [(size, of) for size in pieces(session) for of in ways]
        _measure(session, wanted, staged=placement == "pageable")
    mixed = [dict(zip(DIRECTIONS, pair.split("/"), strict=True)) for pair in PAIRS[1:3]]
    _measure(session, [(size, of) for of in mixed for size in large_pieces(session)], staged=True)


def _measure(
    session: Session, wanted: Iterable[tuple[int, Mapping[str, str]]], *, staged: bool
) -> None:
    """Copies of so many bytes, of memory of some placement in each direction."""
    copies = (_copies(session, size, of) for size, of in wanted)
    timed = session.bench.steady(copies, staged=staged, most=MOST_COPIES)
    for (size, of), timings in zip(wanted, timed, strict=True):
        pair = "/".join(of.values())
        for way, timing in timings.items():
            key = f"duplex/{pair}/{way}" if len(of) == 2 else f"{way}/{pair}"
            session.record(key, timing, size)


def _copies(session: Session, size: int, of: Mapping[str, str]) -> dict[str, Next]:
    """Copies of so many bytes, of memory of some placement, with a slot for each direction."""
    largest = max(pieces(session)[-1], size)
    base = session.bench.reserve(2 * largest)  # the same for all: growing would move it
    regions = {way: partial(session.hosts[held][way].next, size) for way, held in of.items()}
    return session.bench.copies(base, largest, regions)


def rows_apart(session: Session) -> None:
    """Record rows of plain memory one way, of pinned memory both ways; where memory allows."""
    size, bench = ROWS_BYTES[session.little], session.bench
    if not bench.fits(2 * size):
        return
    for way, memory in session.hosts["pageable"].items():
        plain_regions = [{way: partial(_narrow, memory, size)}, {way: partial(memory.next, size)}]
        _row(session, f"rows/{way}/pageable", plain_regions, size, size // (4 * NARROW[2]))
    width, pitch, start = PINNED_ROWS
    count = PINNED_BYTES[session.little] // (4 * pitch)
    slot_bytes = 4 * count * width
    if not bench.fits(2 * slot_bytes):
        return
    pinned = [
        session.device.allocate_pinned(4 * count * pitch).view(np.float32) for _ in DIRECTIONS
    ]
    if session.on_host:  # elsewhere, pinning has touched every page
        for host in pinned:
            host[...] = 1.0
    # regions that stay where they are: `view` returns them
    apart = (host.reshape(count, pitch)[:, start : start + width].view for host in pinned)
    joined = (host[: count * width].view for host in pinned)
    regions: list[Regions] = [dict(zip(DIRECTIONS, of, strict=True)) for of in (apart, joined)]
    rows = slot_bytes * narrow_rows(4 * width, 4 * pitch)
    _row(session, "rows/pinned", regions, slot_bytes, rows)


def _row(
    session: Session, key: str, regions: Sequence[Regions], slot_bytes: int, rows: float
) -> None:
    """Record what each row adds to a copy, one among many, of regions in rows and in one piece."""
    bench = session.bench
    base = bench.reserve(len(regions[0]) * slot_bytes)
    copies = [bench.copies(base, slot_bytes, lying) for lying in regions]
    wanted = [(of, number) for of in copies for number in (MANY, 3 * MANY)]
    timings = bench.at_rest(wanted, staged=key.endswith("/pageable"))
    few, many, whole_few, whole_many = (timing.seconds for timing in timings)
    extra = (many - few - (whole_many - whole_few)) / (2 * MANY)
    session.record(key, Timing(max(extra / rows, 0.0), timings[1].spread))


def _narrow(memory: HostMemory, size: int) -> HostArray:
    """One row of eight; parts come again, but the other rows of them first."""
    channels, rows, width = NARROW
    lying = memory.next(rows * size).reshape(-1, channels, rows, width)
    row = memory.round % rows
    return lying[:, :, row : row + 1]


def staged_bytes(session: Session) -> int:
    """Bytes of a copy that one thread stages."""
    return min(STAGED_BYTES, ROWS_BYTES[session.little])


def latency(session: Session) -> None:
    """Record what a copy alone is late by: a small one, and one that a thread can stage."""
    bench, sizes = session.bench, (SMALL_BYTES, staged_bytes(session))
    for way, memory in session.hosts["pageable"].items():
        base, wanted = bench.reserve(sizes[1]), []
        for size in sizes:
            copies = bench.copies(base, 0, {way: partial(memory.next, size)})
            wanted += [(copies, 1), (copies, MANY)]
        timings = iter(bench.at_rest(wanted, staged=True))
        for size, few, many in zip(sizes, timings, timings, strict=True):
            late = few.seconds - (many.seconds - few.seconds) / (MANY - 1)
            session.record(f"latency/{way}/pageable", Timing(max(late, 0.0), few.spread), size)
