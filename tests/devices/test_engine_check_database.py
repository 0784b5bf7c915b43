"""Verdicts on engines, stored: over processes, by several at once, and unreadable files."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from ooc_cudnn.devices import engine_check_database
from ooc_cudnn.devices.engine_check_database import (
    LARGEST_BYTES,
    forget_verdicts,
    save_verdicts,
    try_to_save_verdicts,
    verdicts_of,
    verdicts_path,
)
from ooc_cudnn.devices.engine_kinds import CheckedKind
from ooc_cudnn.devices.engine_verdicts import Verdict
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.warnings_once import forget_warnings

KIND = CheckedKind.of(Convolution.of((2, 8, 9, 9), (8, 8, 3, 3), padding=1))


class Card:
    """What verdicts ask of a device."""

    name = "fake"

    def __init__(self, cudnn="92800"):
        self.cudnn = cudnn

    def identity(self):
        return {"gpu": "Fake 9000", "driver": "1", "cudnn": self.cudnn}


@pytest.fixture
def card(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_verdicts()
    forget_warnings()
    yield Card()
    forget_verdicts()


def again(card):
    """The verdicts as another process reads them."""
    forget_verdicts()
    return verdicts_of(card)


def test_what_was_found_out_is_read_again(card):
    found = {"eng1": Verdict(True, 1e-7), "eng2": Verdict(False, 0.25), "eng3": Verdict(None)}
    for engine, verdict in found.items():
        verdicts_of(card).add(KIND, engine, verdict)
    save_verdicts(card)
    read = again(card)
    assert {engine: read.of(KIND, engine) for engine in found} == found
    assert read.of(KIND, "eng4") is None
    assert not read.is_searched
    other = CheckedKind.of(Convolution.of((2, 8, 9, 9), (8, 8, 3, 3), padding=1, stride=2))
    assert read.of(other, "eng1") is None


def test_what_is_not_finite_is_stored_without_its_size(card):
    verdicts_of(card).add(KIND, "eng1", Verdict(False, float("nan")))
    json.loads(save_verdicts(card).read_text(), parse_constant=pytest.fail)
    assert again(card).of(KIND, "eng1") == Verdict(False)


def test_a_search_is_stored(card):
    verdicts_of(card).finish_search()
    save_verdicts(card)
    assert again(card).is_searched
    assert not verdicts_of(Card("92900")).is_searched


def test_the_authors_search_is_of_one_version(card):
    assert verdicts_of(Card("91900")).is_built_in
    assert not verdicts_of(card).is_built_in


def test_they_lie_beside_the_tables_and_are_not_taken_for_some(card):
    path = save_verdicts(card)
    assert path.parent.name == "checked"
    assert path.parent.parent.name == "engines"
    assert "Fake-9000_92800" in path.name


def test_what_others_stored_meanwhile_stays(card):
    verdicts_of(card).add(KIND, "eng1", Verdict(True, 1e-7))
    mine = verdicts_of(card)
    theirs = again(card)
    theirs.add(KIND, "eng1", Verdict(False, 0.5))
    theirs.add(KIND, "eng2", Verdict(True, 1e-7))
    theirs.finish_search()
    save_verdicts(card)
    version = mine.version
    engine_check_database._verdicts[card] = mine
    mine.add(KIND, "eng3", Verdict(None))
    save_verdicts(card)
    read = again(card)
    assert [read.of(KIND, f"eng{n}").is_right for n in (1, 2, 3)] == [False, True, None]
    assert read.is_searched
    assert mine.of(KIND, "eng1") == Verdict(False, 0.5)  # and holds from here on
    assert mine.version != version


CHILD = """
    import sys
    from ooc_cudnn.devices.engine_verdicts import Verdict
    from ooc_cudnn.devices.engine_check_database import save_verdicts, verdicts_of
    from tests.devices.test_engine_check_database import KIND, Card

    card, mine = Card(), int(sys.argv[1])
    verdicts = verdicts_of(card)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(10):
        verdicts.add(KIND, f"eng{10 * mine + number}", Verdict(number % 2 == 0, 0.1))
        save_verdicts(card)
"""


def test_processes_that_store_at_once_lose_nothing(card):
    pytest.importorskip("fcntl")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHILD), str(mine)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for mine in range(3)
    ]  # fmt: skip
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        child.communicate(timeout=120)
        assert child.returncode == 0
    read = again(card)
    assert [read.of(KIND, f"eng{n}").is_right for n in range(30)] == [True, False] * 15


WRITTEN = {
    "no JSON": lambda data: "{",
    "no object": lambda data: "[]",
    "too deep": lambda data: "[" * 100_000,
    "another format": lambda data: json.dumps(data | {"format": "ooc_cudnn engines"}),
    "another version": lambda data: json.dumps(data | {"version": 2}),
    "of another card": lambda data: json.dumps(data | {"identity": {"gpu": "other"}}),
    "no truth": lambda data: json.dumps(data | {"searched": 1}),
    "no list": lambda data: json.dumps(data | {"verdicts": {}}),
    "no verdict": lambda data: json.dumps(data | {"verdicts": [{"kind": "x"}]}),
    "no right": lambda data: json.dumps(
        data | {"verdicts": [{"kind": "x", "engine": "eng1", "right": "no", "error": None}]}
    ),
    "no number": lambda data: json.dumps(
        data | {"verdicts": [{"kind": "x", "engine": "eng1", "right": True, "error": "big"}]}
    ),
    "too large": lambda data: " " * (LARGEST_BYTES + 1),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_that_cannot_be_read_is_as_good_as_none(card, name):
    path = save_verdicts(card)
    path.write_text(WRITTEN[name](json.loads(path.read_text())))
    with pytest.warns(UserWarning, match=r"is ignored, so they are checked again"):
        verdicts = again(card)
    assert verdicts.items() == []
    forget_warnings()
    verdicts.add(KIND, "eng1", Verdict(True, 1e-7))
    with pytest.warns(UserWarning, match=r"is ignored"):  # when it is written over
        save_verdicts(card)
    assert again(card).of(KIND, "eng1") == Verdict(True, 1e-7)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
@pytest.mark.parametrize("kind", ["pipe", "endless", "folder", "nothing"])
def test_what_is_no_file_is_not_read(card, kind):
    """A pipe would keep the call waiting, and /dev/zero never ends."""
    path = verdicts_path(card)
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.with_name("nowhere"))
        assert verdicts_of(card).items() == []
        return
    with pytest.warns(UserWarning, match="is ignored"):
        assert verdicts_of(card).items() == []


def test_a_call_does_without_storing(card):
    path = verdicts_path(card)
    path.parent.parent.mkdir(parents=True)
    path.parent.write_text("a file")
    verdicts_of(card).add(KIND, "eng1", Verdict(True, 1e-7))
    with pytest.warns(UserWarning, match="cannot be stored, so that each process checks them"):
        try_to_save_verdicts(card)
