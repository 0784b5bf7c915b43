"""Settings: one table, read from the environment, set for the process or for a block.

What can be set is `ooc_cudnn.settings_table.SETTINGS`. A value is looked up in four places, the
nearest first: the blocks around the current call (``with settings(...)``), the process
(``settings(...)``), the environment (``OOC_CUDNN_<NAME>``, read once, at the first use), the
default.

The library reads settings once per call, with `current`, on the caller's thread, and hands the
frozen snapshot to its own threads, which read none.

**How one call serves both uses.** ``settings(...)`` cannot know whether ``with`` follows. It takes
effect for the process at once, and entering the object it returned takes that back and makes it the
block's instead. Between the two, another thread could see a value that was never meant for it, so
such a change is *undecided* until one of these happens: its object is entered (a block), its object
is gone (``settings(...)`` as a statement; at once in CPython), or the thread that made it reads
settings (it did not go on to ``with``). A thread that reads settings while another's change is
undecided waits for the decision, `_UNDECIDED_SECONDS` at most: the time only runs out where
somebody keeps the object and does nothing, such as a notebook that shows it.

The package's attribute ``ooc_cudnn.settings`` is the function, which hides this module's name;
``from ooc_cudnn.settings import current`` works all the same.
"""

from __future__ import annotations

import difflib
import os
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from ooc_cudnn import fork_safety
from ooc_cudnn.settings_table import PREFIX, SETTINGS, Setting, Settings
from ooc_cudnn.warnings_once import warn_once

_UNDECIDED_SECONDS: Final = 0.1
_POLL_SECONDS: Final = 0.0002

Source = Literal["default", "environment", "process", "block"]

_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


class _Layer:
    """One process-wide change; see the module's docstring for `is_decided`.

    Whether its object is gone is asked of a weak reference: a ``__del__`` would be Python code that
    runs at any moment, and a Ctrl-C that falls into it is lost with a word of noise.
    """

    __slots__ = ("_decided", "_object", "deadline", "thread", "values")

    def __init__(self, values: Mapping[str, object], its_object: Override | None) -> None:
        self.values = values
        self.thread = threading.get_ident()
        self.deadline = time.monotonic() + _UNDECIDED_SECONDS
        self._decided = False
        self._object = None if its_object is None else weakref.ref(its_object)

    @property
    def is_held(self) -> bool:
        """True if its object is alive, so that it may still be entered."""
        return self._object is not None and self._object() is not None

    @property
    def is_decided(self) -> bool:
        """True if it is known to be the process's."""
        return self._decided or not self.is_held

    def decide(self) -> None:
        """Take it for the process's."""
        self._decided = True


@dataclass(frozen=True, eq=False)
class _Process:
    """Settings of the process. Replaced as a whole, so readers need no lock."""

    layers: tuple[_Layer, ...] = ()
    # The layers that `snapshot` was built from. A block's layer comes and goes without a reader
    # in between, and then the snapshot is still good.
    built_from: tuple[_Layer, ...] = ()
    environment: Mapping[str, object] | None = None
    snapshot: Settings | None = None

    settled: bool = field(init=False)

    def __post_init__(self) -> None:
        settled = self.snapshot is not None and self.layers == self.built_from
        object.__setattr__(self, "settled", settled)


class _Blocks:
    """The blocks around the current call, outermost first, and their last snapshot."""

    __slots__ = ("_cache", "overrides")

    def __init__(self, overrides: tuple[Override, ...]) -> None:
        self.overrides = overrides
        self._cache: tuple[Settings | None, Settings | None] = (None, None)

    def over(self, base: Settings) -> Settings:
        cached_base, snapshot = self._cache
        if cached_base is not base or snapshot is None:
            values = {setting.name: getattr(base, setting.name) for setting in SETTINGS}
            snapshot = _merged(values, (override.values for override in self.overrides))
            self._cache = base, snapshot
        return snapshot


