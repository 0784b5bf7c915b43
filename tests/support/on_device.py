"""Arrays put on the device in use, and fetched from it: a card, or the host device's stand-in."""

from __future__ import annotations

import numpy as np

import ooc_cudnn
from ooc_cudnn.arrays.making import empty_in
from ooc_cudnn.devices import get_device
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import dtype_name


def on_the_device(array, order="channels_first"):
    """A copy on the device in use, in a memory order."""
    device = get_device(current().device)
    made = empty_in(device, "device", array.shape, dtype_name(array.dtype), order)
    ooc_cudnn.memcpy(made, array)
    assert ooc_cudnn.placement(made) == "device"
    return made


def fetched(array):
    """A copy in NumPy's memory."""
    found = np.empty(array.shape, array.dtype)
    ooc_cudnn.memcpy(found, array)
    return found
