"""The machine model that is meant: by itself, by its file, or by the name of a shipped profile."""

from __future__ import annotations

import os
from pathlib import Path

from .machine import MachineModel
from .shipped import shipped, shipped_names

#: By path: the model of a file, and which file that was.
_loaded: dict[str, tuple[tuple[int, ...], MachineModel]] = {}


def named_machine(
    setting: MachineModel | str | os.PathLike[str], *, name: str = "machine"
) -> MachineModel:
    """Return the model that is meant: itself, a file, or a shipped profile.

    Parameters
    ----------
    setting : MachineModel, str or path
    name : str
        What an error calls it.

    Raises
    ------
    ValueError
        If there is neither such a file nor such a profile, or the file cannot be used.

    Examples
    --------
    >>> named_machine("h200").name
    'h200'
    """
    if isinstance(setting, MachineModel):
        return setting
    said = os.fspath(setting)
    try:
        if said in shipped_names() or not is_file_name(said):
            return shipped(said)
        return load_once(Path(said))
    except FileNotFoundError:
        raise ValueError(f"{name}={said!r} cannot be used: there is no such file") from None
    except IsADirectoryError:
        raise ValueError(
            f"{name}={said!r} is a folder; give the file in it that holds the model"
        ) from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}={said!r} cannot be used: {error}") from error


def is_file_name(said: str) -> bool:
    """Return whether a text that is no shipped profile's name is meant as that of a file.

    Examples
    --------
    >>> is_file_name("my.json"), is_file_name("machines/mine"), is_file_name("h20")
    (True, True, False)
    """
    return bool(os.path.dirname(said)) or said.endswith(".json") or os.path.lexists(said)


def load_once(path: Path) -> MachineModel:
    """Load a file, once for each time it is written; raises as `MachineModel.load`."""
    status = path.stat()
    which = status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
    before, model = _loaded.get(str(path), ((), None))
    if model is None or before != which:
        model = MachineModel.load(path)
        _loaded[str(path)] = which, model
    return model
