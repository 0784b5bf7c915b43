"""`calibrate`: measures a device, and fits the machine model that plans are made with.

What is measured is what a call does: copies of pieces by placement, both directions of the link at
once, convolutions and elementwise passes by arithmetic and memory order. Nothing is stored before
all of it is fitted.
"""

from __future__ import annotations

import time
from collections import defaultdict
from functools import partial

from ooc_cudnn.calibration import copies
from ooc_cudnn.calibration.calls import host_seconds, measure_staging
from ooc_cudnn.calibration.compute import TimedLaunches, losses
from ooc_cudnn.calibration.files import file_copies
from ooc_cudnn.calibration.fit_model import fit_model, is_line
from ooc_cudnn.calibration.report import DRIFTED, explain_confidence, spoilt
from ooc_cudnn.calibration.session import Group, Measurement, Session
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.machines import is_writable, load_calibrated, machine_path
from ooc_cudnn.functions.call.call_cache import forget_calls
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.progress import reporter
from ooc_cudnn.settings import current
from ooc_cudnn.settings_table import Progress
from ooc_cudnn.warnings_once import warn
from perfmodel import MachineModel
from perfmodel.lines import is_noisy

#: After so many groups of launches, what the host takes is measured once more.
OFTEN = 10
#: Rounds of the references after which the clocks are as they will be.
MOST_WARM_UPS = 20
#: About how long it takes, by which a bar is shown or not.
QUICK_SECONDS, FULL_SECONDS = 5.0, 60.0


def calibrate(
    device: Device | str | None = None, save: bool = True, quick: bool = False
) -> MachineModel:
    """Measure a device and fit its machine model.

    Parameters
    ----------
    device : str or Device, optional
        "cuda", "cuda:1", "host"; that of the settings when left out.
    save : bool
        Keep the model under the user's cache directory, where plans find it from now on.
    quick : bool
        Fewer and shorter measurements: about 5 seconds, and larger errors.

    Returns
    -------
    MachineModel
        `quality` says of each line the median error on its samples, on samples held out of the
        fit, and how far timings varied from batch to batch.

    Raises
    ------
    DeviceOutOfMemoryError
        If the memory limit leaves no room to measure.
    OSError
        If no temporary file can be written; or, before anything is measured, nothing be saved.

    Notes
    -----
    Source: sections 4.1 and 4.2 of the ooc_cuDNN paper. The file is written at the very end, so an
    interrupted calibration leaves the last one in place.

    What else uses the machine spoils measurements. Parts that were disturbed are measured once
    more, and the quieter time counts. A line that is still spoilt is kept from an earlier
    calibration of this machine; without one, the line of a shipped machine is scaled to what was
    seen. A warning says which, how sure the model is, and what that means for plans.
    """
    settings = current()
    if device is None or isinstance(device, str):
        device = get_device(device or settings.device)
    path = machine_path(device.identity())
    if save and not is_writable(path.parent):  # before a minute is spent
        raise PermissionError(
            f"a calibration cannot be kept in {path.parent}: make that folder writable, let "
            "XDG_CACHE_HOME name another one, or keep nothing (save=False; --no-save)"
        )
    with device.arena.lock:
        limit = limit_bytes(device, settings.memory_limit)
        session = Session(device, limit, quick=quick)
        device.release_caches()
        try:
            measurements = measure(session, settings.progress)
            model = fit_model(session, measurements, load_calibrated(device))
        finally:
            session.hosts.clear()
            device.arena.release()
    if save:
        model.save(path)
        forget_calls()
    if any(spoilt(model).values()):
        said = "; ".join(explain_confidence(model)).removeprefix("how sure: ")
        warn(f"something else used the machine: {said}.")
    return model


def measure(session: Session, progress: Progress) -> dict[str, Measurement]:
    """Make all measurements, and tell how many of them are made."""
    computing = TimedLaunches(session)
    groups = all_groups(session, computing)
    seconds = QUICK_SECONDS if session.quick else FULL_SECONDS
    began = time.perf_counter()
    results: list[dict[str, Measurement]] = []
    with reporter(progress, total=100, label="calibrate", predicted_seconds=seconds) as report:
        copies.host_memory(session)
        first = _warmed_up(session, computing)
        for group in groups:
            results.append(session.taken_by(group))
            report.update(100 * len(results) // len(groups))
        for group, parts in zip(groups, results, strict=True):
            _measure_disturbed_again(session, group, parts)
        for name, after in _references(session, computing).items():
            session.facts[f"drift_of_{name}_share"] = after / first[name] - 1.0
    session.facts["calibration_seconds"] = round(time.perf_counter() - began, 1)
    joined: defaultdict[str, Measurement] = defaultdict(Measurement)
    for parts in results:
        for key, part in parts.items():
            joined[key] += part
    return joined


def all_groups(session: Session, computing: TimedLaunches) -> list[Group]:
    """Everything that is measured, in its order.

    What a disturbed host takes longer for is measured several times, far from each other: a host is
    slow for seconds at a time.
    """
    of_host: list[Group] = [partial(host_seconds, session), partial(measure_staging, session)]
    again = [] if session.quick else of_host
    moved = (partial(of, session) for of in (copies.all_pairs, file_copies, copies.rows_apart))
    groups: list[Group] = [*again, *moved, *again]
    for place, group in enumerate(computing.groups(), 1):
        groups += [group, *again[:1]] if place % OFTEN == 0 else [group]
    return [*groups, *of_host, partial(losses, session)]


def _warmed_up(session: Session, computing: TimedLaunches) -> dict[str, float]:
    """Seconds of the references once two rounds are alike: idle clocks take seconds to come up."""
    seconds = _references(session, computing)
    for _ in range(MOST_WARM_UPS):
        before, seconds = seconds, _references(session, computing)
        if all(abs(seconds[name] / before[name] - 1.0) < DRIFTED for name in seconds):
            break
    return seconds


def _references(session: Session, computing: TimedLaunches) -> dict[str, float]:
    """Seconds of a copy and of a launch, which are the same while no clock drifts."""
    found = {"copy_in": copies.reference(session), "compute": computing.reference()}
    return {name: seconds for name, seconds in found.items() if seconds}


def _measure_disturbed_again(session: Session, group: Group, found: dict[str, Measurement]) -> None:
    """Measure a group once more that was disturbed; under each key, the quieter time counts."""
    fitted = (key for key in found if is_line(key) or key.startswith("duplex/"))
    if any(is_noisy(key, found[key].spread) for key in fitted):
        for key, part in session.taken_by(group).items():
            if key not in found or part.spread < found[key].spread:
                found[key] = part
