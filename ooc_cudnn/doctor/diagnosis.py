"""Facts that `ooc-cudnn doctor` collects, as one record; a failure is a fact, not an error."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.machines import cache_directory, is_writable, machine_path
from ooc_cudnn.doctor.probe import convolution_error, libraries
from ooc_cudnn.settings import SettingRow, describe
from perfmodel import MachineModel
from perfmodel.named import named_machine

#: Packages that are named; CuPy and cuDNN come under a name for each major version of CUDA.
PACKAGES = re.compile(
    r"ooc[-_]cudnn|numpy|scipy|matplotlib|tqdm|ml[-_]dtypes|torch|cupy(-cuda\d+x|-rocm.*)?"
    r"|nvidia-cudnn-(cu\d+|frontend)",
    re.IGNORECASE,
)
PROBE_SECONDS = 180
#: The name of the last fact: how the probe ended.
ENDED = "ended"


@dataclass(frozen=True)
class Library:
    """A loaded libcudnn; `version` is cudnnGetVersion's (91900 is 9.19.0), if it has one."""

    path: str
    version: int | None = None
    deleted: bool = False


@dataclass(frozen=True)
class Gpu:
    """A card that the driver shows."""

    name: str
    memory_bytes: int
    compute_capability: str


@dataclass(frozen=True)
class Check:
    """A small convolution: its largest error, or why there is none."""

    error_size: float | None = None
    failure: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Calibration:
    """The machine model of a device: its file, and its date or why it cannot be used."""

    device: str
    path: str
    date: str = ""
    failure: str = ""


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be, and what mends it."""

    level: Literal["broken", "note"]
    what: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Everything `diagnose` found. Of what is not there, the value is empty or None."""

    python: str
    system: str
    packages: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    driver_installed: bool = False
    driver: str = ""
    driver_cuda: int | None = None
    driver_status: int = 0
    driver_failure: str = ""
    gpus: tuple[Gpu, ...] = ()
    cuda_runtime: int | None = None
    cupy_failure: str = ""
    cudnn_backend: int | None = None
    frontend_failure: str = ""
    imports: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[Library, ...] = ()
    libraries_here: tuple[Library, ...] = ()
    probe_failure: str = ""
    host_check: Check = Check()
    cuda_check: Check | None = None
    cache: str = ""
    cache_writable: bool = True
    calibrations: tuple[Calibration, ...] = ()
    settings: tuple[SettingRow, ...] = ()
    settings_failure: str = ""

    @property
    def device_setting(self) -> str:
        """The setting `device`; "auto" where settings cannot be read."""
        return next((str(row.value) for row in self.settings if row.name == "device"), "auto")


def diagnose(modules: Sequence[str] = ()) -> Diagnosis:
    """Gather every fact; nothing raises, and nothing of CUDA is imported here.

    `modules` are imported first by the process that looks at CUDA, as your program does:
    ("torch",).
    """
    problems: list[str] = []

    def attempt(function: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return function()
        except Exception as error:
            problems.append(f"{type(error).__name__}: {' '.join(str(error).split())}")
            return otherwise

    facts: dict[str, Any] = dict(attempt(lambda: list(run_probe(modules)), [(ENDED, "")]))
    if problems:
        facts[ENDED] = problems.pop()
    error = attempt(lambda: convolution_error("host"), None)
    host_check = Check(error, problems.pop() if problems else "")
    rows = attempt(lambda: tuple(describe()), ())
    attempt(lambda: _check_machine(rows), None)
    settings_failure = problems.pop() if problems else ""
    driver = facts.get("driver", {})
    cache = attempt(cache_directory, Path())
    return Diagnosis(
        python=f"{platform.python_version()} at {sys.executable}",
        system=platform.platform(),
        packages=attempt(installed_packages, {}),
        environment={
            name: os.environ[name]
            for name in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "CUDA_PATH")
            if name in os.environ
        },
        driver_installed=bool(driver),
        driver=driver.get("version", ""),
        driver_cuda=driver.get("cuda"),
        driver_status=driver.get("status", 0),
        driver_failure=driver.get("error", ""),
        gpus=tuple(Gpu(**gpu) for gpu in driver.get("gpus", ())),
        cuda_runtime=facts.get("cupy", {}).get("cuda"),
        cupy_failure=facts.get("cupy", {}).get("error", ""),
        cudnn_backend=facts.get("frontend", {}).get("backend"),
        frontend_failure=facts.get("frontend", {}).get("error", ""),
        imports={name: found.get("error", "") for name, found in facts.get("imports", {}).items()},
        libraries=tuple(Library(**found) for found in facts.get("libraries", ())),
        libraries_here=tuple(Library(**found) for found in attempt(libraries, ())),
        probe_failure=facts.get(ENDED, ""),
        host_check=host_check,
        cuda_check=_cuda_check(facts),
        cache=str(cache),
        cache_writable=attempt(lambda: is_writable(cache), False),
        calibrations=tuple(
            _calibration(device, identity)
            for device, identity in (
                ("host", attempt(lambda: get_device("host").identity(), {})),
                ("cuda", facts.get("identity", {})),
            )
            if identity and "error" not in identity
        ),
        settings=rows,
        settings_failure=settings_failure,
    )


def _cuda_check(facts: Mapping[str, Any]) -> Check | None:
    found = facts.get("convolution")
    if found is None:
        return None
    return Check(found.get("error_size"), found.get("error", ""), found.get("remedy", ""))


def _check_machine(rows: Sequence[SettingRow]) -> None:
    """Raise if the machine model that is set cannot be used; the checks plan with their own."""
    for row in rows:
        if row.name == "machine" and row.value is not None:
            try:
                named_machine(row.value)  # type: ignore[arg-type]
            except (ValueError, OSError) as error:
                if row.source != "environment":
                    raise
                raise ValueError(
                    f"environment variable {row.environment_variable}: {error}"
                ) from error


def installed_packages() -> dict[str, str]:
    """Name and version of every installed package that matters here, in lower case."""
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if PACKAGES.fullmatch(name):
            versions.setdefault(name, distribution.version)
    return dict(sorted(versions.items()))


def run_probe(
    modules: Sequence[str], command: Sequence[str] | None = None
) -> Iterator[tuple[str, Any]]:
    """Look at CUDA in another process; yield its facts, the last of them how it ended."""
    arguments = [*(command or (sys.executable, "-m", "ooc_cudnn.doctor.probe")), *modules]
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=PROBE_SECONDS, errors="replace"
        )
        code, output, complaint = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        raw = error.stdout or b""
        output = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
        code, complaint = None, f"no answer for {PROBE_SECONDS} s"
    started = ""
    for line in output.splitlines():
        try:
            record = json.loads(line)
            fact, value = record["fact"], record["value"]
        except (ValueError, KeyError, TypeError):
            continue  # what an imported module printed
        if fact == "started":
            started = f" in {value}"
        else:
            yield fact, value
    if code == 0:
        yield ENDED, ""
        return
    try:
        reason = signal.Signals(-(code or 0)).name
    except ValueError:
        reason = "no answer in time" if code is None else f"exit status {code}"
    last = " ".join(complaint.split())[-300:]
    yield ENDED, f"{reason}{started}" + (f": {last}" if last else "")


def _calibration(device: str, identity: Mapping[str, str]) -> Calibration:
    path = machine_path(identity)
    try:
        return Calibration(device, str(path), MachineModel.load(path).calibrated)
    except FileNotFoundError:
        return Calibration(device, str(path))
    except (OSError, ValueError) as error:
        return Calibration(device, str(path), failure=" ".join(str(error).split()))
