"""A full disk under a result, and a machine's model that several processes write at once."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import shutil
import subprocess

import numpy as np
import pytest

import ooc_cudnn
from perfmodel import MachineModel, shipped
from tests.support.left_behind import left_behind


def full_disk(descriptor, low, nbytes):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_an_error_before_anything_is_computed(monkeypatch, tmp_path, random):
    x = random.standard_normal((4, 4, 24, 16)).astype(np.float32)
    w = random.standard_normal((4, 4, 3, 3)).astype(np.float32)
    out = np.memmap(tmp_path / "y", np.float32, "w+", shape=x.shape)
    ooc_cudnn.settings(memory_limit="64KiB")
    expected = ooc_cudnn.convolution_forward(x, w, padding=1)
    monkeypatch.setattr(os, "posix_fallocate", full_disk)
    with pytest.raises(OSError, match="disk is full") as error:
        ooc_cudnn.convolution_forward(x, w, padding=1, out=out)
    assert error.value.errno == errno.ENOSPC
    assert left_behind() == []
    assert not out.any()
    monkeypatch.undo()
    assert ooc_cudnn.convolution_forward(x, w, padding=1, out=out) is out
    assert np.array_equal(out, expected)


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 512 KiB, where the tests may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_really_too_small(tiny_disk):
    """Without the check, the first write beyond it would end the process by a bus error."""
    ooc_cudnn.settings(memory_limit="512KiB")
    x, w = np.ones((16, 4, 64, 64), np.float32), np.ones((4, 4, 3, 3), np.float32)
    out = np.memmap(tiny_disk / "y", np.float32, "w+", shape=x.shape)
    with pytest.raises(OSError, match="disk is full") as error:
        ooc_cudnn.convolution_forward(x, w, padding=1, out=out)
    assert error.value.errno == errno.ENOSPC
    assert left_behind() == []
    assert ooc_cudnn.convolution_forward(x, w, padding=1)[0, 0, 1, 1] == 36


def _save_again_and_again(path, name, stop):
    model = shipped(name)
    while not stop.is_set():
        model.save(path)


def test_a_model_is_whole_while_others_calibrate(tmp_path):
    """Whoever reads it meanwhile has one process's model or the other's, never half of one."""
    path = tmp_path / "machines" / "this.json"
    shipped("host").save(path)
    whole = [shipped(name).to_json() for name in ("host", "h200")]
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    writers = [
        context.Process(target=_save_again_and_again, args=(path, name, stop))
        for name in ("host", "h200")
    ]
    for writer in writers:
        writer.start()
    seen = [whole.index(MachineModel.load(path).to_json())]
    try:
        # Until each has been found in place of the other many times, and read often.
        while len(seen) < 300 or sum(a != b for a, b in itertools.pairwise(seen)) < 10:
            seen.append(whole.index(MachineModel.load(path).to_json()))
            assert all(writer.is_alive() for writer in writers)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_calibration_that_is_given_up_leaves_the_last_one(tmp_path, monkeypatch):
    path = tmp_path / "this.json"
    shipped("host").save(path)

    def interrupted(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shipped("h200").save(path)
    monkeypatch.undo()
    assert MachineModel.load(path).to_json() == shipped("host").to_json()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
