"""Tables of engines on disk."""

import dataclasses
import json
import os
import warnings
from contextlib import contextmanager
from threading import Thread

import numpy as np
import pytest

from ooc_cudnn.devices import tuning_database
from ooc_cudnn.devices.engines import Engine, Measurement, Option
from ooc_cudnn.devices.tuning_database import (
    engines_path,
    forget_tables,
    operation_from,
    save_tables,
    tables_of,
)
from ooc_cudnn.functions.tune.tune import finish_tuning
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.warnings_once import forget_warnings
from tests.support.fake_cudnn import FakeEngine
from tests.support.tuned import KIB, W, X, planned, tuned


def test_what_was_measured_is_read_by_later_processes(make):
    device = make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 8 * KIB))
    (measured,) = tuned()
    forget_tables()
    (read,) = tables_of(device)
    assert read == dataclasses.replace(measured, is_stored=True)
    assert engines_path(device).name.startswith("Fake-9000_91900_")


def test_processes_do_not_lose_what_others_stored(make):
    device = make(FakeEngine(100, 3e-6))
    tuned()
    forget_tables()
    mine = tables_of(device)
    mine._known.clear()
    mine._by_kind.clear()
    operation = Convolution.of((8, 2, 16, 16), (4, 2, 3, 3))
    option = Option(1.0, 0, Engine(100), "eng100", 1e-7)
    mine.add(Measurement(operation.work(), (option,), operation))
    save_tables(device)
    forget_tables()
    assert len(list(tables_of(device))) == 2


def test_what_was_only_read_is_not_written_over_what_others_stored(make):
    """A call that stored a new size took away what `tune` had found out since it was begun."""
    device = make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6))
    operation = Convolution.of(X.shape, W.shape, padding=1)
    slow, fast = (Option(s, 0, Engine(n), f"eng{n}") for n, s in ((100, 3e-6), (101, 1e-6)))
    tables_of(device).add(Measurement(operation.work(), (slow,), operation, is_complete=False))
    save_tables(device)
    forget_tables()
    mine = tables_of(device)
    assert mine.options(operation) == (slow,)

    forget_tables()  # another process tunes
    tables_of(device).add(Measurement(operation.work(), (fast,), operation))
    save_tables(device)

    tuning_database._tables[device] = mine
    other = Convolution.of((8, 2, 16, 16), (4, 2, 3, 3))
    mine.add(Measurement(other.work(), (slow,), other))
    save_tables(device)
    forget_tables()
    assert tables_of(device).options(operation) == (fast,)
    assert tables_of(device).options(other) == (slow,)

    tuning_database._tables[device] = mine
    mine.add(Measurement(operation.work(), (slow,), operation, is_complete=False))
    save_tables(device)
    forget_tables()
    assert tables_of(device).options(operation) == (fast,)


