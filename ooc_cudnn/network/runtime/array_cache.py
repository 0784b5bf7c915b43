"""Cache of array descriptors (address, strides), rebuilt only when an array moves."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any

from ooc_cudnn.arrays.operands import ArrayRef, address_of, array_ref
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.host.device import HostDeviceArray
from ooc_cudnn.tensor import TensorSpec


class ArrayCache:
    """Wraps the arrays that a network holds, call after call.

    A network has hundreds. Of an array on the device it keeps the address and the spec. Memory of
    the host is asked each time whether it is still pinned, but for arrays of the library's own.
    """

    def __init__(self) -> None:
        self._there: dict[str, tuple[Hashable, ArrayRef]] = {}
        self._own: dict[str, tuple[Hashable, ArrayRef]] = {}

    def __call__(self, name: str, array: Any, device: Device) -> ArrayRef:
        """An array, wrapped.

        Raises
        ------
        TypeError, ValueError
            As `array_ref`.
        """
        entry = self._own.get(name)
        if entry is not None and entry[1].array is array and entry[0] == _how(array, device):
            return entry[1]
        where = _where(array, device)
        known = self._there.get(name)
        if where is not None and known is not None and known[0] == where:
            return ArrayRef(array, known[1].spec, known[1].pointer)
        wrapped = array_ref(array, device, name=name)
        if where is not None:
            self._there[name] = where, wrapped._replace(array=None)
        return wrapped

    def note(self, name: str, array: Any, spec: TensorSpec, device: Device) -> None:
        """Take an array that the library has made, in pinned memory that nobody can unpin.

        It is pinned for that device; its owner may change its shape or dtype in place.
        """
        self._own[name] = _how(array, device), ArrayRef(array, spec, address_of(array))


def _where(array: Any, device: Device) -> Hashable:
    """The place and layout of an array on the device; None if it is not there."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        pointer = array.data.ptr
    elif device.kind == "host" and isinstance(array, HostDeviceArray):
        pointer = address_of(array)
    else:
        return None
    return pointer, _how(array, device)


def _how(array: Any, device: Device) -> Hashable:
    """The layout of an array, and the device that it is for."""
    return array.shape, array.strides, array.dtype, device.name
