"""Records: frozen dataclasses that check their fields and go to JSON and back.

JSON here means plain dicts, lists, strings and numbers; writing files is the business of
`perfmodel.machine`. Reading is strict: a missing or unknown name is an error, so that a typing
mistake in a machine file is found when the file is read and not when a plan turns out strange.
"""

from __future__ import annotations

import math
import numbers
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar, NoReturn, Self, TypeVar, cast

Value = TypeVar("Value")


def number(name: str, value: object, at_least: float = 0.0) -> float:
    """Return `value` as a float; raise unless it is finite and not below `at_least`.

    Examples
    --------
    >>> number("seconds", 3)
    3.0
    >>> number("seconds", float("nan"))
    Traceback (most recent call last):
    ValueError: seconds is nan; it must be a finite number of at least 0.0
    """
    if type(value) is not float:
        if isinstance(value, bool) or not isinstance(value, (int, numbers.Real)):
            raise TypeError(f"{name} is {value!r}; it must be a number")
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
    if not at_least <= value < math.inf:
        raise ValueError(f"{name} is {value!r}; it must be a finite number of at least {at_least}")
    return value


def rounded(value: float, digits: int = 5) -> float:
    """Return so many digits of what was measured: files stay short, and no timing is truer.

    Examples
    --------
    >>> rounded(1.23456789e-6)
    1.2346e-06
    """
    return float(f"{value:.{digits}g}")


def whole(name: str, value: object, at_least: int = 0) -> int:
    """Return `value` as an int; raise unless it is a whole number not below `at_least`.

    Examples
    --------
    >>> whole("copies", 2)
    2
    >>> whole("copies", 0, at_least=1)
    Traceback (most recent call last):
    ValueError: copies is 0; it must be at least 1
    """
    if type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"{name} is {value!r}; it must be a whole number")
        value = int(value)
    if value < at_least:
        raise ValueError(f"{name} is {value!r}; it must be at least {at_least}")
    return value


def text(name: str, value: object) -> str:
    """Return `value` if it is a string that is not empty; raise otherwise."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}; it must be a string")
    if not value:
        raise ValueError(f"{name} is an empty string; it must say something")
    return value


def members(
    owner: str, data: object, names: Iterable[str], optional: Iterable[str] = ()
) -> dict[str, Any]:
    """Return `data` as a dict if it holds exactly `names`; raise ValueError naming what is wrong.

    Those that are `optional` may be missing.

    Examples
    --------
    >>> members("Line", {"alpha": 1.0}, ("alpha", "beta"))
    Traceback (most recent call last):
    ValueError: Line lacks 'beta'
    """
    wanted = tuple(names)
    held = mapping(owner, data)
    for name in wanted:
        if name not in held and name not in optional:
            raise ValueError(f"{owner} lacks {name!r}")
    for name in held:
        if name not in wanted:
            raise ValueError(f"{owner} has an unknown {name!r}; it knows {', '.join(wanted)}")
    return held


def mapping(owner: str, data: object) -> dict[str, Any]:
    """Return `data` as a dict; raise ValueError if it is not a mapping from names."""
    if not isinstance(data, Mapping) or not all(isinstance(name, str) for name in data):
        raise ValueError(f"{owner} must be a mapping from names, not {data!r:.80}")
    return dict(data)


class Table(dict[str, Value]):
    """A mapping that does not change and has a hash, so that records holding one are constants.

    It is a dict, since predictions look into it all the time.

    Examples
    --------
    >>> table = Table({"pinned": 1})
    >>> table["pinned"], table == {"pinned": 1}, hash(table) == hash(Table({"pinned": 1}))
    (1, True, True)
    >>> table["pinned"] = 2
    Traceback (most recent call last):
    ...
    TypeError: a Table does not change; make another from dict(table)
    """

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:  # type: ignore[override]
        if not hasattr(self, "_hash"):  # calls are remembered by what they were planned with
            self._hash = hash(frozenset(self.items()))
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (dict(self),)  # another process has other hashes

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a Table does not change; make another from dict(table)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


class Record:
    """Base of dataclasses that go to JSON and back, by the types of their fields.

    A field that is a record, or a mapping to records, goes there as one. Those that `optional`
    names are left out where they are empty or 0, and may be missing; those that `unstored` names
    stay out.
    """

    __slots__ = ()
    optional: ClassVar[tuple[str, ...]] = ()
    unstored: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name, as plain JSON values."""
        held = {name: getattr(self, name) for name in _kinds(cast(Any, type(self)))}
        return {
            name: _plain(value)
            for name, value in held.items()
            if value or name not in self.optional
        }

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Build from what `to_json` returned; ValueError on a missing or unknown name."""
        kinds = _kinds(cast(Any, cls))
        held = members(cls.__name__, data, kinds, cls.optional)
        return cls(**{name: _built(name, kinds[name], value) for name, value in held.items()})


@cache
def _kinds(record: Any) -> dict[str, Any]:
    """The types of the fields that are stored, by name."""
    hints = typing.get_type_hints(record)
    names = [field.name for field in fields(record)]
    return {name: hints[name] for name in names if name not in record.unstored}


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, Mapping):
        return {name: _plain(held) for name, held in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _built(name: str, kind: Any, data: object) -> Any:
    if isinstance(kind, type) and issubclass(kind, Record):
        return kind.from_json(data)
    if typing.get_origin(kind) is Mapping:
        item_kind = typing.get_args(kind)[1]
        return {key: _built(key, item_kind, held) for key, held in mapping(name, data).items()}
    return data
