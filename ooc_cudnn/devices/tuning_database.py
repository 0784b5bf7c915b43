"""The tuning database: measured cuDNN engines on disk.

A file says what it is and what it holds for. One that is of something else, or that cannot be read,
is as good as none, and that is said once: cuDNN's heuristics choose then, as without any.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.convolution_forms import KINDS
from ooc_cudnn.devices.engines import Measurement, Option, Tables, front
from ooc_cudnn.devices.machines import cache_directory, machine_key
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    AnyConvolution,
    forward_of,
    result_dtype,
)
from ooc_cudnn.tensor import DTYPES, ORDERS
from ooc_cudnn.warnings_once import warn_once
from perfmodel.files import at_once, read_file, replace_file
from perfmodel.record import mapping, members, number

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

#: Files before version 4 said an error of 0 of what had not been checked.
FORMAT, FORMAT_VERSION = "ooc_cudnn engines", 4
#: What engines depend on, of a device's identity.
TELLING = ("gpu", "cudnn")
#: Who stores waits so long for another process that does.
MOST_WAITING_SECONDS = 1.0
#: Larger files were not written here.
LARGEST_BYTES = 2**26
_GEOMETRY = ("x_shape", "w_shape", "padding", "stride", "dilation", "groups")
_SETTINGS = ("dtype", "allow_tf32", "deterministic")

_tables: WeakKeyDictionary[Device, Tables] = WeakKeyDictionary()


def tables_of(device: Device, *, tells_of_others: bool = True) -> Tables:
    """Return what was measured on a device; what is stored is read at first.

    If there is nothing, but of other cards, that is said: not where it is about to be measured.
    """
    found = _tables.get(device)
    if found is None:
        # threads that ask at once share one: what is measured is added to it
        found = _tables.setdefault(device, Tables(_stored(device, tells_of_others)))
    return found


def forget_tables() -> None:
    """Forget what was measured and is not stored (after calibration, and in tests)."""
    _tables.clear()


def engines_path(device: Device) -> Path:
    """Return the path of the file with a device's engines."""
    return cache_directory() / "engines" / f"{machine_key(_holds_for(device))}.json"


