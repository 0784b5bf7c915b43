"""Plans on disk: what took long to plan is planned once, for all processes of a machine.

A file holds one plan, and is named by a digest of all that the plan depends on. What is read is
placed again, as a plan that a user stored, so the worst that a file can do is to be ignored.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ooc_cudnn.activity import activity
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.machines import cache_directory
from ooc_cudnn.devices.tuning_database import tables_of
from ooc_cudnn.errors import HostOutOfMemoryError
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.network.runtime.plan_digest import digest_of, library_digest
from ooc_cudnn.network.search.plan_step import check_asked, plan_again, plan_step, plan_with_bound
from ooc_cudnn.settings import current
from ooc_cudnn.warnings_once import warn_once
from perfmodel.files import read_file, remove_abandoned, replace_file
from perfmodel.record import members, number, text, whole

FORMAT, FORMAT_VERSION = "ooc_cudnn plan of a network", 1
#: What is planned in less is planned again.
SHORTEST_SECONDS = 0.5
#: The oldest go first.
MOST_FILES = 200
#: Larger files were not written here.
LARGEST_BYTES = 2**26
#: Of the bytes of a step's tensors, what it keeps on the host is less than so many times.
PLENTY = 2


def plans_folder() -> Path:
    """Return the folder of stored plans."""
    return cache_directory() / "plans"


def load_or_plan(
    name: str,
    step: Step,
    constraints: PlanConstraints,
    *,
    policy: str = "best",
    micro_batches: int | None = None,
    bound: bool = False,
) -> LoweredStep:
    """Plan a step, or find the plan that was made of it before.

    The setting `plan_cache` says whether plans are found and kept. What was searched for fewer
    `planning_seconds` is planned anew. All else is as for `plan_step`, and for `plan_with_bound`
    with `bound`.
    """
    check_asked(policy, micro_batches)
    path = kept = None
    if current().plan_cache:
        path = _path(name, step, constraints, policy, micro_batches)
        with activity(f"reading the plan of {name}", current().progress):
            kept = _load(path, step, constraints, policy)
    begin = time.perf_counter()
    if kept is None:
        with activity(f"planning {name}", current().progress):
            ready = plan_step(
                name,
                step,
                constraints,
                policy=policy,
                micro_batches=micro_batches,
                seconds=current().planning_seconds,
            )
    else:
        ready = kept
    if bound and ready.plan.bound_seconds is None:
        with activity(f"a lower bound for {name}", current().progress):
            plan = plan_with_bound(ready.plan, step, constraints, micro_batches)
        ready = ready._replace(plan=plan)
    if path is not None and time.perf_counter() - begin >= SHORTEST_SECONDS:
        _keep(path, ready.plan, _host_bytes(step, constraints))
    return ready if bound else ready._replace(plan=replace(ready.plan, bound_seconds=None))


def keep_plan(
    name: str,
    step: Step,
    constraints: PlanConstraints,
    planned: LoweredStep,
    *,
    policy: str = "best",
    micro_batches: int | None = None,
) -> None:
    """Keep a plan as if `load_or_plan` had found it: by what is known of engines now."""
    if current().plan_cache:
        path = _path(name, step, constraints, policy, micro_batches)
        _keep(path, planned.plan, _host_bytes(step, constraints))


def _path(
    name: str, step: Step, constraints: PlanConstraints, policy: str, micro_batches: int | None
) -> Path:
    """The file of a plan, by all that it depends on but what host memory has free."""
    target = constraints.target
    asked: object = None
    if target.ask_workspace is not None:
        device = get_device(current().device)
        known = (each for each in tables_of(device) if each.operation is not None)
        # whichever process measured it
        asked = device.identity(), [replace(each, is_stored=True) for each in known]
    digest = digest_of(
        library_digest(),
        name,
        policy,
        micro_batches,
        step,
        (target.machine, target.limit_bytes, target.room_bytes, target.layouts, target.overlap),
        asked,
        (constraints.given, constraints.order, constraints.synchronous, constraints.misaligned),
        None if constraints.host is None else constraints.host.limit_bytes,
    )
    return plans_folder() / f"{digest}.json"


def _host_bytes(step: Step, constraints: PlanConstraints) -> int | None:
    """The bytes that host memory had room for in planning; None for all that a step could want."""
    most = PLENTY * sum(tensor.nbytes for tensor in step.tensors.values() if not tensor.of)
    if constraints.host is None or constraints.host.available_bytes >= most:
        return None
    return constraints.host.available_bytes


# Reading -----------------------------------------------------------------------------------------


def _load(path: Path, step: Step, constraints: PlanConstraints, policy: str) -> LoweredStep | None:
    """The plan of a file, placed; None where there is none, or it cannot be used here."""
    try:
        plan, host_bytes = _read(path)
        if plan.policy != policy:
            raise ValueError(f"it is a plan by {plan.policy!r}, not by {policy!r}")
        now = _host_bytes(step, constraints)
        if host_bytes is not None and (now is None or now > host_bytes):
            return None  # there is more room: a faster plan may fit
        if plan.searched_seconds is not None and plan.searched_seconds < current().planning_seconds:
            return None  # a longer search may find a faster one
        ready = plan_again(step, plan, constraints)
    except (FileNotFoundError, NotADirectoryError, HostOutOfMemoryError):
        return None
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        warn_once(f"a kept plan is ignored, and made anew: {path}: {error}.")
        return None
    searched, bound = plan.searched_seconds, plan.bound_seconds
    return ready._replace(plan=replace(ready.plan, bound_seconds=bound, searched_seconds=searched))


def _read(path: Path) -> tuple[NetworkPlan, int | None]:
    """The plan of a file, and what host memory had room for.

    Raises
    ------
    OSError, ValueError, TypeError
        If there is none, or it was not written here, or is no longer what was written.
    """
    names = ("format", "version", "host_bytes", "digest", "plan")
    held = members("the file", json.loads(read_file(path, LARGEST_BYTES)), names)
    for name, expected in (("format", FORMAT), ("version", FORMAT_VERSION)):
        if held[name] != expected:
            raise ValueError(f"its {name} is {held[name]!r}, not {expected!r}")
    content = text("plan", held["plan"])
    if held["digest"] != _digest(content):
        raise ValueError("its plan is not what was written")
    plan = NetworkPlan.from_json(json.loads(content))
    if plan.bound_seconds is not None and not number("bound_seconds", plan.bound_seconds) > 0:
        raise ValueError("its bound takes no time")
    if plan.searched_seconds is not None:
        number("searched_seconds", plan.searched_seconds)
    room = held["host_bytes"]
    return plan, None if room is None else whole("host_bytes", room)


def _digest(content: str) -> str:
    return sha256(content.encode()).hexdigest()


# Writing -----------------------------------------------------------------------------------------


def _keep(path: Path, plan: NetworkPlan, host_bytes: int | None) -> None:
    """Write a plan; where that cannot be it is said once, and the plan is good all the same."""
    content = json.dumps(plan.to_json())
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "host_bytes": host_bytes,
        "digest": _digest(content),
        "plan": content,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(data))
        _forget_oldest(path.parent)
    except OSError as error:
        warn_once(
            f"plans of networks cannot be kept in {path.parent}: {error}; they are made anew in "
            "each process. XDG_CACHE_HOME names another folder, plan_cache=False keeps none."
        )


def _forget_oldest(folder: Path) -> None:
    """Remove all files but the latest, and what was never finished; others may do the same."""

    def written(path: Path) -> float:
        with contextlib.suppress(FileNotFoundError):
            return path.stat().st_mtime
        return -math.inf

    files = sorted(folder.glob("*.json"), key=written)
    for path in files[: max(len(files) - MOST_FILES, 0)]:
        path.unlink(missing_ok=True)
    remove_abandoned(folder)
