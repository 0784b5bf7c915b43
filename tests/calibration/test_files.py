"""Copies of files."""

from types import SimpleNamespace

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