@pytest.mark.parametrize("waits", [60.0, 0.0])
def test_processes_that_store_at_once_take_turns(make, monkeypatch, waits):
    """Of two that stored 60 launches each, at once, the file kept 78 of 120."""
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(tuning_database, "MOST_WAITING_SECONDS", waits)
    device = make(FakeEngine(100, 1e-6))
    path = stored(device)
    path.unlink()
    storing = Thread(target=save_tables, args=(device,))
    with open(path.with_name(f".{path.name}.lock"), "w", encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        storing.start()
        storing.join(0.2 if waits else None)  # it does without where the other one hangs
        assert path.exists() == (not waits)
    storing.join()
    assert path.exists()


def test_reading_takes_as_long_for_each_of_many_sizes(make, monkeypatch):
    """A call with its 1400th size of images read the file for 22 s, and wrote it for 67."""
    device, asked, work = make(FakeEngine(100, 1e-6)), [], Convolution.work
    monkeypatch.setattr(Convolution, "work", lambda self: (asked.append(None), work(self))[1])

    def works_of(count):
        forget_tables()
        engines_path(device).unlink(missing_ok=True)
        for extent in range(count):
            operation = Convolution.of((1, 4, 100 + extent, 16), W.shape)
            option = Option(1.0, 0, Engine(100), "eng100")
            tables_of(device).add(Measurement(operation.work(), (option,), operation))
        save_tables(device)
        forget_tables()
        asked.clear()
        assert len(list(tables_of(device))) == count
        save_tables(device)
        return len(asked) / count

    assert works_of(80) == works_of(20)


def test_an_engine_that_failed_is_not_stored_though_there_is_no_other(make):
    device = make(FakeEngine(100, 1e-6))
    path = stored(device)
    assert "eng101" in path.read_text()
    tables_of(device).drop(Convolution.of(X.shape, W.shape, padding=1), Engine(101))
    save_tables(device)
    assert "eng101" not in path.read_text()
    forget_tables()
    assert not tables_of(device).options(Convolution.of(X.shape, W.shape, padding=1))


def broken(data, **changes):
    """A stored table, with some values of its first launch changed."""
    launch = {**data["launches"][0], **changes}
    return json.dumps({**data, "launches": [launch]})


BAD = {
    "empty": lambda data: "",
    "cut off": lambda data: json.dumps(data)[:-40],
    "not JSON": lambda data: "\0\1\2",
    "deep": lambda data: "[" * 100_000,
    "a list": lambda data: "[]",
    "another format": lambda data: json.dumps({**data, "format": "shopping list"}),
    "newer": lambda data: json.dumps({**data, "version": data["version"] + 1}),
    "older": lambda data: json.dumps({**data, "version": data["version"] - 1}),
    "another card": lambda data: json.dumps(
        {**data, "identity": {"gpu": "other", "cudnn": "91900"}}
    ),
    "another cuDNN": lambda data: json.dumps(
        {**data, "identity": {"gpu": "Fake 9000", "cudnn": "8"}}
    ),
    "no launches": lambda data: json.dumps({n: v for n, v in data.items() if n != "launches"}),
    "launches of no kind": lambda data: json.dumps({**data, "launches": 7}),
    "an unknown name": lambda data: broken(data, more=1),
    "an unknown function": lambda data: broken(data, function="pooling_forward"),
    "an unknown dtype": lambda data: broken(data, dtype="int8"),
    "an unknown layout": lambda data: broken(data, layout="sideways"),
    "a shape of words": lambda data: broken(data, x_shape=["a", "b", 1, 1]),
    "a negative shape": lambda data: broken(data, x_shape=[8, -4, 16, 16]),
    "a shape of fractions": lambda data: broken(data, x_shape=[8, 4, 16.5, 16]),
    "a shape beyond all numbers": lambda data: broken(data, x_shape=[10**400, 4, 16, 16]),
    "channels that do not fit": lambda data: broken(data, w_shape=[4, 3, 3, 3]),
    "no switch": lambda data: broken(data, allow_tf32="yes"),
    "no pairs": lambda data: broken(data, padding=[1, 1]),
    "engines of no kind": lambda data: broken(data, engines=3),
    "negative seconds": lambda data: broken(
        data, engines=[{**data["launches"][0]["engines"][0], "seconds": -1.0}]
    ),
    "no seconds": lambda data: broken(
        data, engines=[{**data["launches"][0]["engines"][0], "seconds": 0}]
    ),
    "an error of NaN": lambda data: broken(
        data, engines=[{**data["launches"][0]["engines"][0], "error": np.nan}]
    ),
    "no engine": lambda data: broken(
        data, engines=[{**data["launches"][0]["engines"][0], "engine": "eng4"}]
    ),
    "an engine beyond all numbers": lambda data: broken(
        data, engines=[{**data["launches"][0]["engines"][0], "engine": {"number": 2**63}}]
    ),
    "a knob beyond all numbers": lambda data: broken(
        data,
        engines=[
            {
                **data["launches"][0]["engines"][0],
                "engine": {"number": 1, "knobs": {"TILE_SIZE": 2**63}},
            }
        ],
    ),
    "an unknown form": lambda data: broken(
        data,
        engines=[{**data["launches"][0]["engines"][0], "engine": {"number": 1, "form": "odd"}}],
    ),
}


def stored(device):
    """A table of one launch, made by hand and stored: what its file holds."""
    operation = Convolution.of(X.shape, W.shape, padding=1)
    option = Option(1e-6, 8 * KIB, Engine(101), "eng101", 1e-7)
    tables_of(device).add(Measurement(operation.work(), (option,), operation))
    return save_tables(device)


@pytest.mark.parametrize("what", BAD)
def test_a_file_that_cannot_be_used_is_ignored_and_said_once(make, what):
    device = make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 8 * KIB))
    path = stored(device)
    path.write_text(BAD[what](json.loads(path.read_text())), encoding="utf-8")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            forget_tables()
            assert not list(tables_of(device))
    (only,) = said
    assert "stored engines of fake are ignored" in str(only.message)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_ignored_and_said_once(make, what):
    """Reading a pipe waited for ever."""
    device = make(FakeEngine(100, 3e-6))
    path = stored(device)
    path.unlink()
    what(path)
    forget_tables()
    with pytest.warns(UserWarning, match="stored engines of fake are ignored") as said:
        assert not list(tables_of(device))
    assert str(path) in str(said[0].message)


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_the_lock_is_no_reason_to_wait(make):
    device = make(FakeEngine(100, 3e-6))
    path = stored(device)
    lock = path.with_name(f".{path.name}.lock")
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(OSError, match="lock"):
        save_tables(device)
    lock.unlink()
    precious = path.with_name("precious")
    precious.write_text("content")
    lock.symlink_to(precious)
    save_tables(device)
    assert precious.read_text() == "content"


