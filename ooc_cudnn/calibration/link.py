"""Copies by placement and size, one way and both ways.

What is measured is the steady state of pieces that follow each other through more host memory than
any processor cache holds. One way and both ways take turns, so that their ratio, the slowdown, does
not depend on when they were measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from ooc_cudnn.calibration.session import DIRECTIONS, Session
from ooc_cudnn.devices.base import HostArray
from ooc_cudnn.devices.measuring import HostMemory, Next

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
        for direction in DIRECTIONS:
            if placement == "pageable":
                array: HostArray = np.empty(count // 4, np.float32)
            else:
                array = session.device.allocate_pinned(count).view(np.float32)
            memory = session.hosts[placement][direction] = HostMemory(array)
            copy = bench.copies("copy_out", base, partial(memory.next, largest))
            touching = [copy() for _ in range(count // largest)]
            bench.spans({"copy_out": touching}, staged=placement == "pageable")


def reference(session: Session) -> float:
    """Seconds of one copy that is measured first and last, to see whether clocks drift."""
    return crossing(session, "copy_in", min(pieces(session)[-1], GPU_LARGE))


def crossing(session: Session, way: str, nbytes: int) -> float:
    """Seconds that a copy of pinned memory takes."""
    return session.bench.time(way, _copies(session, nbytes, {way: "pinned"})[way]).seconds


def all_pairs(session: Session) -> None:
    """Copies one way, and both ways at once: in one group, since one tells what the other lost."""
    for placement in ("pinned", "pageable"):
        ways = [{way: placement} for way in DIRECTIONS] + [dict.fromkeys(DIRECTIONS, placement)]
        _measure(session, [(size, of) for size in pieces(session) for of in ways])
    mixed = [dict(zip(DIRECTIONS, pair.split("/"), strict=True)) for pair in PAIRS[1:3]]
    _measure(session, [(size, of) for of in mixed for size in large_pieces(session)])


def _measure(session: Session, wanted: Sequence[tuple[int, Mapping[str, str]]]) -> None:
    """Copies of so many bytes, of memory of some placement in each direction."""
    measures = []
    for size, of in wanted:
        copies, staged = _copies(session, size, of), "pageable" in of.values()
        measures.append(session.bench.prepare(copies, staged=staged, most=MOST_COPIES))
    for (size, of), found in zip(wanted, session.bench.in_turns(measures), strict=True):
        pair = "/".join(of.values())
        for way, timing in found.items():
            key = f"duplex/{pair}/{way}" if len(of) == 2 else f"{way}/{pair}"
            session.record(key, size, timing)


def _copies(session: Session, size: int, of: Mapping[str, str]) -> dict[str, Next]:
    """Copies of so many bytes, of memory of some placement, with a slot for each direction."""
    largest, found = max(pieces(session)[-1], size), dict[str, Next]()
    base = session.bench.reserve(2 * largest)  # the same for all: growing would move it
    for at, (way, placement) in enumerate(of.items()):
        region = partial(session.hosts[placement][way].next, size)
        found[way] = session.bench.copies(way, base + at * largest, region)
    return found
