"""``ooc-cudnn doctor --engines``: every engine of cuDNN on a small problem of every kind.

What a call on a cuDNN that nobody searched would check before it uses it (`devices.engine_kinds`)
is checked at once, and stored: calls check nothing then, but what is compiled at run time. These
engines take a second each, and are left out here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import NamedTuple

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engine_check_database import save_verdicts, verdicts_of
from ooc_cudnn.devices.engine_kinds import CheckedKind, problems
from ooc_cudnn.devices.engine_provider import EngineProvider
from ooc_cudnn.devices.engine_verdicts import UncheckedEngine, Verdict
from ooc_cudnn.errors import OocError
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import EPILOGUES, PRECISIONS
from ooc_cudnn.operations.convolution.gradients import (
    AddedBackwardData,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)
from ooc_cudnn.pipeline.check_engines import verdict_on
from ooc_cudnn.tensor import ORDERS

#: Device memory that the search may hold, at most: its problems take less than a MiB each.
MOST_BYTES = 2**28
#: It is to end within two minutes, with what comes before and after it.
SECONDS = 110.0
#: Seconds between two stores: a crash loses no more.
STORED_EVERY = 5.0

#: Axes, window, channels, groups; what differs (strided, dilated, padding uneven, whole accesses):
#: of each what is likely in networks, then what engines were seen to be wrong for.
GEOMETRIES: tuple[tuple[int, int, int, int, int, bool, bool, str, bool], ...] = (
    (2, 3, 32, 32, 1, False, False, "", True),
    (2, 3, 32, 32, 1, False, False, "others", True),
    (2, 1, 32, 32, 1, False, False, "", False),
    (2, 3, 32, 32, 1, True, False, "others", False),
    (2, 3, 32, 32, 1, False, False, "all", False),
    (2, 5, 3, 32, 1, True, False, "others", True),
    (2, 3, 1, 1, 32, False, False, "all", True),
    (2, 3, 1, 1, 32, True, False, "others", False),
    (2, 3, 8, 8, 4, False, False, "others", True),
    (2, 3, 32, 32, 1, False, True, "others", True),
    (2, 3, 19, 19, 1, False, False, "last", False),
    (2, 5, 32, 32, 1, False, False, "", False),
    (2, 1, 32, 32, 1, True, False, "", True),
    (3, 3, 32, 32, 1, False, False, "", True),
    (3, 3, 32, 32, 1, True, False, "others", False),
    (1, 3, 32, 32, 1, False, False, "last", False),
    (1, 3, 1, 1, 32, False, False, "last", False),
)
#: Arithmetic, and the type of results: sums over pieces of half types are float32.
ARITHMETIC = (
    ("tf32", "float32"), ("float16", "float16"), ("float32", "float32"),
    ("bfloat16", "bfloat16"), ("float64", "float64"),
)  # fmt: skip
SUMMED = ("float16", "float32"), ("bfloat16", "float32")


def searched_kinds() -> Iterator[CheckedKind]:
    """Yield the kinds that are searched, those that matter most first."""
    gradients = ConvolutionBackwardData.name, ConvolutionBackwardFilter.name
    pairs = [*product((Convolution.name, *gradients), ARITHMETIC), *product(gradients, SUMMED)]
    # a bias without ReLU has the same engines
    with_epilogue = EPILOGUES["relu"], AddedBackwardData.name
    fused = [*product(with_epilogue, (each for each in ARITHMETIC if each[0] in PRECISIONS))]
    asked = {ORDERS[0]: pairs, ORDERS[1]: [*pairs, *fused]}
    for geometry, layout in product(GEOMETRIES, asked):
        for function, (precision, result) in asked[layout]:
            kind = CheckedKind(function, precision, result, layout, *geometry)
            yield kind if layout == ORDERS[0] else kind._replace(whole=True)


class Row(NamedTuple):
    """Result for one function in one arithmetic."""

    function: str
    arithmetic: str
    kinds: int = 0
    checks: int = 0
    barred: int = 0
    seconds: float = 0.0


class BarredEngine(NamedTuple):
    """An engine that computes wrong results."""

    unchecked: UncheckedEngine
    verdict: Verdict


class Search(NamedTuple):
    """A search: what it found, and whether it came to its end.

    `seconds` are those of all of it; `left` counts the kinds that there was no time for.
    """

    rows: tuple[Row, ...]
    barred: tuple[BarredEngine, ...]
    seconds: float
    left: int


def search_engines(
    device: Device,
    limit_bytes: int,
    *,
    seconds: float = SECONDS,
    kinds: Iterable[CheckedKind] | None = None,
    tell: Callable[[BarredEngine], object] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Search:
    """Check every engine for every kind that has no verdict yet, and store what is found.

    A search that had no time to end is gone on with by the next.

    Parameters
    ----------
    device : Device
    limit_bytes : int
        Device memory that may be held, users' arrays included.
    seconds : float
        After so many it begins no other kind.
    kinds : iterable of CheckedKind, optional
        Those of `searched_kinds` by default.
    tell : callable, optional
        Told of each engine that is wrong.
    clock : callable, optional

    Raises
    ------
    OocError
        If the device has no engines, or cannot say which there are.
    OSError
        If what was found cannot be stored.
    """
    engines = device.engines
    if engines is None:
        raise OocError(
            f"{device.name} has one way to compute a convolution, and no engines of cuDNN: there "
            "is nothing to search; run this on a machine with a card, with device='cuda'"
        )
    began = stored = clock()
    rows: dict[tuple[str, str], Row] = {}
    barred = list[BarredEngine]()
    todo = list(searched_kinds() if kinds is None else kinds)
    done = 0
    device.use()
    with device.arena.lock:
        for kind in todo:
            if clock() - began > seconds:
                break
            checks, taken = _checked(device, engines, kind, limit_bytes, clock)
            wrong = [BarredEngine(*each) for each in checks if each[1].is_right is False]
            for engine in wrong:
                tell(engine)
            barred += wrong
            key = kind.function, f"{kind.precision} to {kind.result}"
            row = rows.get(key, Row(*key))
            rows[key] = row._replace(
                kinds=row.kinds + 1,
                checks=row.checks + len(checks),
                barred=row.barred + len(wrong),
                seconds=row.seconds + taken,
            )
            done += 1
            if wrong or clock() - stored > STORED_EVERY:
                save_verdicts(device)
                stored = clock()
        device.arena.release_block()
    if done and not verdicts_of(device).items():
        raise OocError("no engine could be asked for: install nvidia-cudnn-frontend 1.28 or later")
    if done == len(todo):
        verdicts_of(device).finish_search()
    save_verdicts(device)
    return Search(tuple(rows.values()), tuple(barred), clock() - began, len(todo) - done)


def _checked(
    device: Device,
    engines: EngineProvider,
    kind: CheckedKind,
    limit_bytes: int,
    clock: Callable[[], float],
) -> tuple[list[tuple[UncheckedEngine, Verdict]], float]:
    """Check the engines of a kind that have no verdict yet; and the seconds that took."""
    verdicts, began, checks = verdicts_of(device), clock(), []
    try:
        for unchecked in engines.every(kind, problems(kind)[0]):
            if verdicts.of(kind, unchecked.engine) is None:
                try:
                    verdict = verdict_on(device, engines, unchecked, limit_bytes, own=False)
                except MemoryError:
                    raise
                except Exception:  # a launch that ends the device's context: not to be tried again
                    verdicts.add(kind, unchecked.engine, Verdict(False))
                    save_verdicts(device)
                    raise
                if verdict is not None and verdict.is_right is not None:
                    verdicts.add(kind, unchecked.engine, verdict)
                    checks.append((unchecked, verdict))
    finally:
        engines.forget_built()
    return checks, clock() - began
