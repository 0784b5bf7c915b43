"""The database of engine checks on disk: a file for each card, cuDNN and library version.

A file that cannot be read is as good as none: that is said once, and engines are checked again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engine_verdicts import Key, Verdict, Verdicts, was_searched
from ooc_cudnn.devices.machines import cache_directory, machine_key
from ooc_cudnn.devices.tuning_database import TELLING, lock_out_others, read_entries
from ooc_cudnn.version import __version__
from ooc_cudnn.warnings_once import warn_once
from perfmodel.files import read_file, replace_file
from perfmodel.record import members, number, text

FORMAT, FORMAT_VERSION = "ooc_cudnn checked engines", 1
#: Larger files were not written here.
LARGEST_BYTES = 2**24

_verdicts: WeakKeyDictionary[Device, Verdicts] = WeakKeyDictionary()


def verdicts_of(device: Device) -> Verdicts:
    """Return the verdicts on a device's engines; what is stored is read at first."""
    found = _verdicts.get(device)
    if found is None:
        found = _verdicts[device] = _read_or_none(device) or _fresh(device)
    return found


def forget_verdicts() -> None:
    """Forget what was found out and is not stored (in tests)."""
    _verdicts.clear()


def verdicts_path(device: Device) -> Path:
    """Return the path of the verdicts on a device's engines."""
    return cache_directory() / "engines" / "checked" / f"{machine_key(_holds_for(device))}.json"


def save_verdicts(device: Device) -> Path:
    """Write the verdicts on a device's engines, with those that other processes stored meanwhile.

    Raises
    ------
    OSError
        If they cannot be written.
    """
    path, known = verdicts_path(device), verdicts_of(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock_out_others(path):
        others = _read_or_none(device)
        if others is not None:
            known.merge(others)
        data = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "identity": _holds_for(device),
            "searched": known.is_searched,
        }
        lines = ",\n  ".join(json.dumps(_to_json(*item)) for item in known.items())
        replace_file(path, f'{json.dumps(data)[:-1]}, "verdicts": [\n  {lines}]}}\n')
    return path


def try_to_save_verdicts(device: Device) -> None:
    """Store them. Where that cannot be, a call goes on all the same: it is said once."""
    try:
        save_verdicts(device)
    except OSError as error:
        warn_once(
            f"what was found out about cuDNN's engines cannot be stored, so that each process "
            f"checks them again: {error}."
        )


def _holds_for(device: Device) -> dict[str, str]:
    identity = device.identity()
    told = {name: identity[name] for name in TELLING if name in identity}
    return {**told, "ooc_cudnn": __version__}


def _fresh(device: Device, **found: Any) -> Verdicts:
    is_built_in = was_searched(device.identity().get("cudnn", ""))
    return Verdicts(**{"is_searched": False, **found}, is_built_in=is_built_in)


def _read_or_none(device: Device) -> Verdicts | None:
    """Verdicts that a file holds of a device; None, and a warning, where it cannot be used."""
    path = verdicts_path(device)
    try:
        return _fresh(device, **_read(read_file(path, LARGEST_BYTES), _holds_for(device)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        is_built_in = was_searched(device.identity().get("cudnn", ""))
        then = "what it bars is used" if is_built_in else "they are checked again"
        warn_once(
            f"what was stored about cuDNN's engines of {device.name} is ignored, so {then}: "
            f"{path}: {error}"
        )
    return None


def _read(content: bytes, identity: Mapping[str, str]) -> dict[str, Any]:
    held = read_entries(content, (FORMAT, FORMAT_VERSION), identity, "verdicts", "searched")
    if not isinstance(held["searched"], bool):
        raise TypeError(f"searched is {held['searched']!r}; it must be true or false")
    return {
        "is_searched": held["searched"],
        "stored": [_from_json(each) for each in held["verdicts"]],
    }


def _to_json(key: Key, verdict: Verdict) -> dict[str, Any]:
    kind, engine = key
    error = verdict.error if verdict.error is not None and math.isfinite(verdict.error) else None
    return {"kind": kind, "engine": engine, "right": verdict.is_right, "error": error}


def _from_json(data: object) -> tuple[Key, Verdict]:
    held = members("a verdict", data, ("kind", "engine", "right", "error"))
    is_right, error = held["right"], held["error"]
    if is_right is not None and not isinstance(is_right, bool):
        raise TypeError(f"right is {is_right!r}; it must be true, false or null")
    key = text("kind", held["kind"]), text("engine", held["engine"])
    return key, Verdict(is_right, None if error is None else number("error", error))