def save_tables(device: Device) -> Path:
    """Write what is known of a device's engines; whoever reads sees the old file or the new one.

    What another process stored meanwhile stays: of other launches, of those that were only read
    here, and where it tried every engine and this process did not. But engines that failed here go.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    path, known = engines_path(device), tables_of(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock_out_others(path):
        kept = Tables(_stored(device, tells_of_others=False))
        for measured in known.unstored():
            if measured.operation is not None and _can_be_read(measured):
                kept.add_unless_worse(measured)
        for operation, engine in known.dropped:
            kept.drop(operation, engine)
        data = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "identity": _holds_for(device),
            "launches": [_to_json(measured) for measured in kept],
        }
        replace_file(path, _laid_out(data))
    return path


def try_to_save_tables(device: Device) -> None:
    """Store them. Where that cannot be, a call goes on all the same: it is said once."""
    try:
        save_tables(device)
    except OSError as error:
        warn_once(f"engines that were measured cannot be stored: {error}.")


@contextmanager
def lock_out_others(path: Path) -> Iterator[None]:
    """Have other processes wait that store in the same file, for a second at most.

    Not where files cannot be locked; what one of two processes stores at once may be lost there.
    """
    with open(path.with_name(f".{path.name}.lock"), "ab", opener=at_once) as held:
        until = time.monotonic() + MOST_WAITING_SECONDS
        while fcntl is not None and time.monotonic() < until:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # a file system without locks
                break
            else:
                break
        yield


def _holds_for(device: Device) -> dict[str, str]:
    identity = device.identity()
    return {name: identity[name] for name in TELLING if name in identity}


def _stored(device: Device, tells_of_others: bool) -> Iterable[Measurement]:
    """Measurements that a file holds of a device; none, and a warning, where it cannot be used."""
    if device.engines is None:
        return ()
    path = engines_path(device)
    try:
        return _read(read_file(path, LARGEST_BYTES), _holds_for(device))
    except FileNotFoundError:
        if tells_of_others:
            _say_what_others_have(path)
    except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        warn_once(
            f"the stored engines of {device.name} are ignored, so cuDNN's heuristics choose: "
            f"{path}: {error}; 'ooc-cudnn tune' makes another file."
        )
    return ()


def _say_what_others_have(path: Path) -> None:
    """Say it if engines are stored, but of other cards or versions of cuDNN alone."""
    # another process may have stored them since
    stored = (each for each in sorted(path.parent.glob("*.json")) if each != path)
    own_name, *names = (each.stem.rpartition("_")[0] for each in (path, *stored))
    others = [name for name in dict.fromkeys(names) if name]
    if others:
        warn_once(
            f"no engines are stored for {own_name}, so cuDNN's heuristics choose; those for "
            f"{', '.join(others)} are not used: engines are of one card and one cuDNN. "
            "'ooc-cudnn tune' measures them here."
        )


def _read(content: bytes, identity: Mapping[str, str]) -> list[Measurement]:
    held = read_entries(content, (FORMAT, FORMAT_VERSION), identity, "launches")
    return [_from_json(each) for each in held["launches"]]


def read_entries(
    content: bytes, kind: tuple[str, int], identity: Mapping[str, str], entries: str, *more: str
) -> Mapping[str, Any]:
    """Read the entries of a file that says its format, version and identity.

    Raises
    ------
    TypeError, ValueError, RecursionError
        If it is not of that kind and for that identity, or has other members; with what is wrong.
    """
    (form, version), held = kind, mapping("the file", json.loads(content))
    if held.get("format") != form:
        raise ValueError(f"its format is not {form!r}")
    if held.get("version") != version:
        raise ValueError(f"its version is {held.get('version')!r}, not {version}")
    members("the file", held, ("format", "version", "identity", *more, entries))
    if held["identity"] != dict(identity):
        raise ValueError(f"it is of {held['identity']}, and this is {dict(identity)}")
    if not isinstance(held[entries], list):
        raise ValueError(f"its {entries} are no list")
    return held


def _can_be_read(measured: Measurement) -> bool:
    """True if a file that holds this can be read: pieces may have padding that no user may give."""
    try:
        return _from_json(_to_json(measured)).operation == measured.operation
    except (TypeError, ValueError):
        return False


def _to_json(measured: Measurement) -> dict[str, Any]:
    operation = measured.operation
    assert operation is not None
    forward = forward_of(operation)
    said = {name: getattr(forward, name) for name in (*_GEOMETRY, *_SETTINGS, "layout")}
    return {
        "function": operation.name,
        **said,
        "result_dtype": result_dtype(operation),
        "complete": measured.is_complete,
        "launching": measured.launching,
        "engines": [option.to_json() for option in measured.options],
    }


def _from_json(data: object) -> Measurement:
    names = ("function", *_GEOMETRY, *_SETTINGS, "layout", "result_dtype")
    held = members("a launch", data, (*names, "complete", "launching", "engines"))
    operation = operation_from({name: held[name] for name in names})
    if not isinstance(held["engines"], list):
        raise ValueError("the engines of a launch are no list")
    options = front(Option.from_json(each) for each in held["engines"])
    if any(not option.name or option.seconds <= 0.0 for option in options):
        raise ValueError("an engine has no name, or takes no time")
    launching = held["launching"]
    return Measurement(
        operation.work(),
        options,
        operation,
        None if launching is None else number("launching", launching),
        is_complete=_switch("complete", held["complete"]),
    )


def operation_from(said: Mapping[str, Any]) -> AnyConvolution:
    """Return the convolution that a file says, checked as a user's arguments are.

    Raises
    ------
    ValueError, TypeError
        If there is no such convolution.
    """
    function, layout, result = said["function"], said["layout"], said["result_dtype"]
    for name, value, known in (
        ("function", function, tuple(KINDS)),
        ("layout", layout, ORDERS),
        ("result_dtype", result, tuple(DTYPES)),
        ("dtype", said["dtype"], tuple(DTYPES)),
    ):
        if value not in known:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
    for name in ("allow_tf32", "deterministic"):
        _switch(name, said[name])
    shapes = tuple(tuple(said[name]) for name in ("x_shape", "w_shape"))
    if not all(type(extent) is int and extent > 0 for shape in shapes for extent in shape):
        raise ValueError(f"shapes {shapes} are not of whole numbers above 0")
    forward = Convolution.of(
        *shapes,
        padding=tuple(tuple(pair) for pair in said["padding"]),
        stride=tuple(said["stride"]),
        dilation=tuple(said["dilation"]),
        groups=said["groups"],
        **{name: said[name] for name in _SETTINGS},
    )
    return KINDS[function](replace(forward, layout=layout), result)


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it must be true or false")
    return value


def _laid_out(data: Mapping[str, Any]) -> str:
    """JSON with a line for each engine: short, and told apart by `diff`."""
    launches = [
        json.dumps({name: value for name, value in each.items() if name != "engines"})[:-1]
        + ', "engines": [\n    '
        + ",\n    ".join(map(json.dumps, each["engines"]))
        + "]}"
        for each in data["launches"]
    ]
    head = json.dumps({name: value for name, value in data.items() if name != "launches"})[:-1]
    return f'{head}, "launches": [\n  ' + ",\n  ".join(launches) + "]}\n"
