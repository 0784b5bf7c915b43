"""Settings: the table, the four places a value comes from, and who sees what when."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import importlib
import os
import pickle
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import perfmodel
from ooc_cudnn.settings import current, describe, settings
from ooc_cudnn.settings_table import SETTINGS, Settings

# By this road: the package's attribute of this name is the function.
module = importlib.import_module("ooc_cudnn.settings")

DEFAULTS = {
    "device": "auto",
    "memory_limit": None,
    "host_memory_limit": None,
    "allow_tf32": True,
    "deterministic": False,
    "overlap": True,
    "verify": 0,
    "machine": None,
    "tune_seconds": 0.0,
    "planning_seconds": 10.0,
    "plan_cache": True,
    "progress": "auto",
}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for setting in SETTINGS:
        monkeypatch.delenv(setting.environment_variable, raising=False)
    module._forget()
    yield
    module._forget()


def in_a_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def unhashable() -> Any:
    class Bar:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, done: int, total: int) -> None: ...

    return Bar()


# The table


def test_table_is_the_one_list() -> None:
    assert {setting.name: setting.default for setting in SETTINGS} == DEFAULTS
    assert [setting.name for setting in SETTINGS] == [
        field.name for field in dataclasses.fields(Settings)
    ]
    assert dataclasses.asdict(current()) == DEFAULTS
    for setting in SETTINGS:
        assert setting.environment_variable == f"OOC_CUDNN_{setting.name.upper()}"
        assert setting.parse(setting.default, setting.name) == setting.default
        assert setting.meaning.endswith(".")
        assert setting.trade_off.endswith(".")


SWITCH_TEXTS = [
    *((text, True) for text in ("1", "true", "yes", "on", "True", " ON ")),
    *((text, False) for text in ("0", "false", "no", "off", "FALSE", "Off")),
]
TEXTS: list[tuple[str, str, object]] = [
    *(("device", text, text.lower()) for text in ("auto", "cuda", "CUDA:0", "cuda:12", "Host")),
    ("memory_limit", "16GiB", 16 * 2**30),
    ("memory_limit", "1TiB", 2**40),
    ("memory_limit", "0.5", 0.5),
    ("memory_limit", "25%", 0.25),
    ("memory_limit", "1", 1),
    ("host_memory_limit", "64 GB", 64 * 10**9),
    *(
        (name, text, value)
        for name in ("allow_tf32", "deterministic", "overlap", "plan_cache", "progress")
        for text, value in SWITCH_TEXTS
    ),
    ("verify", "12", 12),
    ("machine", "h200", "h200"),
    ("progress", "AUTO", "auto"),
]
SHIPPED = Path(perfmodel.__file__).parent / "machines"
VALUES: list[tuple[str, object, object]] = [
    ("memory_limit", None, None),
    ("memory_limit", 2**30, 2**30),
    ("memory_limit", 0.25, 0.25),
    ("memory_limit", 1.0, 1.0),
    ("memory_limit", np.int64(4096), 4096),
    ("host_memory_limit", None, None),
    ("host_memory_limit", 5, 5),
    ("allow_tf32", False, False),
    ("allow_tf32", np.False_, False),
    ("verify", 3, 3),
    ("verify", np.int32(3), 3),
    ("machine", None, None),
    ("machine", SHIPPED / "h200.json", str(SHIPPED / "h200.json")),
    ("machine", os.path.relpath(SHIPPED / "h200.json"), str(SHIPPED / "h200.json")),
    ("machine", perfmodel.shipped("host"), perfmodel.shipped("host")),
    ("progress", True, True),
    ("progress", print, print),
]


@pytest.mark.parametrize(("name", "given", "expected"), [*TEXTS, *VALUES])
def test_value_is_normalised(name: str, given: object, expected: object) -> None:
    with settings(**{name: given}):
        value = getattr(current(), name)
        assert value == expected
        assert type(value) is type(expected)
    assert getattr(current(), name) == DEFAULTS[name]


@pytest.mark.parametrize(("name", "text", "expected"), TEXTS)
def test_environment(
    name: str, text: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"OOC_CUDNN_{name.upper()}", text)
    value = getattr(current(), name)
    assert value == expected
    assert type(value) is type(expected)


BAD: list[tuple[str, object, type[Exception], str]] = [
    ("device", "gpu", ValueError, "'auto', 'cuda', 'cuda:N'"),
    ("device", "cuda:", ValueError, "'host'"),
    ("device", "cuda:-1", ValueError, "'host'"),
    ("device", "cuda:01", ValueError, "'host'"),
    ("device", 0, TypeError, "'host'"),
    ("device", None, TypeError, "'host'"),
    ("memory_limit", "lots", ValueError, "'16GiB'"),
    ("memory_limit", 0, ValueError, "positive"),
    ("memory_limit", -5, ValueError, "positive"),
    ("memory_limit", 1.5, ValueError, "fraction"),
    ("memory_limit", float("nan"), ValueError, "finite"),
    ("memory_limit", True, TypeError, "bool"),
    ("host_memory_limit", 0.5, ValueError, "total that is not known"),
    ("host_memory_limit", "50%", ValueError, "total that is not known"),
    ("allow_tf32", 1, TypeError, "True or False"),
    ("allow_tf32", None, TypeError, "True or False"),
    ("deterministic", "maybe", ValueError, "yes"),
    ("overlap", [], TypeError, "True or False"),
    ("verify", -1, ValueError, "0 or more"),
    ("verify", "-1", ValueError, "0 or more"),
    ("verify", "many", ValueError, "0 or more"),
    ("verify", True, TypeError, "bool"),
    ("verify", 1.0, TypeError, "float"),
    ("machine", "", ValueError, "empty"),
    ("machine", 3, TypeError, "MachineModel"),
    ("machine", "h20", ValueError, "did you mean 'h200'"),
    ("machine", "my.json", ValueError, "there is no such file"),
    ("machine", "/nowhere/machine", ValueError, "there is no such file"),
    ("machine", "/", ValueError, "is a folder"),
    ("machine", "/dev/zero", ValueError, "a device, not a file"),
    ("machine", __file__, ValueError, "not JSON"),
    *(
        ("planning_seconds", value, ValueError, "0 or more")
        for value in (-1, float("nan"), float("inf"), 10**400, "abc", "1e400", "")
    ),
    ("planning_seconds", True, TypeError, "bool"),
    ("tune_seconds", None, TypeError, "NoneType"),
    ("progress", "sometimes", ValueError, "callable"),
    ("progress", 1, TypeError, "callable"),
    ("progress", None, TypeError, "callable"),
]


@pytest.mark.parametrize(("name", "value", "kind", "part"), BAD)
def test_bad_value_names_itself_and_the_rule(
    name: str, value: object, kind: type[Exception], part: str
) -> None:
    before = current()
    with pytest.raises(kind) as caught:
        settings(**{name: value})
    assert str(caught.value).startswith(f"{name}={value!r} ")
    assert part in str(caught.value)
    assert current() is before


@pytest.mark.parametrize(
    ("name", "text"), [(name, value) for name, value, *_ in BAD if isinstance(value, str) and value]
)
def test_bad_environment_variable_is_named(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"OOC_CUDNN_{name.upper()}"
    monkeypatch.setenv(variable, text)
    for _ in range(2):  # not only at the first use
        with pytest.raises(ValueError, match=f"^environment variable {variable}='{text}' "):
            current()
    monkeypatch.delenv(variable)
    assert dataclasses.asdict(current()) == DEFAULTS  # mended without a restart


def test_a_file_that_is_set_is_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked for at the next call, in the folder that was current then."""
    perfmodel.shipped("h200").save(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    with settings(machine="mine"):
        monkeypatch.chdir("/")
        machine = current().machine
        assert isinstance(machine, str)
        assert perfmodel.MachineModel.load(machine) == perfmodel.shipped("h200")
    (tmp_path / "h200").write_text("a shipped profile's name stays that")
    monkeypatch.chdir(tmp_path)
    with settings(machine="h200"):
        assert current().machine == "h200"


def test_environment_is_read_once_and_empty_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OOC_CUDNN_VERIFY", "2")
    monkeypatch.setenv("OOC_CUDNN_DEVICE", " ")
    assert (current().verify, current().device) == (2, "auto")
    monkeypatch.setenv("OOC_CUDNN_VERIFY", "3")
    settings(overlap=False)
    assert (current().verify, current().overlap) == (2, False)


def test_unknown_name_suggests_and_lists() -> None:
    with pytest.raises(TypeError, match=r"'memory_limt', did you mean 'memory_limit'\?") as caught:
        settings(memory_limt="1GiB")
    for name in DEFAULTS:
        assert name in str(caught.value)
    with pytest.raises(TypeError, match=r"'zzz'\. There are: device"):
        settings(zzz=1)


def test_all_or_nothing() -> None:
    before = current()
    with pytest.raises(ValueError, match="device="):
        settings(verify=3, memory_limit="1GiB", device="gpu")
    with pytest.raises(TypeError, match="unknown"):
        settings(verify=3, nonsense=1)
    assert current() is before
    with settings(verify=1), pytest.raises(ValueError, match="device="), settings(device="gpu"):
        pass
    assert current() is before


# The process


def test_statement_holds_for_every_thread_at_once() -> None:
    assert current().verify == 0
    settings(verify=3)
    assert in_a_thread(lambda: current().verify) == 3
    assert current().verify == 3
    settings(verify=4, overlap=False)
    assert (current().verify, current().overlap) == (4, False)
    in_a_thread(lambda: settings(verify=5))
    assert (current().verify, current().overlap) == (5, False)


def test_kept_object_holds_for_every_thread() -> None:
    kept = settings(verify=3)
    assert in_a_thread(lambda: current().verify) == 3  # waits for `with`, in vain, then goes on
    assert current().verify == 3
    assert repr(kept) == "settings(verify=3)"


def test_kept_object_needs_no_wait_once_its_thread_reads() -> None:
    kept = settings(verify=3)
    assert current().verify == 3
    assert kept._layer.is_decided
    assert in_a_thread(lambda: current().verify) == 3


def test_many_statements_do_not_pile_up() -> None:
    kept = settings(overlap=False)
    for count in range(200):
        settings(verify=count)
        assert current().verify == count
    assert len(module._process.layers) <= 3
    with kept:
        assert current().overlap is False
    assert (current().overlap, current().verify) == (True, 199)


# Blocks


def test_blocks_nest_and_restore() -> None:
    before = current()
    with settings(verify=1, overlap=False):
        with settings(verify=2):
            assert (current().verify, current().overlap) == (2, False)
            assert current() is current()
        assert (current().verify, current().overlap) == (1, False)
        with settings():
            assert (current().verify, current().overlap) == (1, False)
    assert current() is before  # so a cache keyed on it stays warm


def test_block_restores_after_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), settings(verify=1):
        raise KeyboardInterrupt
    assert current().verify == 0


