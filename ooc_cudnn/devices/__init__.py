"""The devices that run steps, and which of them a setting means.

`base` is the contract; `cuda`, `host` and `kernels` keep it. `binding` compares views with the
buffers of a launch. What a device knows of cuDNN's engines is here, since backends read it:
`engines` with `tuning_database` (which is fastest), `engine_kinds` and `engine_verdicts` with
`engine_check_database` (which is wrong), `engine_provider` (what a device offers),
`convolution_forms` (what has engines). `machines` says which model predicts, `measuring` times
steps.
"""

from __future__ import annotations

from ooc_cudnn import fork_safety, interrupts, memory
from ooc_cudnn.activity import activity
from ooc_cudnn.devices.base import Device
from ooc_cudnn.errors import DeviceUnavailableError
from ooc_cudnn.settings import current

_devices: dict[str, Device] = {}
_resolved: dict[str, Device] = {}
#: In a forked child: GPUs that its parent used. Kept, so that nothing of them is freed here.
_parents: list[Device] = []
_lock = fork_safety.recursive_lock()


def get_device(setting: str) -> Device:
    """Return the device that the setting `device` names: "auto", "cuda", "cuda:1" or "host".

    Raises
    ------
    DeviceUnavailableError
        If CUDA was asked for and does not work here, with the remedy; in a forked child of a
        process that used it, without asking, too: "auto" does not turn to the host in silence.
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
            if _parents:
                raise
            return _find("host")
    name = "cuda:0" if setting == "cuda" else setting
    if name not in _devices:
        if name == "host":
            from ooc_cudnn.devices.host.device import HostDevice

            _devices[name] = HostDevice()
        elif _parents:
            raise DeviceUnavailableError(
                f"this process was forked from one that used {_parents[0].name}, and CUDA does not "
                "work in a forked child",
                remedy="Start processes by multiprocessing.set_start_method('spawn') (or "
                "get_context('spawn'), or 'forkserver'), or set device='host' in the child.",
            )
        else:
            from ooc_cudnn.devices.cuda.cupy_import import import_cupy

            index = int(name.partition(":")[2])
            with activity(f"starting {name}", current().progress):
                import_cupy(index)  # where there is no card, the device's fifty files stay unread
                from ooc_cudnn.devices.cuda.device import CudaDevice

                _devices[name] = CudaDevice(index)
    return _devices[name]


def loaded_devices() -> tuple[Device, ...]:
    """Devices in use so far."""
    return tuple(_devices.values())


def _release_caches() -> None:
    for device in loaded_devices():
        with interrupts.defer_signals(), device.arena.lock:
            device.release_caches()


def _leave_gpus_to_the_parent() -> None:
    for name in [name for name, device in _devices.items() if device.kind == "cuda"]:
        _parents.append(_devices.pop(name))
    _resolved.clear()


memory.on_release(_release_caches)
fork_safety.run_in_child(_leave_gpus_to_the_parent)
