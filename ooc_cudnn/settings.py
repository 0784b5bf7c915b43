"""Settings: one table, read from the environment, set for the process or for a block.

The table `SETTINGS` is the only list of what can be set; parsing, documentation and tests follow
from it. A value is looked up in four places, the nearest first: the blocks around the current call
(``with settings(...)``), the process (``settings(...)``), the environment (``OOC_CUDNN_<NAME>``,
read once, at the first use), the default.

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
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from ooc_cudnn.units import parse_bytes, parse_limit

if TYPE_CHECKING:
    from perfmodel.machine import MachineModel

_UNDECIDED_SECONDS: Final = 0.1
_POLL_SECONDS: Final = 0.0002

Progress = Literal["auto"] | bool | Callable[[int, int], object]
Source = Literal["default", "environment", "process", "block"]


# ---------------------------------------------------------------------------------------------
# What can be set
# ---------------------------------------------------------------------------------------------


def _parse_device(value: object, name: str) -> str:
    choices = "give 'auto', 'cuda', 'cuda:N' (N is the device's number) or 'host'"
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; {choices}")
    device = value.strip().lower()
    if not re.fullmatch(r"auto|host|cuda(:(0|[1-9][0-9]{0,3}))?", device):
        raise ValueError(f"{name}={value!r} is not a device; {choices}")
    return device


def _parse_memory_limit(value: object, name: str) -> int | float | None:
    return None if value is None else parse_limit(value, name=name)


def _parse_host_memory_limit(value: object, name: str) -> int | None:
    return None if value is None else parse_bytes(value, name=name)


_WORDS: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def _parse_switch(value: object, name: str) -> bool:
    choices = f"give True or False; as text, one of {', '.join(_WORDS)}"
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; {choices}")
    try:
        return _WORDS[value.strip().lower()]
    except KeyError:
        raise ValueError(f"{name}={value!r} is neither on nor off; {choices}") from None


def _parse_count(value: object, name: str) -> int:
    rule = "give a whole number, 0 or more"
    if isinstance(value, str):
        if not re.fullmatch(r"[0-9]{1,18}", value.strip()):
            raise ValueError(f"{name}={value!r} is not a count; {rule}")
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; {rule}")
    if value < 0:
        raise ValueError(f"{name}={value!r} is negative; {rule}")
    return int(value)


def _parse_machine(value: object, name: str) -> MachineModel | str | None:
    choices = "give a MachineModel, the path of a saved one, or the name of a shipped profile"
    if value is None:
        return None
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if not isinstance(text, str):
            raise TypeError(f"{name}={value!r} is a path of bytes; {choices}")
        if not text.strip():
            raise ValueError(f"{name}={value!r} is empty; {choices}")
        return text
    from perfmodel.machine import MachineModel  # only those who pass one need it loaded

    if not isinstance(value, MachineModel):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; {choices}")
    return value


def _parse_progress(value: object, name: str) -> Progress:
    choices = "give 'auto', True, False or a callable taking (done, total)"
    if callable(value):
        return value
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    try:
        return _parse_switch(value, name)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}={value!r} is not a kind of progress; {choices}") from None


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    Parameters
    ----------
    name : str
        The keyword of `settings` and the field of `Settings`.
    default : object
        The value in effect when nobody sets one.
    parse : callable
        Takes a value and the name that an error calls it by; returns the value in its one normal
        form, or raises ``TypeError`` or ``ValueError``.
    meaning : str
        What it does, its values and their unit.
    trade_off : str
        What is gained and lost by changing it.

    Examples
    --------
    >>> SETTINGS[0].environment_variable
    'OOC_CUDNN_DEVICE'
    """

    name: str
    default: Any
    parse: Callable[[object, str], Any]
    meaning: str
    trade_off: str

    @property
    def environment_variable(self) -> str:
        """The environment variable that sets it."""
        return f"OOC_CUDNN_{self.name.upper()}"