def test_block_is_for_its_thread_only() -> None:
    with settings(verify=1):
        assert in_a_thread(lambda: current().verify) == 0
        assert current().verify == 1


def test_statement_inside_a_block_is_for_the_process() -> None:
    with settings(verify=1):
        settings(verify=9, overlap=False)
        assert (current().verify, current().overlap) == (1, False)  # the block is nearer
        assert in_a_thread(lambda: current().verify) == 9
    assert current().verify == 9


def test_block_sees_what_another_thread_sets_for_the_process() -> None:
    with settings(verify=1):
        assert current().overlap is True
        in_a_thread(lambda: settings(overlap=False))
        assert (current().verify, current().overlap) == (1, False)


def test_object_entered_late_takes_the_process_change_back() -> None:
    kept = settings(verify=1)
    assert current().verify == 1
    with kept:
        assert current().verify == 1
        assert in_a_thread(lambda: current().verify) == 0
    assert current().verify == 0


def test_object_is_reusable_and_reentrant() -> None:
    block = settings(verify=1)
    for _ in range(2):
        with block, settings(verify=2), block:
            assert current().verify == 1
        assert current().verify == 0


def test_blocks_of_interleaved_generators() -> None:
    def generator(count: int) -> Generator[int, None, None]:
        with settings(verify=count):
            yield current().verify

    first, second = generator(1), generator(2)
    assert (next(first), next(second)) == (1, 2)
    first.close()
    assert current().verify == 2
    second.close()
    assert current().verify == 0