class Override:
    """An override that `settings` returns: enter it, or let it go."""

    __slots__ = ("__weakref__", "_layer", "values")

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = values
        self._layer = _Layer(values, self)

    def __enter__(self) -> None:
        before = _blocks.get()
        try:
            self._withdraw()
            _blocks.set(_Blocks((*(before.overrides if before else ()), self)))
        except BaseException:  # Ctrl-C: then there is no block, and nothing is the process's
            _blocks.set(before)
            self._withdraw()
            raise

    def __exit__(self, *error: object) -> None:
        before = _blocks.get()
        try:
            _blocks.set(self._less(before))
        except BaseException:  # Ctrl-C: the block has ended all the same
            _blocks.set(self._less(before))
            raise

    def _withdraw(self) -> None:
        _replace_layers(lambda layers: tuple(each for each in layers if each is not self._layer))

    def _less(self, blocks: _Blocks | None) -> _Blocks | None:
        """The blocks that are left without this one."""
        overrides = list(blocks.overrides if blocks else ())
        # Blocks held open by generators may end in another order than they began.
        for index in reversed(range(len(overrides))):
            if overrides[index] is self:
                del overrides[index]
                break
        return _Blocks(tuple(overrides)) if overrides else None

    def __repr__(self) -> str:
        return f"settings({', '.join(f'{name}={value!r}' for name, value in self.values.items())})"


_process = _Process()
_lock = fork_safety.lock()
_blocks: ContextVar[_Blocks | None] = ContextVar("ooc_cudnn_settings", default=None)


def settings(**overrides: object) -> Override:
    """Set for the process, or with ``with`` for a block.

    Parameters
    ----------
    **overrides
        Settings by name:

        {table}

    Returns
    -------
    Override
        A context manager. As a statement of its own, ``settings(verify=8)`` holds for the process
        from now on, all threads included. In ``with settings(verify=8):`` it holds until the end
        of the block, for this thread (in asyncio: this task) only; blocks nest, and hide the
        process's value of what they set. An object that was entered is a block ever after: it may
        be entered again.

    Raises
    ------
    TypeError, ValueError
        If a name is unknown or a value is not one the setting takes; then nothing has changed.

    Examples
    --------
    >>> with settings(memory_limit="1GiB", overlap=False):
    ...     current().memory_limit
    1073741824
    >>> settings(memory_limt="1GiB")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    TypeError: unknown setting 'memory_limt', did you mean 'memory_limit'? There are: device, ...
    """
    for name in overrides:
        if name not in _BY_NAME:
            near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1)
            hint = f", did you mean {near[0]!r}?" if near else "."
            raise TypeError(f"unknown setting {name!r}{hint} There are: {', '.join(_BY_NAME)}")
    override = Override(
        MappingProxyType(
            {name: _BY_NAME[name].parse(value, name) for name, value in overrides.items()}
        )
    )
    try:
        _replace_layers(lambda layers: (*layers, override._layer))
    except BaseException:  # Ctrl-C: nobody has the object, and its change would be the process's
        override._withdraw()
        raise
    return override


def _listed() -> str:
    """The table of settings, as it stands in a docstring."""
    lines = []
    for setting in SETTINGS:
        lines += [f"{setting.name} : {setting.default!r}"]
        lines += textwrap.wrap(setting.meaning, 84, initial_indent="    ", subsequent_indent="    ")
    return "\n        ".join(lines)


if settings.__doc__:  # none under python -OO
    settings.__doc__ = settings.__doc__.replace("{table}", _listed())


def current() -> Settings:
    """Return every setting in effect here and now.

    The same object comes back until something changes, so it costs a fraction of a microsecond.
    Raises ValueError for an environment variable of a bad value, naming it.

    >>> current() is current()
    True
    """
    process = _process
    base = process.snapshot
    if base is None or not process.settled:
        base = _settle()
    blocks = _blocks.get()
    return base if blocks is None else blocks.over(base)


@dataclass(frozen=True)
class SettingRow(Setting):
    """One row of `describe`: the table's columns, then the value in effect and where it is from."""

    value: object
    source: Source


