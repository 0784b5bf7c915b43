"""Copies of files."""

import os
import time
from types import SimpleNamespace

import pytest

from ooc_cudnn.calibration import files
from ooc_cudnn.calibration.session import Sample, Session
from ooc_cudnn.devices.measuring import Timing


def test_copies_of_files_that_seem_to_take_no_time_are_left_out(monkeypatch, tmp_path):
    class Busy:
        def fits(self, nbytes):
            return True

        def reserve(self, nbytes):
            return 0

        def in_turns(self, measures, fewest):
            names = "copy_in", "copy_out", "alone"
            found = [dict.fromkeys(names, Timing(0.0, 0.0)) for _ in measures]
            found[-1] = dict.fromkeys(names, Timing(1.0, 0.0))
            return found

    monkeypatch.setattr(files, "sizes_of", lambda session: (2**12, 2**13))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    session = Session(SimpleNamespace(kind="simulated"), 0, quick=True)
    session.bench = Busy()
    files.file_copies(session)
    assert list(session.measured) == ["copy_out/disk", "alone/copy_out/disk"]
    for held in session.measured.values():
        assert held == [Sample(2**13, Timing(1.0, 0.0))]


def scratch(cache):
    return sorted(cache.glob(f"{files.PREFIX}*"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_what_a_killed_calibration_left_goes_and_that_of_a_running_one_stays(monkeypatch, tmp_path):
    """192 MiB of files stayed for good each time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "ooc_cudnn"
    with files._scratch_directory() as running:
        child = os.fork()
        if child == 0:
            with files._scratch_directory() as folder:
                (folder / "copy_in").touch()
                os._exit(0)
        os.waitpid(child, 0)
        (cache / f"{files.PREFIX}0").mkdir()  # killed before it had a lock
        assert len(scratch(cache)) == 3
        with files._scratch_directory():
            assert len(scratch(cache)) == 4  # all may be about to be locked
        for folder in cache.iterdir():
            os.utime(folder, (0, time.time() - 100))
        with files._scratch_directory() as third:
            assert scratch(cache) == sorted([running, third])
    assert scratch(cache) == []