def test_blocks_of_asyncio_tasks_are_apart() -> None:
    async def task(count: int) -> list[int]:
        seen = []
        with settings(verify=count):
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append(current().verify)
        return [*seen, current().verify]

    async def both() -> list[list[int]]:
        return list(await asyncio.gather(task(1), task(2)))

    assert asyncio.run(both()) == [[1, 1, 1, 0], [2, 2, 2, 0]]


def test_reader_waits_until_with_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_UNDECIDED_SECONDS", 10.0)  # never, on a busy machine too
    block = settings(verify=1)  # between the call and `with`
    seen: list[int] = []
    reader = threading.Thread(target=lambda: seen.append(current().verify))
    reader.start()
    reader.join(0.02)
    assert seen == []
    with block:
        reader.join(10)
        assert seen == [0]


@contextlib.contextmanager
def frequent_thread_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def test_blocks_never_show_in_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_UNDECIDED_SECONDS", 10.0)  # never, on a busy machine too
    stop = threading.Event()

    def watch() -> set[int]:
        seen = set()
        while not stop.is_set():
            seen.add(current().verify)
        return seen

    def enter(count: int) -> set[int]:
        seen = set()
        for _ in range(150):
            with settings(verify=count):
                seen.add(current().verify)
        return seen

    with frequent_thread_switches(), ThreadPoolExecutor(5) as pool:
        watchers = [pool.submit(watch) for _ in range(2)]
        enterers = [pool.submit(enter, count) for count in (1, 2, 3)]
        try:
            assert [each.result() for each in enterers] == [{1}, {2}, {3}]
        finally:
            stop.set()
        assert [each.result() for each in watchers] == [{0}, {0}]
    assert current().verify == 0
    assert module._process.layers == ()


