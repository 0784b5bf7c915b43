"""Files that processes share: what may lie in their place, and who is killed while writing."""

import errno
import os
import socket
import stat

import pytest

from perfmodel import MachineFileError, MachineModel, files, shipped
from perfmodel.files import open_file, read_file, remove_abandoned, replace_file, replacing
from tests.support.killed import killed_at_each_line

forks = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


def names(folder):
    return sorted(each.name for each in folder.iterdir())


def a_socket(path):
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.close()


NO_FILES = {
    "a folder": (os.mkdir, IsADirectoryError),
    "a pipe": (os.mkfifo, OSError),
    "a link to a device": (lambda path: os.symlink("/dev/zero", path), OSError),
    "a link to a folder": (lambda path: os.symlink("/", path), IsADirectoryError),
    "a link to nothing": (lambda path: os.symlink("nowhere", path), FileNotFoundError),
    "a link to itself": (lambda path: os.symlink(path, path), OSError),
    "a socket": (a_socket, OSError),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_refused_at_once(kind, tmp_path):
    """Reading a pipe that nobody writes to waited for ever, a link to /dev/zero took all memory."""
    make, error = NO_FILES[kind]
    path = tmp_path / "stored.json"
    make(path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(error, match=r"stored\.json"):
        open_file(path)
    with pytest.raises(error, match=r"stored\.json"):
        read_file(path, 100)
    with pytest.raises(error, match=r"stored\.json"):
        MachineModel.load(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_more_is_read_than_the_largest_size(tmp_path):
    path = tmp_path / "stored.json"
    path.write_bytes(b"x" * 100)
    assert read_file(path, 100) == b"x" * 100
    with pytest.raises(ValueError, match="more than 99 bytes"):
        read_file(path, 99)
    with pytest.raises(ValueError, match="more than 3 bytes"):
        read_file("/proc/self/status", 3)  # says that it has none
    with open(path, "wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(MachineFileError, match=r"stored\.json: it has more than"):
        MachineModel.load(path)


def test_a_file_is_replaced_or_stays_as_it_was(tmp_path):
    path = tmp_path / "stored.json"
    replace_file(path, "old")
    mode = stat.S_IMODE(path.stat().st_mode)
    path.with_name("other").touch()
    assert mode == stat.S_IMODE(path.with_name("other").stat().st_mode)
    with pytest.raises(TypeError), replacing(path) as stream:
        stream.writelines([b"half of the new", "no bytes"])
    assert (path.read_text(), names(tmp_path)) == ("old", ["other", "stored.json"])
    replace_file(str(path), "néw")
    assert (path.read_bytes(), names(tmp_path)) == ("néw".encode(), ["other", "stored.json"])


@pytest.mark.parametrize("step", ["fsync", "utime", "replace"])
def test_a_step_that_fails_leaves_the_old_file_alone(step, tmp_path, monkeypatch):
    path = tmp_path / "stored.json"
    replace_file(path, "old")

    def fails(*arguments):
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(os, step, fails)
    with pytest.raises(OSError, match="the disk is full"):
        replace_file(path, "new")
    assert (path.read_text(), names(tmp_path)) == ("old", ["stored.json"])


def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path):
    path = tmp_path / ("ü" * 127)
    replace_file(path, "content")
    assert names(tmp_path) == [path.name]


def make_old(folder):
    for each in folder.iterdir():
        os.utime(each, (0, 0))


def killed_while_writing(path, content, *files_):
    """Kill a child at each line of the writing; what is read and what lies there each time."""

    def write():
        with replacing(path) as stream:
            for start in range(0, len(content), 2**16):
                stream.write(content[start : start + 2**16])

    for at in killed_at_each_line(write, "perfmodel/files.py", __file__, *files_):
        yield at, path.read_bytes(), names(path.parent)


@pytest.mark.timeout(300)
class TestKilled:
    pytestmark = forks

    def test_at_each_line_the_file_is_the_old_one_or_the_new_one(self, tmp_path):
        path, new = tmp_path / "stored.json", b"new" * 2**16
        path.write_bytes(b"old")
        seen, most = [], 0
        for at, content, held in killed_while_writing(path, new):
            assert content in (b"old", new)
            seen.append((at, content == new))
            most = max(most, len(held))
            make_old(tmp_path)
            if content == new:
                path.write_bytes(b"old")
        assert {is_new for _, is_new in seen} == {False, True}
        assert seen[-1] == (-1, True)
        assert len(seen) > 20
        assert most == 2  # each writer removed what the one before it had left
        make_old(tmp_path)
        replace_file(path, "last")
        assert names(tmp_path) == ["stored.json"]

    def test_nothing_is_removed_that_may_be_in_use_or_is_none_of_its_own(self, tmp_path):
        path = tmp_path / "stored.json"
        unfinished = f"stored.json.{'0' * 32}"
        kept = [unfinished, f".other.json.{'0' * 32}", ".stored.json.lock", ".stored.json.0"]
        for name in kept:
            (tmp_path / name).touch()
        make_old(tmp_path)
        with replacing(path) as stream:
            make_old(tmp_path)  # it is locked, however old it looks
            assert len(names(tmp_path)) == len(kept) + 1
            child = os.fork()
            if child == 0:
                remove_abandoned(tmp_path)
                os._exit(0)
            os.waitpid(child, 0)
            kept.remove(f".other.json.{'0' * 32}")
            assert len(names(tmp_path)) == len(kept) + 1
            stream.write(b"new")
        assert names(tmp_path) == sorted([*kept, "stored.json"])
        young = tmp_path / f".stored.json.{'1' * 32}"
        young.touch()
        replace_file(path, "newer")
        assert young.exists()
        os.mkfifo(tmp_path / f".stored.json.{'2' * 32}")
        make_old(tmp_path)
        replace_file(path, "newest")
        assert names(tmp_path) == sorted([*kept, "stored.json", f".stored.json.{'2' * 32}"])


def test_where_files_cannot_be_locked_nothing_is_removed(tmp_path, monkeypatch):
    left = tmp_path / f".stored.json.{'0' * 32}"
    left.touch()
    make_old(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(files, "fcntl", None)
        replace_file(tmp_path / "stored.json", "content")
    assert left.exists()
    shipped("host").save(tmp_path / "stored.json")
    assert names(tmp_path) == ["stored.json"]
