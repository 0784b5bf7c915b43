"""Copies that threads stage: what a copy is late by.

Staging takes a while to start, and trails; and copies in flight beside each other wait for the
threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ooc_cudnn.calibration.link import crossing
from ooc_cudnn.calibration.rows import REPEATS, copy_bytes
from ooc_cudnn.calibration.session import DIRECTIONS, Session, rounded
from ooc_cudnn.calibration.steps import cut_into_images
from ooc_cudnn.devices.measuring import Timing, repeated
from ooc_cudnn.pipeline.execute import make_executor
from ooc_cudnn.pipeline.views import Source
from ooc_cudnn.tensor import TensorSpec
from perfmodel import Line
from perfmodel.staging import STAGED_BYTES, staging_slots

#: What a small copy has, beside which the latency grows with the bytes.
SMALL_BYTES = 2**16
#: Most pieces of a call in which rings turn.
MOST_TURNS = 32
#: Copies that follow each other, where what they take together counts.
MANY = 5


def latency_line(late: Mapping[float, float]) -> Line:
    """The line through what the smallest and the largest copy are late by: seconds by bytes.

    It does not fall: where the large one is late by less, both are by the mean.
    """
    items = sorted(late.items())
    (small, least), (large, most) = items[0], items[-1]
    if most <= least:
        return Line(0.0, rounded((least + most) / 2, 4))
    alpha = (most - least) / (large - small)
    return Line(rounded(alpha, 4), rounded(max(most - alpha * large, 0.0), 4))


def staging(session: Session) -> None:
    """Record what copies are late by ("latency/...") and "others", where they fit."""
    size, bench = copy_bytes(session), session.bench
    if not bench.fits(2 * size):
        return
    late = {}
    for way in DIRECTIONS:
        found = _latency(session, way)
        late[way] = latency_line({nbytes: timing.seconds for nbytes, timing in found.items()})
        for nbytes, timing in found.items():
            session.record(f"latency/{way}/pageable", nbytes, timing)
    if not session.on_host:
        session.record("others", 1.0, others(session, late))


def _latency(session: Session, direction: str) -> dict[float, Timing]:
    """What a copy alone is late by: a small one, and one that a thread can stage."""
    bench, memory = session.bench, session.hosts["pageable"][direction]
    sizes = SMALL_BYTES, _staged_bytes(session)
    pointer, wanted = bench.reserve(sizes[1]), []
    for nbytes in sizes:
        copies = {direction: bench.copies(direction, pointer, partial(memory.next, nbytes))}
        wanted += [(copies, 1), (copies, MANY)]
    found, late = bench.walls(wanted, staged=True, turns=REPEATS), {}
    for nbytes, few, many in zip(sizes, found[::2], found[1::2], strict=True):
        each = (many.seconds - few.seconds) / (MANY - 1)
        late[float(nbytes)] = Timing(max(few.seconds - each, 0.0), few.spread)
    return late


def others(session: Session, late: Mapping[str, Line]) -> Timing:
    """Seconds that a copy is late by each other one in flight, in a call staged both ways.

    Measured as it happens, not copy by copy. The slower ring decides what the call takes and the
    other one waits for it, so that the least that either tells is what both are late by.
    """
    large = _staged_bytes(session)
    pieces = min(MOST_TURNS, session.hosts["pageable"]["copy_in"].array.nbytes // large)
    timing, slots = call(session, large, pieces)
    found = []
    for way, alone in late.items():
        turning = timing.seconds / pieces * float(staging_slots(way, large, slots))
        found.append(turning - alone.seconds(large) - crossing(session, way, large))
    # both rings of that call are as deep
    return timing._replace(seconds=max(min(found), 0.0) / (2 * slots - 1))


def call(session: Session, nbytes: int, pieces: int) -> tuple[Timing, int]:
    """Seconds of a call that is staged both ways, and the slots of its rings."""
    shape = (pieces, 1, 1, nbytes // 4)
    x = TensorSpec(shape, "float32", "pageable")
    executor = make_executor(*cut_into_images(session.bench, x))
    plain, limit = session.hosts["pageable"], session.bench.limit_bytes

    def run() -> None:
        memory = (plain[way].next(pieces * nbytes).reshape(shape) for way in DIRECTIONS)
        arrays: dict[str, Source] = dict(zip("xy", memory, strict=True))
        executor.run(session.device, arrays, staged=True, wait=True, limit_bytes=limit)

    timing = Timing.of(repeated(run, REPEATS))
    return timing, dict(executor.plan.rings)["x"]


def _staged_bytes(session: Session) -> int:
    """Bytes of a copy that one thread stages."""
    return min(STAGED_BYTES, copy_bytes(session))
