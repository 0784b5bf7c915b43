"""Copies that threads stage: what a copy is late by, and how fast whole calls are.

Staging takes a while to start, and trails; copies in flight beside each other wait for the threads;
and a call is slower than copies alone, since its pieces go from thread to thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from ooc_cudnn.arrays.making import empty_in
from ooc_cudnn.arrays.operands import wrap
from ooc_cudnn.calibration.link import crossing
from ooc_cudnn.calibration.rows import REPEATS, copy_bytes
from ooc_cudnn.calibration.session import DIRECTIONS, Session, rounded
from ooc_cudnn.calibration.steps import cut_into_images
from ooc_cudnn.devices.base import HostArray
from ooc_cudnn.devices.measuring import HostMemory, Timing, repeated
from ooc_cudnn.pipeline.execute import make_executor
from ooc_cudnn.pipeline.views import Source
from ooc_cudnn.tensor import TensorSpec
from perfmodel import Line
from perfmodel.staging import STAGED_BYTES, staging_slots

#: What a small copy has, beside which the latency grows with the bytes.
SMALL_BYTES = 2**16
#: A piece that all threads stage at once; so many of them make a call.
LARGE_BYTES, CALL_PIECES = 2**25, 16
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
    """Record what copies are late by ("latency/..."), "others" and "pace/...", where they fit."""
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
    # one way, the other operand is on the device
    fits = bench.fits((CALL_PIECES + 6) * LARGE_BYTES)
    if session.device.kind == "cuda" and fits and not session.quick:
        for ways in (DIRECTIONS, *((way,) for way in DIRECTIONS)):
            session.record(f"pace/{'+'.join(ways)}", LARGE_BYTES, pace(session, late, ways))


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
    timing, slots = call(session, large, pieces, DIRECTIONS)
    found = []
    for way, alone in late.items():
        turning = timing.seconds / pieces * float(staging_slots(way, large, slots))
        found.append(turning - alone.seconds(large) - crossing(session, way, large))
    # both rings of that call are as deep
    return timing._replace(seconds=max(min(found), 0.0) / (2 * slots - 1))


def pace(
    session: Session, late: Mapping[str, Line], ways: tuple[str, ...], nbytes: int = LARGE_BYTES
) -> Timing:
    """Seconds of a piece of a call that is staged so: all of the call but what it is late by.

    Told from one long call: the difference of two is far less certain than either.
    """
    timing, _ = call(session, nbytes, CALL_PIECES, ways)
    alone = sum(late[way].seconds(min(nbytes, STAGED_BYTES)) for way in ways)
    # the first piece is in before any leaves
    turns = CALL_PIECES + len(ways) - 1
    return timing._replace(seconds=max(timing.seconds - alone, 0.0) / turns)


def call(session: Session, nbytes: int, pieces: int, ways: tuple[str, ...]) -> tuple[Timing, int]:
    """Seconds of a call that is staged so, and the slots of the ring of what is staged."""
    shape = (pieces, 1, 1, nbytes // 4)
    specs = {
        name: TensorSpec(shape, "float32", "pageable" if way in ways else "device")
        for name, way in zip("xy", DIRECTIONS, strict=True)
    }
    executor = make_executor(
        *cut_into_images(session.bench, "activation_forward", {"x": specs["x"], "out": specs["y"]})
    )
    operands: dict[str, Callable[[], Source]] = {}
    for (name, spec), way in zip(specs.items(), DIRECTIONS, strict=True):
        if spec.placement == "device":
            array = empty_in(session.device, "device", shape, "float32", "channels_first")
            # the operands as the executor takes them do not keep the device's memory
            operands[name] = wrap(array, session.device, name="an operand").view
        else:
            memory = session.hosts["pageable"][way]
            operands[name] = partial(_part, memory, shape)

    def run() -> None:
        arrays = {name: operand() for name, operand in operands.items()}
        limit = session.bench.limit_bytes
        executor.run(session.device, arrays, staged=True, wait=True, limit_bytes=limit)

    timing = Timing.of(repeated(run, REPEATS))
    staged = "x" if DIRECTIONS[0] in ways else "y"
    return timing, dict(executor.plan.rings)[staged]


def _part(memory: HostMemory, shape: tuple[int, ...]) -> HostArray:
    return memory.next(4 * math.prod(shape)).reshape(shape)


def _staged_bytes(session: Session) -> int:
    """Bytes of a copy that one thread stages."""
    return min(STAGED_BYTES, copy_bytes(session))
