"""The record of where figures were measured: machine, versions, commit, date."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.tuning_database import tables_of
from ooc_cudnn.settings import describe

ROOT = Path(__file__).parent.parent.parent
#: In a checkout, the table of what each record is of: it stands beside the folder of the records.
#: An installed package has neither.
SOURCES = next(iter(sorted(ROOT.glob("*/record_sources.json"))), ROOT / "record_sources.json")
#: Names the commit where the repository's history is not at hand, or is not that of the code.
COMMIT_VARIABLE = "BENCHMARK_COMMIT"


def environment(device: str) -> dict[str, Any]:
    """Describe the machine, the versions and the code."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "source_sha256": source_digest(),
        "device": device,
        "gpu": _gpu() if device != "host" else None,
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "tuned_launches": _tuned_launches(device),
        "system": f"{platform.system()} {platform.release()}",
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            **{
                name: version
                for name in ("ooc_cudnn", "scipy", "cupy-cuda13x", "cupy-cuda12x", "torch",
                             "nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
                if (version := _version(name))
            },
        },
    }  # fmt: skip


def _tuned_launches(device: str) -> int:
    """Number of launches with measured engines: a record with any is not one without."""
    return sum(each.operation is not None for each in tables_of(get_device(device)))


def effective_settings() -> dict[str, Any]:
    """Return every setting as it is in effect."""
    return {row.name: plain(row.value) for row in describe()}


def plain(value: Any) -> Any:
    """Make a value JSON."""
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(getattr(value, "name", value))


def _commit() -> str:
    """The commit that the variable names, else that of the folder, "-dirty" if it holds changes."""
    if COMMIT_VARIABLE in os.environ:
        return os.environ[COMMIT_VARIABLE]
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return process.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def source_digest() -> str:
    """SHA-256 over the library, in the order of its paths: it holds without a history."""
    digest = hashlib.sha256()
    for folder in ("kernels", "ooc_cudnn", "perfmodel"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cu", ".cuh") or (
                path.suffix == ".json" and folder == "perfmodel"
            ):
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpu() -> dict[str, str]:
    """Facts that the runtime, cuDNN and nvidia-smi tell."""
    import cupy

    from ooc_cudnn.devices.cuda.frontend import import_frontend

    cudnn = import_frontend()
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    facts = {
        "name": properties["name"].decode(),
        "memory_bytes": str(properties["totalGlobalMem"]),
        "cuda_driver": str(runtime.driverGetVersion()),
        "cuda_runtime": str(runtime.runtimeGetVersion()),
        "cudnn": str(cudnn.backend_version()),
    }
    keys = ("driver_version", "pcie.link.gen.current", "pcie.link.width.current",
            "clocks.sm", "clocks.mem")  # fmt: skip
    command = ["nvidia-smi", f"--query-gpu={','.join(keys)}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        first = said.stdout.splitlines()[0].split(", ")
        facts.update(zip(keys, first, strict=True))
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        facts["nvidia-smi"] = f"failed: {error}"
    return facts