SETTINGS: Final = (
    Setting(
        "device",
        "auto",
        _parse_device,
        "Where operations run: 'cuda', 'cuda:1' (a device by number), 'host' (NumPy on the CPU), "
        "or 'auto': cuda where it works, else host.",
        "'auto' always runs but may run slowly; 'cuda' raises an error where there is no GPU.",
    ),
    Setting(
        "memory_limit",
        None,
        _parse_memory_limit,
        "All the device memory that the library may hold: bytes, '16GiB', or a fraction of what "
        "is free (0.5, '50%'). None is 90 % of what is free.",
        "Less leaves room for other libraries; below a few pieces of 32 MiB per operand, copies "
        "and computation overlap less.",
    ),
    Setting(
        "host_memory_limit",
        None,
        _parse_host_memory_limit,
        "All the pinned (page-locked) host memory that the library may hold: bytes or '64GiB'. "
        "None is no limit.",
        "Pinned memory copies fastest and cannot be swapped out; too much of it starves the "
        "machine.",
    ),
    Setting(
        "allow_tf32",
        True,
        _parse_switch,
        "Whether float32 convolutions may use TF32 tensor cores. Off is strict float32, enforced.",
        "On is several times faster where computation binds, with 10 bits of mantissa in the "
        "products.",
    ),
    Setting(
        "deterministic",
        False,
        _parse_switch,
        "Whether results repeat bit by bit on one machine.",
        "On leaves out cuDNN's algorithms that add in any order, some of which are the fastest.",
    ),
    Setting(
        "overlap",
        True,
        _parse_switch,
        "Whether copies and computation run at the same time. Off runs the same steps one by one.",
        "Off is slower by up to three times; it makes a fault easier to find.",
    ),
    Setting(
        "verify",
        0,
        _parse_count,
        "How many random patches of each output are recomputed on the host in float64; a mismatch "
        "raises VerificationError. 0 is none.",
        "Each patch costs milliseconds, and catches a cuDNN that is wrong on this machine.",
    ),
    Setting(
        "machine",
        None,
        _parse_machine,
        "The performance model that plans are made with: a MachineModel, the path of a saved one, "
        "or the name of a shipped profile. None is the one fitted on this machine.",
        "Another machine's model gives correct results from slower plans; use it to plan for that "
        "machine.",
    ),
    Setting(
        "progress",
        "auto",
        _parse_progress,
        "A progress bar: 'auto' (on calls longer than 2 s in a terminal or notebook), True, False, "
        "or a callable that is given (done, total).",
        "A callable runs between the pieces of a call, so a slow one slows the call.",
    ),
)
"""Every setting, in the order of the documentation."""

_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True)
class Settings:
    """Every setting at one moment: what `current` returns.

    Frozen and hashable, so it can be part of a cache's key. `machine` and `progress` count in
    comparisons but not in the hash, since what users put there need not be hashable.

    Parameters
    ----------
    device, memory_limit, host_memory_limit, allow_tf32, deterministic, overlap, verify, machine, \
progress
        As in `SETTINGS`, each in its normal form. `memory_limit` is bytes (``int``), a fraction of
        the free memory (``float``) or None: see `ooc_cudnn.units.resolve_limit`.
    """

    device: str
    memory_limit: int | float | None
    host_memory_limit: int | None
    allow_tf32: bool
    deterministic: bool
    overlap: bool
    verify: int
    machine: MachineModel | str | None = field(hash=False)
    progress: Progress = field(hash=False)


# ---------------------------------------------------------------------------------------------
# What is set
# ---------------------------------------------------------------------------------------------


class _Layer:
    """One process-wide change; see the module's docstring for `decided`.

    The two flags are plain attributes: they are set from ``__del__``, which may run at any moment
    and must not take a lock.
    """

    __slots__ = ("deadline", "decided", "held", "thread", "values")

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = values
        self.thread = threading.get_ident()
        self.deadline = time.monotonic() + _UNDECIDED_SECONDS
        self.decided = False
        self.held = True  # its object is alive, so it may still be entered


