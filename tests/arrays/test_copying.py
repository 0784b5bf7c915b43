"""`memcpy`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ooc_cudnn


def placed(array, where, path):
    if where == "disk":
        made = np.memmap(path, array.dtype, "w+", shape=array.shape)
    elif where == "pageable":
        made = np.empty_like(array)
    else:
        with ooc_cudnn.settings(memory_limit=1 if where == "pinned" else 2**20):
            made = ooc_cudnn.empty(array.shape, array.dtype)
    made[...] = array
    return made


PLACEMENTS = ("device", "pinned", "pageable", "disk")


@pytest.mark.parametrize(("to", "from_"), [*itertools.product(PLACEMENTS, PLACEMENTS)])
def test_memcpy_between_any_placements(tmp_path, random, to, from_):
    values = random.standard_normal((3, 4, 5)).astype("f4")
    source = placed(values, from_, tmp_path / "source")
    target = placed(np.full(values.shape, np.nan, "f4"), to, tmp_path / "target")
    assert ooc_cudnn.memcpy(target, source) is None
    assert np.array_equal(target, values)
    # Any strides.
    target[...] = np.nan
    ooc_cudnn.memcpy(target[::-1, ::2], source[:, 1::2, :])
    assert np.array_equal(target[::-1, ::2], values[:, 1::2])
    assert np.isnan(target[:, 1::2]).all()
    ooc_cudnn.memcpy(target, np.broadcast_to(np.float32(2), target.shape))
    assert (target == 2).all()


@pytest.mark.parametrize("nbytes", [8, 12, 2, 4096])
def test_memcpy_of_raw_bytes(random, nbytes):
    host = random.integers(0, 256, nbytes, "u1")
    device = ooc_cudnn.malloc(nbytes)
    back = np.zeros(nbytes, "u1")
    ooc_cudnn.memcpy(device, host)
    ooc_cudnn.memcpy(back, device)
    assert np.array_equal(back, host)


def test_memcpy_of_an_odd_number_of_bytes():
    host, device, back = np.arange(3, dtype="u1"), ooc_cudnn.malloc(3), np.zeros(3, "u1")
    ooc_cudnn.memcpy(device, host)
    ooc_cudnn.memcpy(back, device)
    assert np.array_equal(back, host)


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "i8", "c8", "c16", "M8[s]"])
def test_memcpy_of_any_dtype(dtype):
    source = np.arange(6, dtype="i8").astype(dtype).reshape(2, 3)
    target = np.zeros((3, 2), dtype).T
    ooc_cudnn.memcpy(target, source)
    assert np.array_equal(target, source)
    raw = ooc_cudnn.malloc(source.nbytes)
    assert ooc_cudnn.placement(raw) == "device"
    ooc_cudnn.memcpy(raw.view(dtype), source.ravel())
    back = np.zeros(6, dtype)
    ooc_cudnn.memcpy(back, raw.view(dtype))
    assert np.array_equal(back, source.ravel())


def test_memcpy_of_what_does_not_match():
    x = np.zeros((2, 3), "f4")
    with pytest.raises(ValueError, match=r"dst has shape \(2, 3\), src \(3, 2\)"):
        ooc_cudnn.memcpy(x, np.zeros((3, 2), "f4"))
    with pytest.raises(TypeError, match="dst is float32, src float64"):
        ooc_cudnn.memcpy(x, np.zeros((2, 3)))
    x.flags.writeable = False
    with pytest.raises(ValueError, match="dst is read-only"):
        ooc_cudnn.memcpy(x, np.zeros((2, 3), "f4"))
    with pytest.raises(TypeError, match="src must be"):
        ooc_cudnn.memcpy(np.zeros(1, "f4"), [1.0])
