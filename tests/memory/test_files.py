"""Which bytes of which file an array is, and room for them on the disk."""

from __future__ import annotations

import os

import numpy as np

from ooc_cudnn.memory.files import file_range, reserve_file


def test_file_range(tmp_path):
    path = tmp_path / "a"
    np.zeros(1000, "f4").tofile(path)
    mapped = np.memmap(path, "f4", "r+", offset=400, shape=(10, 20))
    assert file_range(mapped) == (str(path), 400, 1200)
    assert file_range(mapped[2:4]) == (str(path), 560, 720)
    assert file_range(mapped[::-1]) == (str(path), 400, 1200)
    assert file_range(mapped[:, 3]) == (str(path), 412, 400 + 9 * 80 + 16)
    assert file_range(np.asarray(mapped[2:])) == (str(path), 560, 1200)
    assert file_range(np.zeros(3)) is None
    again = np.memmap(path, "f4", "r+", offset=5000 - 4096, shape=(5,))
    assert file_range(again)[1:] == (904, 924)


def test_reserve_file_fills_holes_and_nothing_else(tmp_path):
    path = tmp_path / "sparse"
    mapped = np.memmap(path, "f4", "w+", shape=(1024, 1024))
    mapped[0, 0] = 5
    reserve_file(mapped[512:])
    blocks = os.stat(path).st_blocks * 512
    assert 2**21 <= blocks < 2**22
    assert os.stat(path).st_size == 2**22
    assert mapped[0, 0] == 5
    assert not mapped[512:].any()
    os.unlink(path)
    reserve_file(mapped)  # mapped and unlinked: nothing can be reserved by name