def test_statements_of_many_threads_all_arrive() -> None:
    names = ("allow_tf32", "overlap", "deterministic")

    def flip(name: str) -> None:
        for index in range(101):
            settings(**{name: index % 2 == 0})

    with frequent_thread_switches(), ThreadPoolExecutor(3) as pool:
        list(pool.map(flip, names))
    assert [getattr(current(), name) for name in names] == [True, True, True]


def test_object_dropped_by_the_garbage_collector() -> None:
    class Holder:
        pass

    holder = Holder()
    holder.itself = holder  # type: ignore[attr-defined]
    holder.kept = settings(verify=1)  # type: ignore[attr-defined]
    del holder
    gc.collect()
    assert in_a_thread(lambda: current().verify) == 1


# The snapshot


def test_snapshot_is_frozen_hashable_and_comparable() -> None:
    before = current()
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.verify = 3  # type: ignore[misc]
    with settings(progress=unhashable(), machine=perfmodel.shipped("host"), verify=2):
        inside = current()
    assert hash(inside) == hash(dataclasses.replace(inside))
    assert inside != before
    assert {before: 1, inside: 2}[inside] == 2
    assert pickle.loads(pickle.dumps(before)) == before


def test_current_is_cheap() -> None:
    """A fraction of a microsecond: it calls next to nothing, and makes nothing anew."""
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            called.append(f"{event} in {frame.f_code.co_name}")

    for blocks in (settings(), settings(verify=1)):
        with blocks:
            assert current() is current()
            called.clear()
            sys.setprofile(note)
            try:
                current()
            finally:
                sys.setprofile(None)
            assert len(called) <= 4, called  # the last is `setprofile` itself


def test_describe_says_where_each_value_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OOC_CUDNN_VERIFY", "2")
    monkeypatch.setenv("OOC_CUDNN_OVERLAP", "off")
    monkeypatch.setenv("OOC_CUDNN_DEVICE", "cuda")
    settings(overlap=True, device="host")
    with settings(device="cuda:1"):
        rows = {row.name: row for row in describe()}
    assert list(rows) == list(DEFAULTS)
    assert {name: (rows[name].value, rows[name].source) for name in list(rows)[:8]} == {
        "device": ("cuda:1", "block"),
        "memory_limit": (None, "default"),
        "host_memory_limit": (None, "default"),
        "allow_tf32": (True, "default"),
        "deterministic": (False, "default"),
        "overlap": (True, "process"),
        "verify": (2, "environment"),
        "machine": (None, "default"),
    }
    for setting in SETTINGS:
        row = rows[setting.name]
        assert (row.default, row.environment_variable) == (
            setting.default,
            setting.environment_variable,
        )
        assert (row.meaning, row.trade_off) == (setting.meaning, setting.trade_off)
    assert {row.name: row.source for row in describe()}["device"] == "process"
