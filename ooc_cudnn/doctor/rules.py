"""Rules from the facts of a `Diagnosis` to findings with their remedy: pure functions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ooc_cudnn.devices.cuda.frontend import OLDEST, REQUIREMENT, cudnn_version
from ooc_cudnn.devices.machines import nearest_profile
from ooc_cudnn.doctor.diagnosis import Check, Diagnosis, Finding, Gpu, Library
from ooc_cudnn.settings_table import PREFIX
from perfmodel import machine_label

OLDEST_CUPY = 14
OLDEST_DRIVER_CUDA = 12
#: Cards older than this have no CUDA 13.
OLDEST_CUDA13_CARD = (7, 5)
#: The largest error of the small convolution in float32: 27 products of about one.
LARGEST_ERROR = 1e-4
_broken, _note = partial(Finding, "broken"), partial(Finding, "note")
_MISMATCH = 803  # cuInit: the driver was updated, its kernel module was not


def judge(facts: Diagnosis) -> tuple[Finding, ...]:
    """Return everything that is not as it should be, what is broken first."""
    issues = [*_driver(facts)]
    if facts.gpus and _cuda_major(facts) >= OLDEST_DRIVER_CUDA:
        issues += [*_packages(facts), *_cuda_works(facts)]
    elif facts.probe_failure:
        issues += [
            _broken(
                f"looking at CUDA ended with {facts.probe_failure}",
                "python -m ooc_cudnn.doctor.probe  # shows where",
            )
        ]
    for libraries in {facts.libraries, facts.libraries_here}:
        issues += _libraries(facts, libraries)
    issues += _extras(facts)
    # A card that nobody asked for need not work.
    if facts.device_setting == "host":
        issues = [replace(finding, level="note") for finding in issues]
    return tuple(sorted([*_basics(facts), *issues], key=lambda finding: finding.level != "broken"))


def is_broken(facts: Diagnosis) -> bool:
    """True if something must be mended before the library works as it is set up."""
    return any(finding.level == "broken" for finding in judge(facts))


def extra(facts: Diagnosis) -> str:
    """The extra of this package that fits the driver and the cards: "cuda12" or "cuda13".

    A CUDA 13 runtime needs a driver of CUDA 13; a CUDA 12 runtime works with both.
    """
    new = _cuda_major(facts) >= 13
    cards = [tuple(map(int, gpu.compute_capability.split("."))) for gpu in facts.gpus]
    return "cuda13" if new and all(card >= OLDEST_CUDA13_CARD for card in cards) else "cuda12"


def cuda_version(version: int) -> str:
    """Write CUDA's number.

    >>> cuda_version(12080)
    '12.8'
    """
    return f"{version // 1000}.{version % 1000 // 10}"


def _basics(facts: Diagnosis) -> Iterator[Finding]:
    if facts.settings_failure:
        named = re.search(rf"\b{PREFIX}[A-Z0-9_]+", facts.settings_failure)
        yield _broken(
            f"a setting cannot be used: {facts.settings_failure}",
            f"unset {named[0]}  # or correct it" if named else "correct it, or leave it out",
        )
    check = facts.host_check
    if _fails(facts, check):
        why = check.failure or f"wrong by {check.error_size:.2g}"
        yield _broken(
            f"a small convolution on the host fails: {why}",
            "pip install --force-reinstall numpy scipy ooc_cudnn",
        )
    for name, failure in facts.imports.items():
        if failure:
            remedy = f"pip install {name.partition('.')[0]}  # or correct its name"
            yield _broken(f"{name} cannot be imported: {failure}", remedy)


def _driver(facts: Diagnosis) -> Iterator[Finding]:
    asked = _broken if facts.device_setting.startswith("cuda") else _note
    without = "Without a card everything runs on the host: device='host' (slower)"
    if facts.driver_failure:
        yield _broken(f"the driver cannot be asked: {facts.driver_failure}", "nvidia-smi")
    elif not facts.driver_installed:
        if not facts.probe_failure:
            yield asked(
                f"no NVIDIA driver, so device='cuda' is not available. {without}",
                "install the driver, if there is a card: https://www.nvidia.com/drivers",
            )
    elif facts.driver_status:
        yield _broken(
            f"the driver does not start (cuInit returns {facts.driver_status})",
            "sudo reboot  # the driver was updated while it was in use"
            if facts.driver_status == _MISMATCH
            else "nvidia-smi  # it says more; reinstall the driver if it fails too",
        )
    elif not facts.gpus:
        hidden = facts.environment.get("CUDA_VISIBLE_DEVICES")
        yield asked(
            "a driver, but no card is visible"
            + (f" (CUDA_VISIBLE_DEVICES={hidden!r})" if hidden is not None else "")
            + f". {without}",
            "unset CUDA_VISIBLE_DEVICES"
            if hidden is not None
            else "in a container: docker run --gpus all ...",
        )
    elif _cuda_major(facts) < OLDEST_DRIVER_CUDA:
        yield _broken(
            f"driver {facts.driver} knows CUDA up to {cuda_version(facts.driver_cuda or 0)}; "
            f"CUDA {OLDEST_DRIVER_CUDA} is needed",
            "update the driver to 525 or later: https://www.nvidia.com/drivers",
        )


def _packages(facts: Diagnosis) -> Iterator[Finding]:
    """CuPy, the frontend and cuDNN: there, one of each, of one major version of CUDA."""
    names = facts.packages
    install = f"pip install 'ooc_cudnn[{extra(facts)}]'"
    cupys = [name for name in names if name.startswith("cupy")]
    wheels = [name for name in names if re.fullmatch(r"nvidia-cudnn-cu\d+", name)]
    runtime = (facts.cuda_runtime or 0) // 1000 or _major(cupys[0] if len(cupys) == 1 else "")
    driver = _cuda_major(facts)
    if len(cupys) > 1:
        yield _broken(
            f"several CuPys are installed, of which one hides the others: {', '.join(cupys)}",
            f"pip uninstall -y {' '.join(cupys)} && {install}",
        )
    elif not cupys and facts.cuda_runtime is None:
        yield _broken("a card, but CuPy is not installed", install)
    elif runtime and driver and runtime > driver:
        both = [*cupys, *(name for name in wheels if _major(name) == runtime)]
        yield _broken(
            f"CuPy is built for CUDA {runtime}, the driver knows CUDA up to "
            f"{cuda_version(facts.driver_cuda or 0)}",
            f"pip uninstall -y {' '.join(both)} && {install}  # or update the driver",
        )
    elif facts.cupy_failure:
        yield _broken(
            f"CuPy does not work: {facts.cupy_failure}",
            f"pip install --force-reinstall '{_cupy(runtime or driver)}'",
        )
    elif cupys and _version(names[cupys[0]]) < (OLDEST_CUPY,):
        yield _broken(
            f"CuPy {names[cupys[0]]} is too old: {OLDEST_CUPY} or later is needed",
            f"pip install --upgrade '{_cupy(runtime or driver)}'",
        )

    frontend = names.get("nvidia-cudnn-frontend")
    if frontend is None and facts.cudnn_backend is None:
        yield _broken("a card, but nvidia-cudnn-frontend is not installed", install)
    elif frontend is not None and _version(frontend)[:2] < OLDEST:
        yield _broken(
            f"nvidia-cudnn-frontend {frontend} is not a version that works with this library",
            f"pip install '{REQUIREMENT}'",
        )
    if len(wheels) > 1:
        yield _broken(
            f"{' and '.join(wheels)} write the same files, so neither is whole",
            f"pip uninstall -y {' '.join(wheels)} && "
            f"pip install nvidia-cudnn-cu{runtime or driver}",
        )
    elif wheels and runtime and _major(wheels[0]) != runtime:
        yield _broken(
            f"{wheels[0]} is built for another CUDA than CuPy, which has {runtime}",
            f"pip uninstall -y {wheels[0]} && pip install nvidia-cudnn-cu{runtime}",
        )
    elif not wheels and facts.cudnn_backend is None:
        yield _broken(
            "a card, but cuDNN was not found",
            f"pip install nvidia-cudnn-cu{runtime or extra(facts)[-2:]}",
        )


def _cuda_works(facts: Diagnosis) -> Iterator[Finding]:
    wheel = f"nvidia-cudnn-cu{(facts.cuda_runtime or 0) // 1000 or extra(facts)[-2:]}"
    again = f"pip install --force-reinstall {wheel} '{REQUIREMENT}'"
    if facts.frontend_failure:
        yield _broken(f"cuDNN does not load: {facts.frontend_failure}", again)
    check = facts.cuda_check
    if facts.probe_failure:
        yield _broken(f"looking at CUDA ended with {facts.probe_failure}", again)
    elif check is not None and check.failure and _fails(facts, check):
        remedy = again if "doctor" in check.remedy or not check.remedy else check.remedy
        yield _broken(f"a small convolution on the card fails: {check.failure}", remedy)
    elif check is not None and _fails(facts, check):
        wrong = f"a small convolution on the card is wrong by {check.error_size:.2g}"
        yield _broken(f"{wrong}; do not use its results", again)


def _libraries(facts: Diagnosis, libraries: tuple[Library, ...]) -> Iterator[Finding]:
    """One cuDNN per process: its parts find each other by name, whichever was loaded first."""
    folders: dict[str, str] = {}
    for library in libraries:
        folder = os.path.dirname(library.path)
        folders.setdefault(folder, "")
        if library.version is not None:
            folders[folder] = f" ({cudnn_version(library.version)})"
    if len(folders) > 1:
        listed = ", ".join(f"{folder}{version}" for folder, version in folders.items())
        searched = facts.environment.get("LD_LIBRARY_PATH", "").split(":")
        paths = [folder for folder in folders if folder in searched]
        yield _broken(
            f"{len(folders)} different cuDNNs are loaded in one process: {listed}",
            f"unset LD_LIBRARY_PATH  # it names {paths[0]}"
            if paths
            else "keep one: pip uninstall the package that brings the other (pip list | grep -i "
            "cudnn), or import ooc_cudnn before the library that loads it",
        )
    for library in libraries:
        if library.deleted:
            yield _broken(
                f"{library.path} was replaced after it was loaded",
                "start the program (the notebook's kernel) again",
            )


def _extras(facts: Diagnosis) -> Iterator[Finding]:
    for package, name, use in (
        ("matplotlib", "plot", "the demo and timelines need it"),
        ("ml-dtypes", "bfloat16", "bfloat16 needs it"),
    ):
        if package not in facts.packages:
            install = f"pip install 'ooc_cudnn[{name}]'"
            yield _note(f"{package} is not installed; {use}", install)
    if not facts.cache_writable:
        yield _note(
            f"the cache directory {facts.cache} cannot be written",
            "export XDG_CACHE_HOME=/a/folder/of/yours",
        )
    in_use = "cuda" if facts.gpus and facts.device_setting != "host" else "host"
    for calibration in facts.calibrations:
        command = f"ooc-cudnn calibrate --device {calibration.device}"
        if calibration.failure:
            yield _note(f"calibration: {calibration.failure}", command)
        elif not calibration.date and calibration.device == in_use:
            yield _note(
                f"{calibration.device} is not calibrated: calls may be slow{_until_then(facts)}",
                command,
            )


def _until_then(facts: Diagnosis) -> str:
    """Figures by which calls are planned on a card that is not calibrated."""
    if not facts.gpus or facts.device_setting == "host":
        return ""
    return f". Until then they are planned by {machine_label(profile_of(facts.gpus[0]))}"


def profile_of(gpu: Gpu) -> str:
    """Return the shipped profile of a card, or of the one that is most like it.

    >>> profile_of(Gpu("NVIDIA GeForce RTX 4080", 16 * 2**30, "8.9"))
    'rtx4090'
    """
    return nearest_profile(gpu.name, gpu.memory_bytes, gpu.compute_capability)


def _cuda_major(facts: Diagnosis) -> int:
    """The newest CUDA that the driver knows."""
    return (facts.driver_cuda or 0) // 1000


def _fails(facts: Diagnosis, check: Check) -> bool:
    """True if a check tells of a fault; one that a bad setting stopped tells of nothing else."""
    if check.failure and facts.settings_failure and facts.settings_failure in check.failure:
        return False
    return check.error_size is None or not check.error_size <= LARGEST_ERROR  # NaN is not


def _cupy(major: int) -> str:
    return f"cupy-cuda{major}x[ctk]>={OLDEST_CUPY}"


def _major(name: str) -> int:
    """The CUDA version in a package's name: 12 in "cupy-cuda12x" and in "nvidia-cudnn-cu12"."""
    found = re.search(r"cu(?:da)?(\d+)", name)
    return int(found[1]) if found else 0


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