@dataclass(frozen=True, eq=False)
class _Process:
    """What is set for the process. Replaced as a whole, so readers need no lock."""

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
    """What `settings` returns: enter it, or let it go."""

    __slots__ = ("_layer", "values")

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = values
        self._layer = _Layer(values)

    def __enter__(self) -> None:
        _replace_layers(lambda layers: tuple(each for each in layers if each is not self._layer))
        blocks = _blocks.get()
        _blocks.set(_Blocks((*(blocks.overrides if blocks else ()), self)))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        blocks = _blocks.get()
        overrides = list(blocks.overrides if blocks else ())
        # Blocks held open by generators may end in another order than they began.
        for index in reversed(range(len(overrides))):
            if overrides[index] is self:
                del overrides[index]
                break
        _blocks.set(_Blocks(tuple(overrides)) if overrides else None)

    def __del__(self) -> None:
        self._layer.decided = True
        self._layer.held = False

    def __repr__(self) -> str:
        return f"settings({', '.join(f'{name}={value!r}' for name, value in self.values.items())})"


_process = _Process()
_lock = threading.Lock()
_blocks: ContextVar[_Blocks | None] = ContextVar("ooc_cudnn_settings", default=None)


def settings(**overrides: object) -> Override:
    """Set for the process, or with ``with`` for a block.

    Parameters
    ----------
    **overrides
        Settings by name, as in the table of the documentation; `describe` lists them.

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
    _replace_layers(lambda layers: (*layers, override._layer))
    return override


def current() -> Settings:
    """Return every setting in effect here and now.

    The same object comes back until something changes, so it costs a fraction of a microsecond.

    Returns
    -------
    Settings

    Raises
    ------
    ValueError
        If an environment variable has a bad value; it is named.

    Examples
    --------
    >>> current() is current()
    True
    """
    process = _process
    base = process.snapshot
    if base is None or not process.settled:
        base = _settle()
    blocks = _blocks.get()
    return base if blocks is None else blocks.over(base)


class SettingRow(NamedTuple):
    """One row of `describe`: the table's columns, then the value in effect and where it is from."""

    name: str
    default: object
    environment_variable: str
    meaning: str
    trade_off: str
    value: object
    source: Source


def describe() -> list[SettingRow]:
    """Return a row per setting, for documentation and for ``ooc-cudnn doctor``.

    Returns
    -------
    list of SettingRow
        In the order of `SETTINGS`. `source` is "default", "environment", "process" or "block".

    Examples
    --------
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
            setting.name,
            setting.default,
            setting.environment_variable,
            setting.meaning,
            setting.trade_off,
            getattr(snapshot, setting.name),
            sources.get(setting.name, "default"),
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
                    layer.decided = True
                elif not layer.decided:
                    undecided.append(layer)
            if not undecided:
                environment = process.environment
                if environment is None:
                    environment = _read_environment(os.environ)
                layers = _coalesced(process.layers)
                defaults = {setting.name: setting.default for setting in SETTINGS}
                snapshot = _merged(defaults, (environment, *(each.values for each in layers)))
                _process = _Process(layers, layers, environment, snapshot)
                return snapshot
        for layer in undecided:
            while not layer.decided and layer in _process.layers:
                if time.monotonic() > layer.deadline:
                    layer.decided = True
                time.sleep(_POLL_SECONDS)


def _replace_layers(change: Callable[[tuple[_Layer, ...]], tuple[_Layer, ...]]) -> None:
    global _process
    with _lock:
        old = _process
        _process = _Process(change(old.layers), old.built_from, old.environment, old.snapshot)


def _coalesced(layers: tuple[_Layer, ...]) -> tuple[_Layer, ...]:
    """Join neighbours that nobody can enter any more: a loop of ``settings(...)`` must not grow."""
    result: list[_Layer] = []
    for layer in layers:
        if result and not layer.held and not result[-1].held:
            joined = _Layer({**result[-1].values, **layer.values})
            joined.decided, joined.held = True, False
            result[-1] = joined
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


def _forget() -> None:
    """Return to the defaults and read the environment again at the next use; for tests."""
    global _process
    with _lock:
        _process = _Process()
    _blocks.set(None)
