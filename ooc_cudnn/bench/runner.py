"""One case, run: contenders timed, their contents checked, and all of it recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import ooc_cudnn
from ooc_cudnn.bench.attempt import PATIENCE_SECONDS, Attempt, reason_of
from ooc_cudnn.bench.case import OURS, Case
from ooc_cudnn.bench.cases import CASES
from ooc_cudnn.bench.contender import Workload
from ooc_cudnn.bench.convolution import ConvolutionWorkload
from ooc_cudnn.bench.environment import effective_settings, environment
from ooc_cudnn.bench.sources import digests, sources_of
from ooc_cudnn.bench.steadiness import Neighbours, disturbances
from ooc_cudnn.bench.timing import Timing, interleave, paired_ratio
from ooc_cudnn.devices import get_device
from ooc_cudnn.units import format_seconds

Say = Callable[[str], None]

Workloads = Mapping[str, Callable[..., Workload]]


class Suite(NamedTuple):
    """Cases by name, and what computes each kind of them."""

    cases: Mapping[str, Case]
    workloads: Workloads


#: What an installed package runs; `benchmarks.contenders` of a checkout has a larger one.
SUITE = Suite(CASES, {"convolution": ConvolutionWorkload})


def run_case(
    case: Case,
    *,
    quick: bool,
    device: str,
    say: Say = lambda line: None,
    repeats: int | None = None,
    machine: str | None = None,
    workloads: Workloads = SUITE.workloads,
) -> dict[str, Any]:
    """Run a case and return its record, as plain values.

    In its tiny form (`quick`) times mean nothing. `repeats` stand in for the case's own, `machine`
    for the model of the settings; `workloads` are those of the case's suite.

    In the record ``status`` is "measured" if the library's own time was; ``verified`` says whether
    its result was checked and it, and every other result that the library computed, was right. A
    baseline's ratio is its seconds over the library's, repeat by repeat where they took turns.
    ``disturbed`` says why its times are not to be believed; empty where they are.
    """
    if case.workload not in workloads:
        raise ValueError(
            f"case {case.name}: workload {case.workload!r} is none of {', '.join(workloads)}"
        )
    if quick:
        case = case.at_tiny_size()
    if repeats is not None:
        case = replace(case, repeats=repeats)
    overrides: dict[str, object] = {"device": device, "progress": False, "verify": 0}
    if machine is not None:
        overrides["machine"] = machine
    begin, neighbours = time.perf_counter(), Neighbours()
    with ooc_cudnn.settings(**overrides):
        record = {
            "case": case.to_json(),
            "quick": quick,
            **_measured(case, workloads[case.workload], quick=quick, device=device, say=say),
            "files": digests(sources_of(f"bench/{case.name}")),
            "environment": environment(device),
            "settings": effective_settings(),
        }
    record |= {"seconds": time.perf_counter() - begin, "neighbours_share": neighbours.share()}
    return record | {"disturbed": disturbances(record)}


def failed_contenders(record: dict[str, Any]) -> list[str]:
    """Name the contenders whose contents are wrong and ought not to be: the library's."""
    return [
        name
        for name, found in record["contenders"].items()
        if found["status"] == "measured" and found["ours"] and not _is_right(found["check"])
    ]


def _measured(
    case: Case, make: Callable[..., Workload], *, quick: bool, device: str, say: Say
) -> dict[str, Any]:
    notes: list[str] = []
    empty: dict[str, Any] = {"contenders": {}, "verified": False, "notes": notes}
    try:
        workload = make(case, cuda=device != "host", tiny=quick)
    except Exception as error:
        reason = reason_of(error, baseline=False)
        if reason is None:
            raise
        say(f"{case.name}: not run: {reason}")
        return {"status": "unavailable", "reason": reason, **empty}
    try:
        names = (OURS, *case.baselines)
        unknown = [name for name in names if name not in workload.contenders]
        if unknown:
            raise ValueError(f"case {case.name}: {unknown} are not among {[*workload.contenders]}")
        notes += workload.notes
        attempts = [Attempt(name, workload.contenders[name]) for name in names]
        synchronize = get_device(device).synchronize
        run = _in_turns if workload.in_turns else _one_by_one
        drift = run(attempts, case.repeats, synchronize, say)
        return _record(attempts, workload, notes, drift, say)
    finally:
        workload.release()