def test_calls_do_without_a_file_that_cannot_be_used_and_tuning_mends_it(make):
    device = make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 8 * KIB))
    stored(device).write_text("{")
    forget_tables()
    with pytest.warns(UserWarning, match="so cuDNN's heuristics choose"):
        assert planned().algorithms == ("eng100",)
    tuned()
    assert planned().algorithms == ("eng101 (measured)",)


@contextmanager
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def store_beside(device, *names):
    """Have files of other cards, and other files, where a device's engines are stored."""
    folder = engines_path(device).parent
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("{}")


@pytest.mark.parametrize(
    ("moved", "own"),
    [({"cudnn": "92000"}, "Fake-9000_92000"), ({"gpu": "Fake 8000"}, "Fake-8000_91900")],
)
def test_that_only_others_have_engines_stored_is_said_once(make, moved, own):
    """A home directory may be one for several cards, and outlive a version of cuDNN."""
    device = make(FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 8 * KIB))
    with no_warning():  # for the first one
        tuned()
    device.told = {**device.told, **moved}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            forget_tables()
            assert not list(tables_of(device))
    (only,) = said
    assert f"no engines are stored for {own}, " in str(only.message)
    assert "those for Fake-9000_91900 are not used" in str(only.message)
    save_tables(device)
    forget_tables()
    forget_warnings()  # as another process
    with no_warning():
        assert not list(tables_of(device))


def test_others_that_have_engines_stored_are_named_once_each(make):
    """Two cards of one name, and a file of another program."""
    device = make(FakeEngine(100, 1e-6))
    store_beside(device, "notes.json")
    with no_warning():
        assert not list(tables_of(device))
    store_beside(device, "A_1_x.json", "A_1_y.json", "B_1_z.json")
    forget_tables()
    with pytest.warns(UserWarning, match="those for A_1, B_1 are not used"):
        assert not list(tables_of(device))


def test_tuning_does_not_say_that_it_is_to_be_done(make):
    device = make(FakeEngine(100, 1e-6))
    store_beside(device, "A_1_x.json")
    with no_warning():
        assert finish_tuning(device) == []
        forget_tables()
        tuned()
        assert planned().algorithms == ("eng100 (measured)",)


def test_a_folder_that_cannot_be_written_is_no_hindrance_to_calls(make, tmp_path):
    make(FakeEngine(100, 3e-8), FakeEngine(101, 1e-8))
    (tmp_path / "ooc_cudnn" / "engines").write_text("a file")
    with pytest.warns(UserWarning, match="are ignored"):
        assert planned().algorithms == ("eng100",)
    with pytest.raises(OSError, match=r"exists|directory"):
        tuned()


def test_what_no_user_may_ask_for_is_not_stored(make):
    """A piece may see more padding than a call may have: such a file could not be read."""
    device = make(FakeEngine(100, 1e-6))
    piece = Convolution((1, 4, 2, 16), (4, 4, 3, 3), ((-1, 9), (1, 1)), (1, 1), (1, 1))
    option = Option(1.0, 0, Engine(100), "eng100", 1e-7)
    tables_of(device).add(Measurement(piece.work(), (option,), piece))
    save_tables(device)
    forget_tables()
    assert not list(tables_of(device))


def test_an_operation_is_what_its_file_says():
    with pytest.raises(ValueError, match="function is 'x'"):
        operation_from({"function": "x", "layout": "", "result_dtype": "", "dtype": ""})


def test_what_another_process_stores_meanwhile_is_not_taken_for_another_card(make, monkeypatch):
    """It was not there as it was read, and is as others are listed."""
    device = make(FakeEngine(100, 1e-6))
    path = tuning_database.engines_path(device)

    def read_before_it_is_stored(*arguments):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
        raise FileNotFoundError

    monkeypatch.setattr(tuning_database, "read_file", read_before_it_is_stored)
    with no_warning():
        assert list(tables_of(device)) == []
