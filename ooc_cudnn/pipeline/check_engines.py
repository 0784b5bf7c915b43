"""Check the engines that a program is about to use, where nobody did, for wrong results.

On a version of cuDNN that was not searched (`devices.engine_verdicts`), each engine computes the
small problems of its kind once, against float64, before a program runs that would use it. So it
goes on with an engine that is right, in the workspace that it was planned with.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from ooc_cudnn.activity import activity
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engine_kinds import problems, small_like
from ooc_cudnn.devices.engine_provider import EngineProvider
from ooc_cudnn.devices.engine_verdicts import UncheckedEngine, Verdict
from ooc_cudnn.devices.engines import EngineFailedError
from ooc_cudnn.errors import DeviceOutOfMemoryError
from ooc_cudnn.operations.convolution.gradients import AnyConvolution
from ooc_cudnn.pipeline.exactness import UNKNOWN, Error, ExpectedResult, compute
from ooc_cudnn.settings import current
from ooc_cudnn.warnings_once import warn_once

#: What is asked for where an engine computes no small problem of its kind, or has no room for it: a
#: small one of the channels and the window of the call, of so many images and sites.
_OF_ITS_OWN = (2, 14), (2, 40), (32, 14)

#: The same for all engines of a kind.
_expected = lru_cache(maxsize=16)(ExpectedResult.of)


def check_engines(
    device: Device, launches: Iterable[tuple[AnyConvolution, int]], limit_bytes: int
) -> None:
    """Check the engines that are about to run launches, each once.

    Where there is no room for that now, they are used as they are, which is said once, and checked
    another time.

    Parameters
    ----------
    device : Device
        Its arena's lock is held. What the arena's block held is overwritten.
    launches : iterable of (operation, int)
        Each with the bytes of workspace that it will have.
    limit_bytes : int
        Device memory that may be held meanwhile, users' arrays included.
    """
    engines, has_judged = device.engines, False
    assert engines is not None
    for operation, workspace_bytes in dict.fromkeys(launches):
        while (unchecked := engines.unchecked(operation, workspace_bytes)) is not None:
            with activity(f"checking engine {unchecked.engine}", current().progress):
                verdict = verdict_on(device, engines, unchecked, limit_bytes)
            if verdict is None:
                warn_once(
                    f"there is no room to check engine {unchecked.engine} of cuDNN, which nobody "
                    f"has searched for wrong results: {unchecked.kind}. Raise memory_limit, run "
                    "'ooc-cudnn doctor --engines' once, or set verify"
                )
                break
            engines.judge(unchecked, verdict)
            has_judged = True
    if has_judged:
        device.arena.release_block()
        engines.keep_verdicts()


def verdict_on(
    device: Device,
    engines: EngineProvider,
    unchecked: UncheckedEngine,
    limit_bytes: int,
    *,
    own: bool = True,
) -> Verdict | None:
    """Check an engine: with the small problems of its kind, or (`own`) one like its own.

    None where there is no room for that.
    """
    errors, has_no_room = list[float](), False
    for of_kind in problems(unchecked.kind):
        sizes = _OF_ITS_OWN if own else ()
        for problem in (of_kind, *(small_like(unchecked.operation, *size) for size in sizes)):
            try:
                error = _error(device, engines, unchecked, problem, limit_bytes)
            except EngineFailedError:
                return Verdict(False)
            if error is None or error == UNKNOWN:
                has_no_room |= error is not None
                continue
            errors.append(error.relative)
            if not error.is_explained:
                return Verdict(False, error.relative)
            break
        else:
            return None if has_no_room else Verdict(None)
    return Verdict(True, max(errors))


def _error(
    device: Device,
    engines: EngineProvider,
    unchecked: UncheckedEngine,
    problem: AnyConvolution,
    limit_bytes: int,
) -> Error | None:
    """The error of an engine in a small problem; None where it does not compute that.

    `UNKNOWN` without room.

    Raises
    ------
    EngineFailedError
        If it does not run.
    """
    with engines.trying(unchecked, problem) as built:
        if built is None:
            return None
        expected = _expected(problem)
        try:
            result = compute(device, problem, expected.inputs, built[0], limit_bytes)
        except DeviceOutOfMemoryError:
            return UNKNOWN
    return UNKNOWN if result is None else expected.compared(result)