def _in_turns(
    attempts: Sequence[Attempt], repeats: int, synchronize: Callable[[], None], say: Say
) -> float | None:
    try:
        for attempt in attempts:
            attempt.prepare(synchronize)
            if attempt.reason is not None:
                attempt.release()
        ready = {a.name: a for a in attempts if a.reason is None and not a.slow_samples}
        times = interleave(
            {name: attempt.run for name, attempt in ready.items()},
            synchronize,
            repeats=repeats,
            warmup=1,  # engines that one measured when it was prepared change others' plans
            before={name: attempt.rest for name, attempt in ready.items()},
        )
        for attempt in attempts:
            if attempt.reason is None:
                slow = attempt.slow_samples
                attempt.timing = Timing(tuple(slow)) if slow else times[attempt.name]
                attempt.check()
            _tell(attempt, say)
    finally:
        for attempt in attempts:
            attempt.release()
    return None


def _one_by_one(
    attempts: Sequence[Attempt], repeats: int, synchronize: Callable[[], None], say: Say
) -> float | None:
    """Time one after the other, the library first and last; return how far it drifted."""

    def measure(attempt: Attempt, *, check: bool) -> tuple[float, ...]:
        samples: list[float] = []
        try:
            attempt.prepare(synchronize)
            samples = attempt.slow_samples or attempt.time(repeats, synchronize)
            if attempt.reason is None and check:
                attempt.timing = Timing(tuple(samples))
                attempt.check()
        finally:
            attempt.release()
        return tuple(samples)

    runs = []
    for attempt in attempts:
        runs.append(measure(attempt, check=True))
        _tell(attempt, say)
    ours = attempts[0]
    if ours.reason is not None or len(attempts) == 1:
        return None
    last = measure(ours, check=False)
    if ours.reason is not None:
        return None
    ours.timing = Timing((*runs[0], *last))
    return Timing(last).median / Timing(runs[0]).median


def _record(
    attempts: Sequence[Attempt],
    workload: Workload,
    notes: list[str],
    drift: float | None,
    say: Say,
) -> dict[str, Any]:
    ours, contenders = attempts[0], {}
    for attempt in attempts:
        ratio = _ratio(attempt, ours, in_turns=workload.in_turns)
        contenders[attempt.name] = attempt.to_json(workload.operations, ratio)
        if attempt.slow_samples:
            notes.append(
                f"{attempt.name}: warm it took longer than {PATIENCE_SECONDS:g} s, and has one "
                "sample"
            )
        if attempt.reason is None and attempt.checked is not None and not attempt.checked["ok"]:
            whose = "THE LIBRARY'S RESULT IS WRONG" if attempt.ours else "the baseline is wrong"
            notes.append(f"WRONG CONTENTS in {attempt.name}: {whose}: {attempt.checked}")
            say(notes[-1])
    record: dict[str, Any] = {"status": "measured", "contenders": contenders, "notes": notes}
    record["verified"] = (
        ours.reason is None
        and ours.checked is not None
        and not failed_contenders({"contenders": contenders})
    )
    if ours.reason is not None:
        record |= {"status": "unavailable", "reason": ours.reason}
    return record if drift is None else record | {"drift": drift}


def _ratio(attempt: Attempt, ours: Attempt, *, in_turns: bool) -> dict[str, float] | None:
    """A contender's seconds over the library's: of the medians, and the least and the most."""
    if attempt.timing is None or ours.timing is None or attempt.reason or ours.reason:
        return None
    theirs, mine = attempt.timing, ours.timing
    if in_turns and len(theirs.samples) == len(mine.samples):
        ratio = paired_ratio(theirs, mine)
        return {"of_medians": ratio["of_medians"], "low": ratio["min"], "high": ratio["max"]}
    return {
        "of_medians": theirs.median / mine.median,
        "low": min(theirs.samples) / max(mine.samples),
        "high": max(theirs.samples) / min(mine.samples),
    }


def _is_right(check: dict[str, Any] | None) -> bool:
    return check is None or bool(check["ok"])


def _tell(attempt: Attempt, say: Say) -> None:
    if attempt.reason is not None or attempt.timing is None:
        say(f"  {attempt.name}: not run: {attempt.reason}")
    else:
        say(f"  {attempt.name}: {format_seconds(attempt.timing.median)}")
