"""The NVIDIA driver, asked without CuPy: if there is one, which cards it shows, and buffers."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

#: Loads a shared library.
Load = Callable[[str], Any]

_COMPUTE_MAJOR, _COMPUTE_MINOR = 75, 76  # cuDeviceGetAttribute
#: cuInit's answer where a driver is installed but no card is visible.
_NO_DEVICE = 100


_BUFFER_ID = 7  # cuPointerGetAttribute
_RECORD_EXTERNAL = 1  # cuEventRecordWithFlags


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def buffer_id(pointer: int) -> int | None:
    """Return the identifier of the buffer that an address lies in, which is never used again.

    Memory of the card or page-locked memory of the host; None of any other.
    """
    found = ctypes.c_ulonglong()
    status = _driver().cuPointerGetAttribute(
        ctypes.byref(found), _BUFFER_ID, ctypes.c_ulonglong(pointer)
    )
    return found.value if status == 0 else None


def record_external(event: int, stream: int) -> int:
    """Record an event that waits outside of what a stream is recording; return CUDA's status.

    In a graph it is a step that each launch does anew.
    """
    handles = ctypes.c_void_p(event), ctypes.c_void_p(stream)
    return int(_driver().cuEventRecordWithFlags(*handles, _RECORD_EXTERNAL))


def driver_facts(load: Load) -> dict[str, Any]:
    """Ask the NVIDIA driver: its CUDA version and cards; empty where there is no driver."""
    try:
        cuda = load("libcuda.so.1")
    except OSError:
        return {}
    facts: dict[str, Any] = {"version": _driver_version(load), "gpus": []}
    version = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0:
        facts["cuda"] = version.value
    status = int(cuda.cuInit(0))
    if status != 0:
        if status != _NO_DEVICE:
            facts["status"] = status
        return facts
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    for index in range(count.value):
        device, name, size = ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_size_t()
        major, minor = ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(name, len(name), device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        cuda.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_MAJOR, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_MINOR, device)
        facts["gpus"].append(
            {
                "name": name.value.decode(errors="replace"),
                "memory_bytes": size.value,
                "compute_capability": f"{major.value}.{minor.value}",
            }
        )
    return facts


def _driver_version(load: Load) -> str:
    """The driver's own version, "580.65.06": from NVML, else from the kernel module."""
    try:
        nvml = load("libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(96)
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0:
            return text.value.decode(errors="replace")
    except (AttributeError, OSError):
        pass
    try:
        match = re.search(r"\b\d{3,}\.\d+[.\d]*", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return ""
    return match.group() if match else ""


def why_no_card() -> str:
    """Say why no card can be used at all: no driver, or none that it shows; empty if one can."""
    facts = driver_facts(ctypes.CDLL)
    if not facts:
        return "there is no NVIDIA driver on this machine"
    if "status" in facts:
        return f"the NVIDIA driver does not start (cuInit returns {facts['status']})"
    if not facts["gpus"]:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        about = f" (CUDA_VISIBLE_DEVICES={hidden!r})" if hidden is not None else ""
        return f"the NVIDIA driver shows no card{about}"
    return ""
