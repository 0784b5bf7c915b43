"""Which machine model predicts for a device (calibration itself follows)."""

from __future__ import annotations

from ooc_cudnn.devices.base import Device
from perfmodel import MachineModel, shipped


def machine_for(device: Device, setting: MachineModel | str | None) -> MachineModel:
    if isinstance(setting, MachineModel):
        return setting
    return shipped("host" if device.kind == "host" else "h200")
