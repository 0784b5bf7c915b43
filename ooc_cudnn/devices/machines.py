"""The machine model that predicts: a given one, the one fitted here, or a shipped default.

Fitted models live in the user's cache directory, one file for each combination of hardware and
versions that changes what they say.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from ooc_cudnn.devices.base import Device
from ooc_cudnn.warnings_once import warn_once
from perfmodel import MachineFileError, MachineModel, shipped
from perfmodel.data_sheets import nearest_sheet
from perfmodel.machine import FROM_DATA_SHEETS, REMEDY, UNDATED
from perfmodel.named import load_once, named_machine

#: Entries of an identity that do not tell one machine from another.
_INCIDENTAL = ("device_bytes", "compute_capability", "note")

#: Stands in for cards that are like none whose profile is shipped.
OTHERWISE = "h200"

#: Models that were asked for and devices they were compared with.
_compared: set[tuple[str, str, str]] = set()


def cache_directory() -> Path:
    """Return the cache folder: ``$XDG_CACHE_HOME/ooc_cudnn``, or ``~/.cache/ooc_cudnn``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a path that is not absolute is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~")) / ".cache"
    return root / "ooc_cudnn"


def machine_key(identity: Mapping[str, str]) -> str:
    """Return a name for the files of a machine, safe in every file system.

    Readable values first, then a hash of the exact ones.

    Examples
    --------
    >>> machine_key({"gpu": "NVIDIA H200", "driver": "13000", "cudnn": "91002"})
    'NVIDIA-H200_13000_91002_1f2611bb'
    """
    telling = {key: value for key, value in identity.items() if key not in _INCIDENTAL}
    digest = hashlib.sha256(repr(sorted(telling.items())).encode()).hexdigest()[:8]
    words = (re.sub(r"[^A-Za-z0-9.]+", "-", value).strip("-.")[:40] for value in telling.values())
    return "_".join([*(word for word in words if word), digest])


def machine_path(identity: Mapping[str, str]) -> Path:
    """Return the path of the model fitted on the machine of this identity."""
    return cache_directory() / "machines" / f"{machine_key(identity)}.json"


def is_writable(folder: Path) -> bool:
    """True if files can be made in a folder, or in the first of those above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def machine_for(
    device: Device, setting: MachineModel | str | os.PathLike[str] | None
) -> MachineModel:
    """Return the model that predicts for a device.

    Parameters
    ----------
    device : Device
    setting : MachineModel, str, path or None
        A model, its file, or the name of a shipped profile: taken as asked, with one warning a
        process that names the differences if it was fitted on another machine. None: the one that
        `calibrate` fitted on this machine if there is one, else a shipped default, with a warning.

    Raises
    ------
    ValueError
        If `setting` names no model.
    """
    if setting is not None:
        model = named_machine(setting)
        _compare(model, device)
        return model
    default = shipped_for(device)
    try:
        return _fitted_here(device)
    except FileNotFoundError:
        warn_once(
            f"{device.name} is not calibrated: plans are made with the shipped figures of "
            f"{_told(default)}, corrected by timing the launches that matter most. Results are "
            "right, but calls may be slow. Run 'ooc-cudnn calibrate' once (or set "
            f"machine={default!r}, which takes those figures as they are)."
        )
    except MachineFileError as error:
        warn_once(
            f"the calibration of {device.name} cannot be used, so plans are made with the shipped "
            f"figures of {_told(default)}: {error}."
        )
    return shipped(default)


def computing_machine(machine: MachineModel, *, on_host: bool) -> MachineModel:
    """Return the model by which a call is priced: another one where the host computes it."""
    return shipped("host") if on_host else machine


def load_calibrated(device: Device) -> MachineModel | None:
    """Return what `calibrate` fitted on this machine, if it did and it can be used."""
    try:
        return _fitted_here(device)
    except (MachineFileError, FileNotFoundError):
        return None


def shipped_for(device: Device) -> str:
    """Return the name of the shipped profile of a device: that of its GPU, or of the nearest."""
    if device.kind == "host":
        return "host"
    identity = device.identity()
    return nearest_profile(
        identity.get("gpu", ""),
        int(identity.get("device_bytes", "0")),
        identity.get("compute_capability", ""),
    )


def nearest_profile(gpu: str, device_bytes: int, compute_capability: str = "") -> str:
    """Return the name of the shipped profile of a GPU, or of the one that is most like it.

    Parameters
    ----------
    gpu : str
        As the driver names it.
    device_bytes : int
    compute_capability : str
        "8.9"; empty where it is unknown.

    Examples
    --------
    >>> nearest_profile("NVIDIA GeForce RTX 4090", 24 * 2**30)
    'rtx4090'
    """
    capability = float(compute_capability) if compute_capability else None
    found = nearest_sheet(gpu, device_bytes, capability)
    return OTHERWISE if found is None else found.name


def _told(profile: str) -> str:
    """A profile as a warning names it: nobody may have measured it."""
    how = f", not measured but {FROM_DATA_SHEETS}"
    return f"{profile!r}" + how * (shipped(profile).calibrated == FROM_DATA_SHEETS)


def _fitted_here(device: Device) -> MachineModel:
    """Model that `calibrate` fitted on this machine; MachineFileError if that cannot be used."""
    path = machine_path(device.identity())
    try:
        model = load_once(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise MachineFileError(f"machine file {path} cannot be read: {error}; {REMEDY}") from error
    if differences := _differences(model, device.identity()):
        raise MachineFileError(f"machine file {path} was fitted elsewhere: {differences}; {REMEDY}")
    return model


def _differences(model: MachineModel, identity: Mapping[str, str]) -> str:
    """Differences of the machine that a model was fitted on from this one; empty if it has none."""
    return "; ".join(
        f"{name} is {model.identity[name]!r} there, {value!r} here"
        if name in model.identity
        else f"{name} is unknown there, {value!r} here"
        for name, value in identity.items()
        if name not in _INCIDENTAL and model.identity.get(name) != value
    )


def _compare(model: MachineModel, device: Device) -> None:
    """Tell, once, how a model that was asked for differs from the machine it is used on.

    Shipped profiles are fitted elsewhere by nature; who names one means it.
    """
    key = (model.name, model.calibrated, device.name)
    if model.calibrated in UNDATED or key in _compared:
        return
    _compared.add(key)
    differences = _differences(model, device.identity())
    if differences:
        warn_once(
            f"the machine model asked for ({model.name}, calibrated {model.calibrated}) was fitted "
            f"on another machine than {device.name}: {differences}. Results are right, but calls "
            "may be slow; machine=None takes the model fitted here, 'ooc-cudnn calibrate' makes "
            "one."
        )