def describe() -> list[SettingRow]:
    """Return a row per setting, in the order of `SETTINGS`, for documentation and the doctor.

    >>> with settings(verify=8):
    ...     row = next(row for row in describe() if row.name == "verify")
    >>> row.value, row.source, row.default, row.environment_variable
    (8, 'block', 0, 'OOC_CUDNN_VERIFY')
    """
    snapshot = current()
    process, blocks = _process, _blocks.get()
    sources: dict[str, Source] = dict.fromkeys(process.environment or {}, "environment")
    for layer in process.layers:
        sources.update(dict.fromkeys(layer.values, "process"))
    for override in blocks.overrides if blocks else ():
        sources.update(dict.fromkeys(override.values, "block"))
    return [
        SettingRow(
            **vars(setting),
            value=getattr(snapshot, setting.name),
            source=sources.get(setting.name, "default"),
        )
        for setting in SETTINGS
    ]


def _settle() -> Settings:
    """Wait until every change is decided, then build the process's snapshot."""
    global _process
    here = threading.get_ident()
    while True:
        with _lock:
            process = _process
            undecided = []
            for layer in process.layers:
                if layer.thread == here:
                    layer.decide()
                elif not layer.is_decided:
                    undecided.append(layer)
            if not undecided:
                environment = process.environment
                if environment is None:
                    environment = _read_environment(os.environ)
                layers = _coalesced(process.layers)
                defaults = {setting.name: setting.default for setting in SETTINGS}
                snapshot = _merged(defaults, (environment, *(each.values for each in layers)))
                _process = _Process(layers, layers, environment, snapshot)
                break
        for layer in undecided:
            while not layer.is_decided and layer in _process.layers:
                if time.monotonic() > layer.deadline:
                    layer.decide()
                time.sleep(_POLL_SECONDS)
    if process.environment is None:  # outside the lock: who warns may run what a user wrote
        for message in _unknown_variables(os.environ):
            warn_once(message)
    return snapshot


def _replace_layers(change: Callable[[tuple[_Layer, ...]], tuple[_Layer, ...]]) -> None:
    global _process
    with _lock:
        old = _process
        _process = _Process(change(old.layers), old.built_from, old.environment, old.snapshot)


def _coalesced(layers: tuple[_Layer, ...]) -> tuple[_Layer, ...]:
    """Join neighbours that nobody can enter any more: a loop of ``settings(...)`` must not grow."""
    result: list[_Layer] = []
    for layer in layers:
        if result and not layer.is_held and not result[-1].is_held:
            result[-1] = _Layer({**result[-1].values, **layer.values}, None)
        else:
            result.append(layer)
    return tuple(result)


def _merged(values: dict[str, Any], layers: Iterable[Mapping[str, object]]) -> Settings:
    for layer in layers:
        values.update(layer)
    return Settings(**values)


def _read_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """Parse what the environment sets. An empty variable counts as unset."""
    values: dict[str, object] = {}
    for setting in SETTINGS:
        text = environment.get(setting.environment_variable, "").strip()
        if text:
            values[setting.name] = setting.parse(
                text, f"environment variable {setting.environment_variable}"
            )
    return values


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Say what looks like a setting and is none."""
    known = {setting.environment_variable for setting in SETTINGS}
    suffixes = [name.removeprefix(PREFIX) for name in known]  # what all share makes nothing alike
    for name in sorted(environment):
        if name.upper().startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name.upper().removeprefix(PREFIX), suffixes, n=1)
            hint = f" (did you mean {PREFIX}{near[0]}?)" if near else ""
            listed = ", ".join(sorted(known))
            ignored = f"environment variable {name} is no setting, and is ignored{hint}"
            yield f"{ignored}. There are: {listed}"


def _forget() -> None:
    """Return to the defaults and read the environment again at the next use; for tests."""
    global _process
    with _lock:
        _process = _Process()
    _blocks.set(None)
