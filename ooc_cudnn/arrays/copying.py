"""`memcpy`: copies between any two placements."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc_cudnn.arrays.operands import LocatedArray, check_writable, locate
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import open_run
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.settings import current
from ooc_cudnn.types import Array


def memcpy(dst: Array, src: Array) -> None:
    """Copy `src` to `dst`, between any two placements; returns when it is done.

    Parameters
    ----------
    dst, src : array
        Of one shape and dtype, whichever it is; any strides, any placements.

    Raises
    ------
    ValueError, TypeError
        If shapes or dtypes differ, or `dst` is read-only.
    """
    device = get_device(current().device)
    to = locate(dst, device, name="dst", written=True)
    from_ = locate(src, device, name="src")
    if to.array.shape != from_.array.shape:
        raise ValueError(f"dst has shape {to.array.shape}, src {from_.array.shape}")
    if to.array.dtype != from_.array.dtype:
        raise TypeError(f"dst is {to.array.dtype}, src {from_.array.dtype}")
    check_writable(to, name="dst")
    if 0 in to.array.shape:
        return
    if to.placement != "device" and from_.placement != "device":
        np.copyto(to.array, from_.array)
        return
    (inside, outside), stream = (_as_words(to), _as_words(from_)), "copy_in"
    if to.placement != "device":
        (inside, outside), stream = (outside, inside), "copy_out"
    with open_run(device, overlap=False, staged=True, timed=False) as run:
        if stream == "copy_in":
            run.submit(stream, (), lambda s: device.copy_in(inside, outside, s), signals=True)
        else:
            run.submit(stream, (), lambda s: device.copy_out(outside, inside, s), signals=True)
        run.finish(wait=True)


def _as_words(located: LocatedArray) -> Any:
    """The memory of an array of any dtype, as elements that copies know."""
    array = located.array
    if array.dtype.itemsize == 16:  # two words each
        array = array[..., None].view("float64")
    word = {1: "uint8", 2: "float16", 4: "float32", 8: "float64"}.get(array.dtype.itemsize)
    if word is None:
        raise TypeError(f"elements of {array.dtype.itemsize} bytes cannot be copied")
    if located.placement != "device":
        return array.view(word)
    strides = tuple(stride // array.dtype.itemsize for stride in array.strides)
    return DeviceView(located.pointer, word, tuple(array.shape), strides)
