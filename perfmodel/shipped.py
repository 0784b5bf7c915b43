"""Profiles that come with the package: measured ones in files, others scaled from data sheets."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from .data_sheets import MEASURED_SHEET, SHEETS
from .machine import FROM_DATA_SHEETS, MachineModel
from .scaling import scaled_machine

#: Words of a card's full name that do not tell one from another.
_MAKERS = re.compile(r"nvidia|geforce|tesla|[^a-z0-9]")
MOST_SUGGESTED = 3


def shipped_names() -> tuple[str, ...]:
    """Return the names of the machines whose profiles come with the package.

    Examples
    --------
    >>> {"h200", "rtx4090"} <= set(shipped_names())
    True
    """
    return tuple(sorted({*_file_names(), *SHEETS}))


@cache
def shipped(name: str) -> MachineModel:
    """Return the shipped profile called `name`, in whatever spelling.

    Raises
    ------
    ValueError
        If there is none; the message lists the names and suggests the nearest.

    Examples
    --------
    >>> shipped("h200").calibrated
    'shipped'
    >>> shipped("NVIDIA GeForce RTX 4090") is shipped("rtx4090")
    True
    """
    names = shipped_names()
    if name not in names:
        found = _spelt(str(name), names)
        if found is None:
            hint = _suggested(str(name), names)
            raise ValueError(f"no machine called {name!r}{hint}; shipped are {', '.join(names)}")
        return shipped(found)
    if name in SHEETS:
        return scaled_machine(shipped(MEASURED_SHEET.name), MEASURED_SHEET, SHEETS[name])
    file = _machines() / f"{name}.json"
    return MachineModel.parse(file.read_bytes(), str(file))


def machine_label(name: str) -> str:
    """Return the name of a machine, with what is to be known of a profile nobody measured.

    Examples
    --------
    >>> machine_label("h200"), machine_label("rtx4090")
    ('h200', 'rtx4090 (not measured: from data sheets)')
    """
    return f"{name} (not measured: {FROM_DATA_SHEETS})" if name in SHEETS else name


def _plain(name: str) -> str:
    """A name without what people write differently."""
    return _MAKERS.sub("", name.lower())


def _spelt(name: str, names: tuple[str, ...]) -> str | None:
    """The shipped name that a text is another spelling of."""
    known = {_plain(each): each for each in names}
    said = _plain(name)
    return known.get(said, known.get(f"rtx{said}"))


def _suggested(name: str, names: tuple[str, ...]) -> str:
    said = _plain(name)
    known = {_plain(each): each for each in names}
    near = [each for plain, each in known.items() if said and plain.startswith(said)]
    near = near or [known[each] for each in get_close_matches(said, known, n=1)]
    listed = " or ".join(map(repr, near[:MOST_SUGGESTED]))
    return f" (did you mean {listed}?)" if listed else ""


def _file_names() -> list[str]:
    names = (entry.name for entry in _machines().iterdir())
    return [name.removesuffix(".json") for name in names if name.endswith(".json")]


def _machines() -> Traversable:
    return resources.files(__package__ or "perfmodel") / "machines"
