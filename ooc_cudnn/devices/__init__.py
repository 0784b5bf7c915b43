"""The devices that run steps, and which of them a setting means."""

from __future__ import annotations

import threading

from ooc_cudnn.devices.base import Device
from ooc_cudnn.errors import DeviceUnavailableError

_devices: dict[str, Device] = {}
_resolved: dict[str, Device] = {}
_lock = threading.RLock()


def get_device(setting: str) -> Device:
    """Return the device that the setting `device` names: "auto", "cuda", "cuda:1" or "host".

    Raises
    ------
    DeviceUnavailableError
        If CUDA was asked for and does not work here, with the remedy.
    """
    found = _resolved.get(setting)
    if found is None:
        with _lock:
            found = _resolved[setting] = _find(setting)
    return found


def _find(setting: str) -> Device:
    if setting == "auto":
        try:
            return _find("cuda:0")
        except DeviceUnavailableError:
            return _find("host")
    name = "cuda:0" if setting == "cuda" else setting
    if name not in _devices:
        if name == "host":
            from ooc_cudnn.devices.host import HostDevice

            _devices[name] = HostDevice()
        else:
            from ooc_cudnn.devices.cuda import CudaDevice

            _devices[name] = CudaDevice(int(name.partition(":")[2]))
    return _devices[name]


def loaded_devices() -> tuple[Device, ...]:
    """Devices in use so far."""
    return tuple(_devices.values())
