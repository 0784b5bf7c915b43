"""Importing what CUDA needs; where that fails, the reason and what mends it."""

from __future__ import annotations

from typing import Any

from ooc_cudnn.devices.cuda.driver import why_no_card
from ooc_cudnn.devices.cuda.frontend import REQUIREMENT, import_frontend
from ooc_cudnn.errors import DeviceUnavailableError


def import_cupy(index: int) -> Any:
    """Import CuPy and cuDNN and make sure that the GPU is there.

    Raises
    ------
    DeviceUnavailableError
        Naming what is missing and the command that mends it.
    """
    try:
        import cupy
    except ImportError as error:
        _check_card(index, error)
        raise DeviceUnavailableError(
            f"CuPy cannot be imported ({error})",
            remedy="Run `pip install 'ooc_cudnn[cuda13]'` (or cuda12: `ooc-cudnn doctor` says "
            "which fits the driver), or set device='host'.",
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        _check_card(index, error)
        raise DeviceUnavailableError(
            f"CUDA does not work here ({error})",
            remedy="Run `ooc-cudnn doctor`, or set device='host'.",
        ) from error
    if index >= count:
        raise DeviceUnavailableError(
            f"there is no GPU number {index}; this machine has {count}",
            remedy=f"Set device='cuda:0'{' or another below ' + str(count) if count > 1 else ''}.",
        )
    try:
        import_frontend().backend_version()
    except Exception as error:  # a broken cuDNN fails in many ways, and all mean the same
        raise DeviceUnavailableError(
            f"cuDNN cannot be used ({type(error).__name__}: {error})",
            remedy=f"Run `pip install '{REQUIREMENT}' nvidia-cudnn-cu13` (or -cu12), then "
            "`ooc-cudnn doctor`.",
        ) from error
    return cupy


def _check_card(index: int, error: Exception) -> None:
    """Raise if there is no card: then no package is missing."""
    reason = why_no_card()
    if reason:
        raise DeviceUnavailableError(
            f"device='cuda:{index}' cannot be used: {reason}",
            remedy="Set device='host' (--device host) to run on the processor; if there is a card, "
            "`ooc-cudnn doctor` says what it lacks.",
        ) from error
